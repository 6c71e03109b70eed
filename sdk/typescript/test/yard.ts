/** The Toolyard that is tested, and workers with the tools of the fixtures. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { type ClientOptions, Toolyard } from "toolyard/client";

export const CLI = fileURLToPath(new URL("../../dist/cli.js", import.meta.url));
export const TOOLS = fileURLToPath(new URL("./fixtures/tools.js", import.meta.url));

export const yard = new Toolyard();

const folder = mkdtempSync(join(tmpdir(), "toolyard-"));
after(() => rmSync(folder, { recursive: true, force: true }));
let files = 0;

/** The name of a file that does not exist yet. */
export function file(): string {
  files += 1;
  return join(folder, `${files}`);
}

/** A worker of its own process that has its tools advertised. It is drained after the test. */
export async function hosted(test: TestContext, ...options: string[]): Promise<ChildProcess> {
  const command = [CLI, "run", TOOLS, "--pool", "js", ...options];
  const child = spawn(process.execPath, command, { stdio: ["ignore", "inherit", "pipe"] });
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
