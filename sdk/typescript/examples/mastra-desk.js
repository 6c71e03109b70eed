/** An agent of Mastra whose tools are on the fleet: `npm install @mastra/core`. */

import { Mastra } from "@mastra/core";
import { Agent } from "@mastra/core/agent";
import { InMemoryStore } from "@mastra/core/storage";
import { Toolyard } from "toolyard/client";
import { fleetTools } from "toolyard/mastra";

const desk = new Agent({
  id: "desk",
  name: "desk",
  instructions: "Plan holidays.",
  model: { id: "openai/scripted", api: "chat", url: process.env.OPENAI_BASE_URL, apiKey: "none" },
  tools: await fleetTools(new Toolyard(), { pool: "desk" }),
});
// An agent that waits for an approval is kept in a store.
const agent = new Mastra({ agents: { desk }, storage: new InMemoryStore(), logger: false }).getAgent("desk");
let stream = await agent.stream("holiday");
for (;;) {
  let waits = false;
  for await (const chunk of stream.fullStream) {
    if (chunk.type === "tool-output") {
      console.log(`${chunk.payload.toolName}: ${chunk.payload.output.text.trim()}`);
    } else if (chunk.type === "tool-result") {
      console.log(`${chunk.payload.toolName}: ${chunk.payload.result}`);
    } else if (chunk.type === "tool-error") {
      console.log(`${chunk.payload.toolName} failed: ${chunk.payload.error.message}`);
    } else if (chunk.type === "tool-call-approval") {
      console.log("approve", chunk.payload.toolName, JSON.stringify(chunk.payload.args));
      waits = true;
    }
  }
  if (!waits) {
    break;
  }
  stream = await agent.approveToolCall({ runId: stream.runId });
}
console.log(await stream.text);
