/** Tests of tools without a broker: the same validation, limits, conversion and errors as in a worker. */

import { type Failure, raised, type ToolError } from "./errors.js";
import { host } from "./execute.js";
import type { NativeTestCall, NativeTools, Part } from "./native.js";
import { Lifespan } from "./resource.js";
import type { Tool } from "./tool.js";

/** What a call has beside its arguments. */
export interface TestOptions {
  /** The caller's context. The tool sees the keys that it declares. */
  context?: Record<string, unknown>;
  files?: Record<string, Uint8Array | string>;
  tenant?: string;
  caller?: string;
  /** `false`: the run is not stored. */
  store?: boolean;
  /** What the client answers to the questions of the tool, one after another. Further questions are dismissed. */
  answers?: ({ action: "accept"; content: Record<string, unknown> } | { action: "decline" } | { action: "cancel" })[];
  /** Cancels the call. */
  signal?: AbortSignal;
}

/** A call that has ended. */
export class Called {
  /** All output, in order, with progress. */
  readonly output: Part[];
  /** The parts of the result; none if it failed. */
  readonly result: Part[];
  /** Why it failed. */
  readonly error: ToolError | undefined;
  /** The state for the run. */
  readonly state: Record<string, unknown>;

  /** @internal */
  constructor(output: Part[], ended: { result?: Part[]; error?: string; state: string }) {
    this.output = output;
    this.result = ended.result ?? [];
    this.error = ended.error === undefined ? undefined : raised(JSON.parse(ended.error) as Failure);
    this.state = JSON.parse(ended.state) as Record<string, unknown>;
  }

  /** All text that was sent, or that of a channel. */
  text(channel = ""): string {
    return this.output
      .map((part) => (part.kind === "text" && (part.channel ?? "") === channel ? part.text : ""))
      .join("");
  }

  /** The result as text: its texts and its JSON. */
  get answer(): string {
    return this.result.map((part) => part.text ?? "").join("");
  }

  /** The result as a value: JSON is parsed, bytes are bytes, text is text, and several parts are a list. */
  get value(): unknown {
    const values = this.result.map((part): unknown => {
      switch (part.kind) {
        case "json":
          return JSON.parse(part.text ?? "null");
        case "data":
          return part.data;
        default:
          return part.text;
      }
    });
    return values.length === 1 ? values[0] : values;
  }
}

/** A call on its way. Iterate it for its output, await it for its end; a failure is thrown. */
export class TestCall implements AsyncIterable<Part>, PromiseLike<Called> {
  readonly #started: Promise<NativeTestCall>;
  readonly #output: Part[] = [];
  #ended: Promise<Called> | undefined;

  /** @internal */
  constructor(started: Promise<NativeTestCall>, signal: AbortSignal | undefined) {
    this.#started = started;
    if (signal?.aborted) {
      this.cancel();
    }
    signal?.addEventListener("abort", () => this.cancel(), { once: true });
  }

  /** Requests the tool to stop. */
  cancel(): void {
    this.#started.then(
      (call) => call.cancel(),
      () => {},
    );
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Part, void> {
    const call = await this.#started;
    for (let part = await call.next(); part !== null; part = await call.next()) {
      this.#output.push(part);
      yield part;
    }
  }

  /** Waits for the end. The error of a call that failed is in the answer, and not thrown. */
  settled(): Promise<Called> {
    this.#ended ??= (async () => {
      for await (const _ of this) {
        // It is kept on the way.
      }
      return new Called(this.#output, await (await this.#started).end());
    })();
    return this.#ended;
  }

  // biome-ignore lint/suspicious/noThenProperty: a call is awaited for its end.
  then<A = Called, B = never>(
    done?: ((called: Called) => A | PromiseLike<A>) | null,
    failed?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    const completed = this.settled().then((called) => {
      if (called.error) {
        throw called.error;
      }
      return called;
    });
    return completed.then(done, failed);
  }
}

/** Calls tools without a broker. {@link TestClient.close} closes the resources that the tools use. */
export class TestClient implements AsyncDisposable {
  readonly #native: NativeTools;
  readonly #tools: readonly Tool[];
  readonly #lifespan = new Lifespan();
  #opened: Promise<void> | undefined;

  /** @internal */
  constructor(tools: readonly Tool[]) {
    this.#tools = tools;
    this.#native = host(tools, this.#lifespan);
  }

  /** Closes the resources. They were opened by the first call. */
  async close(): Promise<void> {
    await this.#opened?.catch(() => {});
    await this.#lifespan.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  call(tool: string, input: unknown = {}, options: TestOptions = {}): TestCall {
    const { files = {}, store = true, signal, ...rest } = options;
    const encoder = new TextEncoder();
    const given = Object.entries(files).map(([name, data]) => ({
      name,
      data: Buffer.from(typeof data === "string" ? encoder.encode(data) : data),
    }));
    const text = JSON.stringify(input);
    const setup = JSON.stringify({ ...rest, unstored: !store });
    this.#opened ??= this.#lifespan.open(this.#tools.flatMap((tool) => tool.uses));
    const started = this.#opened.then(() => this.#native.test(tool, text, setup, given));
    return new TestCall(started, signal);
  }
}

/** Hosts tools for tests. What no worker could host is refused as a worker does. */
export function testClient(tools: readonly Tool[]): TestClient {
  return new TestClient(tools);
}
