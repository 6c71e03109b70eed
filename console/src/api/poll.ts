// Data that is fetched again and again while it is shown.

import { type Signal, signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { type ApiError, toApiError } from "./problem";
import { key } from "./session";
import { pause } from "./watch";

/** Why the coordinator cannot be reached; empty while it can. Shown in the header of every page. */
export const connectionLost = signal("");

export interface Polled<T> {
  /** The latest answer. It stays when a later request fails. */
  data: T | undefined;
  error: ApiError | undefined;
  /** When `data` arrived, in milliseconds since 1970. */
  at: number;
}

export interface Poll<T> extends Signal<Polled<T>> {
  /** Fetches at once. */
  refresh: () => void;
}

const BACKOFF_LONGEST_MS = 10_000;

/**
 * Fetches at once and then every `everyMs`, while the page is visible. `deps` are values on which the request depends;
 * if one changes, the request is sent again.
 */
export function usePoll<T>(
  fetcher: (signal: AbortSignal) => Promise<T>,
  everyMs: number,
  deps: unknown[] = [],
): Poll<T> {
  const state = useSignal<Polled<T>>({ data: undefined, error: undefined, at: 0 }) as Poll<T>;
  const refresh = useRef(() => {});
  state.refresh ??= () => refresh.current();
  useEffect(() => {
    const stop = new AbortController();
    let wake = new AbortController();
    let asked = false;
    refresh.current = () => {
      asked = true;
      wake.abort();
    };
    const onVisible = () => document.visibilityState === "visible" && wake.abort();
    document.addEventListener("visibilitychange", onVisible);
    stop.signal.addEventListener("abort", () => wake.abort());
    const loop = async () => {
      let failures = 0;
      while (!stop.signal.aborted) {
        if (document.visibilityState === "visible" || state.value.data === undefined || asked) {
          asked = false;
          try {
            const data = await fetcher(stop.signal);
            if (stop.signal.aborted) return;
            failures = 0;
            connectionLost.value = "";
            state.value = { data, error: undefined, at: Date.now() };
          } catch (error) {
            if (stop.signal.aborted) return;
            failures += 1;
            const problem = toApiError(error);
            if (problem.isTransient) connectionLost.value = problem.message;
            state.value = { ...state.value, error: problem };
          }
        }
        if (asked) continue;
        wake = new AbortController();
        const wait = failures === 0 ? everyMs : Math.min(everyMs * 2 ** failures, BACKOFF_LONGEST_MS);
        await pause(wait, wake.signal);
      }
    };
    loop();
    return () => {
      stop.abort();
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [...deps, everyMs, key.value]);
  return state;
}
