/** What the adapters of frameworks share: the tools of a fleet, and the calls of one step of a model as one run. */

import {
  type AiToolMessage,
  type AiToolResult,
  Ended,
  type NeedsAnswer,
  type NeedsApproval,
  Output,
  OutputWithdrawn,
  type ToolFilters,
  type Toolyard,
  type Turn,
  type TurnOptions,
} from "../client.js";

/** Which tools of the fleet a framework gets, and how their calls are executed. */
export interface FleetOptions extends ToolFilters {
  /**
   * The options of the runs, for example `context`, `tenant` and `timeout`. What waits for a person without the
   * framework having asked is refused, unless `onApproval` and `onQuestion` are given.
   */
  turn?: Omit<TurnOptions, "format" | "key" | "signal" | "onDisconnect">;
}

/** A tool as a model sees it. */
export interface Definition {
  name: string;
  description: string;
  schema: Record<string, unknown>;
  /** No call of it is executed before somebody approves it. */
  needsApproval: boolean;
}

/** The tools of the fleet, by the names that models call them by. */
export async function definitions(yard: Toolyard, { turn: _, ...filters }: FleetOptions): Promise<Definition[]> {
  interface Chat {
    function: { name: string; description?: string; parameters?: Record<string, unknown> };
  }
  const { tools, notes } = await yard.tools<Chat>({ ...filters, format: "openai-chat" });
  return tools.map(({ function: { name, description = "", parameters = { type: "object" } } }) => ({
    name,
    description,
    schema: parameters,
    needsApproval: notes[name]?.needs_approval ?? false,
  }));
}

/** A call, as a framework has it executed. */
export interface Call {
  id: string;
  tool: string;
  input: unknown;
  /** The framework has asked, and a person has approved it. */
  approved: boolean;
  signal: AbortSignal | undefined;
}

/** The text of a call so far. It becomes shorter if an attempt was lost and its output is void. */
export type Text = string;

/** The result of a call: its text, or parts with images, as the AI SDK has them for models. */
export type FleetResult = string | Extract<AiToolResult["output"], { type: "content" }>;

/** A call that failed. The message is what the model is told about it. */
export class CallFailed extends Error {
  override readonly name = "CallFailed";

  /** The message alone: frameworks tell it to the model. */
  override toString(): string {
    return this.message;
  }
}

/** Executes calls. Those that a framework begins at the same moment for the same step are one run. */
export class Steps {
  readonly #yard: Toolyard;
  readonly #options: FleetOptions["turn"];
  readonly #begun = new Map<object, Step>();

  constructor(yard: Toolyard, options: FleetOptions) {
    this.#yard = yard;
    this.#options = options.turn;
  }

  /**
   * Executes a call: yields its text so far, and returns its result or throws {@link CallFailed}. `key` is the same
   * object for all calls of a step, and for no others.
   */
  async *execute(key: object, call: Call): AsyncGenerator<Text, FleetResult> {
    call.signal?.throwIfAborted();
    const step = this.#join(key, call);
    const { turn } = await step.begun;
    // A call that cannot be cancelled ends at its deadline.
    const cancel = () => step.cancel(this.#yard, call.id).catch(() => {});
    call.signal?.addEventListener("abort", cancel, { once: true });
    if (call.signal?.aborted) {
      cancel();
    }
    const events = turn[Symbol.asyncIterator]();
    let text = "";
    try {
      for (;;) {
        const { done, value: event } = await unlessAborted(events.next(), call.signal);
        if (done) {
          break;
        }
        if (event instanceof Output && event.callId === call.id && !event.channel.startsWith("log")) {
          text += event.text;
          yield text;
        } else if (event instanceof OutputWithdrawn && event.callId === call.id) {
          text = "";
          yield text;
        } else if (event instanceof Ended && event.callId === call.id) {
          break;
        }
      }
      const { messages } = await unlessAborted(turn, call.signal);
      const told = messages.flatMap((message) => message.content).find((part) => part.toolCallId === call.id);
      return resultOf(told?.output ?? { type: "error-text", value: "the call was not executed" });
    } finally {
      call.signal?.removeEventListener("abort", cancel);
      // It may still wait for an event, and nobody waits for that.
      events.return(undefined).catch(() => {});
    }
  }

  #join(key: object, call: Call): Step {
    let step = this.#begun.get(key);
    if (step === undefined || step.has(call.id)) {
      const made = new Step(this.#yard, this.#options, () => {
        if (this.#begun.get(key) === made) {
          this.#begun.delete(key);
        }
      });
      this.#begun.set(key, made);
      step = made;
    }
    step.calls.push(call);
    return step;
  }
}

/** The calls of one step of a model, which are one run. */
class Step {
  readonly calls: Call[] = [];
  /** In an object, because a promise of a turn would wait for the turn's end. */
  readonly begun: Promise<{ turn: Turn<AiToolMessage> }>;
  readonly #abort = new AbortController();
  readonly #cancelled = new Set<string>();

  constructor(yard: Toolyard, options: FleetOptions["turn"], begins: () => void) {
    // A framework begins the calls of a step one after another, in microtasks.
    this.begun = new Promise((resolve) => {
      setTimeout(() => {
        begins();
        resolve({ turn: this.#begin(yard, options) });
      }, 0);
    });
  }

  has(id: string): boolean {
    return this.calls.some((call) => call.id === id);
  }

  /** The last call that is cancelled cancels the run, also if its id is not known yet. */
  async cancel(yard: Toolyard, callId: string): Promise<void> {
    this.#cancelled.add(callId);
    if (this.#cancelled.size === this.calls.length) {
      this.#abort.abort();
      return;
    }
    const { turn } = await this.begun;
    if (turn.runId === undefined) {
      // It is known with the first event.
      for await (const _ of turn) {
        break;
      }
    }
    if (turn.runId !== undefined) {
      await yard.cancel(turn.runId, { callId, reason: "cancelled by the agent" });
    }
  }

  #begin(yard: Toolyard, options: FleetOptions["turn"]): Turn<AiToolMessage> {
    const toolCalls = this.calls.map(({ id, tool, input }) => ({ toolCallId: id, toolName: tool, input }));
    const approved = this.calls.filter((call) => call.approved).map((call) => call.id);
    const { approve = [], ...others } = options ?? {};
    const turn = yard.turn<AiToolMessage>(
      { toolCalls },
      {
        onApproval: (event: NeedsApproval) => event.reject("nobody can approve this call here"),
        onQuestion: (event: NeedsAnswer) =>
          event.askedBy === undefined ? event.fail("nobody can answer this call here") : event.decline(),
        ...others,
        approve: approve === "all" ? "all" : [...approve, ...approved],
        signal: this.#abort.signal,
        onDisconnect: "cancel",
      },
    );
    // It reads on although each call looks at its own events alone.
    turn.then(undefined, () => {});
    return turn;
  }
}

function resultOf(output: AiToolResult["output"]): FleetResult {
  switch (output.type) {
    case "error-text":
      throw new CallFailed(output.value);
    case "content":
      return output;
    default:
      return String(output.value);
  }
}

/** As the promise, unless the signal is aborted before. */
function unlessAborted<T>(promise: PromiseLike<T>, signal: AbortSignal | undefined): Promise<T> {
  return new Promise((resolve, reject) => {
    const aborted = () => reject(signal?.reason);
    signal?.addEventListener("abort", aborted, { once: true });
    const forget = () => signal?.removeEventListener("abort", aborted);
    promise.then(resolve, reject).then(forget, forget);
    if (signal?.aborted) {
      aborted();
    }
  });
}
