/** A turn of a model: its calls while they run, and the messages that answer it. */

import type { components } from "../openapi.js";
import { type AiToolMessage, asChat, asToolMessage, callsOf } from "./ai-sdk.js";
import { Condition } from "./condition.js";
import {
  type Deciding,
  Ended,
  NeedsAnswer,
  NeedsApproval,
  Opened,
  Other,
  type RunEvent,
  read,
  type TurnEvent,
} from "./events.js";
import { follow, type Message, type Patience, persist } from "./follow.js";
import { ToolyardError } from "./problem.js";
import { Readers } from "./readers.js";

type Schemas = components["schemas"];

/** The forms of turns. `ai-sdk` is that of Vercel's AI SDK. */
export type TurnFormat = "openai-chat" | "openai-responses" | "openai" | "anthropic" | "gemini" | "mcp" | "ai-sdk";

/** What may be said about a turn. Names of other members are those of `RunOptions` in the API. */
export interface TurnOptions {
  /** The form of the turn; recognised if it is left out. */
  format?: TurnFormat;
  /** Values for the tools, which the model does not see. A tool receives the keys that it declares. */
  context?: Record<string, unknown>;
  /** Files that the calls may open, by their names: bytes, which are uploaded, or objects. */
  files?: Record<string, Blob | Uint8Array | { objectId: string }>;
  /** An idempotency key: the same turn with the same key is executed once. Random if it is left out. */
  key?: string;
  /** `cancel`: this client cancels the run when it gives up by its `signal`. A killed client cancels nothing. */
  onDisconnect?: "cancel" | "continue";
  /** The tools that the calls may name. */
  tools?: string[];
  /** Calls that are approved with the request, by their ids; `all` for every call. */
  approve?: string[] | "all";
  /** `none`: calls of tools with the permission `EXTERNAL` do not wait for approval. */
  confirmation?: "ask" | "none";
  rules?: Schemas["RunRules"];
  requestTools?: Schemas["RequestTool"][];
  /** Seconds after which the run expires. */
  timeout?: number;
  tenant?: string;
  failFast?: boolean;
  /**
   * `false`: nothing of the run is kept after its end. Set `format` as well: if the connection breaks before the server
   * has named the form, the messages cannot be requested, because the turn is not sent again.
   */
  store?: boolean;
  /** Whose output is shown: of all calls at once (unless set), or of one call at a time. */
  order?: "interleaved" | "arrival" | "submission";
  /** Stops following. The run goes on, unless `onDisconnect` is `cancel`. */
  signal?: AbortSignal;
  /** How long to try while no connection is made, in milliseconds; 60,000 unless set. */
  retryForMs?: number;
  /**
   * Called for each call that awaits approval, also if nobody iterates, but not for those in `approve`. If it throws or
   * its promise is rejected, the turn fails.
   */
  onApproval?: (event: NeedsApproval) => unknown;
  /** Called for each call that the client answers, also if nobody iterates. A failure of it is one of the turn. */
  onQuestion?: (event: NeedsAnswer) => unknown;
}

/** Where to go on with a run. */
export interface ResumeOptions
  extends Pick<TurnOptions, "order" | "signal" | "retryForMs" | "onApproval" | "onQuestion"> {
  /** The form of the messages. */
  format: Exclude<TurnFormat, "ai-sdk">;
  /** The sequence of the last event that is known. It counts in the `order` in which the event came. */
  after?: string;
}

/** The answer to a turn. */
export interface TurnResult<M = unknown> {
  /** What the model's vendor wants next, in the order of the calls. */
  messages: M[];
  /** How each call of the model ended. */
  results: Ended[];
  /** Calls and questions that wait for somebody. It is empty unless the result is that of {@link Turn.settled}. */
  open: (NeedsApproval | NeedsAnswer)[];
  /** The turn requests nothing: the model has finished. */
  finish: boolean;
  /** The results are the answer, and the model need not be asked again. */
  returnDirect: boolean;
  format: TurnFormat;
  /** Missing if no call had to be executed. */
  runId: string | undefined;
  /** Parts of the turn that are not for Toolyard. */
  passedOver: { kind?: string; pointer?: string; reason?: string }[];
  /** Results for calls of earlier turns that never got one, if the turn was a conversation. */
  dangling: { after?: number; messages?: unknown[] }[];
}

/** Calls of a turn wait for somebody. Decide or answer by `open`, and `resume` the run. */
export class CallsWait extends Error {
  override readonly name = "CallsWait";

  /** @internal */
  constructor(
    readonly runId: string,
    readonly open: (NeedsApproval | NeedsAnswer)[],
  ) {
    const calls = open.map((event) => `${event.callId} (${event.tool})`).join(", ");
    super(`calls wait for somebody to act: ${calls}; give onApproval or onQuestion, or use turn()`);
  }
}

/** The batch answer of the server. */
interface Answer {
  messages: unknown[];
  complete: boolean;
  finish?: boolean;
  return_direct?: boolean;
  format: TurnFormat;
  run_id?: string;
  open_calls?: Schemas["Call"][];
  passed_over?: TurnResult["passedOver"];
  dangling?: TurnResult["dangling"];
}

/** The requests that a turn makes. */
export interface Requests {
  /** Sends a request; refusals are not thrown. */
  send(path: string, init: RequestInit): Promise<Response>;
  upload(data: Blob | Uint8Array): Promise<string>;
  json<T>(path: string, init: RequestInit): Promise<T>;
}

const POLICIES = {
  interleaved: "FLOOR_POLICY_INTERLEAVED",
  arrival: "FLOOR_POLICY_ARRIVAL",
  submission: "FLOOR_POLICY_SUBMISSION",
} as const;
/** How long one request waits for calls to end; then the run is followed by its events. */
const WAIT = "300s";
const RETRY_FOR_MS = 60_000;
/** How long a client that gives up tries to cancel its run. */
const GIVE_UP_MS = 10_000;

/** How a turn began. */
type Origin =
  | { readonly kind: "turn"; readonly message: object; readonly options: TurnOptions }
  | { readonly kind: "run"; readonly runId: string; readonly options: ResumeOptions };

/**
 * A turn on its way. Iterate it for its events, await it for its answer, or both, in any order. It begins when one of the
 * two is done, and connects again by itself.
 *
 * Each iterator gives all events from the first on. One that begins late, after more than 1,000 events, throws. While
 * nobody awaits the turn, it reads at most 1,000 events ahead of its slowest iterator. Once it is awaited it reads to
 * the end, and holds in memory what an iterator has not taken yet.
 */
export class Turn<M = unknown> implements AsyncIterable<TurnEvent>, PromiseLike<TurnResult<M>> {
  readonly #requests: Requests;
  readonly #origin: Origin;
  readonly #key: string;
  readonly #tools = new Map<string, string>();
  readonly #results = new Map<string, Ended>();
  readonly #questions = new Set<string>();
  readonly #waiting = new Map<string, NeedsApproval | NeedsAnswer>();
  /** Nothing goes on before somebody acts. */
  #waits = false;
  #runId: string | undefined;
  #last: string | undefined;
  #answer: Answer | undefined;
  #body: string | undefined;
  #result: Promise<TurnResult<M>> | undefined;
  #wasSent = false;
  /** The stream of the request has ended. Only that stream names the form that the server has recognised. */
  #wasContinued = false;
  #isOver = false;
  /** For {@link settled}: changed with `#waits`, `#answer`, `#wasContinued` and `#isOver`. */
  readonly #state = new Condition();
  readonly #readers = new Readers();
  #wasStopped = false;
  /** Aborted when the turn was stopped, or a callback failed: what it had to decide may wait for ever. */
  readonly #failed = new AbortController();
  readonly #signal: AbortSignal;

  /** @internal */
  constructor(requests: Requests, origin: Origin) {
    this.#requests = requests;
    this.#origin = origin;
    const { signal } = origin.options;
    this.#signal = signal ? AbortSignal.any([signal, this.#failed.signal]) : this.#failed.signal;
    this.#key = origin.kind === "turn" ? (origin.options.key ?? crypto.randomUUID()) : "";
    if (origin.kind === "run") {
      this.#runId = origin.runId;
      this.#last = origin.options.after;
    }
  }

  /** The id of the run, as soon as it was accepted. */
  get runId(): string | undefined {
    return this.#runId;
  }

  /** The sequence of the last event: with it another process can go on. */
  get sequence(): string | undefined {
    return this.#last;
  }

  // biome-ignore lint/suspicious/noThenProperty: a turn is awaited for its answer.
  then<A = TurnResult<M>, B = never>(
    done?: ((result: TurnResult<M>) => A | PromiseLike<A>) | null,
    failed?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    this.#readers.hurry();
    return this.#start().then(done, failed);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<TurnEvent, void> {
    const reader = this.#readers.begin();
    try {
      this.#start().then(
        () => reader.end(),
        (error: unknown) => reader.fail(error),
      );
      yield* reader;
    } finally {
      this.#readers.end(reader);
    }
  }

  /**
   * The answer, also if calls wait for somebody to act and nothing else goes on. Then they are in `open`, and the
   * messages are those of the other calls. Decide or answer, and call it again, or await the turn.
   */
  async settled(): Promise<TurnResult<M>> {
    // If the turn fails, awaiting it throws the error.
    this.#start().catch(() => {});
    await this.#state.until(() => this.#isOver || this.#canSettle());
    return this.#isOver ? await this : this.#concluded(await this.#messages("0s", false));
  }

  /** Whether calls wait for somebody, and the form of the messages is known, not needed, or will not be named. */
  #canSettle(): boolean {
    return this.#waits && (this.#mayBeSentAgain() || this.#form() !== undefined || this.#wasContinued);
  }

  /** Stops following, so that nothing of the turn keeps the process alive. The run goes on. */
  stop(): void {
    this.#wasStopped = true;
    this.#failed.abort(new DOMException("the turn is not followed any more", "AbortError"));
  }

  /** Cancels the run. Its calls end as cancelled. */
  async cancel(reason = "cancelled by the client"): Promise<void> {
    if (this.#runId === undefined) {
      await this.#opened();
    }
    await this.#requests.json(`/v1/runs/${this.#runId}/cancel`, post({ reason }));
  }

  /** Resolves when the run is known. */
  async #opened(): Promise<void> {
    for await (const event of this) {
      if (event instanceof Opened) {
        return;
      }
    }
    if (this.#runId === undefined) {
      throw new Error("the turn has no run: none of its calls had to be executed");
    }
  }

  #start(): Promise<TurnResult<M>> {
    this.#result ??= this.#pump();
    return this.#result;
  }

  async #pump(): Promise<TurnResult<M>> {
    try {
      for await (const event of this.#events()) {
        await this.#readers.push(event);
      }
      return await this.#conclude();
    } catch (error) {
      if (
        this.#signal.aborted &&
        !this.#wasStopped &&
        this.#origin.kind === "turn" &&
        this.#origin.options.onDisconnect === "cancel"
      ) {
        await this.#giveUp().catch(() => {});
      }
      throw error;
    } finally {
      this.#isOver = true;
      this.#state.changed();
    }
  }

  /** Cancels the run. The server does not do that when the connection ends, because another one may follow. */
  async #giveUp(): Promise<void> {
    const signal = AbortSignal.timeout(GIVE_UP_MS);
    const persisted = <T>(path: string, init: RequestInit) =>
      persist(() => this.#requests.json<T>(path, { ...init, signal }), { retryForMs: GIVE_UP_MS, signal });
    if (this.#runId === undefined && this.#wasSent) {
      // Nothing came back yet. The same request under its key says which run it is.
      this.#runId = (await persisted<Answer>(this.#batch({ wait: "0s" }), this.#turnRequest())).run_id;
    }
    if (this.#runId !== undefined) {
      await persisted(`/v1/runs/${this.#runId}/cancel`, post({ reason: "the client gave up" }));
    }
  }

  async *#events(): AsyncGenerator<TurnEvent, void> {
    if (this.#origin.kind === "turn") {
      this.#body = await this.#envelope(this.#origin.message, this.#origin.options);
    }
    for await (const message of follow(() => this.#open(), this.#patience())) {
      if (message.event === "messages") {
        this.#answer = JSON.parse(message.data) as Answer;
        this.#runId ??= this.#answer.run_id;
        this.#state.changed();
        if (this.#answer.complete) {
          return;
        }
      } else if (message.event === "end") {
        if ((JSON.parse(message.data) as { reason?: string }).reason === "STREAM_END_REASON_RUN_ENDED") {
          return;
        }
      } else {
        yield this.#read(message);
      }
    }
  }

  /** Begins a stream: with the turn while the run is not known, and then with the run from the last event on. */
  #open(): Promise<Response> {
    const { order = "interleaved" } = this.#origin.options;
    const headers = { accept: "text/event-stream" };
    const signal = this.#signal;
    const policy = POLICIES[order];
    if (this.#runId !== undefined) {
      this.#wasContinued = true;
      this.#state.changed();
      const path = `/v1/runs/${this.#runId}/events?floor_policy=${policy}`;
      const last = this.#last === undefined ? {} : { "last-event-id": this.#last };
      return this.#requests.send(path, { signal, headers: { ...headers, ...last } });
    }
    this.#wasSent = true;
    return this.#requests.send(this.#batch({ wait: WAIT, floor_policy: policy }), {
      signal,
      ...this.#turnRequest(headers),
    });
  }

  /** The turn under its key: sent again, it means the same run. */
  #turnRequest(headers: Record<string, string> = {}): RequestInit {
    const { body, method } = post(this.#body ?? "");
    const own = { "content-type": "application/json", "idempotency-key": this.#key };
    return { ...(method && { method }), ...(body && { body }), headers: { ...own, ...headers } };
  }

  #patience(): Patience {
    const { retryForMs = RETRY_FOR_MS } = this.#origin.options;
    return { retryForMs, signal: this.#signal };
  }

  /** A request that does no harm when it is repeated. */
  #persist<T>(path: string, init: RequestInit, signal = this.#signal): Promise<T> {
    return persist(() => this.#requests.json<T>(path, { ...init, signal }), { ...this.#patience(), signal });
  }

  #read(message: Message): TurnEvent {
    const event = read(JSON.parse(message.data) as RunEvent, message.id ?? "", this.#tools, this.#deciding());
    this.#last = message.id ?? this.#last;
    const { onApproval, onQuestion } = this.#origin.options;
    if (event instanceof Opened) {
      this.#runId = event.runId;
    } else if (event instanceof NeedsApproval) {
      this.#waiting.set(event.callId, event);
      if (!this.#isApproved(event.callId)) {
        this.#callback(onApproval, event);
      }
    } else if (event instanceof NeedsAnswer) {
      this.#waiting.set(event.callId, event);
      if (event.askedBy !== undefined) {
        this.#questions.add(event.callId);
      }
      this.#callback(onQuestion, event);
    } else if (event instanceof Ended && !this.#questions.has(event.callId)) {
      this.#results.set(event.callId, event);
    }
    this.#notice(event);
    return event;
  }

  /** Keeps what waits for somebody up to date. */
  #notice(event: TurnEvent): void {
    if (event instanceof Ended) {
      this.#waiting.delete(event.callId);
    } else if (event instanceof Other) {
      const decided = other(event, "call_approved") ?? other(event, "call_rejected");
      this.#waiting.delete(decided?.call_id ?? "");
      const changed = other(event, "run_status_changed");
      if (changed) {
        this.#waits = changed.status === "RUN_STATUS_REQUIRES_ACTION" && this.#waiting.size > 0;
        this.#state.changed();
      }
    }
  }

  /** The request has approved the call, which the server tells a moment later. */
  #isApproved(callId: string): boolean {
    const { approve = [] } = this.#origin.kind === "turn" ? this.#origin.options : {};
    return approve === "all" || approve.includes(callId);
  }

  /** Events go on meanwhile: a person may take long. */
  async #callback<E>(callback: ((event: E) => unknown) | undefined, event: E): Promise<void> {
    try {
      await callback?.(event);
    } catch (error) {
      this.#failed.abort(error);
    }
  }

  #deciding(): Deciding {
    // Also if the turn was stopped, because the run goes on.
    const { signal = new AbortController().signal } = this.#origin.options;
    // From now on nobody is waited for.
    const acted = (ids: { call_id?: string }[]) => {
      for (const { call_id = "" } of ids) {
        this.#waiting.delete(call_id);
      }
      this.#waits &&= this.#waiting.size > 0;
    };
    return {
      decide: async (decisions) => {
        acted(decisions);
        await this.#persist(`/v1/runs/${this.#runId}/decisions`, post({ decisions }), signal);
      },
      submit: async (outputs) => {
        acted(outputs);
        await this.#persist(`/v1/runs/${this.#runId}/outputs`, post({ outputs }), signal);
      },
    };
  }

  /** The answer, once every call has ended. */
  async #conclude(): Promise<TurnResult<M>> {
    const answer = this.#answer?.complete ? this.#answer : await this.#messages("30s", true);
    if (this.#origin.kind === "run" && this.#runId !== undefined) {
      await this.#missed(this.#runId);
    }
    return this.#concluded(answer);
  }

  #concluded(answer: Answer): TurnResult<M> {
    const results = [...this.#results.values()];
    const common = {
      results,
      open: [...this.#waiting.values()],
      finish: answer.finish ?? false,
      returnDirect: answer.return_direct ?? false,
      runId: this.#runId,
      passedOver: answer.passed_over ?? [],
      dangling: answer.dangling ?? [],
    };
    const calls = this.#aiCalls();
    if (calls !== undefined) {
      const answers: AiToolMessage[] = calls.length > 0 ? [asToolMessage(calls, answer.messages, results)] : [];
      return { ...common, messages: answers as M[], format: "ai-sdk" };
    }
    return { ...common, messages: answer.messages as M[], format: answer.format };
  }

  async #messages(wait: string, isWhole: boolean): Promise<Answer> {
    const [path, init] = this.#messagesRequest(wait);
    for (;;) {
      const answer = await this.#persist<Answer>(path, init);
      if (answer.complete || !isWhole) {
        return answer;
      }
    }
  }

  /** The turn under its key again, whose answer also has what was passed over; or else a request about the run. */
  #messagesRequest(wait: string): [path: string, init: RequestInit] {
    if (this.#mayBeSentAgain()) {
      return [this.#batch({ wait }), this.#turnRequest()];
    }
    const form = this.#form();
    if (form === undefined) {
      const why = "the connection broke before the server had named the form of the turn, which has store: false";
      throw new Error(`the messages of run ${this.#runId} cannot be requested: ${why}; set format`);
    }
    return [`/v1/runs/${this.#runId}/messages?format=${form}&wait=${wait}`, {}];
  }

  /** Whether the same request means the same run. A run that is not stored may be erased; then it opens another one. */
  #mayBeSentAgain(): boolean {
    return this.#origin.kind === "turn" && (this.#origin.options.store !== false || this.#runId === undefined);
  }

  /** The form in which the messages are requested by the id of the run, if it is known. */
  #form(): string | undefined {
    if (this.#origin.kind === "run") {
      return this.#origin.options.format;
    }
    return this.#answer?.format ?? (this.#aiCalls() ? "openai-chat" : this.#origin.options.format);
  }

  /** The ends of calls that came before the first event of this turn. */
  async #missed(runId: string): Promise<void> {
    const { run } = await this.#persist<Schemas["GetRunResponse"]>(`/v1/runs/${runId}`, {});
    for (const call of run?.calls ?? []) {
      if (call.outcome && !call.asked_by_call_id && !this.#results.has(call.call_id ?? "")) {
        const at = { sequence: "", event: {} as RunEvent };
        this.#results.set(call.call_id ?? "", new Ended(at, call.call_id ?? "", call.tool ?? "", call.outcome));
      }
    }
  }

  #batch(query: Record<string, string>): string {
    const { options } = this.#origin as Extract<Origin, { kind: "turn" }>;
    const all = new URLSearchParams(query);
    const format = this.#aiCalls() ? "openai-chat" : options.format;
    if (format !== undefined) {
      all.set("format", format);
    }
    if (options.confirmation !== undefined) {
      all.set("confirmation", options.confirmation);
    }
    return `/v1/tool_calls:batch?${all}`;
  }

  #aiCalls(): ReturnType<typeof callsOf> {
    if (this.#origin.kind === "run") {
      return undefined;
    }
    const { format } = this.#origin.options;
    const calls = format === undefined || format === "ai-sdk" ? callsOf(this.#origin.message) : undefined;
    return format === "ai-sdk" ? (calls ?? []) : calls;
  }

  /** The body: the turn as it came, and the options of the run. */
  async #envelope(message: object, options: TurnOptions): Promise<string> {
    const files: Schemas["RunFile"][] = [];
    for (const [name, file] of Object.entries(options.files ?? {})) {
      const object_id = "objectId" in file ? file.objectId : await this.#requests.upload(file);
      files.push({ name, object_id, tool: "_all" });
    }
    const approve = options.approve === "all" ? ["_all"] : options.approve;
    const toolyard: Partial<Schemas["RunOptions"]> = {
      ...(options.context && { context: JSON.stringify(options.context) }),
      ...(files.length > 0 && { files }),
      ...(options.tools && { tools: options.tools }),
      ...(approve && { approve }),
      ...(options.rules && { rules: options.rules }),
      ...(options.requestTools && { request_tools: options.requestTools }),
      ...(options.timeout !== undefined && { timeout: `${options.timeout}s` }),
      ...(options.tenant && { tenant: options.tenant }),
      ...(options.failFast && { fail_fast: true }),
      ...(options.store === false && { store: false }),
    };
    const calls = this.#aiCalls();
    return JSON.stringify({ turn: calls ? asChat(calls) : message, toolyard });
  }
}

/** A part of an event that has no class. */
function other(event: Other, name: string): { call_id?: string; status?: string } | undefined {
  return (event.at.event as unknown as Record<string, { call_id?: string; status?: string } | undefined>)[name];
}

function post(body: unknown): RequestInit {
  return {
    method: "POST",
    body: typeof body === "string" ? body : JSON.stringify(body),
    headers: { "content-type": "application/json" },
  };
}

export { ToolyardError };
