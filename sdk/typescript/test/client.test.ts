/** The client, against the built-in tools of a running Toolyard. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type Anthropic from "@anthropic-ai/sdk";
import { modelMessageSchema, type ToolModelMessage } from "ai";
import type OpenAI from "openai";
import { type NeedsAnswer, NeedsApproval, Output, Toolyard, ToolyardError, type TurnEvent } from "toolyard/client";
import { cutting, toolUse, yard } from "./yard.js";

const TIME = { time_zone: "UTC" };
const COUNT = "for i in 1 2 3 4 5; do echo $i; sleep 0.1; done";

test("answers of the vendors' SDKs are answered in their own forms", async () => {
  const arguments_ = JSON.stringify(TIME);
  const chat = {
    role: "assistant",
    content: null,
    tool_calls: [{ id: "c", type: "function", function: { name: "get_current_time", arguments: arguments_ } }],
  };
  const completion = {
    id: "x",
    object: "chat.completion",
    choices: [{ index: 0, message: chat, finish_reason: "tool_calls" }],
  };
  const answered = await yard.turn<OpenAI.ChatCompletionToolMessageParam>(completion);
  assert.deepEqual(
    [answered.format, answered.messages[0]?.role, answered.messages[0]?.tool_call_id],
    ["openai-chat", "tool", "c"],
  );

  const response = {
    object: "response",
    output: [{ type: "function_call", call_id: "r", name: "get_current_time", arguments: arguments_ }],
  };
  const items = await yard.turn<OpenAI.Responses.ResponseInputItem.FunctionCallOutput>(response);
  assert.deepEqual([items.messages[0]?.type, items.messages[0]?.call_id], ["function_call_output", "r"]);

  const { messages } = await yard.turn<Anthropic.MessageParam>(toolUse(["t", "get_current_time", TIME]));
  assert.equal(messages[0]?.role, "user");

  const candidates = [
    { content: { role: "model", parts: [{ functionCall: { name: "get_current_time", args: TIME } }] } },
  ];
  const gemini = await yard.turn<{ parts: { functionResponse: { name: string } }[] }>({ candidates });
  assert.equal(gemini.messages[0]?.parts[0]?.functionResponse.name, "get_current_time");
});

test("a result of Vercel's AI SDK is answered with a message that the SDK takes", async () => {
  const toolCalls = [
    { type: "tool-call", toolCallId: "a", toolName: "get_current_time", input: TIME },
    { type: "tool-call", toolCallId: "b", toolName: "no_such_tool", input: {} },
  ];
  const results = [
    { text: "", toolCalls, finishReason: "tool-calls" },
    { role: "assistant", content: [{ type: "text", text: "Let me see." }, ...toolCalls] },
  ];
  for (const result of results) {
    const { messages, format } = await yard.turn<ToolModelMessage>(result);
    assert.equal(format, "ai-sdk");
    assert.equal(messages.length, 1);
    assert.deepEqual(modelMessageSchema.parse(messages[0]), messages[0]);
    const outputs = messages[0]?.content.map(
      (part) => part.type === "tool-result" && [part.toolCallId, part.output.type],
    );
    assert.deepEqual(outputs, [
      ["a", "text"],
      ["b", "error-text"],
    ]);
  }
});

test("a turn without calls has finished", async () => {
  const { finish, messages, runId } = await yard.turn({
    role: "assistant",
    content: [{ type: "text", text: "Done." }],
  });
  assert.deepEqual([finish, messages, runId], [true, [], undefined]);
});

test("tools are listed in the form of a vendor, with notes", async () => {
  const { tools, notes } = await yard.tools<Anthropic.Tool>({ format: "anthropic" });
  assert.ok(tools.some((tool) => tool.name === "bash" && tool.input_schema.type === "object"));
  assert.equal(notes.get_current_time?.read_only, true);
});

test("a client that is cut off and refused for a while sees exactly the rest, however often", async () => {
  const { client, requests } = await cutting(3, 2, 2);
  const turn = client.turn(toolUse(["a", "bash", { command: COUNT }]), { confirmation: "none" });
  const seen: TurnEvent[] = [];
  for await (const event of turn) {
    seen.push(event);
  }
  const { messages } = await turn;
  const whole: TurnEvent[] = [];
  for await (const event of yard.resume(turn.runId ?? "", { format: "anthropic" })) {
    whole.push(event);
  }
  assert.ok(requests.length > 3, `the connection was cut: ${requests.join(", ")}`);
  assert.deepEqual(
    seen.map((event) => event.at.event),
    whole.map((event) => event.at.event),
  );
  assert.deepEqual(
    seen.map((event) => Number(event.at.sequence)),
    seen.map((_, index) => index),
  );
  const text = seen.map((event) => (event instanceof Output ? event.text : "")).join("");
  assert.equal(text, "1\n2\n3\n4\n5\n");
  assert.equal(messages.length, 1);
});

test("a turn that is cut off before its first event is not executed twice", async () => {
  const { client, requests } = await cutting(2, 0);
  const turn = client.turn(toolUse(["a", "bash", { command: "echo once" }]), { confirmation: "none" });
  const { results } = await turn;
  assert.equal(results.length, 1);
  assert.ok(requests.filter((request) => request.includes(":batch")).length >= 2, requests.join(", "));
  const again = await client.turn(toolUse(["a", "bash", { command: "echo once" }]), {
    confirmation: "none",
    key: "the-same-key",
  });
  const same = await client.turn(toolUse(["a", "bash", { command: "echo once" }]), {
    confirmation: "none",
    key: "the-same-key",
  });
  assert.equal(same.runId, again.runId);
});

test("another client goes on after the last event that the first one saw", async () => {
  const turn = yard.turn(toolUse(["a", "bash", { command: COUNT }]), { confirmation: "none" });
  let after = "";
  for await (const event of turn) {
    if (event instanceof Output) {
      after = event.at.sequence;
      break;
    }
  }
  const rest: number[] = [];
  const resumed = yard.resume(turn.runId ?? "", { format: "anthropic", after });
  for await (const event of resumed) {
    rest.push(Number(event.at.sequence));
  }
  assert.equal(rest[0], Number(after) + 1);
  const { messages, results } = await resumed;
  assert.equal(messages.length, 1);
  assert.equal(results[0]?.state, "completed");
});

test("calls that await approval are decided while the turn is followed", async () => {
  const turn = yard.turn(toolUse(["a", "bash", { command: "echo hello" }]), { confirmation: "ask" });
  for await (const event of turn) {
    if (event instanceof NeedsApproval) {
      await yard.approve(turn.runId ?? "", event.callId, { command: "echo changed" });
    }
  }
  assert.match(JSON.stringify((await turn).messages), /changed/);
});

test("a call of the model that the client answers is answered", async () => {
  const onQuestion = (event: NeedsAnswer) => event.answer("Tea");
  const { results, messages } = await yard.turn(toolUse(["a", "ask_user", { question: "Tea or coffee?" }]), {
    onQuestion,
  });
  assert.equal(results[0]?.text, "Tea");
  assert.match(JSON.stringify(messages), /Tea/);
});

test("a callback that fails is the failure of its turn, and cancels the run if that was asked for", async () => {
  const message = toolUse(["a", "ask_user", { question: "Tea?" }]);
  for (const onQuestion of [
    () => Promise.reject(new RangeError("nobody is here")),
    () => {
      throw new RangeError("nobody is here");
    },
  ]) {
    const turn = yard.turn(message, { onQuestion, onDisconnect: "cancel" });
    await assert.rejects(async () => await turn, { name: "RangeError", message: "nobody is here" });
    const { results } = await yard.resume(turn.runId ?? "", { format: "anthropic" });
    assert.equal(results[0]?.state, "cancelled");
  }
});

test("a call that the request approves is not asked for", async () => {
  const asked: string[] = [];
  const calls = toolUse(["a", "bash", { command: "echo a" }], ["b", "bash", { command: "echo b" }]);
  const onApproval = (event: NeedsApproval) => {
    asked.push(event.callId);
    return event.approve();
  };
  const { results } = await yard.turn(calls, { approve: ["a"], onApproval });
  assert.deepEqual([asked, results.map((result) => result.state)], [["b"], ["completed", "completed"]]);
});

test("giving up by the signal stops following, and cancels the run if it was asked for", async () => {
  const abort = new AbortController();
  const turn = yard.turn(toolUse(["a", "bash", { command: "echo began; sleep 60" }]), {
    confirmation: "none",
    onDisconnect: "cancel",
    signal: abort.signal,
  });
  const follow = async () => {
    for await (const event of turn) {
      if (event instanceof Output) {
        abort.abort();
      }
    }
  };
  await assert.rejects(follow(), { name: "AbortError" });
  await assert.rejects(async () => await turn, { name: "AbortError" });
  const { results } = await yard.resume(turn.runId ?? "", { format: "anthropic" });
  assert.equal(results[0]?.state, "cancelled");
});

test("a refusal is an error with its reason, and is not tried again", async () => {
  const nonsense = yard.turn(toolUse(["a", "bash", {}]), { tools: ["a b"] });
  await assert.rejects(
    async () => await nonsense,
    (error) => error instanceof ToolyardError && error.reason === "MALFORMED",
  );
  const { runId = "" } = await yard.turn(toolUse(["a", "get_current_time", TIME]));
  const run_id = runId.slice(0, -4) + (runId.endsWith("0000") ? "1111" : "0000");
  const { error, response } = await yard.api.GET("/v1/runs/{run_id}", { params: { path: { run_id } } });
  assert.deepEqual([response.status, error?.reason], [404, "RUN_NOT_FOUND"]);
  const isUnknown = (error: unknown) => error instanceof ToolyardError && error.status === 404;
  await assert.rejects(yard.run(run_id), isUnknown);
  await assert.rejects(async () => await yard.resume(run_id, { format: "anthropic" }), isUnknown);
  const isOver = (error: unknown) => error instanceof ToolyardError && error.reason === "CALL_NOT_WAITING";
  await assert.rejects(yard.answerToken(runId, "a"), isOver);
});

test("a coordinator that cannot be reached is an error after the time to try", async () => {
  const nowhere = new Toolyard({ url: "http://127.0.0.1:1" });
  await assert.rejects(async () => await nowhere.turn(toolUse(["a", "x", {}]), { retryForMs: 200 }), TypeError);
});

test("what was uploaded is downloaded", async () => {
  const { object_id } = await yard.upload(new Blob(["some text"], { type: "text/plain" }));
  const response = await yard.download(object_id ?? "");
  assert.equal(response.headers.get("content-type"), "text/plain");
  assert.equal(await response.text(), "some text");
});

test("readers of one turn see the same events, and a slow one loses none", async () => {
  const turn = yard.turn(toolUse(["a", "bash", { command: "seq 1 3000" }]), { confirmation: "none" });
  const read = async () => {
    const seen: string[] = [];
    for await (const event of turn) {
      seen.push(event.at.sequence);
    }
    return seen;
  };
  const [one, other] = await Promise.all([read(), read()]);
  assert.deepEqual(one, other);
  assert.ok((one?.length ?? 0) > 3);
});

/** A client whose turn has this many pieces of output, all there at once. */
function flooding(pieces: number): Toolyard {
  const events: object[] = [{ run_opened: { run_id: "run", calls: [{ call_id: "a", tool: "flood" }] } }];
  for (let piece = 0; piece < pieces; piece += 1) {
    events.push({ call_output: { call_id: "a", content: { text: `${piece}` } } });
  }
  const sent = events.map((event, id) => `id: ${id}\ndata: ${JSON.stringify(event)}\n\n`).join("");
  const answer = JSON.stringify({ messages: ["answer"], complete: true, format: "anthropic", run_id: "run" });
  const body = `${sent}event: messages\ndata: ${answer}\n\n`;
  const headers = { "content-type": "text/event-stream" };
  return new Toolyard({ fetch: async () => new Response(body, { headers }) });
}

async function outputs(turn: AsyncIterable<TurnEvent>): Promise<number> {
  let seen = 0;
  for await (const event of turn) {
    seen += event instanceof Output ? 1 : 0;
  }
  return seen;
}

test("a turn that was awaited gives all its events to those who iterate it later", async () => {
  const turn = flooding(500).turn({});
  assert.deepEqual((await turn).messages, ["answer"]);
  assert.deepEqual([await outputs(turn), await outputs(turn)], [500, 500]);
});

test("events that are not kept any more are an error, and not left out", async () => {
  const turn = flooding(1_500).turn({});
  await turn;
  await assert.rejects(outputs(turn), /more than 1000 events of this turn are not kept.*iterate the turn before/);
});

test("a turn is awaited in the middle of its events, however many are left", async () => {
  const turn = flooding(5_000).turn({});
  let seen = 0;
  for await (const event of turn) {
    seen += event instanceof Output ? 1 : 0;
    if (seen === 1) {
      assert.deepEqual((await turn).messages, ["answer"]);
    }
  }
  assert.equal(seen, 5_000);
});

test("a result of the AI SDK without calls has finished", async () => {
  const executed = { type: "tool-call", toolCallId: "a", toolName: "search", input: {}, providerExecuted: true };
  for (const toolCalls of [[], [executed]]) {
    const result = { text: "Done.", toolCalls, finishReason: "stop", steps: [{ text: "Done." }] };
    const { finish, messages, format, runId } = await yard.turn(result);
    assert.deepEqual([finish, messages, format, runId], [true, [], "ai-sdk", undefined]);
  }
});

test("giving up before anything came back cancels the run all the same", async () => {
  const abort = new AbortController();
  let requests = 0;
  const lost: typeof fetch = async (input, init) => {
    requests += 1;
    if (requests > 1) {
      return fetch(input, init);
    }
    // The coordinator has the run, and its answer does not arrive.
    await fetch(input, { ...init, signal: null });
    abort.abort();
    throw abort.signal.reason;
  };
  const turn = new Toolyard({ fetch: lost }).turn(toolUse(["a", "bash", { command: "sleep 60" }]), {
    confirmation: "none",
    onDisconnect: "cancel",
    signal: abort.signal,
  });
  await assert.rejects(async () => await turn, { name: "AbortError" });
  const { results } = await yard.resume(turn.runId ?? "", { format: "anthropic" });
  assert.equal(results[0]?.state, "cancelled");
});
