import { useEffect, useMemo, useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { usePoll } from "../api/poll";
import { constant, shortId } from "../format";
import { each, jsonLines } from "../list/bulk";
import { createdOf, FilterBar, IdFilter, SinceFilter, TextFilter } from "../list/filters";
import { ListFooter } from "../list/footer";
import { PAGE_ROWS, usePages } from "../list/pages";
import "../styles/page-lists.css";
import { href, route, setQuery } from "../router";
import { plain } from "../text/escape";
import { ActionButton, Duration, ErrorBox, FilterChip, Page, StateBadge, Text, Time, toneOf } from "../ui/basics";
import { confirmDialog } from "../ui/dialog";
import { type Column, Table } from "../ui/table";
import { saveBlob } from "../ui/terminal-text";

type Run = Schemas["RunSummary"];

const STATES = ["IN_PROGRESS", "REQUIRES_ACTION", "COMPLETED", "FAILED", "CANCELLED", "EXPIRED"] as const;
/** Rows that the filters of the page should leave at least, if there are as many. */
const ROWS_WANTED = 60;

const COLUMNS: Column<Run>[] = [
  { key: "state", title: "State", width: "11rem", cell: (run) => <StateBadge state={run.status} /> },
  {
    key: "id",
    title: "Run",
    width: "7.5rem",
    cell: (run) => (
      <a class="id" href={href("runs", run.run_id ?? "")} title={run.run_id}>
        {shortId(run.run_id ?? "")}
      </a>
    ),
  },
  { key: "calls", title: "Calls", width: "4rem", align: "end", cell: (run) => run.calls?.length ?? 0 },
  { key: "tools", title: "Tools", width: "minmax(12rem, 1fr)", cell: (run) => <Tools run={run} /> },
  { key: "tenant", title: "Tenant", width: "9rem", cell: (run) => <Text>{run.tenant || "–"}</Text> },
  { key: "pools", title: "Pools", width: "9rem", cell: (run) => <Text>{pools(run).join(", ") || "–"}</Text> },
  { key: "created", title: "Created", width: "8.5rem", cell: (run) => <Time at={run.create_time} age /> },
  {
    key: "took",
    title: "Took",
    width: "6rem",
    align: "end",
    cell: (run) => <Duration from={run.create_time} to={endOf(run)} />,
  },
];

function endOf(run: Run): string | undefined {
  if (run.status === "RUN_STATUS_IN_PROGRESS" || run.status === "RUN_STATUS_REQUIRES_ACTION") return undefined;
  const ends = (run.calls ?? []).map((call) => call.end_time ?? "").sort();
  return ends.at(-1) || run.create_time;
}

function pools(run: Run): string[] {
  return [...new Set((run.calls ?? []).map((call) => call.pool ?? "").filter((pool) => pool !== ""))];
}

const SQUARES_MAX = 24;

function Tools({ run }: { run: Run }) {
  const calls = run.calls ?? [];
  const names = [...new Set(calls.map((call) => call.tool ?? ""))];
  const words = calls.map((call) => `${call.tool} ${constant(call.state, "CALL_STATE_")}`).join(", ");
  return (
    <span class="tools-cell">
      <span class="squares" role="img" aria-label={plain(words)} title={plain(words)}>
        {calls.slice(0, SQUARES_MAX).map((call) => (
          <span key={call.call_id} class={`square tone-${toneOf(call.state)}`} />
        ))}
      </span>
      <Text>{names.join(", ")}</Text>
    </span>
  );
}

export function RunsPage() {
  const { query } = route.value;
  const state = STATES.find((one) => one.toLowerCase() === query.get("state"));
  const tenant = query.get("tenant") ?? "";
  const [tool, pool, id] = [query.get("tool") ?? "", query.get("pool") ?? "", query.get("id") ?? ""];
  const schedule = query.get("schedule") ?? "";
  const created = useMemo(
    () => createdOf(query, Date.now()),
    [query.get("since"), query.get("from"), query.get("before")],
  );
  const list = usePages<Run>(
    async (page_token, signal) => {
      const answer = await api.get("/v1/runs", {
        query: {
          page_size: PAGE_ROWS,
          page_token,
          tenant,
          schedule_id: schedule,
          ...created,
          ...(state ? { status: `RUN_STATUS_${state}` as const } : {}),
        },
        signal,
      });
      const { coverage } = answer;
      return {
        rows: answer.runs ?? [],
        next: answer.next_page_token ?? "",
        incomplete: coverage?.complete === false,
        cutBefore: coverage?.cut_before,
      };
    },
    (run) => run.run_id ?? "",
    [state, tenant, schedule, created],
  );
  const listed = list.state.value;
  const isLocal = tool !== "" || pool !== "" || id !== "";
  const rows = useMemo(
    () => (isLocal ? listed.rows.filter((run) => matches(run, tool, pool, id)) : listed.rows),
    [listed.rows, tool, pool, id],
  );
  useEffect(() => {
    if (isLocal) list.loadUntil((all) => all.filter((run) => matches(run, tool, pool, id)).length >= ROWS_WANTED);
  }, [list, tool, pool, id, isLocal]);
  const counts = usePoll((signal) => api.get("/v1/counts", { query: { tenant }, signal }), 2_000, [tenant]);
  const countOf = (one: string) =>
    counts.value.data?.runs?.find((count) => count.status === `RUN_STATUS_${one}`)?.count ?? 0;
  const [selected, setSelected] = useState<Set<string>>(new Set());
  useEffect(() => setSelected(new Set()), [list]);

  const cancel = async () => {
    const sure = await confirmDialog({
      title: `Cancel ${selected.size} ${selected.size === 1 ? "run" : "runs"}?`,
      body: <p>Every call of them that has not ended is cancelled. Runs that have ended stay as they are.</p>,
      confirm: "Cancel them",
      danger: true,
    });
    if (!sure) return;
    await each([...selected], "Cancelled", (run_id) =>
      api.post("/v1/runs/{run_id}/cancel", { path: { run_id }, body: { reason: "cancelled in the console" } }),
    );
    setSelected(new Set());
    list.refresh();
  };
  const exportRows = async () => {
    if (selected.size === 0) await list.loadUntil(() => false, 500);
    const all = list.state.value.rows.filter((run) => !isLocal || matches(run, tool, pool, id));
    const chosen = selected.size === 0 ? all : all.filter((run) => selected.has(run.run_id ?? ""));
    saveBlob(jsonLines(chosen), "runs.jsonl");
  };
  return (
    <Page
      title="Runs"
      fill
      actions={
        <>
          <ActionButton
            operation="POST /v1/runs/{run_id}/cancel"
            kind="danger"
            disabled={selected.size === 0}
            onPress={cancel}
          >
            Cancel {selected.size > 0 ? selected.size : ""}
          </ActionButton>
          <button type="button" onClick={exportRows} title="As JSON lines: the chosen rows, or up to 100,000">
            Export
          </button>
        </>
      }
    >
      <div class="chips" role="group" aria-label="Runs by state">
        {STATES.map((one) => (
          <FilterChip
            key={one}
            on={state === one}
            tone={toneOf(one)}
            count={countOf(one)}
            onPress={() => setQuery({ state: state === one ? undefined : one.toLowerCase() })}
          >
            {constant(one, "")}
          </FilterChip>
        ))}
      </div>
      <FilterBar>
        <IdFilter />
        <TextFilter name="tool" label="Tool" />
        <TextFilter name="tenant" label="Tenant" />
        <TextFilter name="pool" label="Pool" />
        <SinceFilter />
      </FilterBar>
      <ErrorBox error={listed.error?.isTransient ? undefined : listed.error} />
      <Table
        label="Runs"
        columns={COLUMNS}
        rows={rows}
        keyOf={(run) => run.run_id ?? ""}
        hrefOf={(run) => href("runs", run.run_id ?? "")}
        selected={selected}
        onSelect={setSelected}
        onEnd={() => list.loadMore()}
        empty={
          listed.loading
            ? "Reading …"
            : isFiltered(query)
              ? "No run matches the filters."
              : "No run yet. Start one: toolyard call bash command='echo hello'"
        }
        footer={<ListFooter listed={listed} shown={rows.length} local={isLocal} />}
      />
    </Page>
  );
}

function isFiltered(query: URLSearchParams): boolean {
  return [...query.keys()].length > 0;
}

function matches(run: Run, tool: string, pool: string, id: string): boolean {
  const calls = run.calls ?? [];
  if (tool !== "" && !calls.some((call) => (call.tool ?? "").includes(tool))) return false;
  if (pool !== "" && !calls.some((call) => call.pool === pool)) return false;
  return id === "" || (run.run_id ?? "").includes(id) || calls.some((call) => (call.call_id ?? "").includes(id));
}
