/** The command line `toolyard-js`, without a broker. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";
import { CLI, TOOLS } from "./yard.js";

function toolyardJs(...options: string[]) {
  const env = { ...process.env, TOOLYARD_POOL: "" };
  const { status, stdout, stderr } = spawnSync(process.execPath, [CLI, ...options], { encoding: "utf8", env });
  return { status, stdout, stderr };
}

test("it calls a tool of a module, and lists them", () => {
  const greeting = '{"name": "Ada", "times": 2}';
  const called = toolyardJs("call", TOOLS, "js_greet", greeting);
  assert.deepEqual(called, { status: 0, stdout: "Hello, Ada! Hello, Ada!\n", stderr: "" });
  const listed = toolyardJs("list", TOOLS);
  assert.equal(listed.status, 0);
  assert.match(listed.stdout, /"name": "js_pay"[^}]*"description": "Pays an amount."/);
  assert.match(toolyardJs("--help").stdout, /toolyard-js run MODULE --pool NAME/);
});

test("what it cannot do is said in a line, with the status for it", () => {
  for (const [options, status, said] of [
    [["dance"], 2, /there is no command dance/],
    [["run"], 2, /run needs a module/],
    [["run", TOOLS], 2, /run needs a pool/],
    [["run", TOOLS, "--pool", "js", "--slots", "many"], 2, /--slots is "many": write a number/],
    [["run", TOOLS, "--pool", "a b"], 1, /pool "a b"/],
    [["run", "nowhere.js", "--pool", "js"], 1, /nowhere.js/],
    [["run", CLI.replace("cli.js", "errors.js"), "--pool", "js"], 2, /exports no tools/],
    [["call", TOOLS, "js_greet", "{"], 2, /the arguments are not JSON/],
    [["call", TOOLS, "js_greet", "{}"], 1, /"name" is a required property/],
    [["call", TOOLS, "js_dance"], 1, /does not host js_dance/],
    [["run", TOOLS, "--pool", "js", "--nats-url", "nats://127.0.0.1:1"], 1, /cannot reach the broker/],
    [["run", TOOLS, "--spool", "js"], 2, /--spool/],
  ] as const) {
    const failed = toolyardJs(...options);
    assert.match(failed.stderr, said);
    assert.deepEqual([failed.status, failed.stdout], [status, ""], options.join(" "));
  }
});
