// The pages inbox, tools, workers, parked, notifications, schedules and health.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { axe, browser, open } from "./page.mjs";
import { bash, client, coordinator, dev, freePort, worker } from "./yard.mjs";

let yard;
let engine;
let api;
let asker;
/** The endpoint of notifications: it refuses them until it is told to accept. */
const endpoint = { accepts: false, received: [] };
let hooks;

before(async () => {
  hooks = createServer((request, response) => {
    let body = "";
    request.on("data", (data) => {
      body += data;
    });
    request.on("end", () => {
      if (endpoint.accepts) endpoint.received.push(JSON.parse(body));
      response.writeHead(endpoint.accepts ? 200 : 500).end();
    });
  });
  await new Promise((resolve) => hooks.listen(0, "127.0.0.1", resolve));
  const folder = execFileSync("mktemp", ["-d"], { encoding: "utf8" }).trim();
  writeFileSync(join(folder, "secret"), `whsec_${Buffer.alloc(32, 7).toString("base64")}\n`);
  const file = join(folder, "webhooks.toml");
  writeFileSync(
    file,
    `[[endpoint]]\nname = "agents"\nurl = "http://127.0.0.1:${hooks.address().port}/hooks"\nsecret_files = ["secret"]\n` +
      'events = ["run.cancelled"]\ngive_up_after_s = 1\n',
  );
  yard = await dev(["--webhooks", file]);
  api = client(yard.url);
  const server = new URL("asker.mjs", import.meta.url).pathname;
  asker = await worker(yard, "asking", ["--sandbox", "none", "--mcp", `${process.execPath} ${server}`]);
  for (let round = 0; round < 200; round += 1) {
    if (((await api.get("/tools?pool=asking")).tools ?? []).length > 0) break;
    await sleep(50);
  }
  engine = await browser();
});

after(async () => {
  await engine?.close();
  await asker?.kill("SIGTERM");
  await yard?.stop();
  hooks?.close();
});

const ask = (question, fields) => ["ask_user", { question, options: ["staging", "production"] }, fields];

test("the inbox goes from one waiting call to the next", async () => {
  const approval = await api.run([bash("echo first", { call_id: "approve-me" })], { rules: {} });
  const question = await api.run([ask("Which stage?", { call_id: "ask-me" })]);
  const shown = await open(engine, yard.url, "#/inbox?kind=approvals");
  await shown.page.waitForSelector(".inbox-row >> text=approve-me");
  await shown.page.getByRole("button", { name: "Edit the arguments" }).click();
  await shown.page.getByLabel("command").fill("echo edited in the inbox");
  // A newer call must not take the place of the one that is being edited.
  const newer = await api.run([bash("echo newer", { call_id: "newer" })], { rules: {} });
  await shown.page.waitForSelector(".inbox-row >> text=newer");
  assert.equal(await shown.page.getByLabel("command").inputValue(), "echo edited in the inbox");
  await shown.shot("inbox-edit-light");
  await shown.page.getByRole("button", { name: "Approve with these arguments" }).click();
  const run = await api.ended(approval);
  assert.equal(JSON.parse(run.calls[0].arguments).command, "echo edited in the inbox");
  await shown.page.waitForFunction(() => location.hash.includes("call=newer"));
  await shown.page.getByLabel("Reason of a rejection, for the model").fill("not now");
  await shown.page.getByRole("button", { name: "Reject" }).click();
  assert.equal((await api.ended(newer)).calls[0].decided.reason, "not now");
  await shown.page.getByRole("button", { name: /approvals/ }).click();
  await shown.page.waitForSelector(".inbox-row >> text=ask-me");
  await shown.page.getByLabel("staging").check();
  await shown.page.getByRole("button", { name: "Send the answer" }).click();
  assert.equal((await api.ended(question)).calls[0].outcome.result[0].text, "staging");
  await shown.page.waitForSelector("text=Nothing waits for a person.");
  assert.deepEqual(shown.errors, []);
  await shown.close();
});

test("a question of a running tool is a form by its schema", async () => {
  const id = await api.run([["deploy", { change: "the inbox" }, { call_id: "asks" }]]);
  const shown = await open(engine, yard.url, "#/inbox?kind=answers");
  await shown.page.waitForSelector("text=Deploy the inbox?");
  const button = shown.page.getByRole("button", { name: "Send the answer" });
  assert.ok(await button.isDisabled(), "a required field is empty, and the answer can be sent");
  await shown.page.getByLabel("production").check();
  await shown.page.getByLabel("unit").check();
  await shown.page.getByLabel("security").check();
  await shown.page.getByLabel("copies").fill("0");
  await button.click();
  // The coordinator refuses it, and the form and the error stay.
  await shown.page.waitForSelector(".inbox-detail .error-box >> text=ARGUMENTS_INVALID");
  await shown.shot("inbox-refused-light");
  await shown.page.getByLabel("copies").fill("2");
  await button.click();
  const run = await api.ended(id);
  const outcome = run.calls.find((call) => call.call_id === "asks").outcome;
  assert.deepEqual(JSON.parse(outcome.result[0].text), {
    action: "accept",
    content: { stage: "production", checks: ["unit", "security"], note: "from the console", copies: 2 },
  });
  const declined = await api.run([["deploy", { change: "it again" }, { call_id: "asks" }]]);
  await shown.page.waitForSelector("text=Deploy it again?");
  await shown.page.getByRole("button", { name: "Decline" }).click();
  const answer = (await api.ended(declined)).calls.find((call) => call.call_id === "asks").outcome.result[0].text;
  assert.equal(JSON.parse(answer).action, "decline");
  assert.deepEqual(shown.errors, []);
  await shown.close();
});

test("a link with a token answers one call, without a key, once", async () => {
  const made = JSON.parse(
    execFileSync(process.env.TOOLYARD_PROGRAM, ["key", "new", "-o", "json"], { encoding: "utf8" }),
  );
  const file = join(yard.root, "callers.toml");
  writeFileSync(join(yard.root, "answer.key"), Buffer.alloc(32, 9).toString("base64"));
  writeFileSync(
    file,
    `answer_token_key_file = "answer.key"\n[[callers]]\nname = "shop"\ntenant = "acme"\n` +
      `roles = ["submit", "read", "answer"]\ntools = [{ names = ["*"] }]\nkeys = ["${made.hash}"]\n`,
  );
  const guarded = await coordinator(yard.nats_url, await freePort(), ["--auth", file]);
  const shop = client(guarded.url, made.key);
  const hostile = "<img src=x onerror=window.hacked=1> \u202e Which stage, in Köln?";
  const id = await shop.run([ask(hostile, { call_id: "ask/me" })], { rules: {} });
  const sender = await open(engine, guarded.url, "#/inbox");
  await sender.page.getByLabel("API key or token").fill(made.key);
  await sender.page.getByRole("button", { name: "Continue" }).click();
  await sender.page.waitForSelector(".inbox-row >> text=ask/me");
  await sender.page.getByRole("button", { name: "Have somebody else answer …" }).click();
  await sender.page.getByRole("button", { name: "Make the link" }).click();
  const link = await sender.page.getByLabel("Link").inputValue();
  await sender.shot("inbox-link-light");
  assert.deepEqual(await axe(sender.page), []);
  await sender.page.keyboard.press("Escape");

  const { hash } = new URL(link);
  assert.equal(new URL(link).search, "", "the token is in the part that is sent to servers");
  const stranger = await open(engine, guarded.url, hash);
  await stranger.page.waitForSelector("text=in Köln?");
  await stranger.page.waitForSelector("text=U+202E");
  assert.equal(await stranger.page.evaluate(() => window.hacked), undefined);
  assert.equal(await stranger.page.locator("nav").count(), 0);
  await stranger.shot("answer-light");
  assert.deepEqual(await axe(stranger.page), []);
  await stranger.page.getByLabel("production").check();
  await stranger.page.getByRole("button", { name: "Send the answer" }).click();
  await stranger.page.waitForSelector("text=The answer is stored");
  for (let round = 0; round < 100; round += 1) {
    const { run } = await shop.get(`/runs/${id}`);
    if (run.status === "RUN_STATUS_COMPLETED") break;
    await sleep(50);
  }
  assert.equal((await shop.get(`/runs/${id}`)).run.calls[0].outcome.result[0].text, "production");

  // A second answer by the same link is refused, and the page says why and asks for no key.
  const again = await open(engine, guarded.url, hash);
  await again.page.getByLabel("staging").check();
  await again.page.getByRole("button", { name: "Send the answer" }).click();
  await again.page.waitForSelector(".error-box");
  assert.equal(await again.page.getByText("Enter your key").count(), 0);
  const forged = hash.replace(/token=./, "token=X");
  const forger = await open(engine, guarded.url, forged);
  await forger.page.getByLabel("staging").check();
  await forger.page.getByRole("button", { name: "Send the answer" }).click();
  await forger.page.waitForSelector(".error-box >> text=TOKEN_REFUSED");
  await forger.shot("answer-refused-light");
  for (const shown of [sender, stranger, again, forger]) {
    assert.deepEqual(shown.errors, []);
    await shown.close();
  }
  await guarded.kill("SIGTERM");
});

test("a tool is found, tried, paused and resumed", async () => {
  const shown = await open(engine, yard.url, "#/tools");
  await shown.page.waitForSelector("text=/^bash$/");
  await shown.page.getByLabel("Search names, descriptions, arguments").fill("run shell command");
  await shown.page.waitForSelector("text=the best first");
  await shown.page.click(".table-body >> text=/^bash$/");
  await shown.page.waitForSelector("text=Arguments, as JSON Schema");
  const run = shown.page.getByRole("button", { name: "Run", exact: true });
  assert.ok(await run.isDisabled(), "the command is missing, and the tool can be run");
  await shown.page.getByLabel("command").fill("echo tried; echo twice");
  await run.click();
  await shown.page.waitForSelector("text=only if a person approves");
  await shown.page.getByRole("button", { name: "Approve", exact: true }).click();
  await shown.page.waitForSelector(".try-output >> text=twice");
  await shown.shot("tool-tried-light");

  await shown.page.getByLabel("Approve the call with the request").check();
  await shown.page.getByLabel("command").fill("echo at once; exit 4");
  await run.click();
  await shown.page.waitForSelector(".try-output >> text=/^at once/");

  await shown.page.getByRole("button", { name: "Pause …" }).click();
  await shown.page.getByLabel("Reason, for people").fill("the disk is full <b>\u202e");
  await shown.page.getByRole("button", { name: "Pause", exact: true }).click();
  await shown.page.waitForSelector(".notice >> text=the disk is full <b>");
  assert.equal((await api.get("/pauses")).pauses[0].tool, "bash");
  await shown.page.getByRole("button", { name: "Resume" }).click();
  await shown.page.waitForFunction(() => !document.querySelector(".notice"));
  assert.deepEqual((await api.get("/pauses")).pauses ?? [], []);
  assert.deepEqual(shown.errors, []);
  await shown.close();
});

test("a tool that does not exist is an error with what to do", async () => {
  const shown = await open(engine, yard.url, "#/tools/no_such_tool");
  await shown.page.waitForSelector(".error-box >> text=TOOL_NOT_FOUND");
  await shown.page.waitForSelector(".error-box >> text=/list the tools/");
  await shown.page.goto(`${yard.url}/console/#/tools/${encodeURIComponent("<b>\u202e")}`);
  await shown.page.waitForSelector(".error-box >> text=MALFORMED");
  assert.deepEqual(shown.errors, []);
  await shown.close();
});

test("a hostile manifest is shown and executes nothing", async () => {
  const shown = await open(engine, yard.url, "#/tools?pool=asking");
  await shown.page.waitForSelector("text=/^hostile$/");
  await shown.page.goto(`${yard.url}/console/#/tools/hostile`);
  await shown.page.waitForSelector("text=U+202E");
  await shown.page.getByRole("button", { name: "Add an item" }).click();
  await shown.page.getByRole("button", { name: "as JSON" }).click();
  assert.match(await shown.page.locator(".try textarea").inputValue(), /"constructor": \[\s*"<i>"/);
  await shown.page.getByRole("button", { name: "as a form" }).click();
  await shown.page.getByLabel("toString").fill("3");
  await shown.shot("tool-hostile-light");
  await shown.page.getByRole("button", { name: "Run", exact: true }).click();
  await shown.page.waitForSelector(".try-run");
  await sleep(500);
  assert.equal(await shown.page.evaluate(() => window.hacked), undefined);
  assert.equal(await shown.page.locator("main script, main iframe, main img, main a[href^='javascript']").count(), 0);
  assert.deepEqual(await shown.violations(), []);
  assert.deepEqual(shown.errors, []);
  await shown.close();
  for (const { run_id } of (await api.get("/runs?status=RUN_STATUS_IN_PROGRESS")).runs ?? [])
    await api.post(`/runs/${run_id}/cancel`);
  for (const { run_id } of (await api.get("/calls?inbox=true")).calls ?? []) await api.post(`/runs/${run_id}/cancel`);
});

test("the inbox is worked by keyboard", async () => {
  const ids = [];
  for (const name of ["one", "two"]) ids.push(await api.run([bash("true", { call_id: name })], { rules: {} }));
  const shown = await open(engine, yard.url, "#/inbox");
  await shown.page.waitForSelector(".inbox-row >> text=one");
  await shown.page.waitForFunction(() => location.hash.includes("call=two"));
  await shown.page.keyboard.press("j");
  await shown.page.waitForFunction(() => location.hash.includes("call=one"));
  await shown.page.keyboard.press("k");
  await shown.page.waitForFunction(() => location.hash.includes("call=two"));
  await shown.page.getByRole("button", { name: "Approve", exact: true }).focus();
  await shown.page.keyboard.press("Enter");
  await api.ended(ids[1]);
  await shown.page.waitForFunction(() => location.hash.includes("call=one"));
  await shown.page.keyboard.press("o");
  await shown.page.waitForFunction(() => location.hash.includes("#/runs/"));
  await api.post(`/runs/${ids[0]}/cancel`);
  await shown.close();
});

test("a worker is drained, and a pool is paused", async () => {
  const extra = await worker(yard, "extra", ["--root", yard.root, "--enable", "grep"]);
  const shown = await open(engine, yard.url, "#/workers?pool=extra");
  await shown.page.waitForSelector(".table-body [role=row]");
  const pool = shown.page.locator(".pools tr", { hasText: "extra" });
  await pool.getByRole("button", { name: "Pause …" }).click();
  await shown.page.getByLabel("Reason, for people").fill("maintenance");
  await shown.page.getByRole("button", { name: "Pause", exact: true }).click();
  await shown.page.waitForSelector(".paused >> text=maintenance");
  await shown.shot("workers-paused-light");
  await pool.getByRole("button", { name: "Resume" }).click();
  await shown.page.waitForFunction(() => !document.querySelector(".paused"));
  await shown.page.getByRole("button", { name: "Drain …" }).click();
  await shown.page.getByRole("button", { name: "Drain", exact: true }).click();
  for (let round = 0; extra.isRunning() && round < 200; round += 1) await sleep(50);
  assert.ok(!extra.isRunning(), "the worker has not ended");
  await shown.page.waitForSelector("text=No live worker matches.", { timeout: 20_000 });
  assert.deepEqual(shown.errors, []);
  await shown.close();
});

test("parked calls are redriven and dropped", async () => {
  await api.post("/pauses", { pool: "local" });
  const fields = { queue_timeout: "0.5s" };
  const ids = [];
  for (const name of ["redrive", "drop"]) {
    ids.push(await api.run([bash("echo again", { call_id: name, ...fields })]));
  }
  for (const id of ids) await api.ended(id);
  await api.post("/pauses/resume", { pool: "local" });
  const shown = await open(engine, yard.url, "#/parked");
  await shown.page.getByLabel(`Choose ${ids[1]} drop`).check();
  await shown.shot("parked-light");
  await shown.page.getByRole("button", { name: "Drop 1" }).click();
  await shown.page.getByRole("button", { name: "Drop", exact: true }).click();
  await shown.page.waitForSelector("text=Dropped: 1");
  await shown.page.getByLabel(`Choose ${ids[0]} redrive`).check();
  await shown.page.getByRole("button", { name: "Redrive 1" }).click();
  await shown.page.waitForFunction(() => /#\/runs\/run_/.test(location.hash));
  await shown.page.waitForSelector(".virtual >> text=again");
  const left = await api.get("/calls?parked=true");
  assert.deepEqual(left.calls ?? [], []);
  assert.deepEqual(shown.errors, []);
  await shown.close();
});

test("parked notifications are sent again", async () => {
  const id = await api.run([bash("sleep 60")]);
  await api.post(`/runs/${id}/cancel`);
  await api.ended(id);
  // Those of other runs may be parked before it.
  const parked = async () => JSON.stringify(await api.get("/webhooks/parked")).includes(id);
  for (let round = 0; !(await parked()) && round < 300; round += 1) await sleep(100);
  const shown = await open(engine, yard.url, "#/notifications");
  await shown.page.waitForSelector("text=run.cancelled", { timeout: 30_000 });
  await shown.page.getByRole("button", { name: "Show …" }).first().click();
  await shown.page.waitForSelector("dialog >> text=run_id");
  await shown.page.keyboard.press("Escape");
  await shown.shot("notifications-light");
  endpoint.accepts = true;
  await shown.page.getByRole("button", { name: /Send all/ }).click();
  await shown.page.getByRole("button", { name: "Send them" }).click();
  await shown.page.waitForSelector("text=/Sent again: \\d/");
  const has = () => endpoint.received.some((one) => one.data.run_id === id);
  for (let round = 0; !has() && round < 200; round += 1) await sleep(50);
  assert.ok(has());
  await shown.page.waitForSelector("text=No notification is parked.", { timeout: 20_000 });
  assert.deepEqual(shown.errors, []);
  await shown.close();
});

test("a schedule is created, fired, paused, resumed and deleted", async () => {
  const shown = await open(engine, yard.url, "#/schedules");
  await shown.page.getByRole("link", { name: "New schedule" }).click();
  await shown.page.getByLabel("Name").fill("nightly <b>\u202e check");
  await shown.page.getByLabel("Cron expression", { exact: true }).last().fill("0 0 30 2 *");
  await shown.page.getByLabel("Tool", { exact: true }).fill("bash");
  await shown.page.getByLabel("command").fill("echo scheduled");
  await shown.page.getByText("More", { exact: true }).click();
  await shown.page.getByLabel(/need no approval/).check();
  const create = shown.page.getByRole("button", { name: "Create" });
  await create.click();
  await shown.page.waitForSelector(".error-box >> text=NEVER_FIRES");
  await shown.page.getByLabel("Cron expression", { exact: true }).last().fill("0 9 * * mon-fri");
  await shown.shot("schedule-new-light");
  assert.deepEqual(await axe(shown.page), []);
  await create.click();
  await shown.page.waitForSelector(".schedule >> text=Next times");
  assert.equal(await shown.page.locator(".times li").count(), 5);
  await shown.page.getByRole("button", { name: "Run now" }).click();
  await shown.page.waitForSelector(".firings >> text=by request");
  await shown.shot("schedule-light");
  const { schedules } = await api.get("/schedules");
  assert.equal((await api.ended(schedules[0].last_run_id)).status, "RUN_STATUS_COMPLETED");
  await shown.page.getByRole("button", { name: "Pause …" }).click();
  await shown.page.getByLabel("Reason, for people").fill("holidays");
  await shown.page.getByRole("button", { name: "Pause", exact: true }).click();
  await shown.page.waitForSelector(".schedule .notice >> text=holidays");
  await shown.page.getByRole("button", { name: "Resume" }).click();
  await shown.page.waitForFunction(() => !document.querySelector(".schedule .notice"));
  await shown.page.getByRole("button", { name: "Delete …" }).click();
  await shown.page.getByRole("button", { name: "Delete", exact: true }).click();
  await shown.page.waitForSelector("text=No schedule matches.");
  assert.deepEqual((await api.get("/schedules")).schedules ?? [], []);
  assert.deepEqual(shown.errors, []);
  await shown.close();
});

test("health compares the index with the log, and names the command for the rest", async () => {
  const shown = await open(engine, yard.url, "#/health");
  await shown.page.waitForSelector("text=covers all runs");
  await shown.page.waitForSelector("text=toolyard doctor");
  await shown.page.getByRole("button", { name: "Compare with the log" }).click();
  await shown.page.waitForSelector("text=No difference.");
  await shown.page.getByRole("button", { name: "Rebuild …" }).click();
  await shown.page.getByRole("button", { name: "Rebuild", exact: true }).click();
  await shown.page.waitForSelector("text=The index is being rebuilt");
  await shown.page.waitForSelector("text=covers all runs");
  assert.deepEqual(shown.errors, []);
  await shown.close();
});

test("axe finds nothing while the pages have something to show, on small screens too", async () => {
  const runs = [
    await api.run([bash("echo approve", { call_id: "a" })], { rules: {} }),
    await api.run([ask("Which stage?", { call_id: "b" })]),
    await api.run([["deploy", { change: "this" }, { call_id: "c" }]]),
  ];
  await api.post("/pauses", { tool: "grep", reason: "maintenance" });
  const spec = {
    name: "hourly",
    every: "3600s",
    run: { calls: [{ tool: "get_current_time", arguments: "{}" }] },
  };
  const { schedule } = await api.post("/schedules", { spec });
  await api.post(`/schedules/${schedule.schedule_id}/run`);
  await sleep(1_500);
  const pages = {
    "inbox-approval": "#/inbox?kind=approvals",
    "inbox-question": "#/inbox?kind=answers",
    tools: "#/tools",
    "tool-bash": "#/tools/bash",
    "tool-missing": "#/tools/none",
    workers: "#/workers",
    parked: "#/parked",
    notifications: "#/notifications",
    schedules: "#/schedules",
    "schedules-one": `#/schedules?schedule=${schedule.schedule_id}`,
    "schedules-new": "#/schedules?new=1",
    health: "#/health",
    "answer-incomplete": "#/answer/run",
  };
  const found = [];
  for (const colorScheme of ["light", "dark"]) {
    for (const [size, viewport] of [
      ["wide", { width: 1280, height: 800 }],
      ["small", { width: 390, height: 844 }],
    ]) {
      for (const [name, hash] of Object.entries(pages)) {
        const shown = await open(engine, yard.url, hash, { colorScheme, viewport });
        await sleep(900);
        await shown.shot(`pages-${name}-${size}-${colorScheme}`);
        const at = `${name} ${size} ${colorScheme}`;
        for (const one of await axe(shown.page)) found.push(`${at}: ${one}`);
        for (const error of shown.errors) found.push(`${at}: ${error}`);
        for (const violation of await shown.violations()) found.push(`${at}: policy ${violation}`);
        const [inner, outer] = await shown.page.evaluate(() => [
          document.documentElement.scrollWidth,
          document.documentElement.clientWidth,
        ]);
        if (inner > outer) found.push(`${at}: the page is ${inner} wide in a window of ${outer}`);
        await shown.close();
      }
    }
  }
  await api.post("/pauses/resume", { tool: "grep" });
  for (const id of runs) await api.post(`/runs/${id}/cancel`);
  assert.deepEqual(found, []);
});
