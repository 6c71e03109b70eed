// Follows a run: its events in order, each once, over as many connections as it takes.

import { address, fill, type Schemas, send } from "./client";
import { ApiError, toApiError } from "./problem";
import { events } from "./sse";

export type RunEvent = Schemas["RunEvent"];
export type FloorPolicy = Schemas["FloorPolicy"];

export type WatchState =
  | { is: "connecting" }
  | { is: "live" }
  | { is: "reconnecting"; why: string }
  | { is: "ended" }
  | { is: "failed"; error: ApiError };

export interface WatchOptions {
  runId: string;
  /** The order of speakers. */
  floor?: FloorPolicy;
  /** The number of the last event that is there already. */
  after?: number | undefined;
  onEvents: (batch: RunEvent[]) => void;
  onState: (state: WatchState) => void;
  signal: AbortSignal;
}

const BACKOFF_FIRST_MS = 250;
const BACKOFF_LONGEST_MS = 5_000;
/** A stream sends a comment after 15 silent seconds; a connection without one for this long is dead. */
const SILENCE_MAX_MS = 40_000;

/** Resolves after a time, or at once if `signal` is aborted. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    }
    if (signal.aborted) done();
    else signal.addEventListener("abort", done);
  });
}

/** Follows a run until it has ended, it cannot be read, or `signal` is aborted. */
export async function watch(options: WatchOptions): Promise<void> {
  const { signal } = options;
  let after = options.after;
  let backoff = BACKOFF_FIRST_MS;
  options.onState({ is: "connecting" });
  while (!signal.aborted) {
    let why = "the connection was cut off";
    try {
      const end = await connection(options, after, (sequence) => {
        after = sequence;
        backoff = BACKOFF_FIRST_MS;
      });
      if (end === "ended") return options.onState({ is: "ended" });
      if (end === "shutdown") why = "the coordinator is shutting down";
    } catch (error) {
      if (signal.aborted) return;
      const problem = toApiError(error);
      if (!problem.isTransient) return options.onState({ is: "failed", error: problem });
      why = problem.message;
    }
    if (signal.aborted) return;
    options.onState({ is: "reconnecting", why });
    // Spread, so that many consoles do not return in the same moment.
    await pause(backoff * (0.75 + Math.random() / 2), signal);
    backoff = Math.min(backoff * 2, BACKOFF_LONGEST_MS);
  }
}

/** Reads one connection. Returns why it ended. */
async function connection(
  options: WatchOptions,
  after: number | undefined,
  onSequence: (sequence: number) => void,
): Promise<"ended" | "shutdown" | "cut"> {
  const silence = new AbortController();
  const abort = () => silence.abort();
  options.signal.addEventListener("abort", abort);
  let timer = setTimeout(abort, SILENCE_MAX_MS);
  try {
    const url = address(fill("/v1/runs/{run_id}/events", { run_id: options.runId }), {
      floor_policy: options.floor,
      after_sequence: after,
    });
    const response = await send("GET", url, { headers: { accept: "text/event-stream" }, signal: silence.signal });
    options.onState({ is: "live" });
    const rearm = () => {
      clearTimeout(timer);
      timer = setTimeout(abort, SILENCE_MAX_MS);
    };
    for await (const batch of events(heard(response, rearm))) {
      const received: RunEvent[] = [];
      let end: "ended" | "shutdown" | undefined;
      for (const event of batch) {
        const data = JSON.parse(event.data);
        if (event.name === "problem") {
          if (received.length > 0) options.onEvents(received);
          throw ApiError.fromProblem(data, data.status ?? 500);
        }
        if (event.name === "end") end = data.reason === "STREAM_END_REASON_SHUTDOWN" ? "shutdown" : "ended";
        else if (event.name === "") received.push(data as RunEvent);
      }
      const last = received.at(-1);
      if (last !== undefined) {
        onSequence(last.sequence);
        options.onEvents(received);
      }
      if (end !== undefined) return end;
    }
    return "cut";
  } finally {
    clearTimeout(timer);
    options.signal.removeEventListener("abort", abort);
  }
}

/** The response, with a call of `onBytes` for each piece, comments included. */
function heard(response: Response, onBytes: () => void): Response {
  if (response.body === null) return response;
  const counted = new TransformStream<Uint8Array, Uint8Array>({
    transform(chunk, controller) {
      onBytes();
      controller.enqueue(chunk);
    },
  });
  return new Response(response.body.pipeThrough(counted));
}
