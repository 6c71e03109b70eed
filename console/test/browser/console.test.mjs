import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { axe, browser, open } from "./page.mjs";
import { bash, client, coordinator, demo, dev, freePort, model } from "./yard.mjs";

let yard;
let engine;
let api;

before(async () => {
  yard = await dev();
  api = client(yard.url);
  engine = await browser();
});

after(async () => {
  await engine?.close();
  await yard?.stop();
});

test("the first paint comes within a second", async () => {
  const shown = await open(engine, yard.url);
  await shown.page.waitForSelector(".tile");
  const paint = await shown.page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
  console.log(`first paint after ${Math.round(paint)} ms`);
  assert.ok(paint < 1_000, `${paint} ms`);
  assert.deepEqual(shown.errors, []);
  await shown.close();
});

test("a run is listed, its output comes in order, and a question is answered", async () => {
  const shown = await open(engine, yard.url, "#/runs");
  const id = await api.run(demo());
  await shown.page.click(`a[title="${id}"]`);
  await shown.page.waitForSelector(".gantt-row");
  await shown.page.waitForSelector("text=Deploy to which stage?");
  await shown.shot("run-waiting-light");
  await shown.page.getByLabel("production").check();
  await shown.page.getByRole("button", { name: "Send the answer" }).click();
  await shown.page.waitForSelector(".live-ended");
  const run = await api.ended(id);
  assert.equal(run.status, "RUN_STATUS_COMPLETED");
  assert.equal(run.calls.find((call) => call.call_id === "question").outcome.result[0].text, "production");
  // The order of the speakers on the page is the order of the API.
  const events = await (await fetch(`${yard.url}/v1/runs/${id}/events`)).text();
  const expected = [...events.matchAll(/"call_speaking":\{"call_id":"(\w+)"/g)].map((found) => found[1]);
  await shown.page.locator(".virtual-scroll").evaluate((element) => {
    element.scrollTop = 0;
  });
  const isFirst = (first) => document.querySelector(".speaker .mono")?.textContent === first;
  await shown.page.waitForFunction(isFirst, expected[0]);
  const speakers = new Set();
  for (let top = 0; speakers.size < expected.length && top < 5_000; top += 200) {
    for (const speaker of await shown.page.locator(".speaker .mono").allInnerTexts()) speakers.add(speaker);
    await shown.page.locator(".virtual-scroll").evaluate((element, to) => {
      element.scrollTop = to;
    }, top);
    await sleep(60);
  }
  assert.deepEqual([...speakers], expected);
  assert.deepEqual(shown.errors, []);
  await shown.close();
});

test("a call is approved with edited arguments, and another one is rejected", async () => {
  const id = await api.run([bash("echo first", { call_id: "edit" }), bash("echo second", { call_id: "deny" })], {
    rules: {},
  });
  const shown = await open(engine, yard.url, `#/runs/${id}?call=edit`);
  await shown.page.waitForSelector("text=only if a person approves");
  await shown.shot("run-approval-light");
  await shown.page.getByRole("button", { name: "Edit the arguments" }).click();
  await shown.page.getByLabel("command").fill("echo edited");
  await shown.page.getByRole("button", { name: "Approve with these arguments" }).click();
  await shown.page.getByRole("button", { name: /deny/ }).click();
  await shown.page.getByLabel("Reason of a rejection, for the model").fill("not today");
  await shown.page.getByRole("button", { name: "Reject" }).click();
  const run = await api.ended(id);
  const [edited, denied] = ["edit", "deny"].map((call) => run.calls.find((one) => one.call_id === call));
  assert.equal(JSON.parse(edited.arguments).command, "echo edited");
  assert.equal(edited.outcome.state, "CALL_STATE_COMPLETED");
  assert.equal(denied.outcome.error.kind, "CALL_ERROR_KIND_REJECTED");
  await shown.page.waitForSelector(".virtual >> text=edited");
  assert.deepEqual(shown.errors, []);
  await shown.close();
});

test("a run is cancelled, with the proof of the stop", async () => {
  const id = await api.run([bash("echo begun; sleep 60", { call_id: "long" })]);
  const shown = await open(engine, yard.url, `#/runs/${id}`);
  await shown.page.waitForSelector("text=begun");
  await shown.page.getByRole("button", { name: "Cancel", exact: true }).click();
  await shown.page.getByRole("button", { name: "Cancel the run" }).click();
  await shown.page.waitForSelector("text=The worker confirmed that the tool has stopped.");
  assert.equal((await api.ended(id)).status, "RUN_STATUS_CANCELLED");
  await shown.close();
});

test("a parked call is redriven", async () => {
  // A call is parked if another attempt might have succeeded: here because its pool was paused.
  await api.post("/pauses", { pool: "local", reason: "for a test" });
  const parked = await api.run([bash("echo again", { call_id: "again", queue_timeout: "0.5s" })]);
  await api.ended(parked);
  await api.post("/pauses/resume", { pool: "local" });
  const shown = await open(engine, yard.url, `#/runs/${parked}`);
  await shown.page.getByRole("button", { name: "Redrive" }).click();
  await shown.page.waitForFunction((old) => !location.hash.includes(old), parked);
  await shown.page.waitForSelector(".virtual >> text=again");
  await shown.close();
});

test("filters are in the address, and chosen runs are cancelled together", async () => {
  const tenant = "bulk";
  const ids = [];
  for (let at = 0; at < 5; at += 1) ids.push(await api.run([bash("sleep 50")], { tenant }));
  const shown = await open(engine, yard.url, `#/runs?tenant=${tenant}&state=in_progress`);
  await shown.page.waitForFunction(() => document.querySelectorAll(".table-body [role=row]").length === 5);
  await shown.shot("runs-filtered-light");
  await shown.page.getByLabel("Choose all rows that are loaded").check();
  await shown.page.getByRole("button", { name: "Cancel 5" }).click();
  await shown.page.getByRole("button", { name: "Cancel them" }).click();
  await shown.page.waitForSelector("text=Cancelled: 5");
  for (const id of ids) assert.equal((await api.ended(id)).status, "RUN_STATUS_CANCELLED");
  await shown.page.waitForFunction(() => document.querySelectorAll(".table-body [role=row]").length === 0);
  await shown.close();
});

test("a coordinator is killed and started again, and the page goes on where it was", async () => {
  const port = await freePort();
  let other = await coordinator(yard.nats_url, port);
  const id = await api.run([bash("for i in $(seq 1 200); do echo line $i; sleep 0.1; done", { call_id: "steady" })]);
  const shown = await open(engine, other.url, `#/runs/${id}`);
  await shown.page.waitForSelector("text=/^line 5$/");
  await other.kill("SIGKILL");
  await shown.page.waitForSelector(".live-reconnecting");
  await shown.shot("run-reconnecting-light");
  await sleep(1_500);
  other = await coordinator(yard.nats_url, port);
  await shown.page.waitForSelector(".live-live", { timeout: 60_000 });
  await shown.page.waitForSelector(".live-ended", { timeout: 120_000 });
  // Each line is there once, in order.
  const lines = await shown.page.evaluate(async () => {
    const scroller = document.querySelector(".virtual-scroll");
    const seen = [];
    for (let top = 0; top <= scroller.scrollHeight; top += 200) {
      scroller.scrollTop = top;
      await new Promise((resolve) => setTimeout(resolve, 40));
      for (const line of document.querySelectorAll(".line.said"))
        if (!seen.includes(line.textContent)) seen.push(line.textContent);
    }
    return seen;
  });
  assert.deepEqual(
    lines,
    Array.from({ length: 200 }, (_, at) => `line ${at + 1}`),
  );
  assert.deepEqual(shown.errors, []);
  await shown.close();
  await other.kill("SIGTERM");
});

test("hostile output is shown and executes nothing", async () => {
  const hostile = [
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked=1'>",
    "<a href='javascript:window.hacked=1'>x</a>\u202eevil\u202c \u0007 \u0000nul",
    "\u001b]8;;javascript:window.hacked=1\u001b\\link\u001b]8;;\u001b\\ \u001b[999999999C\u001b[2J\u001b]0;title\u0007end",
  ];
  writeFileSync(join(yard.root, "hostile.txt"), `${hostile.join("\n")}\n`);
  writeFileSync(join(yard.root, "broken.bin"), Buffer.from([0xff, 0xfe, 0x41, 0xc3, 0x28, 0x0a]));
  const id = await api.run(
    [
      bash("cat hostile.txt broken.bin; head -c 3000000 /dev/zero | tr '\\0' y; echo", {
        call_id: "<img src=x onerror=window.hacked=1>",
      }),
      ["ask_user", { question: "<svg onload=window.hacked=1>\u202e?", options: ["<b>x</b>"] }, { call_id: "q\u202e" }],
      [
        "no\u005ftool<script>",
        { "<script>window.hacked=1</script>": ["<img src=x onerror=window.hacked=1>"] },
        { call_id: "c" },
      ],
    ].map((call) => (call[0].includes("<") ? ["no_tool", call[1], call[2]] : call)),
  );
  const shown = await open(engine, yard.url, `#/runs/${id}`);
  await shown.page.waitForSelector("text=U+202E");
  await shown.page.waitForSelector("text=more characters");
  await shown.shot("hostile-light");
  for (const tab of ["events", "state", "output"]) {
    await shown.page.getByRole("button", { name: new RegExp(`^${tab}$`, "i") }).click();
    await sleep(300);
  }
  await shown.page.getByRole("button", { name: "show all" }).first().click();
  await sleep(500);
  assert.equal(await shown.page.evaluate(() => window.hacked), undefined);
  assert.equal(
    await shown.page.locator(".run-page script, .run-page iframe, .run-page a[href^='javascript']").count(),
    0,
  );
  assert.deepEqual(await shown.violations(), []);
  assert.deepEqual(shown.errors, []);
  await api.post(`/runs/${id}/cancel`);
  await shown.close();
});

test("a caller sees what its roles permit, and an expired session asks for the key", async () => {
  const port = await freePort();
  const keys = Object.fromEntries(
    ["reader", "approver"].map((name) => {
      const made = execFileSync(process.env.TOOLYARD_PROGRAM, ["key", "new", "-o", "json"], { encoding: "utf8" });
      return [name, JSON.parse(made)];
    }),
  );
  const file = join(yard.root, "callers.toml");
  const roles = { reader: '["read"]', approver: '["read", "approve", "submit"]' };
  const callers = (names) =>
    names
      .map(
        (name) =>
          `[[callers]]\nname = "${name}"\ntenant = "acme"\nroles = ${roles[name]}\ntools = [{ names = ["*"] }]\nkeys = ["${keys[name].hash}"]\n`,
      )
      .join("\n");
  writeFileSync(file, callers(["reader", "approver"]));
  const guarded = await coordinator(yard.nats_url, port, ["--auth", file]);
  const id = await api.run([bash("echo approved", { call_id: "wait" })], { rules: {}, tenant: "acme" });

  const shown = await open(engine, guarded.url, `#/runs/${id}`);
  await shown.page.waitForSelector("text=Enter your key");
  await shown.shot("key-light");
  assert.deepEqual(await axe(shown.page), []);
  await shown.page.getByLabel("API key or token").fill(keys.reader.key);
  await shown.page.getByRole("button", { name: "Continue" }).click();
  const approve = shown.page.getByRole("button", { name: "Approve", exact: true });
  await approve.click();
  await shown.page.waitForSelector("text=lacks the role approve");
  assert.ok(await approve.isDisabled(), "the button is not disabled");
  assert.match(await approve.getAttribute("title"), /lacks the role approve/);

  // A reader sees the figures of what its tenant can use, and not who paused something.
  await api.post("/pauses", { tool: "grep", reason: "for readers" });
  await shown.page.evaluate(() => {
    location.hash = "#/overview";
  });
  await shown.page.waitForSelector("text=2 coordinators");
  await shown.page.waitForSelector("text=for readers");
  await shown.page.waitForSelector(".bars >> text=local");
  await api.post("/pauses/resume", { tool: "grep" });
  await shown.page.evaluate((to) => {
    location.hash = to;
  }, `#/runs/${id}`);
  await shown.page.waitForSelector(".gantt-row");

  await shown.page.getByRole("button", { name: "Sign out" }).click();
  await shown.page.getByLabel("API key or token").fill(keys.approver.key);
  await shown.page.getByRole("button", { name: "Continue" }).click();
  await approve.click();
  await shown.page.waitForSelector(".virtual >> text=approved");

  // The approver is removed: the file is read again, and the session ends.
  writeFileSync(file, callers(["reader"]));
  await shown.page.goto(`${guarded.url}/console/#/runs`);
  await shown.page.waitForSelector("text=Enter your key", { timeout: 20_000 });
  await shown.page.waitForSelector("text=The session has ended");
  assert.equal(await shown.page.evaluate(() => sessionStorage.getItem("toolyard.key")), null);
  await shown.close();
  await guarded.kill("SIGTERM");
});

test("the runs that a call made are unfolded below it, as deep as they go", async () => {
  const scripted = await model();
  const nested = await dev(["--agents", scripted.file]);
  const there = client(nested.url);
  const id = await there.run([["planner", { input: "Plan a meeting" }, { call_id: "plan" }]]);
  await there.ended(id);
  const shown = await open(engine, nested.url, `#/runs/${id}`);
  const timeline = shown.page.getByRole("table", { name: "Phases of the calls" });
  await timeline.getByRole("button", { name: /^Unfold run_/ }).click();
  const clerks = timeline.getByRole("button", { name: /^clerk/ });
  await clerks.nth(1).waitFor();
  await timeline
    .getByRole("button", { name: /^Unfold run_/ })
    .first()
    .click();
  const below = timeline.getByRole("button", { name: /^get_current_time/ });
  await below.waitFor();
  await shown.shot("run-nested-light");
  assert.deepEqual(await axe(shown.page), []);
  await timeline
    .getByRole("button", { name: /^Fold run_/ })
    .first()
    .click();
  await below.waitFor({ state: "detached" });
  assert.deepEqual(shown.errors, []);
  await shown.close();
  await nested.stop();
  await scripted.stop();
});

test("a traced run names its trace, as a link if the coordinator knows where traces are", async () => {
  const trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  const metadata = { traceparent: `00-${trace}-00f067aa0ba902b7-01` };
  const id = await api.run([bash("echo traced", { metadata })]);
  await api.ended(id);
  const port = await freePort();
  const linked = await coordinator(yard.nats_url, port, ["--trace-url", "https://traces.example/t/{trace_id}?x"]);
  for (const [url, address] of [
    [yard.url, null],
    [linked.url, `https://traces.example/t/${trace}?x`],
  ]) {
    const shown = await open(engine, url, `#/runs/${id}`);
    const link = shown.page.locator(`.facts [title="${trace}"]`);
    await (address ? shown.page.locator(`.facts a[href="${address}"]`) : link).waitFor();
    assert.equal(await link.getAttribute("href"), address);
    assert.deepEqual([shown.errors, await shown.violations()], [[], []]);
    await shown.close();
  }
  await linked.kill("SIGTERM");
});

test("under a path prefix the page and its requests work", async () => {
  const { createServer, request } = await import("node:http");
  const target = new URL(yard.url);
  const proxy = createServer((asked, answer) => {
    if (!asked.url.startsWith("/tools/yard/")) return answer.writeHead(404).end();
    const options = {
      host: target.hostname,
      port: target.port,
      method: asked.method,
      path: asked.url.slice("/tools/yard".length),
      headers: asked.headers,
    };
    asked.pipe(request(options, (got) => got.pipe(answer.writeHead(got.statusCode, got.headers))));
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  const base = `http://127.0.0.1:${proxy.address().port}/tools/yard`;
  const redirected = await fetch(`${base}/console`, { redirect: "manual" });
  assert.equal(new URL(redirected.headers.get("location"), `${base}/console`).pathname, "/tools/yard/console/");
  const id = await api.run([bash("echo over the proxy")]);
  const shown = await open(engine, base, `#/runs/${id}`);
  await shown.page.waitForSelector(".virtual >> text=over the proxy");
  assert.deepEqual(shown.errors, []);
  await shown.close();
  proxy.close();
});

test("everything can be reached by keyboard", async () => {
  const shown = await open(engine, yard.url, "#/overview");
  await shown.page.keyboard.press("Tab");
  assert.equal(await shown.page.evaluate(() => document.activeElement.textContent.trim()), "Skip to the content");
  await shown.page.keyboard.press("g");
  await shown.page.keyboard.press("r");
  await shown.page.waitForFunction(() => location.hash.startsWith("#/runs"));
  await shown.page.waitForSelector(".table-body [role=row]");
  await shown.page.keyboard.press("j");
  await shown.page.waitForSelector(".tr.active");
  await shown.page.keyboard.press("o");
  await shown.page.waitForFunction(() => /#\/runs\/run_/.test(location.hash));
  await shown.page.keyboard.press("?");
  await shown.page.waitForSelector("dialog[open]");
  await shown.shot("help-light");
  await shown.page.keyboard.press("Escape");
  await shown.page.waitForFunction(() => !document.querySelector("dialog[open]"));
  await shown.close();
});

test("axe finds nothing on any page, light and dark", async () => {
  const id = await api.run([...demo(), ["bash", { command: "echo approved?" }, { call_id: "approve", approval: {} }]]);
  await sleep(3_000);
  const pages = {
    overview: "#/overview",
    runs: "#/runs",
    calls: "#/calls",
    run: `#/runs/${id}`,
    "run-approve": `#/runs/${id}?call=approve`,
    "run-events": `#/runs/${id}?tab=events&call=compile`,
    "run-state": `#/runs/${id}?tab=state`,
    inbox: "#/inbox",
    tools: "#/tools",
    tool: "#/tools/bash",
    workers: "#/workers",
    parked: "#/parked",
    notifications: "#/notifications",
    schedules: "#/schedules",
    health: "#/health",
    nothing: "#/nowhere",
  };
  const found = [];
  for (const colorScheme of ["light", "dark"]) {
    for (const [name, hash] of Object.entries(pages)) {
      const shown = await open(engine, yard.url, hash, { colorScheme });
      await sleep(900);
      await shown.shot(`${name}-${colorScheme}`);
      for (const one of await axe(shown.page)) found.push(`${name} ${colorScheme}: ${one}`);
      for (const error of shown.errors) found.push(`${name} ${colorScheme}: ${error}`);
      for (const violation of await shown.violations()) found.push(`${name} ${colorScheme}: policy ${violation}`);
      await shown.close();
    }
  }
  await api.post(`/runs/${id}/cancel`);
  assert.deepEqual(found, []);
});
