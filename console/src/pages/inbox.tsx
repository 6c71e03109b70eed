// What waits for a person: approvals and questions of all runs.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { usePoll } from "../api/poll";
import { openLinkDialog } from "../inbox/link-dialog";
import { neighbour, preview, rowKey } from "../inbox/rows";
import { TextFilter } from "../list/filters";
import { ListFooter } from "../list/footer";
import { PAGE_ROWS, usePages } from "../list/pages";
import { href, navigate, route, setQuery } from "../router";
import { useShortcuts } from "../shortcuts";
import "../styles/page-inbox.css";
import "../styles/page-lists.css";
import { AnswerForm, ApproveForm, useTool } from "../ui/act";
import { Chip, Empty, ErrorBox, Fact, FilterChip, Id, Page, StateBadge, Text, Time } from "../ui/basics";
import { JsonTree } from "../ui/json-tree";

type Call = Schemas["ListedCall"];

const APPROVAL = "CALL_STATE_AWAITING_APPROVAL";
const ANSWER = "CALL_STATE_WAITING_FOR_CLIENT";
const DETAIL_MS = 3_000;

export function InboxPage() {
  const { query } = route.value;
  const kind = query.get("kind");
  const [tool, tenant] = [query.get("tool") ?? "", query.get("tenant") ?? ""];
  const only =
    kind === "approvals"
      ? ({ state: APPROVAL } as const)
      : kind === "answers"
        ? ({ state: ANSWER } as const)
        : { inbox: true };
  const list = usePages<Call>(
    async (page_token, signal) => {
      const answer = await api.get("/v1/calls", {
        query: { ...only, tool, tenant, page_size: PAGE_ROWS, page_token },
        signal,
      });
      return {
        rows: answer.calls ?? [],
        next: answer.next_page_token ?? "",
        incomplete: answer.coverage?.complete === false,
        cutBefore: undefined,
      };
    },
    rowKey,
    [kind, tool, tenant],
  );
  const listed = list.state.value;
  // What was done here leaves the list at once; the index follows a moment later.
  const [handled, setHandled] = useState<ReadonlySet<string>>(new Set());
  const rows = useMemo(() => listed.rows.filter((row) => !handled.has(rowKey(row))), [listed.rows, handled]);
  const counts = usePoll((signal) => api.get("/v1/counts", { query: { tenant }, signal }), 2_000, [tenant]);
  const data = counts.value.data;

  const named = query.get("run") ? `${query.get("run")} ${query.get("call")}` : undefined;
  const chosen = named ?? (rows[0] ? rowKey(rows[0]) : undefined);
  const [runId, ...rest] = (chosen ?? "").split(" ");
  const callId = rest.join(" ");
  const choose = (row: Call | undefined) => {
    setQuery({ run: row?.run_id, call: row?.call?.call_id });
  };
  // The call in view is kept in the address, so that a newer one does not take its place while somebody types.
  useEffect(() => {
    if (named === undefined && rows[0]) choose(rows[0]);
  }, [named, rows]);
  const move = (step: number) => choose(neighbour(rows, chosen, step) ?? rows[0]);
  useShortcuts(
    [
      { keys: "j", label: "Next call that waits", run: () => move(1) },
      { keys: "k", label: "Previous call that waits", run: () => move(-1) },
      { keys: "o", label: "Open the run", run: () => runId && navigate(href("runs", runId, { call: callId })) },
    ],
    [rows, chosen],
  );
  const onDone = () => {
    choose(neighbour(rows, chosen, 1) ?? neighbour(rows, chosen, -1));
    if (chosen !== undefined) setHandled(new Set(handled).add(chosen));
    list.refresh();
    counts.refresh?.();
  };
  const press = (one: string) => setQuery({ kind: kind === one ? undefined : one, run: undefined, call: undefined });
  return (
    <Page title="Inbox" fill>
      <div class="inbox-filters">
        <div class="chips" role="group" aria-label="What waits">
          <FilterChip
            on={kind === "approvals"}
            tone="ask"
            count={data?.awaiting_approval}
            onPress={() => press("approvals")}
          >
            approvals
          </FilterChip>
          <FilterChip
            on={kind === "answers"}
            tone="ask"
            count={data?.waiting_for_client}
            onPress={() => press("answers")}
          >
            answers
          </FilterChip>
        </div>
        <search class="filter-bar">
          <TextFilter name="tool" label="Tool" />
          <TextFilter name="tenant" label="Tenant" />
        </search>
      </div>
      <ErrorBox error={listed.error?.isTransient ? undefined : listed.error} />
      <div class="inbox">
        <section class="panel inbox-list" aria-label="Calls that wait">
          {rows.length === 0 ? (
            <Empty>{listed.loading ? "Reading …" : "Nothing waits for a person."}</Empty>
          ) : (
            <ul>
              {rows.map((row) => (
                <InboxRow key={rowKey(row)} row={row} isChosen={rowKey(row) === chosen} />
              ))}
            </ul>
          )}
          {listed.more && rows.length > 0 && (
            <button type="button" class="plain inbox-more" onClick={() => list.loadMore()}>
              Read more
            </button>
          )}
          <div class="table-foot">
            <ListFooter listed={listed} shown={rows.length} local={false} />
          </div>
        </section>
        <section class="panel inbox-detail" aria-label="Chosen call">
          {runId && callId ? (
            <Waiting key={chosen} runId={runId} callId={callId} onDone={onDone} />
          ) : (
            <Empty>Calls that need an approval, and questions of agents and tools, appear here while they wait.</Empty>
          )}
        </section>
      </div>
    </Page>
  );
}

function InboxRow({ row, isChosen }: { row: Call; isChosen: boolean }) {
  const { call, run_id } = row;
  const link = useRef<HTMLAnchorElement>(null);
  useEffect(() => {
    if (isChosen) link.current?.scrollIntoView({ block: "nearest" });
  }, [isChosen]);
  const query = Object.fromEntries(route.value.query);
  const to = href("inbox", { ...query, run: run_id, call: call?.call_id });
  return (
    <li>
      <a ref={link} class="inbox-row" href={to} aria-current={isChosen ? "true" : undefined}>
        <span class="inbox-row-head">
          <strong>
            <Text>{call?.tool ?? ""}</Text>
          </strong>
          <Chip tone="ask">
            {call?.state === APPROVAL ? "approval" : call?.asked_by_call_id ? "question" : "answer"}
          </Chip>
        </span>
        <span class="inbox-row-foot">
          <span class="mono">
            <Text>{call?.call_id ?? ""}</Text>
          </span>
          {row.tenant && <Text>{row.tenant}</Text>}
          <span class="inbox-row-age">
            <Time at={row.create_time} age />
          </span>
        </span>
      </a>
    </li>
  );
}

function Waiting({ runId, callId, onDone }: { runId: string; callId: string; onDone: () => void }) {
  const run = usePoll((signal) => api.get("/v1/runs/{run_id}", { path: { run_id: runId }, signal }), DETAIL_MS, [
    runId,
  ]);
  const { data, error } = run.value;
  const calls = data?.run?.calls ?? [];
  const call = calls.find((one) => one.call_id === callId);
  const args = call?.arguments ?? "";
  const manifest = useTool(call?.tool ?? "");
  const short = useMemo(() => preview(args), [args]);
  if (!call) {
    return (
      <div class="panel-body">
        {error ? (
          <ErrorBox error={error} onRetry={run.refresh} />
        ) : data ? (
          <Empty>The run has no such call.</Empty>
        ) : (
          <Empty>Reading …</Empty>
        )}
      </div>
    );
  }
  const isApproval = call.state === APPROVAL;
  const isAnswer = call.state === ANSWER;
  const tool = call.tool ?? "";
  const common = { runId, callId, tool, args };
  const done = () => {
    run.refresh();
    onDone();
  };
  const by = calls.find((one) => one.call_id === call.asked_by_call_id);
  const openLink = () =>
    openLinkDialog({ runId, callId, asked: { tool, args, outputSchema: manifest?.output_schema } });
  return (
    <>
      <header>
        <h2 class="inbox-title" title={short}>
          {by ? (
            <>
              Question of <Text>{by.tool}</Text>
            </>
          ) : (
            <Text>{manifest?.title || tool}</Text>
          )}
        </h2>
        <StateBadge state={call.state} />
      </header>
      <div class="panel-body inbox-body">
        {(isApproval || isAnswer) && manifest?.description && (
          <p class="muted inbox-description">
            <Text>{manifest.description.slice(0, 400)}</Text>
          </p>
        )}
        {isApproval && <ApproveForm {...common} onDone={done} />}
        {isAnswer && <AnswerForm {...common} onDone={done} />}
        {!isApproval && !isAnswer && (
          <>
            <p>
              This call does not wait any more.{" "}
              {call.decided && (
                <>
                  It was {call.decided.approved ? "approved" : "rejected"}
                  {call.decided.by_default ? " because nobody decided in time" : ""}
                  {call.decided.reason && (
                    <>
                      : <Text>{call.decided.reason}</Text>
                    </>
                  )}
                  .
                </>
              )}
            </p>
            <p>
              <a href={href("runs", runId, { call: callId })}>See the run</a>
            </p>
          </>
        )}
        {by && (
          <details class="inbox-asker">
            <summary>
              Asked by <Text>{by.tool}</Text>{" "}
              <span class="mono muted">
                <Text>{by.call_id}</Text>
              </span>
            </summary>
            <JsonTree json={by.arguments ?? "{}"} label="Arguments of the call that asks" />
          </details>
        )}
        <dl class="facts">
          <Fact name="Run">
            <Id id={runId} to={href("runs", runId, { call: callId })} />
          </Fact>
          <Fact name="Call">
            <span class="mono">
              <Text>{callId}</Text>
            </span>
          </Fact>
          <Fact name="Tool">
            {manifest ? (
              <a href={href("tools", tool)}>
                <Text>{tool}</Text>
              </a>
            ) : (
              <Text>{tool}</Text>
            )}
          </Fact>
          {data?.run?.tenant && (
            <Fact name="Tenant">
              <Text>{data.run.tenant}</Text>
            </Fact>
          )}
          {data?.run?.caller && (
            <Fact name="Caller">
              <Text>{data.run.caller}</Text>
            </Fact>
          )}
          <Fact name="Accepted">
            <Time at={call.create_time} age />
          </Fact>
          {(isApproval || isAnswer) && (
            <Fact name="Waits until">
              <Time at={isApproval ? call.approval_deadline : call.deadline} />{" "}
              <span class="muted">
                <Time at={isApproval ? call.approval_deadline : call.deadline} age />
              </span>
            </Fact>
          )}
        </dl>
        {isAnswer && (
          <div>
            <button type="button" onClick={openLink}>
              Have somebody else answer …
            </button>
          </div>
        )}
        <ErrorBox error={error?.isTransient ? undefined : error} />
      </div>
    </>
  );
}
