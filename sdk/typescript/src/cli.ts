#!/usr/bin/env node
/** `toolyard-js`: hosts the tools of a module, lists them, or calls one without a broker. */

import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { DefinitionError, ToolError } from "./errors.js";
import { host } from "./execute.js";
import { testClient } from "./testing.js";
import { Tool } from "./tool.js";
import { worker } from "./worker.js";

const USAGE = `toolyard-js: tools in JavaScript for Toolyard

  toolyard-js run MODULE --pool NAME [options]   host the tools that a module exports
  toolyard-js list MODULE                        print the declarations of the tools
  toolyard-js call MODULE TOOL [JSON]            call a tool here, without a broker

Options of run; each has a variable of the environment:
  --pool NAME            the pool whose calls it takes      TOOLYARD_POOL
  --nats-url URL         the broker                         TOOLYARD_NATS_URL
  --nats-nkey FILE       the NKey seed of the worker        TOOLYARD_NATS_NKEY
  --nats-ca FILE         authorities of the broker          TOOLYARD_NATS_CA
  --slots N              calls at once [16]                 TOOLYARD_SLOTS
  --drain SECONDS        time to end after SIGTERM [120]    TOOLYARD_DRAIN
  --hooks FILE           the hooks file                     TOOLYARD_HOOKS
  --admin-listen ADDR    the admin port                     TOOLYARD_ADMIN_LISTEN
  --json                 logs as JSON

A module in TypeScript: node --import tsx node_modules/.bin/toolyard-js run tools.ts --pool NAME
`;

const OPTIONS = {
  pool: { type: "string" },
  "nats-url": { type: "string" },
  "nats-nkey": { type: "string" },
  "nats-ca": { type: "string" },
  slots: { type: "string" },
  drain: { type: "string" },
  hooks: { type: "string" },
  "admin-listen": { type: "string" },
  json: { type: "boolean" },
  help: { type: "boolean", short: "h" },
} as const;

/** The command was wrong; the exit status is 2. */
class Usage extends Error {}

async function main(): Promise<void> {
  const { values, positionals } = parsed();
  const [command, module, ...rest] = positionals;
  if (values.help || command === undefined) {
    process.stdout.write(USAGE);
    return;
  }
  if (!["run", "list", "call"].includes(command)) {
    throw new Usage(`there is no command ${command}; there are run, list and call`);
  }
  if (module === undefined) {
    throw new Usage(`${command} needs a module: toolyard-js ${command} tools.js`);
  }
  const tools = await exported(module);
  switch (command) {
    case "list":
      // What no worker could host is refused here already.
      host(tools);
      for (const tool of tools) {
        process.stdout.write(`${JSON.stringify(JSON.parse(tool.declaration), null, 2)}\n`);
      }
      return;
    case "call":
      return call(tools, rest);
    default:
      return run(tools, values);
  }
}

function parsed() {
  try {
    return parseArgs({ options: OPTIONS, allowPositionals: true });
  } catch (error) {
    throw new Usage(error instanceof Error ? error.message : String(error));
  }
}

type Values = ReturnType<typeof parsed>["values"];

async function run(tools: Tool[], values: Values): Promise<void> {
  const given = {
    ...(values.pool !== undefined && { pool: values.pool }),
    ...(values["nats-url"] !== undefined && { natsUrl: values["nats-url"] }),
    ...(values["nats-nkey"] !== undefined && { natsNkey: values["nats-nkey"] }),
    ...(values["nats-ca"] !== undefined && { natsCa: values["nats-ca"] }),
    ...(values.slots !== undefined && { slots: number("--slots", values.slots) }),
    ...(values.drain !== undefined && { drain: number("--drain", values.drain) }),
    ...(values.hooks !== undefined && { hooks: values.hooks }),
    ...(values["admin-listen"] !== undefined && { adminListen: values["admin-listen"] }),
    ...(values.json && { jsonLogs: true }),
  };
  if (!(values.pool ?? process.env.TOOLYARD_POOL)) {
    throw new Usage("run needs a pool: give --pool NAME, or set TOOLYARD_POOL");
  }
  const names = tools.map((tool) => tool.name).join(", ");
  await worker({ tools, ...given }).run({
    onReady: (id) => process.stderr.write(`${id} is ready: ${names}\n`),
  });
}

function number(option: string, text: string): number {
  const value = Number(text);
  if (!Number.isFinite(value) || text.trim() === "") {
    throw new Usage(`${option} is ${JSON.stringify(text)}: write a number`);
  }
  return value;
}

async function call(tools: Tool[], [name, text = "{}"]: string[]): Promise<void> {
  if (name === undefined) {
    throw new Usage("call needs the name of a tool");
  }
  let input: unknown;
  try {
    input = JSON.parse(text);
  } catch (error) {
    throw new Usage(`the arguments are not JSON: ${error instanceof Error ? error.message : error}`);
  }
  const client = testClient(tools);
  const called = client.call(name, input);
  for await (const part of called) {
    process.stdout.write(part.kind === "progress" ? "" : (part.text ?? ""));
  }
  const { answer, error } = await called.settled();
  await client.close();
  if (error) {
    throw error;
  }
  process.stdout.write(`${answer}\n`);
}

/** The tools among the exports of a module: each, those in lists, and those of the default export. */
async function exported(path: string): Promise<Tool[]> {
  const module = (await import(pathToFileURL(resolve(path)).href)) as Record<string, unknown>;
  const tools = new Set(
    Object.values(module)
      .flat()
      .filter((value): value is Tool => value instanceof Tool),
  );
  if (tools.size === 0) {
    throw new Usage(`${path} exports no tools: export const greet = tool({ … })`);
  }
  return [...tools];
}

try {
  await main();
} catch (error) {
  const known =
    [Usage, ToolError, DefinitionError].some((kind) => error instanceof kind) ||
    (error instanceof Error && "code" in error);
  process.stderr.write(`${known ? (error as Error).message : error instanceof Error ? error.stack : error}\n`);
  process.exitCode = error instanceof Usage ? 2 : 1;
}
// A tool that ignores its signal, or what the module left open, would keep the process although its work is done.
process.exit();
