// The tools of the bench in JavaScript. TOOLYARD_BENCH_PACKAGE is the folder of the npm package.
import { setTimeout } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const { tool } = await import(pathToFileURL(`${process.env.TOOLYARD_BENCH_PACKAGE}/dist/index.js`).href);

export const noop = tool({
  name: "node_noop",
  description: "Do nothing.",
  readOnly: true,
  execute: async () => undefined,
});

export const chunks = tool({
  name: "node_chunks",
  description: "Say many things, with a pause before each.",
  readOnly: true,
  input: {
    type: "object",
    properties: { count: { type: "integer" }, bytes: { type: "integer" }, every_ms: { type: "integer" } },
    required: ["count", "bytes"],
  },
  async *execute({ count, bytes, every_ms = 0 }) {
    const piece = "x".repeat(bytes);
    for (let number = 0; number < count; number += 1) {
      if (every_ms > 0) {
        await setTimeout(every_ms);
      }
      yield piece;
    }
  },
});
