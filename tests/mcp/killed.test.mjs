// A coordinator is killed in the middle of a call of the official SDK for TypeScript, and the call is found elsewhere.
// The SDK does not know the extension for tasks: it refuses the result, so tasks are read with plain requests.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const replica = new URL(`${process.env.TOOLYARD_URL}/mcp`);
const TASKS = "io.modelcontextprotocol/tasks";

/** Another coordinator of the same broker, which ends with the test. */
async function coordinator(t, listen = "127.0.0.1:0") {
  const options = ["coordinator", "--nats-url", process.env.TOOLYARD_NATS_URL, "--listen", listen, "-o", "json"];
  const child = spawn(process.env.TOOLYARD_PROGRAM, options, { stdio: ["ignore", "ignore", "pipe"] });
  t.after(() => child.kill("SIGKILL"));
  for await (const line of createInterface(child.stderr)) {
    const { address } = JSON.parse(line);
    if (address) {
      child.stderr.resume();
      return { child, address, url: new URL(`http://${address}/mcp`) };
    }
  }
  assert.fail("the coordinator ended before it was up");
}

async function killed({ child }) {
  const gone = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGKILL");
  await gone;
}

/** A request of the present revision, and its answer as the transport has it. */
function ask(method, name, params) {
  const meta = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": { extensions: { [TASKS]: {} } },
  };
  const headers = {
    accept: "application/json, text/event-stream",
    "content-type": "application/json",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": method,
    "mcp-name": name,
  };
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params: { ...params, _meta: meta } });
  return fetch(replica, { method: "POST", headers, body });
}

/** The messages of a stream. */
async function* messages(answer) {
  let text = "";
  for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
    text += piece;
    const lines = text.split("\n");
    text = lines.pop();
    for (const line of lines.filter((line) => line.startsWith("data: "))) {
      yield JSON.parse(line.slice("data: ".length));
    }
  }
}

/**
 * How many calls have this label, once there are any: the index follows the log. Without Redis each coordinator lists
 * the runs of its own shards.
 */
async function timesCalled(label, coordinators) {
  const get = async (url, path) => (await fetch(`${url}/v1/${path}`)).json();
  for (;;) {
    const found = new Set();
    for (const url of coordinators) {
      const { calls = [] } = await get(url, "calls?tool=slow_compute&page_size=100");
      const runs = await Promise.all(calls.map(({ run_id }) => get(url, `runs/${run_id}`)));
      const ours = runs.filter(({ run }) => run.calls[0].arguments.includes(label));
      ours.forEach(({ run }) => found.add(run.run_id));
    }
    if (found.size > 0) return found.size;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

test("a task outlives the coordinator that made it, and another one reports its end", async (t) => {
  const doomed = await coordinator(t);
  let found;
  const made = new Promise((resolve) => (found = resolve));
  const watching = async (input, init) => {
    const answer = await fetch(input, init);
    const [, id] = (await answer.clone().text()).match(/"taskId":"(task_[^"]+)"/) ?? [];
    if (id) found(id);
    return answer;
  };
  const capabilities = { extensions: { [TASKS]: {} } };
  const client = new Client({ name: "test", version: "1" }, { capabilities, versionNegotiation: { mode: "auto" } });
  t.after(() => client.close());
  await client.connect(new StreamableHTTPClientTransport(doomed.url, { fetch: watching }));
  const call = client.callTool({ name: "slow_compute", arguments: { seconds: 4 } });
  const refused = assert.rejects(call);
  const id = await made;
  await killed(doomed);
  await refused;

  const states = [];
  const listening = await ask("subscriptions/listen", "", { notifications: { taskIds: [id] } });
  for await (const { method, params } of messages(listening)) {
    if (method === "notifications/tasks") {
      assert.equal(params.taskId, id);
      states.push(params.status);
      if (params.status === "completed") break;
    }
  }
  assert.deepEqual([...new Set(states)], ["working", "completed"]);
  assert.ok(states.length <= 3, `it is reported when it changes, and not every second: ${states}`);
  const { result } = await (await ask("tasks/get", id, { taskId: id })).json();
  assert.deepEqual([result.status, result.result.content[0].text], ["completed", "computed for 4 s"]);
});

test("a call of an older client is resumed by the SDK when its coordinator is there again", async (t) => {
  const doomed = await coordinator(t);
  const client = new Client({ name: "test", version: "1" }, { versionNegotiation: { mode: "legacy" } });
  t.after(() => client.close());
  const reconnectionOptions = {
    initialReconnectionDelay: 200,
    maxReconnectionDelay: 500,
    reconnectionDelayGrowFactor: 1.5,
    maxRetries: 200,
  };
  await client.connect(new StreamableHTTPClientTransport(doomed.url, { reconnectionOptions }));
  await client.listTools();
  let begun;
  const started = new Promise((resolve) => (begun = resolve));
  const arguments_ = { seconds: 4, label: "resumed" };
  const call = client.callTool({ name: "slow_compute", arguments: arguments_ }, { onresumptiontoken: begun });
  await started;
  await killed(doomed);
  await coordinator(t, doomed.address);
  const result = await call;
  assert.equal(result.content[0].text, "computed for 4 s");
  assert.equal(await timesCalled("resumed", [process.env.TOOLYARD_URL, `http://${doomed.address}`]), 1);
});

for (const mode of ["auto", "legacy"]) {
  test(`a result that is too large for a message is a resource (${mode})`, async () => {
    const client = new Client({ name: "test", version: "1" }, { versionNegotiation: { mode } });
    await client.connect(new StreamableHTTPClientTransport(replica));
    const link = async (bytes) => {
      const { content } = await client.callTool({ name: "large_text", arguments: { bytes } });
      return content.find((part) => part.type === "resource_link").uri;
    };
    const uri = await link(3 * 1024 * 1024);
    const { contents } = await client.readResource({ uri });
    assert.equal(contents[0].text, "0123456789abcdef".repeat(3 * 65536));
    const larger = await link(5 * 1024 * 1024);
    await assert.rejects(client.readResource({ uri: larger }), /read it from \/v1\/objects\//);
    await assert.rejects(client.readResource({ uri: `${uri.slice(0, -4)}0000` }));
    await client.close();
  });
}
