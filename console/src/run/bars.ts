// The phases of a call as bars on a time axis.

import type { CallModel } from "./model";

export interface Bar {
  kind: "wait" | "queue" | "delay" | "ask" | "run" | "failed" | "void" | "pause" | "speak" | "stop";
  from: number;
  to: number;
  label: string;
}

/**
 * The bars of a call. What is not over lasts until `until`. `queued`: when its turn came, which no event tells; undefined
 * if it is not known, or has not come.
 */
export function barsOf(call: CallModel, until: number, queued?: number): Bar[] {
  const end = call.ended ?? until;
  const bars: Bar[] = [];
  const add = (kind: Bar["kind"], from: number, to: number, label: string) => {
    if (to > from || kind === "run" || kind === "failed" || kind === "void")
      bars.push({ kind, from, to: Math.max(from, to), label });
  };
  const addWait = (from: number, to: number) => {
    const turn = queued === undefined ? to : Math.min(to, Math.max(from, queued));
    add("wait", from, turn, "waits for its turn");
    add("queue", turn, to, "is queued for a worker");
  };
  let at = call.opened;
  if (call.approval) {
    const to = call.approval.to ?? end;
    add(
      "ask",
      call.approval.from,
      to,
      call.approval.approved === false ? "awaited approval, rejected" : "awaits approval",
    );
    at = Math.max(at, to);
  }
  if (call.notBefore && call.notBefore > at) {
    const to = Math.min(call.notBefore, end);
    add("delay", at, to, "delayed");
    at = to;
  }
  if (call.waiting) {
    add("ask", call.waiting.from, call.waiting.to ?? end, "waits for its client");
    return finish(call, bars, end, until);
  }
  for (const [index, attempt] of call.attempts.entries()) {
    if (index === 0) addWait(at, attempt.start);
    else add("pause", at, attempt.start, "waits for the next attempt");
    const to = attempt.end ?? call.attempts[index + 1]?.start ?? end;
    const worker = attempt.worker ? ` on ${attempt.worker}` : "";
    const kind = attempt.withdrawn ? "void" : attempt.error ? "failed" : "run";
    add(
      kind,
      attempt.start,
      to,
      `attempt ${attempt.number}${worker}${attempt.error ? `: ${attempt.error}` : ""}${attempt.withdrawn ? ", output withdrawn" : ""}`,
    );
    at = Math.max(at, to);
  }
  if (call.attempts.length === 0) addWait(at, end);
  else if (call.attempts.length > 0 && end > at && call.attempts.at(-1)?.error)
    add("pause", at, end, "waits for the next attempt");
  return finish(call, bars, end, until);
}

function finish(call: CallModel, bars: Bar[], end: number, until: number): Bar[] {
  if (call.cancelRequested !== undefined)
    bars.push({ kind: "stop", from: call.cancelRequested, to: end, label: "is being cancelled" });
  if (call.speaking !== undefined)
    bars.push({ kind: "speak", from: Math.min(call.speaking, end), to: call.ended ?? until, label: "has the floor" });
  return bars;
}
