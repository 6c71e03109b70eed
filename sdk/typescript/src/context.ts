/** What a call knows of itself, and how it speaks. */

import type { StandardJSONSchemaV1, StandardSchemaV1 } from "@standard-schema/spec";
import { type Content, piece } from "./content.js";
import { DefinitionError, lifted } from "./errors.js";
import { encoded } from "./json.js";
import type { NativeCall, Part } from "./native.js";
import type { Lifespan, Resource } from "./resource.js";
import { type InputOf, type InputSchema, input as readInput } from "./schema.js";

/** A question to the client of a call. */
export interface Question<S = undefined> {
  message: string;
  /** One of these is the answer; with `several` any number of them. */
  options?: readonly string[];
  several?: boolean;
  /** The answer is an object that fits this schema. */
  schema?: S;
  /** The person opens this page, and agrees or declines. */
  url?: string;
  urlId?: string;
  /** Seconds to wait for an answer; without it, for as long as the call may take. */
  timeout?: number;
}

/** The client's answer. */
export type Answer<T = string> =
  | { action: "accept"; value: T }
  /** The person refused. */
  | { action: "decline" }
  /** The person dismissed the question without a choice. */
  | { action: "cancel" };

/** A call of the run that ended before this one. */
export type PastCall = Record<string, unknown>;

interface Info {
  tool: string;
  runId: string;
  callId: string;
  attempt: number;
  tenant: string | null;
  caller: string | null;
  roles: string[];
  metadata: Record<string, string>;
  deadlineInMs: number;
  callDeadlineInMs: number;
  continueFrom: number;
  isStored: boolean;
  files: { name: string; mediaType: string; size: number }[];
}

/** The key of the context under which a tool receives the history of its run. */
const HISTORY = "TOOL_CALL_HISTORY";

/** The context of a call. */
export class Context {
  readonly #call: NativeCall;
  #info: Info | undefined;
  #abort: AbortController | undefined;

  readonly #resources: { readonly uses: readonly Resource<unknown>[]; readonly lifespan: Lifespan };

  /** @internal */
  constructor(call: NativeCall, uses: readonly Resource<unknown>[], lifespan: Lifespan) {
    this.#call = call;
    this.#resources = { uses, lifespan };
  }

  get #known(): Info {
    this.#info ??= JSON.parse(thrown(() => this.#call.info())) as Info;
    return this.#info;
  }

  /** The name by which the tool was called. */
  get tool(): string {
    return this.#known.tool;
  }

  get runId(): string {
    return this.#known.runId;
  }

  /** The caller's id of the call. */
  get callId(): string {
    return this.#known.callId;
  }

  /** The same for every attempt of the call, and for no other call: for services that execute a request once per key. */
  get idempotencyKey(): string {
    return `${this.runId}/${this.callId}`;
  }

  /** Which attempt this is, from 1. */
  get attempt(): number {
    return this.#known.attempt;
  }

  /** The tenant of the run, if it has one. */
  get tenant(): string | undefined {
    return this.#known.tenant ?? undefined;
  }

  /** The caller who opened the run, as the coordinator authenticated it. */
  get caller(): string | undefined {
    return this.#known.caller ?? undefined;
  }

  /** The roles that the caller had when the run was opened. */
  get roles(): readonly string[] {
    return this.#known.roles;
  }

  /** Metadata from the caller for the tool, which the model neither sees nor sets. */
  get metadata(): Readonly<Record<string, string>> {
    return this.#known.metadata;
  }

  /** When the attempt must have ended. It moves while the tool waits for an answer. */
  get deadline(): Date {
    const { deadlineInMs } = JSON.parse(thrown(() => this.#call.info())) as Info;
    return new Date(Date.now() + deadlineInMs);
  }

  /** When the call must have ended, whichever attempt it is in. */
  get callDeadline(): Date {
    const { callDeadlineInMs } = JSON.parse(thrown(() => this.#call.info())) as Info;
    return new Date(Date.now() + callDeadlineInMs);
  }

  /** The number of chunks that earlier attempts delivered; 0 unless the tool has `afterPartialOutput: "continue"`. */
  get continueFrom(): number {
    return this.#known.continueFrom;
  }

  /** Whether the run is stored. If not, the tool should leave nothing of the call elsewhere either. */
  get isStored(): boolean {
    return this.#known.isStored;
  }

  /** Aborted when the call should stop: it was cancelled, is overdue, or its worker lost its lease. */
  get signal(): AbortSignal {
    if (this.#abort === undefined) {
      const abort = new AbortController();
      this.#abort = abort;
      this.#call.stopped().then(
        (stops) => stops && abort.abort(new DOMException("the call is to stop", "AbortError")),
        () => {},
      );
    }
    return this.#abort.signal;
  }

  /** What the caller gave under a key that the tool declares in `contextKeys`; `undefined` if nothing. */
  given<T = unknown>(key: string): T | undefined {
    return (JSON.parse(thrown(() => this.#call.given(key))) as T | null) ?? undefined;
  }

  /** A resource that the tool declares in `uses`. */
  use<T>(resource: Resource<T>): T {
    const { uses, lifespan } = this.#resources;
    if (!uses.includes(resource)) {
      throw new DefinitionError(`tool ${this.tool} uses a resource that is not in its \`uses\``);
    }
    return lifespan.value(resource);
  }

  /** The calls of the run that ended before, if the tool declares `TOOL_CALL_HISTORY` in `contextKeys`. */
  history(): PastCall[] {
    return this.given<PastCall[]>(HISTORY) ?? [];
  }

  /** Sends a piece of output. Await it: the promise waits while the broker is slower than the tool. */
  async send(value: string | Uint8Array | Content | object): Promise<void> {
    await emit(this.#call, piece(value));
  }

  /** Sends text, on a channel of its own if one is named, as `stderr`. */
  async text(value: string, channel = ""): Promise<void> {
    await emit(this.#call, { kind: "text", text: value, channel });
  }

  /** Reports the progress, in units of the tool. */
  async progress(done: number, total?: number, message = ""): Promise<void> {
    await sent(() => this.#call.progress(done, total, message));
  }

  /** Lines of the worker's log, with the ids of the call. */
  readonly log = {
    debug: (message: string) => this.#log("debug", message),
    info: (message: string) => this.#log("info", message),
    warn: (message: string) => this.#log("warn", message),
    error: (message: string) => this.#log("error", message),
  };

  /** Asks the client, and waits for the answer. While it waits, the attempt's own timeouts rest. */
  async ask(question: Question & { several: true }): Promise<Answer<string[]>>;
  async ask<S extends InputSchema>(question: Question<S> & { schema: S }): Promise<Answer<InputOf<S>>>;
  async ask(question: Question & { url: string }): Promise<Answer<Record<string, unknown>>>;
  async ask(question: Question | string): Promise<Answer>;
  async ask(question: Question<InputSchema | undefined> | string): Promise<Answer<unknown>> {
    const { timeout, schema, ...rest } = typeof question === "string" ? { message: question } : question;
    const read = schema === undefined ? undefined : readInput("ask", schema);
    const asked = encoded({
      ...rest,
      ...(read && { schema: read.jsonSchema }),
      ...(timeout !== undefined && { timeoutMs: Math.round(timeout * 1000) }),
    });
    try {
      const answer = JSON.parse(await this.#call.ask(asked ?? "")) as Answer<unknown>;
      return answer.action === "accept" && read ? { ...answer, value: await read.parse(answer.value) } : answer;
    } catch (error) {
      throw lifted(error);
    }
  }

  /** The files that the call may open. */
  get files(): readonly CallFile[] {
    return this.#known.files.map((file) => new CallFile(this.#call, file));
  }

  /** The file of this name. */
  file(name: string): CallFile {
    const found = this.files.find((file) => file.name === name);
    // The native part knows how to say which files there are.
    return found ?? (thrown(() => this.#call.openFile(name)) as never);
  }

  #log(level: string, message: string): void {
    thrown(() => this.#call.log(level, message));
  }
}

/** A file of a call: at most 256 MiB, read piece by piece. */
export class CallFile {
  readonly name: string;
  readonly mediaType: string;
  readonly size: number;
  readonly #call: NativeCall;

  /** @internal */
  constructor(call: NativeCall, file: { name: string; mediaType: string; size: number }) {
    this.#call = call;
    this.name = file.name;
    this.mediaType = file.mediaType;
    this.size = file.size;
  }

  /** Its bytes, piece by piece on demand. The end is reached only if the SHA-256 is right. */
  async *stream(): AsyncGenerator<Uint8Array, void> {
    const open = thrown(() => this.#call.openFile(this.name));
    for (;;) {
      let next: Uint8Array | null;
      try {
        next = await open.next();
      } catch (error) {
        throw lifted(error);
      }
      if (next === null) {
        return;
      }
      yield next;
    }
  }

  async bytes(): Promise<Uint8Array> {
    const all = new Uint8Array(this.size);
    let at = 0;
    for await (const part of this.stream()) {
      all.set(part, at);
      at += part.length;
    }
    return all;
  }

  async text(): Promise<string> {
    return new TextDecoder().decode(await this.bytes());
  }
}

/** Sends a piece; a promise is returned only if there is no room. */
export function emit(call: NativeCall, part: Part): Promise<void> | undefined {
  const { kind, text = "", channel = "" } = part;
  return sent(() => {
    switch (kind) {
      case "data":
        return call.sendData(channel, part.mediaType ?? "", part.data ?? new Uint8Array());
      case "json":
        return call.sendJson(channel, text);
      default:
        return call.sendText(channel, text);
    }
  });
}

function sent(send: () => Promise<void> | null): Promise<void> | undefined {
  const waits = thrown(send);
  return waits?.catch((error: unknown) => {
    throw lifted(error);
  });
}

function thrown<T>(act: () => T): T {
  try {
    return act();
  } catch (error) {
    throw lifted(error);
  }
}

export type { StandardJSONSchemaV1, StandardSchemaV1 };
