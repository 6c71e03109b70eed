// Calls that ended without a result although another attempt might have succeeded.

import { useEffect, useMemo, useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { usePoll } from "../api/poll";
import { constant } from "../format";
import { each } from "../list/bulk";
import { createdOf, FilterBar, SinceFilter, TextFilter } from "../list/filters";
import { ListFooter } from "../list/footer";
import { PAGE_ROWS, usePages } from "../list/pages";
import { href, navigate, route } from "../router";
import "../styles/page-lists.css";
import { ActionButton, ErrorBox, Id, Page, StateBadge, Text, Time } from "../ui/basics";
import { confirmDialog } from "../ui/dialog";
import { type Column, Table } from "../ui/table";
import { announce } from "../ui/toast";

type Call = Schemas["ListedCall"];

const keyOf = (listed: Call) => `${listed.run_id} ${listed.call?.call_id}`;
const hrefOf = ({ run_id, call }: Call) => href("runs", run_id ?? "", { call: call?.call_id });

const COLUMNS: Column<Call>[] = [
  {
    key: "tool",
    title: "Tool",
    width: "minmax(9rem, 1fr)",
    cell: (row) => (
      <a href={hrefOf(row)}>
        <Text>{row.call?.tool}</Text>
      </a>
    ),
  },
  { key: "state", title: "State", width: "8rem", cell: ({ call }) => <StateBadge state={call?.state} /> },
  {
    key: "error",
    title: "Error",
    width: "minmax(10rem, 1.2fr)",
    cell: ({ call }) => constant(call?.error_kind, "CALL_ERROR_KIND_").replace("unspecified", "") || "–",
  },
  { key: "attempts", title: "Attempts", width: "6.5rem", align: "end", cell: ({ call }) => call?.attempts ?? 0 },
  {
    key: "call",
    title: "Call",
    width: "minmax(8rem, 1fr)",
    cell: ({ call }) => (
      <span class="mono">
        <Text>{call?.call_id}</Text>
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
  { key: "ended", title: "Ended", width: "8.5rem", cell: ({ call }) => <Time at={call?.end_time} age /> },
];

export function ParkedPage() {
  const { query } = route.value;
  const [tool, tenant] = [query.get("tool") ?? "", query.get("tenant") ?? ""];
  const created = useMemo(
    () => createdOf(query, Date.now()),
    [query.get("since"), query.get("from"), query.get("before")],
  );
  const list = usePages<Call>(
    async (page_token, signal) => {
      const answer = await api.get("/v1/calls", {
        query: { parked: true, tool, tenant, ...created, page_size: PAGE_ROWS, page_token },
        signal,
      });
      return {
        rows: answer.calls ?? [],
        next: answer.next_page_token ?? "",
        incomplete: answer.coverage?.complete === false,
        cutBefore: answer.coverage?.cut_before,
      };
    },
    keyOf,
    [tool, tenant, created],
  );
  const listed = list.state.value;
  const counts = usePoll((signal) => api.get("/v1/counts", { query: { tenant }, signal }), 2_000, [tenant]);
  const [selected, setSelected] = useState<Set<string>>(new Set());
  useEffect(() => setSelected(new Set()), [list]);
  const chosen = listed.rows.filter((row) => selected.has(keyOf(row)));
  const done = () => {
    setSelected(new Set());
    list.refresh();
    counts.refresh();
  };
  const path = (row: Call) => ({ run_id: row.run_id ?? "", call_id: row.call?.call_id ?? "" });
  const redriveOne = (row: Call) => api.post("/v1/runs/{run_id}/calls/{call_id}/redrive", { path: path(row) });
  const redrive = async () => {
    const [only] = chosen;
    if (chosen.length === 1 && only) {
      const answer = await redriveOne(only);
      announce("Redriven in a new run", "good");
      if (answer.run?.run_id) navigate(href("runs", answer.run.run_id));
    } else await each(chosen, "Redriven", redriveOne);
    done();
  };
  const drop = async () => {
    const sure = await confirmDialog({
      title: chosen.length === 1 ? "Drop the call?" : `Drop ${chosen.length} calls?`,
      body: <p>A dropped call leaves this list for good and cannot be redriven. Its run keeps it, with its error.</p>,
      confirm: "Drop",
      danger: true,
    });
    if (!sure) return;
    await each(chosen, "Dropped", (row) => api.post("/v1/runs/{run_id}/calls/{call_id}/drop", { path: path(row) }));
    done();
  };
  const number = chosen.length > 0 ? ` ${chosen.length}` : "";
  const hint = chosen.length === 0 ? "Choose calls in the list first" : undefined;
  return (
    <Page
      title="Parked calls"
      fill
      actions={
        <>
          <ActionButton
            operation="POST /v1/runs/{run_id}/calls/{call_id}/redrive"
            kind="primary"
            disabled={chosen.length === 0}
            {...(hint ? { title: hint } : {})}
            onPress={redrive}
          >
            Redrive{number}
          </ActionButton>
          <ActionButton
            operation="POST /v1/runs/{run_id}/calls/{call_id}/drop"
            kind="danger"
            disabled={chosen.length === 0}
            {...(hint ? { title: hint } : {})}
            onPress={drop}
          >
            Drop{number}
          </ActionButton>
        </>
      }
    >
      <p class="muted page-note">
        These calls ended without a result although another attempt might have succeeded. Redriving executes tool and
        arguments again, in a new run; the old call keeps its error.
      </p>
      <FilterBar>
        <TextFilter name="tool" label="Tool" />
        <TextFilter name="tenant" label="Tenant" />
        <SinceFilter />
      </FilterBar>
      <ErrorBox error={listed.error?.isTransient ? undefined : listed.error} />
      <Table
        label="Parked calls"
        columns={COLUMNS}
        rows={listed.rows}
        keyOf={keyOf}
        hrefOf={hrefOf}
        selected={selected}
        onSelect={setSelected}
        onEnd={() => list.loadMore()}
        empty={listed.loading ? "Reading …" : "No call is parked."}
        footer={<ListFooter listed={listed} shown={listed.rows.length} local={false} />}
      />
    </Page>
  );
}
