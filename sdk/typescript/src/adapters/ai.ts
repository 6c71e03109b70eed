/**
 * Vercel's AI SDK: the tools of a fleet for `generateText`, `streamText` and agents.
 *
 * ```ts
 * const tools = await fleetTools(new Toolyard(), { pool: "desk" });
 * const { text } = await generateText({ model, tools, prompt, stopWhen: isStepCount(5) });
 * ```
 *
 * @module
 */

import { dynamicTool, jsonSchema, type ToolSet } from "ai";
import type { Toolyard } from "../client.js";
import { type Call, CallFailed, definitions, type FleetOptions, type FleetResult, Steps } from "./steps.js";

export { CallFailed, type FleetOptions, type FleetResult };

/**
 * The tools of the fleet. The calls of one step are executed as one run, and their output is preliminary results while
 * they run. A tool that needs an approval has `needsApproval`, so the AI SDK asks before it executes a call. An aborted
 * signal cancels the calls.
 */
export async function fleetTools(yard: Toolyard, options: FleetOptions = {}): Promise<ToolSet> {
  const steps = new Steps(yard, options);
  const tools: ToolSet = {};
  for (const { name, description, schema, needsApproval } of await definitions(yard, options)) {
    tools[name] = dynamicTool({
      description,
      inputSchema: jsonSchema(schema),
      needsApproval,
      execute: (input, { toolCallId: id, messages, abortSignal: signal }) =>
        // Every call of a step is given the same list of messages.
        results(steps, messages, { id, tool: name, input, approved: needsApproval, signal }),
      toModelOutput: ({ output }) => {
        const result = output as FleetResult;
        return typeof result === "string" ? { type: "text", value: result } : result;
      },
    });
  }
  return tools;
}

/** The AI SDK takes the last value for the result. */
async function* results(steps: Steps, step: object, call: Call): AsyncGenerator<FleetResult, void> {
  yield yield* steps.execute(step, call);
}
