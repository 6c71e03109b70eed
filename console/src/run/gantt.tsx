// The phases of each call of a run on one time axis, with the runs that its calls made.

import type { Signal } from "@preact/signals";
import { type ComponentChildren, Fragment } from "preact";
import { api, type Schemas } from "../api/client";
import { usePoll } from "../api/poll";
import { duration, time } from "../format";
import { href, navigate } from "../router";
import { plain } from "../text/escape";
import { Id, StateBadge, Text, toneOf } from "../ui/basics";
import { now } from "../ui/clock";
import { type Bar, barsOf } from "./bars";
import { useRun } from "./follow";
import type { CallModel, RunModel } from "./model";

const STEPS_MS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5,
  432e5, 864e5,
];
const ROWS_MAX = 128;
/** Runs below that are unfolded at once. Each has a stream, and a browser keeps 6 connections to a server. */
const UNFOLDED_MAX = 3;
/** How often a run below is fetched while it is open. */
const BELOW_MS = 5_000;

interface Axis {
  start: number;
  span: number;
  until: number;
  ticks: number[];
}

interface Props {
  model: RunModel;
  /** The calls as they are stored. */
  stored: Schemas["Run"] | undefined;
  chosen: string | undefined;
  onChoose: (call: string) => void;
  /** The runs below whose calls are shown. */
  unfolded: Signal<string[]>;
}

function axisOf(model: RunModel, calls: CallModel[]): Axis {
  const start = model.opened ?? Math.min(...calls.map((call) => call.opened), Date.now());
  // The clock ticks once a second, and an event may be newer.
  const newest = Math.max(start + 1, ...calls.map((call) => call.ended ?? 0));
  const until = model.ended ?? Math.max(now.value, newest);
  const span = Math.max(1, Math.max(until, newest) - start);
  const step = STEPS_MS.find((one) => span / one <= 8) ?? span / 8;
  const ticks: number[] = [];
  for (let at = 0; at <= span * 0.985; at += step) ticks.push(at);
  return { start, span, until, ticks };
}

/** When the turn of each call came. */
function queuedOf(stored: Schemas["Run"] | undefined): Map<string, number> {
  const times = new Map<string, number>();
  for (const call of stored?.calls ?? [])
    if (call.queue_time) times.set(call.call_id ?? "", Date.parse(call.queue_time));
  return times;
}

export function Gantt(props: Props) {
  const axis = axisOf(props.model, [...props.model.calls.values()].slice(0, ROWS_MAX));
  return (
    <div class="gantt" role="table" aria-label="Phases of the calls">
      <div class="gantt-row gantt-axis" role="row">
        <span role="columnheader" class="gantt-name">
          Call
        </span>
        <span role="columnheader" class="gantt-track" aria-label="Time since the run was opened">
          {axis.ticks.map((at) => (
            <span key={at} class="gantt-tick" style={{ left: `${(at / axis.span) * 100}%` }}>
              {at === 0
                ? "0"
                : duration(at)
                    .replace(/(\.\d)0 |\.0+ /, "$1 ")
                    .replace(/ 0[smh]$/, "")}
            </span>
          ))}
        </span>
        <span role="columnheader" class="gantt-took">
          Took
        </span>
      </div>
      <Rows {...props} axis={axis} depth={0} />
    </div>
  );
}

function Rows({ model, stored, chosen, onChoose, unfolded, axis, depth }: Props & { axis: Axis; depth: number }) {
  const queued = queuedOf(stored);
  return (
    <>
      {[...model.calls.values()].slice(0, ROWS_MAX).map((call) => (
        <Fragment key={call.id}>
          <Row
            call={call}
            queued={queued.get(call.id)}
            axis={axis}
            depth={depth}
            isChosen={chosen === call.id}
            onChoose={() => onChoose(call.id)}
          />
          {call.children.map((child) => (
            <Below key={child} runId={child} unfolded={unfolded} axis={axis} depth={depth + 1} />
          ))}
        </Fragment>
      ))}
    </>
  );
}

interface RowProps {
  call: CallModel;
  queued: number | undefined;
  axis: Axis;
  depth: number;
  isChosen: boolean;
  onChoose: () => void;
}

function Row({ call, queued, axis, depth, isChosen, onChoose }: RowProps) {
  const { start, span, until } = axis;
  const left = (at: number) => `${(Math.max(0, Math.min(span, at - start)) / span) * 100}%`;
  const width = (from: number, to: number) =>
    `${(Math.max(0, Math.min(span, to - start) - Math.max(0, from - start)) / span) * 100}%`;
  const bars = barsOf(call, until, queued);
  const tone = toneOf(
    call.outcome?.state ??
      (call.attempts.length > 0
        ? "CALL_STATE_RUNNING"
        : call.waiting || (call.approval && !call.approval.to)
          ? "CALL_STATE_WAITING_FOR_CLIENT"
          : "CALL_STATE_QUEUED"),
  );
  const spoken = bars.map((bar) => `${bar.label} for ${duration(bar.to - bar.from)}`).join("; ");
  return (
    <div class={`gantt-row ${isChosen ? "chosen" : ""}`} role="row">
      <Name depth={depth}>
        <span class={`dot tone-${tone}`} aria-hidden="true" />
        <button
          type="button"
          class="gantt-call"
          aria-pressed={isChosen}
          title={plain(`${call.tool} ${call.id}`)}
          onClick={onChoose}
        >
          <strong>
            <Text>{call.tool}</Text>
          </strong>{" "}
          <span class="muted">
            <Text>{call.id}</Text>
          </span>
        </button>
      </Name>
      <span role="cell" class="gantt-track">
        {axis.ticks.slice(1).map((at) => (
          <span key={at} class="gantt-line" style={{ left: `${(at / span) * 100}%` }} />
        ))}
        {bars.map((bar, at) => (
          <span
            key={at}
            class={`bar bar-${bar.kind}`}
            title={plain(`${bar.label}: ${time(new Date(bar.from))}, ${duration(bar.to - bar.from)}`)}
            style={{ left: left(bar.from), width: width(bar.from, bar.to) }}
          />
        ))}
        {call.ended !== undefined && <span class={`bar-end tone-${tone}`} style={{ left: left(call.ended) }} />}
        <span class="visually-hidden">{plain(spoken)}</span>
      </span>
      <span role="cell" class="gantt-took number">
        {duration((call.ended ?? until) - call.opened)}
      </span>
    </div>
  );
}

/** The first cell of a row, moved in for the runs below. */
function Name({ depth, children }: { depth: number; children: ComponentChildren }) {
  return (
    <span role="cell" class="gantt-name" style={depth > 0 ? { paddingLeft: `${14 + Math.min(depth, 6) * 16}px` } : {}}>
      {children}
    </span>
  );
}

interface BelowProps {
  runId: string;
  unfolded: Signal<string[]>;
  axis: Axis;
  depth: number;
}

/** A run that a call made: a line that unfolds its calls. */
function Below({ runId, unfolded, axis, depth }: BelowProps) {
  const isOpen = unfolded.value.includes(runId);
  const toggle = () => {
    const others = unfolded.value.filter((one) => one !== runId);
    unfolded.value = isOpen ? others : [...others, runId].slice(-UNFOLDED_MAX);
  };
  return (
    <>
      <div class="gantt-row gantt-below" role="row">
        <Name depth={depth}>
          <button
            type="button"
            class="gantt-fold"
            aria-expanded={isOpen}
            aria-label={`${isOpen ? "Fold" : "Unfold"} ${runId}`}
            onClick={toggle}
          >
            {isOpen ? "▾" : "▸"}
          </button>
          <Id id={runId} to={href("runs", runId)} />
        </Name>
        <span role="cell" class="gantt-track" />
        <span role="cell" class="gantt-took" />
      </div>
      {isOpen && <Unfolded runId={runId} unfolded={unfolded} axis={axis} depth={depth} />}
    </>
  );
}

function Unfolded({ runId, unfolded, axis, depth }: BelowProps) {
  const { model, summary, state } = useRun(runId, "FLOOR_POLICY_ARRIVAL");
  const isOver = state.value.is === "ended";
  const run = usePoll(
    (signal) => api.get("/v1/runs/{run_id}", { path: { run_id: runId }, signal }),
    isOver ? 60_000 : BELOW_MS,
    [runId, model.status],
  );
  const { error } = run.value;
  if (summary.value === 0 || model.calls.size === 0) {
    return (
      <div class="gantt-row muted" role="row">
        <Name depth={depth + 1}>
          {error && !error.isTransient ? <Text>{error.message}</Text> : isOver ? "no calls" : "Reading …"}
        </Name>
        <span role="cell" class="gantt-track" />
        <span role="cell" class="gantt-took">
          <StateBadge state={model.status} />
        </span>
      </div>
    );
  }
  return (
    <Rows
      model={model}
      stored={run.value.data?.run}
      chosen={undefined}
      onChoose={(call) => navigate(href("runs", runId, { call }))}
      unfolded={unfolded}
      axis={model.ended === undefined ? axis : { ...axis, until: model.ended }}
      depth={depth}
    />
  );
}

const LEGEND: [Bar["kind"], string][] = [
  ["wait", "turn"],
  ["queue", "queue"],
  ["ask", "a person"],
  ["delay", "delayed"],
  ["run", "attempt"],
  ["failed", "failed attempt"],
  ["void", "withdrawn output"],
  ["speak", "has the floor"],
  ["stop", "cancelling"],
];

/** What the bars mean; only those that the run has. */
export function GanttLegend({ model, stored }: { model: RunModel; stored: Schemas["Run"] | undefined }) {
  const until = model.ended ?? Date.now();
  const queued = queuedOf(stored);
  const bars = [...model.calls.values()].flatMap((call) => barsOf(call, until, queued.get(call.id)));
  const kinds = new Set(bars.filter((bar) => bar.to > bar.from).map((bar) => bar.kind));
  return (
    <span class="legend">
      {LEGEND.filter(([kind]) => kinds.has(kind)).map(([kind, label]) => (
        <span key={kind}>
          <span class={`swatch bar-${kind}`} aria-hidden="true" /> {label}
        </span>
      ))}
    </span>
  );
}
