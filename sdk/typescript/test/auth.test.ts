/** Callers with keys, and a browser that answers one call: against a coordinator with callers, beside the other one. */

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, type TestContext, test } from "node:test";
import { NeedsAnswer, Toolyard, ToolyardError } from "toolyard/client";
import { exited, toolUse } from "./yard.js";

const PROGRAM = process.env.TOOLYARD_PROGRAM ?? "toolyard";
const folder = mkdtempSync(join(tmpdir(), "toolyard-"));
after(() => rmSync(folder, { recursive: true, force: true }));

/** Starts a coordinator that knows one caller, and gives its address and the caller's key. */
async function guarded(test: TestContext): Promise<{ url: string; key: string }> {
  const { key, hash } = JSON.parse(execFileSync(PROGRAM, ["key", "new", "-o", "json"], { encoding: "utf8" }));
  writeFileSync(join(folder, "answer.key"), randomBytes(32).toString("base64"));
  const callers = [
    'answer_token_key_file = "answer.key"',
    '[[callers]]\nname = "shop"\ntenant = "acme"\nroles = ["submit", "read", "answer"]\ntools = [{ names = ["*"] }]',
    `keys = ["${hash}"]`,
  ];
  writeFileSync(join(folder, "callers.toml"), callers.join("\n"));
  const options = ["coordinator", "--listen", "127.0.0.1:0", "--auth", join(folder, "callers.toml"), "-o", "json"];
  const child = spawn(PROGRAM, options, { stdio: ["ignore", "ignore", "pipe"] });
  test.after(async () => {
    child.kill("SIGTERM");
    await exited(child);
  });
  for await (const line of createInterface({ input: child.stderr })) {
    const { message, address } = JSON.parse(line) as { message?: string; address?: string };
    if (message === "serving") {
      child.stderr.resume();
      return { url: `http://${address}`, key };
    }
  }
  throw new Error("the coordinator ended before it served");
}

test("a caller needs its key, and a token answers one call and nothing else", async (t) => {
  const { url, key } = await guarded(t);
  const isUnknown = (error: unknown) => error instanceof ToolyardError && error.status === 401;
  const stranger = new Toolyard({ url, key: "wrong" });
  await assert.rejects(stranger.tools({ format: "anthropic" }), isUnknown);
  await assert.rejects(async () => await stranger.turn(toolUse(["a", "ask_user", { question: "Tea?" }])), isUnknown);

  const shop = new Toolyard({ url, key });
  const turn = shop.turn(toolUse(["a", "ask_user", { question: "Tea?" }]));
  for await (const event of turn) {
    if (event instanceof NeedsAnswer) {
      const { token = "" } = await shop.answerToken(turn.runId ?? "", event.callId, 60);
      const browser = new Toolyard({ url, key: token });
      await assert.rejects(browser.cancel(turn.runId ?? ""), ToolyardError);
      await assert.rejects(browser.tools({ format: "anthropic" }), ToolyardError);
      await browser.submit(turn.runId ?? "", event.callId, "Yes, please");
    }
  }
  assert.equal((await turn).results[0]?.text, "Yes, please");
});
