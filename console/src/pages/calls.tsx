import { useEffect, useMemo, useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { usePoll } from "../api/poll";
import { constant, count } from "../format";
import { each, jsonLines } from "../list/bulk";
import { createdOf, FilterBar, IdFilter, SinceFilter, TextFilter } from "../list/filters";
import { ListFooter } from "../list/footer";
import { PAGE_ROWS, usePages } from "../list/pages";
import "../styles/page-lists.css";
import { href, route, setQuery } from "../router";
import {
  ActionButton,
  Chip,
  Duration,
  ErrorBox,
  FilterChip,
  Id,
  Page,
  StateBadge,
  Text,
  Time,
  toneOf,
} from "../ui/basics";
import { confirmDialog } from "../ui/dialog";
import { type Column, Table } from "../ui/table";
import { saveBlob } from "../ui/terminal-text";
import { announce } from "../ui/toast";

type Call = Schemas["ListedCall"];

const STATES = [
  "ACCEPTED",
  "DELAYED",
  "QUEUED",
  "RUNNING",
  "AWAITING_APPROVAL",
  "WAITING_FOR_CLIENT",
  "COMPLETED",
  "FAILED",
  "CANCELLED",
  "EXPIRED",
] as const;
const OPEN: readonly string[] = STATES.slice(0, 6);
const ROWS_WANTED = 60;

const keyOf = (listed: Call) => `${listed.run_id} ${listed.call?.call_id}`;

const COLUMNS: Column<Call>[] = [
  { key: "state", title: "State", width: "12rem", cell: ({ call }) => <StateBadge state={call?.state} /> },
  {
    key: "tool",
    title: "Tool",
    width: "minmax(9rem, 1fr)",
    cell: ({ call, run_id }) => (
      <a href={href("runs", run_id ?? "", { call: call?.call_id })}>
        <Text>{call?.tool ?? ""}</Text>
      </a>
    ),
  },
  {
    key: "call",
    title: "Call",
    width: "minmax(8rem, 1fr)",
    cell: ({ call }) => (
      <span class="mono">
        <Text>{call?.call_id ?? ""}</Text>
      </span>
    ),
  },
  {
    key: "run",
    title: "Run",
    width: "7.5rem",
    cell: ({ run_id }) => <Id id={run_id ?? ""} to={href("runs", run_id ?? "")} />,
  },
  { key: "pool", title: "Pool", width: "8rem", cell: ({ call }) => <Text>{call?.pool || "–"}</Text> },
  { key: "tenant", title: "Tenant", width: "8rem", cell: ({ tenant }) => <Text>{tenant || "–"}</Text> },
  { key: "attempts", title: "Attempts", width: "6rem", align: "end", cell: ({ call }) => call?.attempts ?? 0 },
  { key: "error", title: "Error", width: "minmax(8rem, 1fr)", cell: ({ call }) => <Trouble call={call} /> },
  { key: "created", title: "Created", width: "8.5rem", cell: ({ create_time }) => <Time at={create_time} age /> },
  {
    key: "took",
    title: "Took",
    width: "6rem",
    align: "end",
    cell: ({ create_time, call }) => <Duration from={create_time} to={call?.end_time} />,
  },
];

function Trouble({ call }: { call: Schemas["CallSummary"] | undefined }) {
  const kind = constant(call?.error_kind, "CALL_ERROR_KIND_");
  return (
    <>
      {call?.parked && <Chip tone="bad">parked</Chip>} {kind !== "unspecified" && kind}
    </>
  );
}

function matches({ call, run_id }: Call, pool: string, id: string): boolean {
  if (pool !== "" && call?.pool !== pool) return false;
  return id === "" || (run_id ?? "").includes(id) || (call?.call_id ?? "").includes(id);
}

export function CallsPage() {
  const { query } = route.value;
  const state = STATES.find((one) => one.toLowerCase() === query.get("state"));
  const [tenant, tool] = [query.get("tenant") ?? "", query.get("tool") ?? ""];
  const [pool, id] = [query.get("pool") ?? "", query.get("id") ?? ""];
  const parked = query.get("parked") === "1";
  const created = useMemo(
    () => createdOf(query, Date.now()),
    [query.get("since"), query.get("from"), query.get("before")],
  );
  const filter = { tenant, tool, ...created, ...(state ? { state: `CALL_STATE_${state}` as const } : {}) };
  const list = usePages<Call>(
    async (page_token, signal) => {
      const answer = await api.get("/v1/calls", {
        query: { page_size: PAGE_ROWS, page_token, ...filter, ...(parked ? { parked } : {}) },
        signal,
      });
      const { coverage } = answer;
      return {
        rows: answer.calls ?? [],
        next: answer.next_page_token ?? "",
        incomplete: coverage?.complete === false,
        cutBefore: coverage?.cut_before,
      };
    },
    keyOf,
    [state, tenant, tool, parked, created],
  );
  const listed = list.state.value;
  const isLocal = pool !== "" || id !== "";
  const rows = useMemo(
    () => (isLocal ? listed.rows.filter((call) => matches(call, pool, id)) : listed.rows),
    [listed.rows, pool, id],
  );
  useEffect(() => {
    if (isLocal) list.loadUntil((all) => all.filter((call) => matches(call, pool, id)).length >= ROWS_WANTED);
  }, [list, pool, id, isLocal]);
  const counts = usePoll((signal) => api.get("/v1/counts", { query: { tenant }, signal }), 2_000, [tenant]);
  const countOf = (one: string) =>
    counts.value.data?.calls?.find((each) => each.state === `CALL_STATE_${one}`)?.count ?? 0;
  const [selected, setSelected] = useState<Set<string>>(new Set());
  useEffect(() => setSelected(new Set()), [list]);
  const chosen = rows.filter((call) => selected.has(keyOf(call)));
  const open = chosen.filter(({ call }) => OPEN.includes((call?.state ?? "").replace("CALL_STATE_", "")));
  const redrivable = chosen.filter(({ call }) => call?.parked);

  const path = (call: Call) => ({ run_id: call.run_id ?? "", call_id: call.call?.call_id ?? "" });
  const cancel = async () => {
    if (open.length > 0) {
      await each(open, "Cancelled", (call) =>
        api.post("/v1/runs/{run_id}/calls/{call_id}/cancel", {
          path: path(call),
          body: { reason: "cancelled in the console" },
        }),
      );
    } else await cancelMatching({ ...filter, all: !tenant && !tool && !state && Object.keys(created).length === 0 });
    setSelected(new Set());
    list.refresh();
  };
  const redrive = async () => {
    await each(redrivable, "Redriven", (call) =>
      api.post("/v1/runs/{run_id}/calls/{call_id}/redrive", { path: path(call) }),
    );
    setSelected(new Set());
    list.refresh();
  };
  const exportRows = async () => {
    if (selected.size === 0) await list.loadUntil(() => false, 500);
    const all = list.state.value.rows.filter((call) => !isLocal || matches(call, pool, id));
    saveBlob(jsonLines(selected.size === 0 ? all : all.filter((call) => selected.has(keyOf(call)))), "calls.jsonl");
  };
  const canCancelMatching = selected.size === 0 && !isLocal && !parked && (state === undefined || OPEN.includes(state));
  return (
    <Page
      title="Calls"
      fill
      actions={
        <>
          <ActionButton
            operation={selected.size > 0 ? "POST /v1/runs/{run_id}/calls/{call_id}/cancel" : "POST /v1/calls/cancel"}
            kind="danger"
            disabled={selected.size > 0 ? open.length === 0 : !canCancelMatching}
            onPress={cancel}
          >
            {selected.size > 0 ? `Cancel ${open.length}` : "Cancel all that match"}
          </ActionButton>
          <ActionButton
            operation="POST /v1/runs/{run_id}/calls/{call_id}/redrive"
            disabled={redrivable.length === 0}
            onPress={redrive}
          >
            Redrive {redrivable.length > 0 ? redrivable.length : ""}
          </ActionButton>
          <button type="button" onClick={exportRows} title="As JSON lines: the chosen rows, or up to 100,000">
            Export
          </button>
        </>
      }
    >
      <div class="chips" role="group" aria-label="Calls by state">
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
        <FilterChip
          on={parked}
          tone="bad"
          count={counts.value.data?.parked ?? 0}
          onPress={() => setQuery({ parked: parked ? undefined : "1" })}
        >
          parked
        </FilterChip>
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
        label="Calls"
        columns={COLUMNS}
        rows={rows}
        keyOf={keyOf}
        hrefOf={({ run_id, call }) => href("runs", run_id ?? "", { call: call?.call_id })}
        selected={selected}
        onSelect={setSelected}
        onEnd={() => list.loadMore()}
        empty={listed.loading ? "Reading …" : "No call matches."}
        footer={<ListFooter listed={listed} shown={rows.length} local={isLocal} />}
      />
    </Page>
  );
}

/** Counts the calls that a filter would cancel, asks, and cancels them. */
async function cancelMatching(filter: Schemas["CancelCallsRequest"]): Promise<void> {
  const found = await api.post("/v1/calls/cancel", { body: { ...filter, dry_run: true } });
  const number = found.calls?.length ?? 0;
  if (number === 0) {
    announce("No call that has not ended matches", "good");
    return;
  }
  const sure = await confirmDialog({
    title: `Cancel ${found.incomplete ? "more than " : ""}${count(number)} ${number === 1 ? "call" : "calls"}?`,
    body: (
      <p>
        All calls that match the filters and have not ended are cancelled. Calls that are accepted meanwhile may be too.
      </p>
    ),
    confirm: "Cancel them",
    danger: true,
  });
  if (!sure) return;
  const done = await api.post("/v1/calls/cancel", { body: { ...filter, reason: "cancelled in the console" } });
  announce(`Cancelled: ${count(done.calls?.length ?? 0)}${done.incomplete ? ", and more match" : ""}`, "good");
}
