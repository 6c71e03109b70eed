// Vercel's AI SDK reads the streams of the Responses API. It refuses an event that it knows but that has another form.

import assert from "node:assert/strict";
import test from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { streamText } from "ai";

const call = (call_id, name, args = {}) => ({ type: "function_call", call_id, name, arguments: JSON.stringify(args) });
const bash = (call_id, command) => ({ type: "shell_call", call_id, action: { commands: [command] } });
const tools = [{ type: "mcp", server_label: "toolyard", require_approval: "never" }];

// The SDK has no way to send a model's calls as they are, so its request is replaced.
async function parts(asked) {
  const replaced = (url, init) => fetch(url, { ...init, body: JSON.stringify({ tools, stream: true, ...asked }) });
  const openai = createOpenAI({ baseURL: `${process.env.TOOLYARD_URL}/v1`, apiKey: "none", fetch: replaced });
  const { fullStream } = streamText({ model: openai.responses("toolyard"), prompt: "-", maxRetries: 0, onError: () => {} });
  const read = [];
  for await (const part of fullStream) read.push(part);
  const wrong = read.filter((part) => part.type === "error");
  assert.deepEqual(wrong, [], wrong.map((part) => String(part.error?.cause ?? part.error)).join());
  return read;
}

test("every item of tools with item types of their own is of the form that the AI SDK knows", async () => {
  const input = [
    call("web", "web_search", { query: "moon" }),
    call("files", "file_search", { query: "moon" }),
    call("code", "code_interpreter", { code: "print('one')" }),
    call("image", "image_generation", { prompt: "a moon", partial_images: 1 }),
    call("time", "get_current_time", { time_zone: "UTC" }),
    call("none", "no_such_tool"),
    bash("a", "echo one; exit 3"),
  ];
  const read = await parts({ input });
  const images = read.filter((part) => part.type === "tool-result" && part.output?.result);
  assert.ok(images.some((part) => Buffer.from(part.output.result, "base64").length === 90_008), JSON.stringify(images).slice(0, 300));
});

test("requests to the client are read too", async () => {
  const custom = { type: "custom_tool_call", call_id: "c", name: "write", input: "some text" };
  const own = [{ type: "custom", name: "write" }, { type: "function", name: "pick", parameters: { type: "object" } }];
  const read = await parts({ input: [custom, call("d", "pick")], tools: own });
  assert.equal(read.at(-1).type, "finish");
});
