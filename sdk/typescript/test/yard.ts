/** The Toolyard that is tested, and workers with the tools of the fixtures. */

import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, type TestContext } from "node:test";
import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { type ClientOptions, Toolyard, type Turn, type TurnOptions } from "toolyard/client";

export const CLI = fileURLToPath(new URL("../../dist/cli.js", import.meta.url));
export const TOOLS = fileURLToPath(new URL("./fixtures/tools.js", import.meta.url));

export const yard = new Toolyard();

const folder = mkdtempSync(join(tmpdir(), "toolyard-"));
after(() => rmSync(folder, { recursive: true, force: true }));
let files = 0;

/** Where the tools note when their shared resource was opened and closed. */
export const NOTES = join(folder, "notes");

/** The name of a file that does not exist yet. */
export function file(): string {
  files += 1;
  return join(folder, `${files}`);
}

/** A worker of its own process that has its tools advertised. It is drained after the test. */
export async function hosted(test: TestContext, ...options: string[]): Promise<ChildProcess> {
  return await hosting(test, TOOLS, "--pool", "js", ...options);
}

/** As {@link hosted}, with the tools of another module. */
export async function hosting(test: TestContext, module: string, ...options: string[]): Promise<ChildProcess> {
  const command = [CLI, "run", module, ...options];
  const env = { ...process.env, TOOLYARD_TEST_NOTES: NOTES };
  const child = spawn(process.execPath, command, { stdio: ["ignore", "inherit", "pipe"], env });
  test.after(async () => {
    child.kill("SIGTERM");
    await exited(child);
  });
  for await (const line of createInterface({ input: child.stderr })) {
    if (line.includes("is ready")) {
      break;
    }
  }
  child.stderr.resume();
  return child;
}

/** Resolves when the coordinator lists the tools of a pool. */
export async function listed(pool: string): Promise<void> {
  for (;;) {
    const { tools } = await yard.tools({ format: "openai-chat", pool });
    if (tools.length > 0) {
      return;
    }
    await setTimeout(20);
  }
}

/** The program that is tested. */
export const PROGRAM = process.env.TOOLYARD_PROGRAM ?? "toolyard";

/** The folder of the examples. */
export const EXAMPLES = fileURLToPath(new URL("../../examples/", import.meta.url));

/** A model that answers as a script says. It gives the address of its API of OpenAI's form. */
export async function scripted(test: TestContext, script: string): Promise<string> {
  const command = ["model", "--script", script, "--listen", "127.0.0.1:0", "-o", "json"];
  const child = spawn(PROGRAM, command, { stdio: ["ignore", "pipe", "inherit"] });
  test.after(async () => {
    child.kill("SIGTERM");
    await exited(child);
  });
  for await (const line of createInterface({ input: child.stdout })) {
    child.stdout.resume();
    return (JSON.parse(line) as { openai: string }).openai.replace("/chat/completions", "");
  }
  throw new Error("the model ended before it listened");
}

/** A script with one turn of calls, and then a text. */
export function script(...calls: [tool: string, input: object][]): string {
  const listed = calls.map(([tool, input]) => `{ tool = "${tool}", arguments = ${toml(input)} }`);
  const path = file();
  writeFileSync(path, `[[go]]\ncalls = [${listed.join(", ")}]\n\n[[go]]\ntext = "done"\n`);
  return path;
}

function toml(input: object): string {
  const members = Object.entries(input).map(([key, value]) => `${key} = ${JSON.stringify(value)}`);
  return `{ ${members.join(", ")} }`;
}

/** Runs an example as a reader runs it, and gives what it prints. */
export async function example(test: TestContext, name: string): Promise<string[]> {
  await hosting(test, join(EXAMPLES, "desk.js"), "--pool", "desk");
  await listed("desk");
  const OPENAI_BASE_URL = await scripted(test, join(EXAMPLES, "script.toml"));
  const env = { ...process.env, OPENAI_BASE_URL, OPENAI_API_KEY: "none" };
  const run = promisify(execFile);
  const { stdout } = await run(process.execPath, [join(EXAMPLES, name)], { env, timeout: 120_000 });
  return stdout.trim().split("\n");
}

/** A client that notes the tools of each of its turns. */
export class Recorded extends Toolyard {
  readonly turns: string[][] = [];

  override turn<M = unknown>(message: object, options?: TurnOptions): Turn<M> {
    const { toolCalls } = message as { toolCalls: { toolName: string }[] };
    this.turns.push(toolCalls.map((call) => call.toolName).sort());
    return super.turn<M>(message, options);
  }
}

/** Resolves when a tool has written a file. */
export async function written(path: string): Promise<void> {
  while (!existsSync(path) || readFileSync(path, "utf8") === "") {
    await setTimeout(10);
  }
}

/** Resolves when the worker logs a line with this text. */
export function logged(worker: ChildProcess, text: string): Promise<void> {
  return new Promise((resolve) => {
    let seen = "";
    worker.stderr?.on("data", (chunk: Buffer) => {
      seen += chunk.toString();
      if (seen.includes(text)) {
        resolve();
      }
    });
  });
}

export async function exited(child: ChildProcess): Promise<number | null> {
  if (child.exitCode === null && child.signalCode === null) {
    await once(child, "exit");
  }
  return child.exitCode;
}

/** A turn of a model in the form of Anthropic. */
export function toolUse(...calls: [id: string, name: string, input: object][]): object {
  const content = calls.map(([id, name, input]) => ({ type: "tool_use", id, name, input }));
  return { role: "assistant", content };
}

/** A proxy to the coordinator that cuts the first `cuts` streams after some events, and refuses some other requests. */
export async function cutting(cuts: number, events: number, refusals = 0, options: ClientOptions = {}) {
  let cut = 0;
  let refused = 0;
  const requests: string[] = [];
  const upstream = process.env.TOOLYARD_URL ?? "";
  const server: Server = createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) {
      chunks.push(chunk as Buffer);
    }
    const headers = new Headers();
    for (const name of ["accept", "authorization", "content-type", "idempotency-key", "last-event-id"]) {
      const value = request.headers[name];
      if (typeof value === "string") {
        headers.set(name, value);
      }
    }
    requests.push(`${request.method} ${request.url?.split("?")[0]} ${headers.get("last-event-id") ?? ""}`.trim());
    if (headers.get("accept") !== "text/event-stream" && refused < refusals) {
      refused += 1;
      response.writeHead(503, { "content-type": "application/problem+json", "retry-after": "0" });
      response.end(JSON.stringify({ status: 503, reason: "BROKER_UNAVAILABLE", detail: "the broker is away" }));
      return;
    }
    const body = chunks.length > 0 ? Buffer.concat(chunks) : undefined;
    const answer = await fetch(`${upstream}${request.url}`, {
      method: request.method ?? "GET",
      headers,
      ...(body && { body }),
    });
    response.writeHead(answer.status, { "content-type": answer.headers.get("content-type") ?? "" });
    let seen = 0;
    const isStream = headers.get("accept") === "text/event-stream" && cut < cuts;
    cut += isStream ? 1 : 0;
    try {
      for await (const chunk of answer.body ?? []) {
        seen += (
          Buffer.from(chunk)
            .toString()
            .match(/^data:/gm) ?? []
        ).length;
        response.write(chunk);
        if (isStream && seen >= events) {
          // What was written arrives, and then the connection breaks.
          await new Promise((resolve) => response.write("", resolve));
          response.destroy();
          return;
        }
      }
      response.end();
    } catch {
      response.destroy();
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  after(() => {
    server.closeAllConnections();
    server.close();
  });
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return { client: new Toolyard({ url, ...options }), requests };
}
