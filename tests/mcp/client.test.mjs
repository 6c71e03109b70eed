// The official SDK for TypeScript, in both generations of the protocol.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const url = new URL(`${process.env.TOOLYARD_URL}/mcp`);

async function connected(mode, capabilities = {}) {
  const client = new Client({ name: "test", version: "1" }, { capabilities, versionNegotiation: { mode } });
  await client.connect(new StreamableHTTPClientTransport(url));
  return client;
}

const text = (result) => result.content.map((part) => part.text ?? "").join("");

for (const mode of ["auto", "legacy"]) {
  test(`tools are listed and called (${mode})`, async () => {
    const client = await connected(mode);
    const { tools } = await client.listTools();
    assert.equal(tools.find((tool) => tool.name === "greet").annotations.readOnlyHint, true);
    const result = await client.callTool({ name: "greet", arguments: { name: "Ada" } });
    assert.equal(text(result), "Hello, Ada!");
    const picture = await client.callTool({ name: "test_image_content", arguments: {} });
    assert.equal(picture.content[0].mimeType, "image/png");
    await assert.rejects(client.callTool({ name: "no_such_tool", arguments: {} }));
    await client.close();
  });

  test(`progress arrives while the call runs (${mode})`, async () => {
    const client = await connected(mode);
    const heard = [];
    const onprogress = ({ progress, total }) => heard.push([progress, total]);
    await client.callTool({ name: "test_tool_with_progress", arguments: {} }, { onprogress });
    assert.deepEqual(heard, [[0, 100], [50, 100], [100, 100]]);
    await client.close();
  });

  test(`a call that only the client can answer is an elicitation (${mode})`, async () => {
    const client = await connected(mode, { elicitation: {} });
    client.setRequestHandler("elicitation/create", async () => ({
      action: "accept",
      content: { username: "ada", email: "ada@example.org" },
    }));
    const result = await client.callTool({ name: "test_elicitation", arguments: { message: "Who are you?" } });
    assert.match(text(result), /ada@example\.org/);
    await client.close();
  });

  test(`a call whose client gives up is cancelled (${mode})`, async () => {
    const client = await connected(mode);
    const label = `given up by TypeScript, ${mode}`;
    const gone = new AbortController();
    setTimeout(() => gone.abort(), 1500);
    const call = client.callTool({ name: "slow_compute", arguments: { seconds: 50, label } }, { signal: gone.signal });
    await assert.rejects(call);
    await untilCancelled(label);
    await client.close();
  });
}

async function untilCancelled(label) {
  for (let tries = 0; tries < 300; tries++) {
    const listed = await fetch(`${process.env.TOOLYARD_URL}/v1/calls?tool=slow_compute&page_size=100`);
    for (const { run_id } of (await listed.json()).calls ?? []) {
      const { run } = await (await fetch(`${process.env.TOOLYARD_URL}/v1/runs/${run_id}`)).json();
      const [call] = run.calls;
      if (call.arguments.includes(label) && call.state === "CALL_STATE_CANCELLED") {
        return;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  assert.fail(`the call "${label}" goes on`);
}
