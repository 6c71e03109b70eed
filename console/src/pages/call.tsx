import { useEffect } from "preact/hooks";
import { href, route } from "../router";
import { RunPage } from "./run";

/** A call of a run: the page of the run with the call chosen. */
export function CallPage({ runId, callId }: { runId: string; callId: string }) {
  useEffect(() => {
    const query = Object.fromEntries(route.value.query);
    location.replace(href("runs", runId, { ...query, call: callId }));
  }, [runId, callId]);
  return <RunPage runId={runId} />;
}
