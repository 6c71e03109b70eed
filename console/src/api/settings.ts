// What the coordinator was started with, as far as the console needs it. It is read once, and needs no key.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";

const traceUrl = signal<string | undefined>(undefined);
let isAsked = false;

async function read(): Promise<void> {
  try {
    const response = await fetch(new URL("settings.json", document.baseURI), { credentials: "same-origin" });
    const settings = response.ok ? await response.json() : {};
    traceUrl.value = typeof settings.trace_url === "string" ? settings.trace_url : undefined;
  } catch {
    // The id of the trace is shown as text, and another page asks again.
    isAsked = false;
  }
}

/** The address of a trace, with `{trace_id}` in the place of its id; undefined if there is none. */
export function useTraceUrl(): string | undefined {
  useEffect(() => {
    if (isAsked) return;
    isAsked = true;
    read();
  }, []);
  return traceUrl.value;
}
