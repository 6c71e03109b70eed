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

type Fetch<T> = (signal: AbortSignal) => Promise<T>;

const NOTHING = { data: undefined, error: undefined, at: 0 };

/** Fetches at once and then again and again while the page is visible, until its end. */
class Polling<T> {
  private readonly stop = new AbortController();
  private wake = new AbortController();
  private asked = false;

  constructor(
    private readonly state: Signal<Polled<T>>,
    private readonly fetcher: Fetch<T>,
    private readonly everyMs: () => number,
    private readonly isDue: () => boolean = () => true,
  ) {
    document.addEventListener("visibilitychange", this.onVisible);
    this.stop.signal.addEventListener("abort", () => this.wake.abort());
    this.loop();
  }

  refresh(): void {
    this.asked = true;
    this.wake.abort();
  }

  end(): void {
    this.stop.abort();
    document.removeEventListener("visibilitychange", this.onVisible);
  }

  private readonly onVisible = () => {
    if (document.visibilityState === "visible") this.wake.abort();
  };

  private async loop(): Promise<void> {
    let failures = 0;
    while (!this.stop.signal.aborted) {
      const { data } = this.state.peek();
      const isWanted = () => document.visibilityState === "visible" && (failures > 0 || this.isDue());
      if (data === undefined || this.asked || isWanted()) {
        this.asked = false;
        try {
          const fetched = await this.fetcher(this.stop.signal);
          if (this.stop.signal.aborted) return;
          failures = 0;
          connectionLost.value = "";
          this.state.value = { data: fetched, error: undefined, at: Date.now() };
        } catch (error) {
          if (this.stop.signal.aborted) return;
          failures += 1;
          const problem = toApiError(error);
          if (problem.isTransient) connectionLost.value = problem.message;
          this.state.value = { ...this.state.peek(), error: problem };
        }
      }
      if (this.asked) continue;
      this.wake = new AbortController();
      const every = this.everyMs();
      const wait = failures === 0 ? every : Math.min(every * 2 ** failures, BACKOFF_LONGEST_MS);
      await pause(wait, this.wake.signal);
    }
  }
}

/**
 * Fetches at once and then every `everyMs`, while the page is visible and `isDue` says so. `deps` are values on which the
 * request depends; if one changes, the request is sent again.
 */
export function usePoll<T>(fetcher: Fetch<T>, everyMs: number, deps: unknown[] = [], isDue?: () => boolean): Poll<T> {
  const state = useSignal<Polled<T>>(NOTHING) as Poll<T>;
  const polling = useRef<Polling<T> | undefined>(undefined);
  state.refresh ??= () => polling.current?.refresh();
  useEffect(() => {
    const mine = new Polling(state, fetcher, () => everyMs, isDue);
    polling.current = mine;
    return () => mine.end();
  }, [...deps, everyMs, key.value]);
  return state;
}

/**
 * What several components show at a time. It is fetched once for all of them, as often as the most impatient one needs
 * it.
 */
export function sharedPoll<T>(fetcher: Fetch<T>): (everyMs: number) => Poll<T> {
  const state = signal<Polled<T>>(NOTHING) as Poll<T>;
  const intervals: number[] = [];
  let polling: Polling<T> | undefined;
  let begunWith = "";
  state.refresh = () => polling?.refresh();
  const begin = (everyMs: number) => {
    intervals.push(everyMs);
    if (polling && begunWith === key.peek() && everyMs >= Math.min(...intervals)) return;
    polling?.end();
    if (begunWith !== key.peek()) state.value = NOTHING;
    begunWith = key.peek();
    polling = new Polling(state, fetcher, () => Math.min(...intervals));
  };
  const end = (everyMs: number) => {
    intervals.splice(intervals.indexOf(everyMs), 1);
    if (intervals.length > 0) return;
    polling?.end();
    polling = undefined;
  };
  return (everyMs) => {
    useEffect(() => {
      begin(everyMs);
      return () => end(everyMs);
    }, [everyMs, key.value]);
    return state;
  };
}
