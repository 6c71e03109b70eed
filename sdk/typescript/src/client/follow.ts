/** Follows a run over as many connections as it takes. */

import { EventSourceParserStream } from "eventsource-parser/stream";
import { type Problem, refusal, ToolyardError } from "./problem.js";

/** One message of a stream of server-sent events. */
export interface Message {
  readonly id: string | undefined;
  readonly event: string | undefined;
  readonly data: string;
}

/** The pause before the first attempt to connect again, and the longest one. */
const PAUSE_MS = 100;
const PAUSE_MAX_MS = 5_000;
/** The server sends a comment after 15 s without an event. A connection without a byte for so long is dead. */
const SILENCE_MAX_MS = 45_000;

/** How often a connection is tried again. */
export interface Patience {
  /** How long to try while nothing is received, in milliseconds. */
  readonly retryForMs: number;
  readonly signal: AbortSignal | undefined;
}

/**
 * The messages of a stream that `open` begins, until the consumer returns. When the stream breaks off or is silent for
 * too long, `open` is called again; it knows where to continue. Refusals that may pass are tried again too, others are
 * thrown.
 */
export async function* follow(open: () => Promise<Response>, patience: Patience): AsyncGenerator<Message, void> {
  let failures = 0;
  let failsSince: number | undefined;
  for (;;) {
    patience.signal?.throwIfAborted();
    const began = Date.now();
    let failure: unknown;
    try {
      const response = await open();
      if (!response.ok || !response.body) {
        throw await refusal(response);
      }
      if (response.headers.get("content-type")?.startsWith("application/json")) {
        // The whole answer: no call had to be executed.
        yield { id: undefined, event: "messages", data: await response.text() };
        return;
      }
      for await (const message of messages(response.body, patience.signal)) {
        failures = 0;
        failsSince = undefined;
        if (message.event === "problem") {
          throw broken(message.data);
        }
        yield message;
      }
      failure = new Error("the stream of the run was cut off");
    } catch (error) {
      patience.signal?.throwIfAborted();
      if (!passes(error)) {
        throw error;
      }
      failure = error;
    }
    const now = Date.now();
    // A connection that held for a while has worked, although no event came.
    failsSince = now - began > PAUSE_MAX_MS ? now : (failsSince ?? began);
    if (now - failsSince > patience.retryForMs) {
      throw failure;
    }
    await pause(failure, failures, patience.signal);
    failures += 1;
  }
}

/** Makes a request that may be repeated, until it is answered or refused for good. */
export async function persist<T>(request: () => Promise<T>, patience: Patience): Promise<T> {
  const began = Date.now();
  for (let failures = 0; ; failures += 1) {
    try {
      return await request();
    } catch (error) {
      patience.signal?.throwIfAborted();
      if (!passes(error) || Date.now() - began > patience.retryForMs) {
        throw error;
      }
      await pause(error, failures, patience.signal);
    }
  }
}

/** Whether the same request may succeed later. */
function passes(error: unknown): boolean {
  return error instanceof ToolyardError ? error.isPassing : isOfTheConnection(error);
}

/** The messages of one connection, until it ends or is silent for too long. */
async function* messages(
  body: ReadableStream<Uint8Array>,
  signal: AbortSignal | undefined,
): AsyncGenerator<Message, void> {
  // The timer runs only during a read, because a consumer that takes long reads no bytes either.
  let silence: ReturnType<typeof setTimeout> | undefined;
  const bytes = new TransformStream<Uint8Array, Uint8Array>({
    transform(chunk, controller) {
      if (silence !== undefined) {
        listen();
      }
      controller.enqueue(chunk);
    },
  });
  const text = body.pipeThrough(bytes).pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>);
  const reader = text.pipeThrough(new EventSourceParserStream()).getReader();
  const listen = () => {
    clearTimeout(silence);
    silence = setTimeout(() => reader.cancel().catch(() => {}), SILENCE_MAX_MS);
  };
  // In Node 20 an abort does not always end a read that goes through other streams.
  const aborted = () => {
    reader.cancel(signal?.reason).catch(() => {});
  };
  signal?.addEventListener("abort", aborted, { once: true });
  try {
    for (;;) {
      listen();
      const { done, value } = await reader.read();
      clearTimeout(silence);
      silence = undefined;
      signal?.throwIfAborted();
      if (done) {
        return;
      }
      yield { id: value.id, event: value.event, data: value.data };
    }
  } finally {
    clearTimeout(silence);
    signal?.removeEventListener("abort", aborted);
    // A reader that stops closes the connection.
    reader.cancel().catch(() => {});
  }
}

/** A problem in the middle of a stream. */
function broken(data: string): ToolyardError {
  let problem: Problem;
  try {
    problem = JSON.parse(data) as Problem;
  } catch {
    problem = { detail: data };
  }
  return new ToolyardError(problem, problem.status ?? 500);
}

/** `fetch` throws a TypeError when it cannot connect or the connection breaks; an abort is not of this kind. */
function isOfTheConnection(error: unknown): boolean {
  return error instanceof TypeError || (error instanceof Error && "code" in error && typeof error.code === "string");
}

/**
 * Waits before the next attempt: as long as the server asks for, or longer after each failure. A little less or more, so
 * that many clients do not return at the same moment.
 */
async function pause(failure: unknown, failures: number, signal: AbortSignal | undefined): Promise<void> {
  const asked = failure instanceof ToolyardError ? failure.retryAfterMs : undefined;
  const milliseconds = asked ?? PAUSE_MS * 2 ** Math.min(failures, 6);
  const wait = Math.min(milliseconds, PAUSE_MAX_MS) * (0.75 + Math.random() / 2);
  await new Promise<void>((resolve, reject) => {
    const aborted = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, wait);
    signal?.addEventListener("abort", aborted, { once: true });
  });
}
