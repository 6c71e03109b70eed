/** What a turn tells while its calls run, typed. */

import type { components } from "../openapi.js";

type Schemas = components["schemas"];

/** An event as the server sent it. */
export type RunEvent = Schemas["RunEvent"];
/** A part of a result or of output, as the API has it: text, JSON as text, bytes in base64, or a stored object. */
export type ApiContent = Schemas["Content"];
/** Why a call failed. */
export type CallError = Schemas["CallError"];

/** What an event needs to act on its run. */
export interface Deciding {
  decide(decisions: Schemas["CallDecision"][]): Promise<void>;
  submit(outputs: Schemas["ToolOutput"][]): Promise<void>;
}

/** Where an event stands in the run. */
export interface At {
  /** Its number. The run can be followed from here on: `resume(runId, { after: sequence })`. */
  readonly sequence: string;
  readonly event: RunEvent;
}

/** The run was accepted. Whatever happens now, each call ends once. */
export class Opened {
  readonly type = "opened";
  /** @internal */
  constructor(
    readonly at: At,
    readonly runId: string,
  ) {}
}

/** A piece of the output of a running call. */
export class Output {
  readonly type = "output";
  readonly callId: string;
  readonly tool: string;
  readonly attempt: number;
  /** Empty unless the tool has several streams, such as `stderr`. */
  readonly channel: string;
  readonly content: ApiContent;

  /** @internal */
  constructor(
    readonly at: At,
    output: Schemas["CallOutput"],
    content: ApiContent,
    tool: string,
  ) {
    this.callId = output.call_id ?? "";
    this.tool = tool;
    this.attempt = output.attempt ?? 0;
    this.channel = output.channel ?? "";
    this.content = content;
  }

  /** The piece as text: itself, its JSON, or an empty text for bytes. */
  get text(): string {
    return this.content.text ?? this.content.json ?? "";
  }
}

/** All output of a call so far is void: another attempt starts over. */
export class OutputWithdrawn {
  readonly type = "output_withdrawn";
  /** @internal */
  constructor(
    readonly at: At,
    readonly callId: string,
    readonly attempt: number,
  ) {}
}

/** How far a call is, in units of its tool. */
export class Progress {
  readonly type = "progress";
  /** @internal */
  constructor(
    readonly at: At,
    readonly callId: string,
    readonly done: number,
    readonly total: number | undefined,
    readonly message: string,
  ) {}
}

/** A call that does not run before a person approves it. */
export class NeedsApproval {
  readonly type = "needs_approval";
  readonly callId: string;
  readonly tool: string;
  /** The arguments, parsed. */
  readonly arguments: Record<string, unknown>;
  /** Who does not decide by then has decided: see `event.call_awaiting_approval.default`. */
  readonly deadline: string | undefined;
  readonly #run: Deciding;

  /** @internal */
  constructor(
    readonly at: At,
    waiting: Schemas["CallAwaitingApproval"],
    run: Deciding,
  ) {
    this.callId = waiting.call_id ?? "";
    this.tool = waiting.tool ?? "";
    this.arguments = parsed(waiting.arguments);
    this.deadline = waiting.deadline;
    this.#run = run;
  }

  /** Lets it run, with other arguments if they are given. */
  approve(changed?: Record<string, unknown>): Promise<void> {
    const approve = changed === undefined ? {} : { arguments: JSON.stringify(changed) };
    return this.#run.decide([{ call_id: this.callId, approve }]);
  }

  /** The model reads the reason. */
  reject(reason = ""): Promise<void> {
    return this.#run.decide([{ call_id: this.callId, reject: { reason } }]);
  }
}

/** A call that the client answers: one of the model, or a question of a running tool. */
export class NeedsAnswer {
  readonly type = "needs_answer";
  readonly callId: string;
  readonly tool: string;
  readonly arguments: Record<string, unknown>;
  /** The running call that asks; `undefined` for a call of the model. */
  readonly askedBy: string | undefined;
  readonly deadline: string | undefined;
  readonly #run: Deciding;

  /** @internal */
  constructor(
    readonly at: At,
    waiting: Schemas["CallWaiting"],
    run: Deciding,
  ) {
    this.callId = waiting.call_id ?? "";
    this.tool = waiting.tool ?? "";
    this.arguments = parsed(waiting.arguments);
    this.askedBy = waiting.asked_by_call_id || undefined;
    this.deadline = waiting.deadline;
    this.#run = run;
  }

  /** The text of a question, if there is one. */
  get message(): string | undefined {
    const { message, question } = this.arguments;
    const text = message ?? question;
    return typeof text === "string" ? text : undefined;
  }

  /** Answers with a text, or with a value that becomes JSON. */
  answer(value: unknown): Promise<void> {
    const content: ApiContent = typeof value === "string" ? { text: value } : { json: JSON.stringify(value ?? null) };
    return this.#run.submit([{ call_id: this.callId, result: [content] }]);
  }

  /** Declines a question of a tool. */
  decline(): Promise<void> {
    return this.answer({ action: "decline" });
  }

  /** The client cannot answer; the model, or the tool that asked, reads the reason. */
  fail(reason: string): Promise<void> {
    return this.#run.submit([{ call_id: this.callId, error: reason }]);
  }
}

/** A call ended. */
export class Ended {
  readonly type = "ended";
  readonly callId: string;
  readonly tool: string;
  readonly state: "completed" | "failed" | "cancelled" | "expired";
  /** The parts of its result, if it completed. */
  readonly result: ApiContent[];
  /** Why it failed, if it did. */
  readonly error: CallError | undefined;
  /** Why it was cancelled or which deadline it missed. */
  readonly reason: string | undefined;

  /** @internal */
  constructor(
    readonly at: At,
    callId: string,
    tool: string,
    outcome: Schemas["CallOutcome"],
  ) {
    this.callId = callId;
    this.tool = tool;
    this.state = finalState(outcome.state);
    this.result = outcome.result ?? [];
    this.error = outcome.error ?? undefined;
    this.reason = outcome.reason || undefined;
  }

  /** The result as text: its texts and its JSON. */
  get text(): string {
    return this.result.map((part) => part.text ?? part.json ?? part.object?.preview ?? "").join("");
  }
}

/** An event that has no class of its own here: starts of attempts, cancels, changes of the status. */
export class Other {
  readonly type = "other";
  /** @internal */
  constructor(readonly at: At) {}
}

export type TurnEvent = Opened | Output | OutputWithdrawn | Progress | NeedsApproval | NeedsAnswer | Ended | Other;

/** Reads an event. `tools` has the tools of the calls that were seen so far. */
export function read(event: RunEvent, sequence: string, tools: Map<string, string>, run: Deciding): TurnEvent {
  const at = { sequence, event };
  const has = event as unknown as Partial<Parts>;
  const part = <Name extends keyof Parts>(name: Name): Parts[Name] | undefined => has[name];
  const opened = part("run_opened");
  for (const call of opened?.calls ?? part("calls_appended")?.calls ?? []) {
    tools.set(call.call_id ?? "", call.tool ?? "");
  }
  if (opened) {
    return new Opened(at, opened.run_id ?? "");
  }
  const output = part("call_output");
  if (output?.content) {
    return new Output(at, output, output.content, tools.get(output.call_id ?? "") ?? "");
  }
  if (output?.progress) {
    const { done, total, message } = output.progress;
    return new Progress(at, output.call_id ?? "", done ?? 0, total ?? undefined, message ?? "");
  }
  const withdrawn = part("call_output_withdrawn");
  if (withdrawn) {
    return new OutputWithdrawn(at, withdrawn.call_id ?? "", withdrawn.attempt ?? 0);
  }
  const approval = part("call_awaiting_approval");
  if (approval) {
    return new NeedsApproval(at, approval, run);
  }
  const waiting = part("call_waiting");
  if (waiting) {
    return new NeedsAnswer(at, waiting, run);
  }
  const ended = part("call_ended");
  if (ended?.outcome) {
    return new Ended(at, ended.call_id ?? "", ended.tool ?? "", ended.outcome);
  }
  return new Other(at);
}

interface Parts {
  run_opened: Schemas["RunOpened"];
  calls_appended: Schemas["CallsAppended"];
  call_output: Schemas["CallOutput"];
  call_output_withdrawn: Schemas["CallOutputWithdrawn"];
  call_awaiting_approval: Schemas["CallAwaitingApproval"];
  call_waiting: Schemas["CallWaiting"];
  call_ended: Schemas["CallEnded"];
}

function finalState(state: Schemas["CallState"] | undefined): Ended["state"] {
  switch (state) {
    case "CALL_STATE_COMPLETED":
      return "completed";
    case "CALL_STATE_CANCELLED":
      return "cancelled";
    case "CALL_STATE_EXPIRED":
      return "expired";
    default:
      return "failed";
  }
}

function parsed(text: string | undefined): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text || "{}");
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}
