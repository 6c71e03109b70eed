// Toolyard for the tests: real processes, and requests to them.

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const PROGRAM = process.env.TOOLYARD_PROGRAM;

/** A port that was free a moment ago. */
export function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.on("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** Starts a program of Toolyard. Its output is kept for the message of a failure. */
function start(args) {
  const child = spawn(PROGRAM, args, { stdio: ["ignore", "pipe", "pipe"] });
  const said = { out: "", err: "" };
  child.stdout.on("data", (data) => {
    said.out += data;
  });
  child.stderr.on("data", (data) => {
    said.err = (said.err + data).slice(-4_000);
  });
  const ended = new Promise((resolve) => child.on("exit", resolve));
  return {
    said,
    pid: child.pid,
    kill: async (signal = "SIGKILL") => {
      child.kill(signal);
      await ended;
    },
    isRunning: () => child.exitCode === null && child.signalCode === null,
  };
}

/** `toolyard dev`, until `stop`. */
export async function dev(args = []) {
  const root = mkdtempSync(join(tmpdir(), "console-"));
  const child = start([
    "dev",
    "--listen",
    "127.0.0.1:0",
    "--nats-port",
    String(await freePort()),
    "--root",
    root,
    "-o",
    "json",
    ...args,
  ]);
  while (!child.said.out.includes("\n")) {
    if (!child.isRunning()) throw new Error(`dev ended: ${child.said.err}`);
    await sleep(50);
  }
  const described = JSON.parse(child.said.out.split("\n")[0]);
  return {
    ...described,
    root,
    pid: child.pid,
    stop: async () => {
      await child.kill("SIGTERM").catch(() => undefined);
      rmSync(root, { recursive: true, force: true });
    },
  };
}

/** A coordinator beside `dev`, at the same broker. */
export async function coordinator(natsUrl, port, args = []) {
  const child = start([
    "coordinator",
    "--nats-url",
    natsUrl,
    "--listen",
    `127.0.0.1:${port}`,
    "--console",
    "always",
    ...args,
  ]);
  const url = `http://127.0.0.1:${port}`;
  for (let round = 0; ; round += 1) {
    if (!child.isRunning() || round > 600) throw new Error(`the coordinator is not up: ${child.said.err}`);
    const answer = await fetch(`${url}/v1/openapi.json`).catch(() => undefined);
    if (answer?.ok) break;
    await sleep(50);
  }
  return { url, pid: child.pid, kill: child.kill };
}

/** A worker beside `dev`, at the same broker. It is up when the coordinator lists it. */
export async function worker(yard, pool, args) {
  const child = start(["worker", "--nats-url", yard.nats_url, "--pool", pool, ...args]);
  for (let round = 0; ; round += 1) {
    if (!child.isRunning() || round > 600) throw new Error(`the worker is not up: ${child.said.err}`);
    const { workers } = await (await fetch(`${yard.url}/v1/workers?pool=${pool}`)).json();
    if ((workers ?? []).some((one) => one.pulling)) break;
    await sleep(50);
  }
  return { kill: child.kill, isRunning: child.isRunning };
}

/** The scripted model of the tutorial, and the file of the agents that ask it. */
export async function model() {
  const examples = fileURLToPath(new URL("../../../docs/examples/agents/", import.meta.url));
  const folder = mkdtempSync(join(tmpdir(), "console-model-"));
  const child = start(["model", "--script", join(examples, "script.toml"), "--listen", "127.0.0.1:0", "-o", "json"]);
  while (!child.said.out.includes("\n")) {
    if (!child.isRunning()) throw new Error(`the model ended: ${child.said.err}`);
    await sleep(50);
  }
  const { host } = new URL(JSON.parse(child.said.out.split("\n")[0]).openai);
  const file = join(folder, "agents.toml");
  writeFileSync(file, readFileSync(join(examples, "agents.toml"), "utf8").replaceAll("127.0.0.1:7430", host));
  return {
    file,
    stop: async () => {
      await child.kill("SIGTERM");
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** Requests to a coordinator. */
export function client(url, key) {
  const headers = { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const request = async (method, path, body) => {
    const init = { method, headers };
    if (body !== undefined) init.body = JSON.stringify(body);
    const response = await fetch(`${url}/v1${path}`, init);
    const answer = await response.json();
    if (!response.ok) throw new Error(`${method} ${path}: ${JSON.stringify(answer)}`);
    return answer;
  };
  return {
    get: (path) => request("GET", path),
    post: (path, body = {}) => request("POST", path, body),
    /** Opens a run and returns its id. A call is `[tool, arguments, fields]`. */
    run: async (calls, fields = {}) => {
      const answer = await request("POST", "/runs", {
        rules: { confirmation: "CONFIRMATION_NONE" },
        ...fields,
        calls: calls.map(([tool, args, more]) => ({ tool, arguments: JSON.stringify(args), ...more })),
      });
      return answer.run.run_id;
    },
    ended: async (id) => {
      for (let round = 0; round < 1_200; round += 1) {
        const { run } = await request("GET", `/runs/${id}`);
        if (!["RUN_STATUS_IN_PROGRESS", "RUN_STATUS_REQUIRES_ACTION"].includes(run.status)) return run;
        await sleep(50);
      }
      throw new Error(`${id} has not ended`);
    },
  };
}

export const bash = (command, fields) => ["bash", { command }, fields];

/** A run as the one of the demo: several tools at once, a failure, and a question. */
export const demo = () => [
  bash("for i in 1 2 3 4 5; do printf '\\033[32mok\\033[0m step %s\\n' $i; sleep 0.3; done", { call_id: "build" }),
  bash("echo compiling; sleep 0.4; printf '\\033[1;31merror\\033[0m: it does not compile\\n' >&2; exit 3", {
    call_id: "compile",
  }),
  ["get_current_time", { time_zone: "Europe/Berlin" }, { call_id: "clock" }],
  bash("git --version; seq 1 40", { call_id: "numbers" }),
  ["ask_user", { question: "Deploy to which stage?", options: ["staging", "production"] }, { call_id: "question" }],
];
