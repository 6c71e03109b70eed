// The tools of the torture command in JavaScript, and their worker: node torture_tools.mjs INDEX_OF_THE_PACKAGE
// NATS_URL POOL SLOTS DRAIN. They do what those of its workers in Rust do, by the same policies.

import { appendFileSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const [index, natsUrl, pool, slots, drain] = process.argv.slice(2);
const { Retry, tool, worker } = await import(pathToFileURL(index).href);

const KINDS = { string: { type: "string" }, number: { type: "integer" } };

function inputs(types) {
  const properties = Object.fromEntries(Object.entries(types).map(([name, type]) => [name, KINDS[type]]));
  return { type: "object", properties, required: Object.keys(types), additionalProperties: false };
}

async function* speak({ label, pieces, every_ms, breaks_off_after, failures }, context) {
  const first = context.continueFrom;
  for (let piece = first; piece < pieces; piece += 1) {
    await setTimeout(every_ms, undefined, { signal: context.signal });
    yield `${label}-${piece} `;
    if (context.attempt <= failures && piece + 1 - first >= breaks_off_after) {
      throw new Retry("broke off");
    }
  }
  return `attempt ${context.attempt} went from ${first} to ${pieces}`;
}

const speakers = Object.entries({ speech: "restart", resuming: "continue", buffering: "buffer" }).map(
  ([name, afterPartialOutput]) =>
    tool({
      name: `node_${name}`,
      description: "Speak, and break off at first.",
      idempotent: true,
      attempts: 5,
      backoff: [0.1, 0.1],
      concurrency: "parallel",
      afterPartialOutput,
      input: inputs({
        label: "string",
        pieces: "number",
        every_ms: "number",
        breaks_off_after: "number",
        failures: "number",
      }),
      execute: speak,
    }),
);

const tools = [
  tool({
    name: "node_echo",
    description: "Give the text back.",
    readOnly: true,
    input: inputs({ text: "string" }),
    execute: ({ text }) => text,
  }),
  tool({
    name: "node_sleep",
    description: "Give the text back later.",
    readOnly: true,
    input: inputs({ ms: "number", text: "string" }),
    execute: ({ ms, text }, context) => setTimeout(ms, text, { signal: context.signal }),
  }),
  tool({
    name: "node_count",
    description: "Count slowly.",
    readOnly: true,
    input: inputs({ label: "string", pieces: "number", every_ms: "number" }),
    async *execute({ label, pieces, every_ms }, context) {
      for (let piece = 0; piece < pieces; piece += 1) {
        if (every_ms > 0) {
          await setTimeout(every_ms, undefined, { signal: context.signal });
        }
        yield `${label}-${piece} `;
      }
      return `counted to ${pieces}`;
    },
  }),
  tool({
    name: "node_fails",
    description: "Fail some attempts.",
    readOnly: true,
    input: inputs({ attempts: "number" }),
    async *execute({ attempts }, context) {
      yield `attempt ${context.attempt}`;
      if (context.attempt <= attempts) {
        throw new Retry("not yet");
      }
      return "at last";
    },
  }),
  tool({
    name: "node_writes",
    description: "Append a line to a file, and take some time.",
    concurrency: "parallel",
    input: inputs({ path: "string", line: "string", then_wait_ms: "number" }),
    async execute({ path, line, then_wait_ms }) {
      appendFileSync(path, `${line}\n`);
      await setTimeout(then_wait_ms);
    },
  }),
  ...speakers,
];

// The pipe closes when the torture command ends, however it does.
process.stdin.resume().on("end", () => process.exit());

await worker({ tools, pool, natsUrl, slots: Number(slots), drain: Number(drain) }).run({
  onReady: (id) => console.log(id),
});
process.exit();
