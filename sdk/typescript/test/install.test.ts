/** The tarball of the package, installed in an empty folder by somebody who has no Rust toolchain. */

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { exited, toolUse, yard } from "./yard.js";

const PACKAGE = fileURLToPath(new URL("../..", import.meta.url));
const TOOLS = `
import { tool } from "toolyard";
export const greet = tool({
  name: "installed_greet",
  description: "Greets.",
  input: { type: "object", properties: { name: { type: "string" } }, required: ["name"] },
  execute: ({ name }) => "Hello, " + name + "!",
});
`;

test("the tarball is installed in an empty folder, and hosts a tool there", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "toolyard-empty-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const path = (process.env.PATH ?? "").split(delimiter).filter((it) => !existsSync(join(it, "cargo")));
  const options = { cwd: folder, env: { ...process.env, PATH: path.join(delimiter) }, encoding: "utf8" } as const;
  const rustc = spawn("rustc", { ...options, stdio: "ignore" });
  assert.match(String(await new Promise((resolve) => rustc.on("error", resolve))), /ENOENT/);

  const packed = execFileSync("npm", ["pack", "--silent", "--pack-destination", folder], { ...options, cwd: PACKAGE });
  execFileSync("npm", ["init", "--yes"], options);
  execFileSync("npm", ["install", "--silent", "--no-audit", join(folder, packed.trim())], options);
  writeFileSync(join(folder, "tools.mjs"), TOOLS);
  const command = ["node_modules/.bin/toolyard-js", "run", "tools.mjs", "--pool", "installed"];
  const worker = spawn(process.execPath, command, { ...options, stdio: ["ignore", "inherit", "pipe"] });
  for await (const line of createInterface({ input: worker.stderr })) {
    if (line.includes("is ready")) {
      break;
    }
  }
  worker.stderr.resume();
  const { results } = await yard.turn(toolUse(["a", "installed_greet", { name: "Ada" }]));
  assert.equal(results[0]?.text, "Hello, Ada!");
  worker.kill("SIGTERM");
  assert.equal(await exited(worker), 0);
});
