/**
 * Mastra: the tools of a fleet for an `Agent`.
 *
 * ```ts
 * const agent = new Agent({ id: "desk", name: "desk", instructions, model, tools: await fleetTools(new Toolyard()) });
 * ```
 *
 * @module
 */

import { createTool, type Tool, type ToolExecutionContext } from "@mastra/core/tools";
import type { Toolyard } from "../client.js";
import { CallFailed, definitions, type FleetOptions, type FleetResult, Steps } from "./steps.js";

export { CallFailed, type FleetOptions, type FleetResult };

/** What a tool writes to the stream of its agent while it runs. */
export interface FleetOutput {
  /** The text so far. It becomes shorter if an attempt was lost and its output is void. */
  text: string;
}

/**
 * The tools of the fleet. The calls of one step are executed as one run, and their output is written to the stream of
 * the agent (`tool-output`). A tool that needs an approval has `requireApproval`, so the agent is suspended before a
 * call of it: `approveToolCall` and `declineToolCall` go on. Mastra executes a step with such a call one call after
 * another. An aborted signal cancels the calls.
 */
export async function fleetTools(yard: Toolyard, options: FleetOptions = {}): Promise<Record<string, Tool>> {
  const steps = new Steps(yard, options);
  const tools: Record<string, Tool> = {};
  for (const { name, description, schema, needsApproval } of await definitions(yard, options)) {
    tools[name] = createTool({
      id: name,
      description,
      inputSchema: unchecked(schema),
      // As a function: a tool that needs none always makes Mastra execute all calls of a step one after another.
      ...(needsApproval && { requireApproval: () => true }),
      async execute(input, context) {
        const { agent, abortSignal: signal, writer } = context as ToolExecutionContext;
        const id = agent?.toolCallId ?? crypto.randomUUID();
        // The same object for all calls of an agent's run, of which one step is executed at a time.
        const step = context.requestContext ?? {};
        const calls = steps.execute(step, { id, tool: name, input, approved: needsApproval, signal });
        for (;;) {
          const { done, value } = await calls.next();
          if (done) {
            return value;
          }
          await writer?.write({ text: value } satisfies FleetOutput);
        }
      },
    }) as Tool;
  }
  return tools;
}

/** The schema for the model. The arguments are checked by the fleet. */
function unchecked(schema: Record<string, unknown>) {
  const given = () => schema;
  return {
    "~standard": {
      version: 1 as const,
      vendor: "toolyard",
      validate: (value: unknown) => ({ value }),
      jsonSchema: { input: given, output: given },
    },
  };
}
