// Both faces, driven by the vendor's SDK for Node. Its accumulating stream throws at an event that it does not know.

import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.TOOLYARD_URL}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const call = (call_id, name, args = {}) => ({ type: "function_call", call_id, name, arguments: JSON.stringify(args) });
const bash = (call_id, command) => ({ type: "shell_call", call_id, action: { commands: [command] } });
const QUESTION = call("ask", "ask_user", { question: "Which one?" });
// Without it calls of bash, which reaches beyond the system, await approval.
const tools = [{ type: "mcp", server_label: "toolyard", require_approval: "never" }];
const COUNT = "for i in 1 2 3; do echo $i; sleep 0.2; done; exit 3";

async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

test("a streamed response adds up and is resumed from anywhere", async () => {
  const input = [bash("a", COUNT), call("time", "get_current_time", { time_zone: "UTC" })];
  const events = await all(await client.responses.create({ input, tools, stream: true }));
  assert.equal(events[0].type, "response.created");
  let open = null;
  for (const event of events) {
    if (event.type === "response.output_item.added") {
      assert.equal(open, null, "one item at a time");
      open = event.item.id;
    } else if (event.type === "response.output_item.done") {
      assert.equal(event.item.id, open);
      open = null;
    } else if (event.item_id) {
      assert.equal(event.item_id, open);
    }
  }
  const { type, response } = events.at(-1);
  assert.equal(type, "response.completed");
  const done = events.filter((event) => event.type === "response.output_item.done");
  done.sort((one, other) => one.output_index - other.output_index);
  assert.deepEqual(done.map((event) => event.item), response.output);
  const deltas = events.filter((event) => event.type === "response.shell_call_output_content.delta");
  assert.equal(deltas.map((event) => event.delta.stdout ?? "").join(""), "1\n2\n3\n");
  for (const after of [0, 4, events.at(-2).sequence_number]) {
    const rest = await all(await client.responses.retrieve(response.id, { stream: true, starting_after: after }));
    assert.deepEqual(rest, events.filter((event) => event.sequence_number > after));
  }
  const retrieved = await client.responses.retrieve(response.id);
  assert.deepEqual(retrieved.output, response.output);
});

test("the accumulating stream knows every event, from the beginning and from within", async () => {
  const stream = client.responses.stream({ tools, input: [bash("a", COUNT), QUESTION, call("none", "no_such_tool")] });
  const events = await all(stream);
  const final = await stream.finalResponse();
  const kinds = final.output.map((item) => item.type).sort();
  assert.deepEqual(kinds, ["function_call", "mcp_call", "shell_call", "shell_call_output"]);
  const again = client.responses.stream({ response_id: final.id, starting_after: 3 });
  const rest = await all(again);
  assert.deepEqual(rest.map((event) => event.sequence_number), events.map((event) => event.sequence_number).filter((n) => n > 3));
  await client.responses.cancel(final.id);
});

test("calls of tools with backends are read with the items and events of their own types", async () => {
  const input = [
    call("web", "web_search", { query: "moon" }),
    call("files", "file_search", { query: "moon" }),
    call("code", "code_interpreter", { code: "print('one')" }),
    call("image", "image_generation", { prompt: "a moon", partial_images: 1 }),
  ];
  const stream = client.responses.stream({ tools, input, store: false });
  const events = await all(stream);
  const final = await stream.finalResponse();
  const kinds = ["web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"];
  assert.deepEqual(final.output.map((item) => item.type).sort(), [...kinds].sort());
  assert.ok(final.output.every((item) => item.status === "completed"), JSON.stringify(final.output.map((item) => item.status)));
  for (const kind of kinds) {
    assert.ok(events.some((event) => event.type === `response.${kind}.completed`), kind);
  }
  const [web, files, code, image] = kinds.map((kind) => final.output.find((item) => item.type === kind));
  assert.deepEqual(web.action.sources.map((source) => source.url), ["https://pages.example/1", "https://pages.example/2"]);
  assert.equal(files.results[0].file_id, "f1");
  assert.equal(code.outputs[0].logs, "one\n");
  const partial = events.find((event) => event.type === "response.image_generation_call.partial_image");
  assert.ok(Buffer.from(partial.partial_image_b64, "base64").length > 65_536);
  assert.equal(Buffer.from(image.result, "base64").length, 90_008);
});

test("an open call is answered by the next response, and only once", async () => {
  const asked = await client.responses.create({ input: [QUESTION] });
  const answer = (output) => ({
    previous_response_id: asked.id,
    input: [{ type: "function_call_output", call_id: "ask", output }],
  });
  const answered = await client.responses.create(answer("blue"));
  assert.equal(answered.previous_response_id, asked.id);
  assert.equal((await client.responses.create(answer("blue"))).id, answered.id);
  await assert.rejects(client.responses.create(answer("red")), (error) => error.code === "CALL_ALREADY_ANSWERED");
  const items = await all(client.responses.inputItems.list(answered.id));
  assert.deepEqual(items.map((item) => item.output), ["blue"]);
});

test("a response is cancelled, and deleted", async () => {
  const begun = await client.responses.create({ tools, input: [bash("a", "sleep 60")], background: true });
  assert.equal((await client.responses.cancel(begun.id)).status, "cancelled");
  await client.responses.delete(begun.id);
  await assert.rejects(client.responses.retrieve(begun.id), OpenAI.NotFoundError);
});

test("a run requires action, and its stream goes on with the outputs", async () => {
  const { runs } = client.beta.threads;
  const thread = await client.beta.threads.create();
  const tool = (id, name, args) => ({ id, type: "function", function: { name, arguments: JSON.stringify(args) } });
  const tool_calls = [tool("bash", "bash", { command: "echo one; sleep 0.3; echo two" }), tool("ask", "ask_user", { question: "?" })];
  const stream = runs.stream(thread.id, { assistant_id: "any", tools, tool_calls });
  const run = await stream.finalRun();
  assert.equal(run.status, "requires_action");
  assert.deepEqual(run.required_action.submit_tool_outputs.tool_calls.map((call) => call.id), ["ask"]);
  const steps = await stream.finalRunSteps();
  const outputs = steps.map((step) => step.step_details.tool_calls[0].function.output);
  assert.ok(outputs.includes('one\ntwo\n\n{"exit_code":0}'), JSON.stringify(outputs));
  const tool_outputs = [{ tool_call_id: "ask", output: "blue" }];
  const rest = runs.submitToolOutputsStream(run.id, { thread_id: thread.id, tool_outputs });
  assert.equal((await rest.finalRun()).status, "completed");
  const cancelled = await runs.create(thread.id, { assistant_id: "any", tools, tool_calls: [tool("a", "bash", { command: "sleep 60" })] });
  await runs.cancel(cancelled.id, { thread_id: thread.id });
  assert.equal((await runs.poll(cancelled.id, { thread_id: thread.id }, { pollIntervalMs: 50 })).status, "cancelled");
});
