/** The adapter of Mastra, with a scripted model and tools of a worker. */

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { type TestContext, test } from "node:test";
import { Mastra } from "@mastra/core";
import { Agent } from "@mastra/core/agent";
import { InMemoryStore } from "@mastra/core/storage";
import type { Toolyard } from "toolyard/client";
import { type FleetOptions, type FleetOutput, fleetTools } from "toolyard/mastra";
import { EXAMPLES, example, file, hosted, hosting, listed, Recorded, script, scripted, written, yard } from "./yard.js";

async function agent(t: TestContext, path: string, client: Toolyard, options: FleetOptions): Promise<Agent> {
  const desk = new Agent({
    id: "desk",
    name: "desk",
    instructions: "",
    model: { id: "openai/scripted", api: "chat", url: await scripted(t, path), apiKey: "none" },
    tools: await fleetTools(client, options),
  });
  return new Mastra({ agents: { desk }, storage: new InMemoryStore(), logger: false }).getAgent("desk");
}

test("the example of Mastra prints what the docs say", async (t) => {
  const printed = await example(t, "mastra-desk.js");
  assert.deepEqual(printed.slice(0, 1), ['approve book {"city":"Rome"}']);
  assert.deepEqual(printed.slice(1, -1).sort(), [
    "book: a seat to Rome is booked",
    "forecast failed: Error: there is no city Atlantis",
    "forecast: Rome: sunny",
  ]);
  assert.match(printed.at(-1) ?? "", /You fly to Rome\.$/);
});

test("a call that is declined is never executed", async (t) => {
  await hosting(t, `${EXAMPLES}desk.js`, "--pool", "desk");
  await listed("desk");
  const client = new Recorded();
  const desk = await agent(t, `${EXAMPLES}script.toml`, client, { pool: "desk" });
  const first = await desk.stream("holiday");
  await first.consumeStream();
  const declined = await desk.declineToolCall({ runId: first.runId, reason: "not this week" });
  await declined.consumeStream();
  assert.match(await declined.text, /You fly to Rome\.$/);
  assert.deepEqual(client.turns, [["forecast"], ["forecast"]]);
});

test("the calls of a step are one run, although other tools need approvals", async (t) => {
  await hosted(t);
  await listed("js");
  const client = new Recorded();
  const path = script(["js_greet", { name: "Ada" }], ["js_greet", { name: "Bob" }], ["js_choose", {}]);
  const tools: FleetOptions = { pool: "js", turn: { onQuestion: (event) => event.answer("blue") } };
  const { toolResults } = await (await agent(t, path, client, tools)).generate("go");
  assert.deepEqual(toolResults.map(({ payload }) => payload.result).sort(), [
    "Hello, Ada!",
    "Hello, Bob!",
    "chose blue",
  ]);
  assert.deepEqual(client.turns, [["js_choose", "js_greet", "js_greet"]]);
});

test("output is written to the agent's stream while the tool runs", async (t) => {
  await hosted(t);
  await listed("js");
  const go = file();
  const { fullStream } = await (await agent(t, script(["js_pieces", { go }]), yard, { pool: "js" })).stream("go");
  const seen: unknown[] = [];
  for await (const chunk of fullStream) {
    if (chunk.type === "tool-output") {
      seen.push((chunk.payload.output as unknown as FleetOutput).text);
      // The tool goes on only now.
      writeFileSync(go, "");
    } else if (chunk.type === "tool-result") {
      assert.match(String(chunk.payload.result), /first\n.*both$/s);
    }
  }
  assert.deepEqual(seen, ["first\n", 'first\n{"second":true}']);
});

test("an aborted signal cancels the call", async (t) => {
  await hosted(t);
  await listed("js");
  const note = file();
  const abort = new AbortController();
  const waits = await agent(t, script(["js_waits", { note }]), yard, { pool: "js" });
  const { fullStream } = await waits.stream("go", { abortSignal: abort.signal });
  for await (const chunk of fullStream) {
    if (chunk.type === "tool-output") {
      abort.abort();
    }
  }
  await written(note);
});
