// The phases of each call of a run on one time axis.

import { duration, time } from "../format";
import { plain } from "../text/escape";
import { Text, toneOf } from "../ui/basics";
import { now } from "../ui/clock";
import { type Bar, barsOf } from "./bars";
import type { RunModel } from "./model";

const STEPS_MS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5,
  432e5, 864e5,
];
const ROWS_MAX = 128;

interface Props {
  model: RunModel;
  chosen: string | undefined;
  onChoose: (call: string) => void;
}

export function Gantt({ model, chosen, onChoose }: Props) {
  const calls = [...model.calls.values()].slice(0, ROWS_MAX);
  const start = model.opened ?? Math.min(...calls.map((call) => call.opened), Date.now());
  // The clock ticks once a second, and an event may be newer.
  const newest = Math.max(start + 1, ...calls.map((call) => call.ended ?? 0));
  const until = model.ended ?? Math.max(now.value, newest);
  const span = Math.max(1, Math.max(until, ...calls.map((call) => call.ended ?? 0)) - start);
  const step = STEPS_MS.find((one) => span / one <= 8) ?? span / 8;
  const ticks: number[] = [];
  for (let at = 0; at <= span * 0.985; at += step) ticks.push(at);
  const left = (at: number) => `${(Math.max(0, Math.min(span, at - start)) / span) * 100}%`;
  const width = (from: number, to: number) =>
    `${(Math.max(0, Math.min(span, to - start) - Math.max(0, from - start)) / span) * 100}%`;
  return (
    <div class="gantt" role="table" aria-label="Phases of the calls">
      <div class="gantt-row gantt-axis" role="row">
        <span role="columnheader" class="gantt-name">
          Call
        </span>
        <span role="columnheader" class="gantt-track" aria-label="Time since the run was opened">
          {ticks.map((at) => (
            <span key={at} class="gantt-tick" style={{ left: `${(at / span) * 100}%` }}>
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
      {calls.map((call) => {
        const bars = barsOf(call, until);
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
          <div key={call.id} class={`gantt-row ${chosen === call.id ? "chosen" : ""}`} role="row">
            <span role="cell" class={`gantt-name tone-${tone}`}>
              <span class="dot" aria-hidden="true" />
              <button
                type="button"
                class="gantt-call"
                aria-pressed={chosen === call.id}
                title={plain(`${call.tool} ${call.id}`)}
                onClick={() => onChoose(call.id)}
              >
                <strong>
                  <Text>{call.tool}</Text>
                </strong>{" "}
                <span class="muted">
                  <Text>{call.id}</Text>
                </span>
              </button>
            </span>
            <span role="cell" class="gantt-track">
              {ticks.slice(1).map((at) => (
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
      })}
    </div>
  );
}

const LEGEND: [Bar["kind"], string][] = [
  ["wait", "turn and queue"],
  ["ask", "a person"],
  ["delay", "delayed"],
  ["run", "attempt"],
  ["failed", "failed attempt"],
  ["void", "withdrawn output"],
  ["speak", "has the floor"],
  ["stop", "cancelling"],
];

/** What the bars mean; only those that the run has. */
export function GanttLegend({ model }: { model: RunModel }) {
  const until = model.ended ?? Date.now();
  const kinds = new Set([...model.calls.values()].flatMap((call) => barsOf(call, until).map((bar) => bar.kind)));
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
