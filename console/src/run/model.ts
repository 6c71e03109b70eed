// What the events of a run add up to: the state of each call with its phases, and the items of the output.

import type { Schemas } from "../api/client";
import type { RunEvent } from "../api/watch";
import { constant } from "../format";
import { type Line, Terminal } from "../text/ansi";
import type { Sized } from "../ui/virtual-list";

export type Content = Schemas["Content"];

export interface Attempt {
  number: number;
  worker: string;
  start: number;
  end?: number;
  error?: string;
  /** Its output is void. */
  withdrawn?: true;
  continues: boolean;
}

export interface CallModel {
  id: string;
  tool: string;
  index: number;
  askedBy: string;
  hidden: boolean;
  opened: number;
  notBefore?: number;
  approval?: { from: number; to?: number; approved?: boolean };
  waiting?: { from: number; to?: number };
  attempts: Attempt[];
  speaking?: number;
  cancelRequested?: number;
  cancelDelivered?: number;
  cancelAcknowledged?: number;
  ended?: number;
  outcome?: Schemas["CallOutcome"];
  progress?: Schemas["Progress"];
  /** Runs that it made. */
  children: string[];
  /** The arguments, if an event had them. */
  args?: string;
}

interface Base extends Sized {
  key: number;
  call: string;
}

export type Item =
  | (Base & { kind: "speaker"; tool: string; at: number })
  | (Base & { kind: "line"; attempt: number; channel: string; line: Line; withdrawn?: true })
  | (Base & { kind: "content"; attempt: number; channel: string; content: Content; withdrawn?: true })
  | (Base & { kind: "notice"; tone: "bad" | "late" | "ask" | "off"; text: string; at: number })
  | (Base & { kind: "ended"; outcome: Schemas["CallOutcome"]; at: number });

/** An event for the list of events: small, because there may be many. */
export interface Seen extends Sized {
  sequence: number;
  at: number;
  name: string;
  call: string;
  text: string;
}

/** Items that are kept. The oldest are dropped in lots, so that indexes rarely move. */
export const ITEMS_MAX = 100_000;
const ITEMS_LOT = 20_000;
const LINE_HEIGHT = 19;
const CHILD_RUN = /^run (run_[0-9a-z_]+)$/;

export class RunModel {
  readonly calls = new Map<string, CallModel>();
  items: Item[] = [];
  seen: Seen[] = [];
  /** How many items and events were dropped to bound memory. */
  droppedItems = 0;
  droppedEvents = 0;
  /** The number of the last event; undefined before the first. */
  sequence: number | undefined;
  opened: number | undefined;
  ended: number | undefined;
  status: string | undefined;
  version = 0;
  /** Counts up with each event that is no output: the run that is stored is another one. */
  changes = 0;
  private nextKey = 0;
  private readonly terminals = new Map<string, { terminal: Terminal; shown: number }>();

  /** Takes the next events. Events that were taken before are ignored. */
  take(batch: readonly RunEvent[]): void {
    for (const event of batch) {
      if (this.sequence !== undefined && event.sequence <= this.sequence) continue;
      this.sequence = event.sequence;
      this.event(event, Date.parse(event.time));
    }
    if (this.items.length > ITEMS_MAX + ITEMS_LOT) {
      this.items = this.items.slice(this.items.length - ITEMS_MAX);
      this.droppedItems += ITEMS_LOT;
    }
    if (this.seen.length > ITEMS_MAX + ITEMS_LOT) {
      this.seen = this.seen.slice(this.seen.length - ITEMS_MAX);
      this.droppedEvents += ITEMS_LOT;
    }
    this.version += 1;
  }

  private event(event: RunEvent, at: number): void {
    const one = event as unknown as Record<string, never>;
    const [name, value] = Object.entries(one).find(([key]) => key !== "sequence" && key !== "time") ?? ["", {}];
    const data = value as Record<string, unknown>;
    const call = (data["call_id"] as string | undefined) ?? "";
    this.seen.push({ sequence: event.sequence, at, name, call, text: summary(name, data), height: 24 });
    if (name !== "call_output") this.changes += 1;
    switch (name) {
      case "run_opened":
        this.opened = at;
        this.status ??= "RUN_STATUS_IN_PROGRESS";
        this.open((data["calls"] as Schemas["OpenedCall"][]) ?? [], at);
        return;
      case "calls_appended":
        this.open((data["calls"] as Schemas["OpenedCall"][]) ?? [], at);
        return;
      case "run_status_changed":
        this.status = data["status"] as string;
        return;
      case "run_ended":
        this.ended = at;
        this.status = data["status"] as string;
        return;
    }
    if (call !== "") this.callEvent(name, this.call(call, data, at), data, at);
  }

  private open(calls: Schemas["OpenedCall"][], at: number): void {
    for (const opened of calls) {
      const call = this.call(opened.call_id ?? "", opened as Record<string, unknown>, at);
      call.hidden = opened.hidden ?? false;
      call.askedBy = opened.asked_by_call_id ?? "";
      if (opened.not_before) call.notBefore = Date.parse(opened.not_before);
      if (opened.awaits_approval) call.approval = { from: at };
      if (opened.waits_for_client) call.waiting = { from: at };
    }
  }

  private call(id: string, data: Record<string, unknown>, at: number): CallModel {
    let call = this.calls.get(id);
    if (!call) {
      call = {
        id,
        tool: (data["tool"] as string | undefined) ?? "",
        index: this.calls.size,
        askedBy: "",
        hidden: false,
        opened: at,
        attempts: [],
        children: [],
      };
      this.calls.set(id, call);
    }
    if (call.tool === "" && typeof data["tool"] === "string") call.tool = data["tool"];
    return call;
  }

  private callEvent(name: string, call: CallModel, data: Record<string, unknown>, at: number): void {
    switch (name) {
      case "call_waiting":
        call.waiting = { from: call.waiting?.from ?? at };
        call.args = data["arguments"] as string;
        call.askedBy = (data["asked_by_call_id"] as string) ?? "";
        this.notice(call, "ask", call.askedBy ? `asks a question for ${call.askedBy}` : "waits for an answer", at);
        return;
      case "call_awaiting_approval":
        call.approval = { from: call.approval?.from ?? at };
        call.args = data["arguments"] as string;
        this.notice(call, "ask", "awaits approval", at);
        return;
      case "call_approved":
        call.approval = { from: call.approval?.from ?? at, to: at, approved: true };
        if (data["arguments"]) call.args = data["arguments"] as string;
        return;
      case "call_rejected":
        call.approval = { from: call.approval?.from ?? at, to: at, approved: false };
        return;
      case "attempt_started":
        call.attempts.push({
          number: data["attempt"] as number,
          worker: (data["worker_id"] as string) ?? "",
          start: at,
          continues: data["continues"] === true,
        });
        if ((data["attempt"] as number) > 1) this.notice(call, "late", `attempt ${data["attempt"]} begins`, at);
        return;
      case "attempt_ended": {
        const attempt = this.attempt(call, data["attempt"] as number, at);
        attempt.end = at;
        const error = data["error"] as Schemas["CallError"] | undefined;
        attempt.error = error?.message ?? "given back by its worker";
        this.notice(call, "bad", `attempt ${attempt.number} ended: ${attempt.error}`, at);
        return;
      }
      case "cancel_requested":
        call.cancelRequested = at;
        this.notice(call, "off", "cancel requested", at);
        return;
      case "cancel_delivered":
        call.cancelDelivered = at;
        return;
      case "cancel_acknowledged":
        call.cancelAcknowledged = at;
        return;
      case "call_speaking":
        call.speaking ??= at;
        this.push({ kind: "speaker", call: call.id, tool: call.tool, at, height: 30 });
        return;
      case "call_output":
        this.output(call, data as Schemas["CallOutput"]);
        return;
      case "call_output_withdrawn":
        this.withdraw(call, data["attempt"] as number, at);
        return;
      case "call_ended": {
        const outcome = (data["outcome"] as Schemas["CallOutcome"]) ?? {};
        call.ended = at;
        call.outcome = outcome;
        if (call.waiting && call.waiting.to === undefined) call.waiting.to = at;
        if (call.approval && call.approval.to === undefined) call.approval.to = at;
        const last = call.attempts.at(-1);
        if (last && last.end === undefined) last.end = at;
        this.push({ kind: "ended", call: call.id, outcome, at, height: 30 });
        for (const key of [...this.terminals.keys()]) if (key.startsWith(`${call.id}\n`)) this.terminals.delete(key);
        return;
      }
    }
  }

  private attempt(call: CallModel, number: number, at: number): Attempt {
    let attempt = call.attempts.find((one) => one.number === number);
    if (!attempt) {
      attempt = { number, worker: "", start: at, continues: false };
      call.attempts.push(attempt);
    }
    return attempt;
  }

  private output(call: CallModel, output: Schemas["CallOutput"]): void {
    const attempt = output.attempt ?? 0;
    const channel = output.channel ?? "";
    if ("progress" in output && output.progress) {
      call.progress = output.progress;
      const child = CHILD_RUN.exec(output.progress.message ?? "")?.[1];
      if (child && !call.children.includes(child)) call.children.push(child);
      return;
    }
    const content = "content" in output ? output.content : undefined;
    if (!content) return;
    if (!("text" in content) || content.text === undefined) {
      this.push({ kind: "content", call: call.id, attempt, channel, content, height: 80 });
      return;
    }
    const key = `${call.id}\n${attempt}\n${channel}`;
    let known = this.terminals.get(key);
    if (!known) {
      known = { terminal: new Terminal(), shown: 0 };
      this.terminals.set(key, known);
    }
    known.terminal.push(content.text);
    const { lines } = known.terminal;
    for (; known.shown < lines.length; known.shown += 1) {
      const line = lines[known.shown] as Line;
      this.push({ kind: "line", call: call.id, attempt, channel, line, height: LINE_HEIGHT });
    }
  }

  private withdraw(call: CallModel, number: number, at: number): void {
    this.attempt(call, number, at).withdrawn = true;
    let lines = 0;
    for (const item of this.items) {
      if ((item.kind === "line" || item.kind === "content") && item.call === call.id && item.attempt === number) {
        item.withdrawn = true;
        lines += 1;
      }
    }
    this.notice(
      call,
      "late",
      `output of attempt ${number} is withdrawn (${lines} ${lines === 1 ? "line" : "lines"})`,
      at,
    );
  }

  private notice(call: CallModel, tone: "bad" | "late" | "ask" | "off", text: string, at: number): void {
    this.push({ kind: "notice", call: call.id, tone, text, at, height: 26 });
  }

  private push(item: DistributiveOmit<Item, "key">): void {
    this.nextKey += 1;
    this.items.push({ ...item, key: this.nextKey } as Item);
  }
}

type DistributiveOmit<T, K extends PropertyKey> = T extends unknown ? Omit<T, K> : never;

const SUMMARY_MAX = 200;

/** One line about an event. */
function summary(name: string, data: Record<string, unknown>): string {
  const cut = (text: string) => (text.length > SUMMARY_MAX ? `${text.slice(0, SUMMARY_MAX)}…` : text);
  switch (name) {
    case "call_output": {
      const output = data as Schemas["CallOutput"] & { content?: Content; progress?: Schemas["Progress"] };
      const where = `attempt ${output.attempt ?? 0}, chunk ${output.chunk ?? 0}${output.channel ? `, ${output.channel}` : ""}`;
      if (output.progress)
        return `${where}: progress ${output.progress.done ?? 0}${output.progress.total ? ` of ${output.progress.total}` : ""} ${cut(output.progress.message ?? "")}`;
      const content = output.content as Record<string, unknown> | undefined;
      const text = (content?.["text"] ?? content?.["json"] ?? "bytes") as string;
      return `${where}: ${cut(text)}`;
    }
    case "attempt_started":
      return `attempt ${data["attempt"]} on ${data["worker_id"] || "a worker"}${data["continues"] ? ", continues" : ""}`;
    case "attempt_ended":
      return `attempt ${data["attempt"]}: ${cut((data["error"] as Schemas["CallError"] | undefined)?.message ?? "given back")}`;
    case "call_output_withdrawn":
      return `attempt ${data["attempt"]}`;
    case "call_ended": {
      const outcome = data["outcome"] as Schemas["CallOutcome"] | undefined;
      const word = constant(outcome?.state, "CALL_STATE_");
      return cut(
        `${word}${outcome?.error?.message ? `: ${outcome.error.message}` : ""}${outcome?.reason ? `: ${outcome.reason}` : ""}`,
      );
    }
    case "run_status_changed":
    case "run_ended":
      return constant(data["status"] as string, "RUN_STATUS_");
    case "call_waiting":
    case "call_awaiting_approval":
      return `${data["tool"]} ${cut((data["arguments"] as string) ?? "")}`;
    case "call_approved":
      return data["by_default"] ? "by default" : data["arguments"] ? "with other arguments" : "";
    case "call_rejected":
      return cut((data["reason"] as string) ?? "");
    case "run_opened":
    case "calls_appended":
      return `${((data["calls"] as unknown[]) ?? []).length} calls`;
    case "call_speaking":
      return (data["tool"] as string) ?? "";
    default:
      return "";
  }
}
