// An MCP server whose tools ask the person before they answer, for the forms of questions.

import { createInterface } from "node:readline";

const REQUESTED = {
  type: "object",
  required: ["stage", "checks"],
  properties: {
    stage: { type: "string", enum: ["staging", "production"], description: "Where it goes" },
    checks: { type: "array", items: { type: "string", enum: ["unit", "load", "security"] } },
    note: { type: "string", default: "from the console" },
    copies: { type: "integer", minimum: 1 },
  },
};

/** A tool whose manifest tries to be a part of the page. */
const HOSTILE = {
  name: "hostile",
  title: "<img src=x onerror=window.hacked=1>",
  description: "<script>window.hacked=1</script>\u202e [x](javascript:window.hacked=1) \u0007",
  inputSchema: {
    type: "object",
    properties: {
      "<b>name</b>\u202e": { type: "string", description: "<svg onload=window.hacked=1>" },
      choice: { type: "string", enum: ["<img src=x onerror=window.hacked=1>", "\u202eb"] },
      constructor: { type: "array", items: { type: "string", default: "<i>" } },
      inner: { type: "object", properties: { toString: { type: "integer" } }, required: ["toString"] },
    },
  },
  annotations: { readOnlyHint: true },
};

const waiting = new Map();
const send = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
const text = (value) => ({ content: [{ type: "text", text: JSON.stringify(value) }] });

createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params, result, error } = JSON.parse(line);
  if (method === undefined) {
    const call = waiting.get(id);
    waiting.delete(id);
    if (call !== undefined) send({ id: call, result: text(result ?? error) });
  } else if (method === "initialize") {
    const { protocolVersion } = params;
    send({ id, result: { protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "asker", version: "1" } } });
  } else if (method === "tools/list") {
    const inputSchema = { type: "object", properties: { change: { type: "string" } }, required: ["change"] };
    const annotations = { readOnlyHint: true, openWorldHint: false };
    send({
      id,
      result: { tools: [{ name: "deploy", description: "Deploys a change.", inputSchema, annotations }, HOSTILE] },
    });
  } else if (method === "tools/call") {
    const question = `ask-${id}`;
    waiting.set(question, id);
    const message = `Deploy ${params.arguments.change}?`;
    send({ id: question, method: "elicitation/create", params: { message, requestedSchema: REQUESTED } });
  } else if (id !== undefined) send({ id, error: { code: -32601, message: `unknown method ${method}` } });
});
