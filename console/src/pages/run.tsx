import { useSignal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { type Poll, usePoll } from "../api/poll";
import { useTraceUrl } from "../api/settings";
import type { FloorPolicy, WatchState } from "../api/watch";
import { count, shortId } from "../format";
import { href, route, setQuery } from "../router";
import { CallPanel } from "../run/call-panel";
import { CopyMenu } from "../run/copy-menu";
import { useRun } from "../run/follow";
import { Gantt, GanttLegend } from "../run/gantt";
import type { RunModel } from "../run/model";
import { Events, Stream } from "../run/stream";
import "../styles/page-run.css";
import { useShortcuts } from "../shortcuts";
import { safeLink } from "../text/escape";
import { ActionButton, Duration, Empty, ErrorBox, Fact, Id, StateBadge, Text, Time } from "../ui/basics";
import { confirmDialog } from "../ui/dialog";
import { JsonTree } from "../ui/json-tree";
import { announce } from "../ui/toast";

const FLOORS: [FloorPolicy, string][] = [
  ["FLOOR_POLICY_ARRIVAL", "by arrival"],
  ["FLOOR_POLICY_SUBMISSION", "by submission"],
  ["FLOOR_POLICY_INTERLEAVED", "interleaved"],
];
const TABS = ["output", "events", "state"] as const;
/** How soon the run itself is fetched after one of its events, and how often without any. */
const FETCH_MS = 2_000;
const UNCHANGED_MS = 30_000;

export function RunPage({ runId }: { runId: string }) {
  const { query } = route.value;
  const floor = FLOORS.find(([policy]) => policy === query.get("floor"))?.[0] ?? "FLOOR_POLICY_ARRIVAL";
  const tab = TABS.find((one) => one === query.get("tab")) ?? "output";
  const following = useRun(runId, floor);
  const summary = following.summary.value;
  const watching = following.state.value;
  const { model } = following;
  const isOver = watching.is === "ended";
  const fetched = useRef({ changes: 0, at: 0 });
  const run = usePoll(
    (signal) => {
      fetched.current = { changes: model.changes, at: Date.now() };
      return api.get("/v1/runs/{run_id}", { path: { run_id: runId }, signal });
    },
    isOver ? 60_000 : FETCH_MS,
    [runId, model.status],
    () => fetched.current.changes !== model.changes || Date.now() - fetched.current.at >= UNCHANGED_MS,
  );
  const stored = run.value.data?.run;
  const chosen = query.get("call") ?? firstWaiting(stored) ?? model.calls.keys().next().value;
  const choose = (call: string) => setQuery({ call });
  const unfolded = useSignal<string[]>([]);
  useShortcuts(
    [
      { keys: "]", label: "Next call", run: () => choose(beside(model, chosen, 1)) },
      { keys: "[", label: "Previous call", run: () => choose(beside(model, chosen, -1)) },
    ],
    [chosen, summary],
  );
  if (watching.is === "failed" && model.sequence === undefined) {
    return (
      <div class="page">
        <h1>Run</h1>
        <ErrorBox error={watching.error} />
        <p>
          <a href={href("runs")}>All runs</a>
        </p>
      </div>
    );
  }
  return (
    <div class="page fill run-page">
      <Head runId={runId} model={model} run={run} watching={watching} floor={floor} />
      <section class="panel gantt-panel" aria-label="Timeline">
        <header>
          <h2>Timeline</h2>
          <div class="aside">
            <GanttLegend model={model} stored={stored} />
          </div>
        </header>
        <Gantt model={model} stored={stored} chosen={chosen} onChoose={choose} unfolded={unfolded} />
      </section>
      <div class="run-columns">
        <section class="panel run-output" aria-label="Output">
          <header>
            <div class="tabs">
              {TABS.map((one) => (
                <button
                  key={one}
                  type="button"
                  aria-pressed={tab === one}
                  onClick={() => setQuery({ tab: one === "output" ? undefined : one })}
                >
                  {one === "output" ? "Output" : one === "events" ? "Events" : "State"}
                </button>
              ))}
            </div>
            <div class="aside">
              <span class="number">{model.sequence === undefined ? "" : `${count(model.sequence + 1)} events`}</span>
              <label class="floor">
                <span>Order</span>
                <select value={floor} onChange={(event) => setQuery({ floor: event.currentTarget.value })}>
                  {FLOORS.map(([policy, label]) => (
                    <option key={policy} value={policy}>
                      {label}
                    </option>
                  ))}
                </select>
              </label>
            </div>
          </header>
          <Dropped model={model} tab={tab} />
          {tab === "output" && <Stream key={floor} model={model} version={following.version} />}
          {tab === "events" && <Events key={floor} model={model} version={following.version} />}
          {tab === "state" && (
            <div class="run-state" tabIndex={0} role="region" aria-label="State of the run">
              {stored ? <JsonTree json={JSON.stringify(stored)} open={3} /> : <Empty>Not read yet.</Empty>}
            </div>
          )}
        </section>
        <section class="panel run-side" aria-label="Chosen call">
          {chosen ? (
            <CallPanel
              runId={runId}
              call={stored?.calls?.find((call) => call.call_id === chosen)}
              model={model.calls.get(chosen)}
              run={stored}
              onChanged={run.refresh}
            />
          ) : (
            <Empty>The run has no calls yet.</Empty>
          )}
        </section>
      </div>
    </div>
  );
}

function firstWaiting(run: Schemas["Run"] | undefined): string | undefined {
  return run?.calls?.find(
    (call) => call.state === "CALL_STATE_AWAITING_APPROVAL" || call.state === "CALL_STATE_WAITING_FOR_CLIENT",
  )?.call_id;
}

function beside(model: RunModel, chosen: string | undefined, step: number): string {
  const ids = [...model.calls.keys()];
  const at = ids.indexOf(chosen ?? "");
  return ids[Math.max(0, Math.min(ids.length - 1, at + step))] ?? "";
}

function Dropped({ model, tab }: { model: RunModel; tab: string }) {
  const dropped = tab === "events" ? model.droppedEvents : model.droppedItems;
  if (dropped === 0) return null;
  return (
    <p class="dropped">
      The first {count(dropped)} {tab === "events" ? "events" : "lines"} are not kept in this page; the run still has
      them.
    </p>
  );
}

interface HeadProps {
  runId: string;
  model: RunModel;
  run: Poll<Schemas["GetRunResponse"]>;
  watching: WatchState;
  floor: FloorPolicy;
}

function Head({ runId, model, run, watching, floor }: HeadProps) {
  const stored = run.value.data?.run;
  const status = model.status ?? stored?.status;
  const isOpen = model.ended === undefined && watching.is !== "ended";
  const cancel = async () => {
    const sure = await confirmDialog({
      title: "Cancel the run?",
      body: <p>Every call that has not ended is cancelled. What has ended keeps its result.</p>,
      confirm: "Cancel the run",
      danger: true,
    });
    if (!sure) return;
    await api.post("/v1/runs/{run_id}/cancel", {
      path: { run_id: runId },
      body: { reason: "cancelled in the console" },
    });
    announce("Cancellation stored", "good");
    run.refresh();
  };
  return (
    <header class="run-head">
      <div class="run-title">
        <h1>
          <span class="muted">Run</span> <span class="mono">{runId}</span>
        </h1>
        <StateBadge state={status} />
        <Live watching={watching} />
        <span class="actions">
          <CopyMenu run={stored} />
          <ActionButton operation="POST /v1/runs/{run_id}/cancel" kind="danger" disabled={!isOpen} onPress={cancel}>
            Cancel
          </ActionButton>
        </span>
      </div>
      <dl class="facts">
        <Fact name="Opened">
          <Time at={stored?.create_time ?? iso(model.opened)} age={isOpen} />
        </Fact>
        <Fact name={isOpen ? "Open for" : "Took"}>
          <Duration from={iso(model.opened)} to={iso(model.ended)} />
        </Fact>
        <Fact name="Calls">{model.calls.size}</Fact>
        {stored?.tenant && (
          <Fact name="Tenant">
            <a href={href("runs", { tenant: stored.tenant })}>
              <Text>{stored.tenant}</Text>
            </a>
          </Fact>
        )}
        {stored?.caller && (
          <Fact name="Caller">
            <Text>{stored.caller}</Text>
          </Fact>
        )}
        {isOpen && stored?.deadline && (
          <Fact name="Deadline">
            <Time at={stored.deadline} age />
          </Fact>
        )}
        {stored?.erase_time && (
          <Fact name="Erased">
            <Time at={stored.erase_time} age />
          </Fact>
        )}
        {stored?.parent?.run_id && (
          <Fact name="Made by">
            <Id id={stored.parent.run_id} to={href("runs", stored.parent.run_id)} />
          </Fact>
        )}
        {stored?.trace_id && (
          <Fact name="Trace">
            <Trace id={stored.trace_id} />
          </Fact>
        )}
        {floor !== "FLOOR_POLICY_ARRIVAL" && (
          <Fact name="Shown">{FLOORS.find(([policy]) => policy === floor)?.[1]}</Fact>
        )}
      </dl>
      {run.value.error && !run.value.error.isTransient && <ErrorBox error={run.value.error} />}
    </header>
  );
}

/** The trace of a run, as a link if the coordinator knows the address of traces. */
function Trace({ id }: { id: string }) {
  const link = safeLink((useTraceUrl() ?? "").replaceAll("{trace_id}", id));
  if (!link) return <Id id={id} />;
  return (
    <a class="id" href={link} title={id} rel="noopener noreferrer" target="_blank">
      {shortId(id)}
    </a>
  );
}

function iso(at: number | undefined): string | undefined {
  return at === undefined ? undefined : new Date(at).toISOString();
}

const LIVE = {
  connecting: "connecting",
  live: "live",
  reconnecting: "reconnecting",
  ended: "complete",
  failed: "stopped",
} as const;

/** Whether events arrive. A change is read out, once it has lasted for a moment. */
function Live({ watching }: { watching: WatchState }) {
  const [said, setSaid] = useState("");
  useEffect(() => {
    const timer = setTimeout(
      () => setSaid(watching.is === "reconnecting" ? "Reconnecting" : watching.is === "live" ? "Connected" : ""),
      1_500,
    );
    return () => clearTimeout(timer);
  }, [watching.is]);
  const why =
    watching.is === "reconnecting" ? watching.why : watching.is === "failed" ? watching.error.message : undefined;
  return (
    <span class={`live live-${watching.is}`} title={why}>
      <span class="dot" aria-hidden="true" />
      <span class="live-why">{why ? `${LIVE[watching.is]}: ${why}` : LIVE[watching.is]}</span>
      <span class="visually-hidden" role="status">
        {said}
      </span>
    </span>
  );
}
