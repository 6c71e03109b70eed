import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { key } from "../api/session";
import { type FloorPolicy, type RunEvent, type WatchState, watch } from "../api/watch";
import { RunModel } from "./model";

export interface Following {
  model: RunModel;
  /** Counts up at most 20 times a second while events arrive: for the output. */
  version: Signal<number>;
  /** Counts up a few times a second while events arrive: for all that shows sums of them. */
  summary: Signal<number>;
  state: Signal<WatchState>;
}

/** Events that one frame takes at most; the rest waits for the next, so that no frame is late. */
const FRAME_MS = 12;
const LOT = 200;
/** The time between two changes while the page is hidden. */
const HIDDEN_MS = 500;
/** The shortest time between two changes of the output: faster than that nobody reads. */
const OUTPUT_MS = 50;
/** The shortest time between two changes of the summary. */
const SUMMARY_MS = 250;

/** Follows a run. Events are collected and shown some times a second. */
export function useRun(runId: string, floor: FloorPolicy): Following {
  const version = useSignal(0);
  const summary = useSignal(0);
  const state = useSignal<WatchState>({ is: "connecting" });
  const model = useRef(new RunModel());
  const of = `${runId} ${floor} ${key.value}`;
  const shown = useRef(of);
  if (shown.current !== of) {
    shown.current = of;
    model.current = new RunModel();
  }
  useEffect(() => {
    const stop = new AbortController();
    const target = model.current;
    let waiting: RunEvent[] = [];
    let isScheduled = false;
    let flushedAt = 0;
    let summing: ReturnType<typeof setTimeout> | undefined;
    const sum = () => {
      summing = undefined;
      summary.value += 1;
    };
    const flush = () => {
      isScheduled = false;
      flushedAt = performance.now();
      const until = flushedAt + FRAME_MS;
      let taken = 0;
      while (taken < waiting.length && performance.now() < until) {
        target.take(waiting.slice(taken, taken + LOT));
        taken += LOT;
      }
      waiting = waiting.slice(taken);
      version.value += 1;
      summing ??= setTimeout(sum, summary.value === 0 ? 0 : SUMMARY_MS);
      if (waiting.length > 0) {
        // A backlog is taken in each frame.
        flushedAt = 0;
        schedule();
      }
    };
    // A hidden page has no frames; its events are taken by a timer, so that they do not pile up.
    const schedule = () => {
      if (isScheduled) return;
      isScheduled = true;
      const wait = document.visibilityState === "visible" ? flushedAt + OUTPUT_MS - performance.now() : HIDDEN_MS;
      const next = () => (document.visibilityState === "visible" ? requestAnimationFrame(flush) : flush());
      if (wait > 0) setTimeout(next, wait);
      else next();
    };
    watch({
      runId,
      floor,
      signal: stop.signal,
      onEvents: (batch) => {
        for (const event of batch) waiting.push(event);
        schedule();
      },
      onState: (next) => {
        state.value = next;
      },
    });
    return () => {
      stop.abort();
      clearTimeout(summing);
    };
  }, [of]);
  return { model: model.current, version, summary, state };
}
