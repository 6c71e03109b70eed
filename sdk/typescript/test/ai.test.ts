/** The adapter of Vercel's AI SDK, with a scripted model and tools of a worker. */

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { type TestContext, test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, type ModelMessage, streamText, type ToolApprovalResponse } from "ai";
import { type FleetOptions, fleetTools } from "toolyard/ai";
import { type ToolDefinitions, Toolyard } from "toolyard/client";
import { EXAMPLES, example, file, hosted, hosting, listed, Recorded, script, scripted, written, yard } from "./yard.js";

const stopWhen = isStepCount(3);

async function model(t: TestContext, path: string) {
  return createOpenAI({ baseURL: await scripted(t, path), apiKey: "none" }).chat("scripted");
}

test("the example of the AI SDK prints what the docs say", async (t) => {
  assert.deepEqual(await example(t, "ai-desk.js"), [
    "forecast: Rome: sunny",
    "forecast: Error: there is no city Atlantis",
    'approve book {"city":"Rome"}',
    "book: a seat to Rome is booked",
    "You fly to Rome.",
  ]);
});

test("the calls of a step are one run, and a call that is rejected is never executed", async (t) => {
  await hosting(t, `${EXAMPLES}desk.js`, "--pool", "desk");
  await listed("desk");
  const client = new Recorded();
  const tools = await fleetTools(client, { pool: "desk" });
  assert.deepEqual(Object.keys(tools).sort(), ["book", "forecast"]);
  const scripted = await model(t, `${EXAMPLES}script.toml`);
  const prompt: ModelMessage[] = [{ role: "user", content: "holiday" }];
  const first = await generateText({ model: scripted, tools, messages: prompt, stopWhen });
  const [request] = first.content.filter((part) => part.type === "tool-approval-request");
  // As another process has them.
  const kept = JSON.parse(JSON.stringify([...prompt, ...first.responseMessages])) as ModelMessage[];
  const answer = (approved: boolean): ToolApprovalResponse => ({
    type: "tool-approval-response",
    approvalId: request?.approvalId ?? "",
    approved,
    reason: "not this week",
  });
  const messages: ModelMessage[] = [...kept, { role: "tool", content: [answer(false)] }];
  const rejected = await generateText({ model: scripted, tools, messages, stopWhen });
  assert.equal(rejected.text, "You fly to Rome.");
  assert.deepEqual(client.turns, [["forecast", "forecast"]]);

  const approved = await generateText({
    model: scripted,
    tools: await fleetTools(client, { pool: "desk" }),
    messages: [...kept, { role: "tool", content: [answer(true)] }],
    stopWhen,
  });
  assert.match(JSON.stringify(approved.responseMessages), /a seat to Rome is booked/);
  assert.deepEqual(client.turns, [["forecast", "forecast"], ["book"]]);
});

test("output is a preliminary result while the tool runs", async (t) => {
  await hosted(t);
  await listed("js");
  const go = file();
  const { fullStream } = streamText({
    model: await model(t, script(["js_pieces", { go }])),
    tools: await fleetTools(yard, { pool: "js" }),
    prompt: "go",
    stopWhen,
  });
  const seen: unknown[] = [];
  for await (const part of fullStream) {
    if (part.type === "tool-result") {
      seen.push([part.preliminary ?? false, part.output]);
      // The tool goes on only now.
      writeFileSync(go, "");
    }
  }
  assert.deepEqual(seen.slice(0, 2), [
    [true, "first\n"],
    [true, 'first\n{"second":true}'],
  ]);
  const [isPreliminary, last] = seen.at(-1) as [boolean, string];
  assert.equal(isPreliminary, false);
  assert.match(last, /first\n.*both$/s);
});

test("an aborted signal cancels the calls", async (t) => {
  await hosted(t);
  await listed("js");
  const notes = [file(), file()];
  const abort = new AbortController();
  const client = new Recorded();
  const { fullStream } = streamText({
    model: await model(t, script(...notes.map((note): [string, object] => ["js_waits", { note }]))),
    tools: await fleetTools(client, { pool: "js" }),
    prompt: "go",
    stopWhen,
    abortSignal: abort.signal,
  });
  let began = 0;
  for await (const part of fullStream) {
    if (part.type === "tool-result" && part.preliminary) {
      began += 1;
      if (began === 2) {
        abort.abort();
      }
    }
  }
  assert.deepEqual(client.turns, [["js_waits", "js_waits"]]);
  await Promise.all(notes.map((note) => written(note)));
});

test("what nobody can approve or answer is refused, and options of the turn are passed on", async (t) => {
  await hosted(t);
  await listed("js");
  const calls: [string, object][] = [
    ["js_pay", { amount: 3 }],
    ["ask_user", { question: "Tea?" }],
    ["js_choose", {}],
    ["js_greet", { name: "Ada" }],
  ];
  const scripted = await model(t, script(...calls));
  // The tools were read before one of them needed an approval.
  class Early extends Toolyard {
    override async tools<T>(options: Parameters<Toolyard["tools"]>[0]): Promise<ToolDefinitions<T>> {
      return { ...(await super.tools<T>(options)), notes: {} };
    }
  }
  const outputs = async (options: FleetOptions) => {
    const tools = await fleetTools(new Early(), options);
    const { responseMessages } = await generateText({ model: scripted, tools, prompt: "go", stopWhen });
    const parts = responseMessages.flatMap((message) => (message.role === "tool" ? message.content : []));
    return Object.fromEntries(
      parts.map((part) =>
        part.type === "tool-result" && "value" in part.output ? [part.toolName, part.output.value] : [],
      ),
    );
  };
  const refused = await outputs({});
  assert.match(String(refused.js_pay), /nobody can approve this call here/);
  assert.match(String(refused.ask_user), /nobody can answer this call here/);
  assert.equal(refused.js_choose, "no choice: decline");
  assert.equal(refused.js_greet, "Hello, Ada!");
  const decided = await outputs({
    turn: {
      context: { greeting: "Salve" },
      onApproval: (event) => event.approve({ amount: 4 }),
      onQuestion: (event) => event.answer("red"),
    },
  });
  const { js_pay, ask_user, js_choose, js_greet } = decided;
  assert.deepEqual([js_pay, ask_user, js_choose, js_greet], ['{"paid":4}', "red", "chose red", "Salve, Ada!"]);
});

test("an image is one for the model", async (t) => {
  await hosted(t);
  await listed("js");
  const { steps } = await generateText({
    model: await model(t, script(["js_picture", { bytes: 3 }])),
    tools: await fleetTools(yard, { name: "js_picture" }),
    prompt: "go",
  });
  assert.match(
    JSON.stringify(steps[0]?.response.messages),
    /"type":"image-data","data":"BwcH","mediaType":"image\/png"/,
  );
});
