/** An agent of Vercel's AI SDK whose tools are on the fleet: `npm install ai @ai-sdk/openai`. */

import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount } from "ai";
import { fleetTools } from "toolyard/ai";
import { Toolyard } from "toolyard/client";

const model = createOpenAI().chat("scripted");
const tools = await fleetTools(new Toolyard(), { pool: "desk" });
const messages = [{ role: "user", content: "holiday" }];
for (;;) {
  const { content, responseMessages, text } = await generateText({ model, tools, messages, stopWhen: isStepCount(5) });
  messages.push(...responseMessages);
  for (const part of responseMessages.flatMap((message) => (message.role === "tool" ? message.content : []))) {
    console.log(`${part.toolName}: ${part.output.value}`);
  }
  const requests = content.filter((part) => part.type === "tool-approval-request");
  if (requests.length === 0) {
    console.log(text);
    break;
  }
  const answers = requests.map(({ approvalId, toolCall }) => {
    console.log("approve", toolCall.toolName, JSON.stringify(toolCall.input));
    return { type: "tool-approval-response", approvalId, approved: true };
  });
  messages.push({ role: "tool", content: answers });
}
