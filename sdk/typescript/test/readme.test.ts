/** The README's way from an empty folder to one's own tool, with the package as `npm install` gets it. */

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { exited } from "./yard.js";

const PACKAGE = fileURLToPath(new URL("../..", import.meta.url));
const PROGRAM = process.env.TOOLYARD_PROGRAM ?? "toolyard";
const MINUTES = 2;

test("from an empty folder to one's own tool, called by the command line, in two minutes", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "toolyard-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const run = (program: string, ...options: string[]) =>
    execFileSync(program, options, { cwd: folder, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  const packed = execFileSync("npm", ["pack", "--silent", "--pack-destination", folder], {
    cwd: PACKAGE,
    encoding: "utf8",
  });
  if (packed.trim() !== "toolyard-0.1.0.tgz") {
    copyFileSync(join(folder, packed.trim()), join(folder, "toolyard-0.1.0.tgz"));
  }

  const began = Date.now();
  const readme = readFileSync(join(PACKAGE, "README.md"), "utf8");
  const commands = [...readme.matchAll(/<!-- commands -->\n```sh\n(.*?)```/gs)].flatMap(([, block = ""]) =>
    block.trim().split("\n"),
  );
  const [, source = ""] = readme.match(/<!-- file: tools.js -->\n```js\n(.*?)```/s) ?? [];
  writeFileSync(join(folder, "tools.js"), source);
  const outputs: string[] = [];
  for (const command of commands) {
    const line = command.replace(/\s+#[^']*$/, "");
    const words = [...line.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, plain]) => quoted ?? plain ?? "");
    if (words[0] === "npx") {
      // As npx finds it; a signal reaches it directly.
      words.splice(0, 2, join(folder, "node_modules", ".bin", words[1] ?? ""));
    }
    const [program = "", ...options] = words;
    if (command.includes("until Ctrl-C")) {
      const worker = spawn(program, options, { cwd: folder, stdio: ["ignore", "inherit", "pipe"] });
      t.after(async () => {
        worker.kill("SIGTERM");
        await exited(worker);
      });
      for await (const line of createInterface({ input: worker.stderr })) {
        if (line.includes("is ready")) {
          break;
        }
      }
      worker.stderr.resume();
    } else {
      outputs.push(run(program === "toolyard" ? PROGRAM : program, ...options));
    }
  }
  const [called, greeted, counted] = outputs.slice(-3);
  assert.equal(called, "Hello, Ada!\n");
  assert.match(greeted ?? "", /Hello, Ada!/);
  assert.match(counted ?? "", /3\n2\n1\n/);
  assert.ok(Date.now() - began < MINUTES * 60_000, `it took ${Date.now() - began} ms`);
});
