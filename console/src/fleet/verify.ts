// The comparison of the index with the log, which the coordinator streams.

import { address, type Schemas, send } from "../api/client";
import { ApiError } from "../api/problem";
import { events } from "../api/sse";

export interface Verified {
  entries: number;
  runs: number;
  differences: { run: string; what: string }[];
  end: Schemas["VerifyIndexEnd"] | undefined;
}

/** Compares the index with the log, and reports progress. */
export async function verifyIndex(onProgress: (so: Verified) => void, signal: AbortSignal): Promise<void> {
  const init: RequestInit = {
    headers: { "content-type": "application/json", accept: "text/event-stream" },
    body: "{}",
    signal,
  };
  const response = await send("POST", address("/v1/index/verify"), init, "POST /v1/index/verify");
  let so: Verified = { entries: 0, runs: 0, differences: [], end: undefined };
  for await (const batch of events(response)) {
    for (const event of batch) {
      const data = JSON.parse(event.data);
      if (event.name === "problem") throw ApiError.fromProblem(data, data.status ?? 500);
      so = add(so, data as Schemas["VerifyIndexResponse"]);
    }
    onProgress(so);
  }
  if (so.end === undefined) {
    throw new ApiError(0, "CUT_OFF", "the connection was cut off before the comparison ended", "start it again");
  }
}

/** What was found so far, with the next message of the stream. */
export function add(so: Verified, message: Schemas["VerifyIndexResponse"]): Verified {
  const found = (message.differences ?? []).map((one) => ({ run: one.run_id ?? "", what: one.what ?? "" }));
  return {
    entries: Math.max(so.entries, message.entries ?? 0),
    runs: Math.max(so.runs, message.runs ?? 0),
    differences: [...so.differences, ...found],
    end: message.end ?? so.end,
  };
}
