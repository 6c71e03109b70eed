// How the console holds under load. Figures are printed; the limits are wide, because machines differ.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { browser, open } from "./page.mjs";
import { bash, client, coordinator, dev, freePort } from "./yard.mjs";

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

const SCRIPT = new Set(["FunctionCall", "RunMicrotasks", "TimerFire", "FireAnimationFrame", "EvaluateScript"]);

/** The longest stretch of our JavaScript in a trace: by the CPU, because a busy machine interrupts it. */
function longestScript(trace) {
  let [cpu, wall] = [0, 0];
  for (const event of JSON.parse(trace).traceEvents) {
    if (event.ph !== "X" || !SCRIPT.has(event.name)) continue;
    cpu = Math.max(cpu, event.tdur ?? 0);
    wall = Math.max(wall, event.dur ?? 0);
  }
  return { cpu: cpu / 1_000, wall: wall / 1_000 };
}

/** Measures frames, long tasks, and the CPU time of the page's main thread, until it is called. */
async function startFrames(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  const busy = async () => {
    const { metrics } = await session.send("Performance.getMetrics");
    return metrics.find((metric) => metric.name === "TaskDuration").value;
  };
  await engine.startTracing(page, { categories: ["devtools.timeline"] });
  await page.evaluate(() => {
    window.tasks = [];
    window.observer?.disconnect();
    window.observer = new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) window.tasks.push(entry.duration);
    });
    window.observer.observe({ entryTypes: ["longtask"] });
    window.gaps = [];
    let last = performance.now();
    const frame = (now) => {
      window.gaps.push(now - last);
      last = now;
      window.frame = requestAnimationFrame(frame);
    };
    window.frame = requestAnimationFrame(frame);
  });
  const [cpu, at] = [await busy(), performance.now()];
  return async () => {
    const share = ((await busy()) - cpu) / ((performance.now() - at) / 1_000);
    const [longest, p99, tasks] = await page.evaluate(() => {
      cancelAnimationFrame(window.frame);
      const sorted = window.gaps.slice(1).sort((a, b) => a - b);
      const frames = [sorted.at(-1), sorted[Math.floor(sorted.length * 0.99)]].map(Math.round);
      return [...frames, window.tasks.map(Math.round)];
    });
    const script = longestScript((await engine.stopTracing()).toString());
    // A frame or a task may also be late because the machine has no time for the browser: the CPU time tells what the
    // page took.
    return {
      share,
      script: script.cpu,
      text:
        `the page took ${(share * 100).toFixed(0)} % of a CPU; longest script ${script.cpu.toFixed(0)} ms of CPU ` +
        `(${script.wall.toFixed(0)} ms by the clock); ${tasks.length} long tasks, the longest ${Math.max(0, ...tasks)} ms; ` +
        `longest frame ${longest} ms, p99 ${p99} ms`,
    };
  };
}

/** The longest that our JavaScript may hold up a frame. */
const SCRIPT_MS_MAX = 100;

test("a run that emits many events a second does not block the page", async () => {
  // Each line is an event. A shell would need a process for each pause.
  const program = `import time
for i in range(2400):
    print("line", i, "of a build that says much", flush=True)
    time.sleep(0.005)`;
  const command = `python3 -c '${program}'`;
  const calls = Array.from({ length: 12 }, (_, at) =>
    bash(command, { call_id: `c${at}`, concurrency: "TOOL_CONCURRENCY_PARALLEL" }),
  );
  const id = await api.run(calls);
  const shown = await open(engine, yard.url, `#/runs/${id}?floor=FLOOR_POLICY_INTERLEAVED`);
  await shown.page.waitForSelector(".line.said");
  const count = async () =>
    Number((await shown.page.locator(".run-output .aside .number").textContent()).replace(/\D/g, ""));
  const stopFrames = await startFrames(shown.page);
  const [from, at] = [await count(), performance.now()];
  await sleep(8_000);
  const rate = ((await count()) - from) / ((performance.now() - at) / 1_000);
  const frames = await stopFrames();
  const nodes = await shown.page.evaluate(() => document.querySelectorAll("*").length);
  console.log(`${Math.round(rate)} events/s; ${frames.text}; ${nodes} elements`);
  assert.ok(nodes < 3_000, `${nodes} elements`);
  assert.ok(frames.share < 0.5, `the page took ${frames.share} of a CPU`);
  assert.ok(frames.script < SCRIPT_MS_MAX, `a script took ${frames.script} ms`);
  await api.post(`/runs/${id}/cancel`);
  await shown.close();
});

test("a run with many events is read without blocking the page", async () => {
  const calls = Array.from({ length: 16 }, (_, at) =>
    bash("i=0; while [ $i -lt 1200 ]; do i=$((i+1)); echo line $i; sleep 0.004; done", {
      call_id: `c${at}`,
      concurrency: "TOOL_CONCURRENCY_PARALLEL",
    }),
  );
  const id = await api.run(calls);
  await api.ended(id);
  const shown = await open(engine, yard.url, "#/overview");
  const stopFrames = await startFrames(shown.page);
  const at = performance.now();
  await shown.page.evaluate((to) => {
    location.hash = to;
  }, `#/runs/${id}`);
  await shown.page.waitForSelector(".live-ended", { timeout: 60_000 });
  const took = performance.now() - at;
  const events = Number((await shown.page.locator(".run-output .aside .number").textContent()).replace(/\D/g, ""));
  const frames = await stopFrames();
  console.log(`${events} events read in ${Math.round(took)} ms; ${frames.text}`);
  await shown.close();
});

test("a list of many rows stays small in the document", async () => {
  for (let at = 0; at < 12; at += 1) {
    await Promise.all(Array.from({ length: 100 }, () => api.run([["get_current_time", { time_zone: "Asia/Tokyo" }]])));
  }
  const shown = await open(engine, yard.url, "#/runs");
  await shown.page.waitForSelector(".table-body [role=row]");
  for (let round = 0; round < 12; round += 1) {
    await shown.page.locator(".table-scroll").evaluate((element) => {
      element.scrollTop = element.scrollHeight;
    });
    await sleep(250);
  }
  const rows = await shown.page.evaluate(() => ({
    all: document.querySelector(".table-scroll").getAttribute("aria-rowcount"),
    inDocument: document.querySelectorAll(".table-body [role=row]").length,
  }));
  console.log(`${rows.all} rows, ${rows.inDocument} in the document`);
  assert.ok(Number(rows.all) > 1_200, rows.all);
  assert.ok(rows.inDocument < 100, rows.inDocument);
  const start = performance.now();
  const overview = await fetch(`${yard.url}/v1/overview`);
  await overview.json();
  console.log(`the overview took ${Math.round(performance.now() - start)} ms`);
  await shown.close();
});

test("a list of 100,000 rows is scrolled through without blocking the page", async () => {
  const [all, each] = [100_000, 200];
  const shown = await open(engine, yard.url, "#/overview");
  // Only the rows are made up; no server has as many in a moment.
  await shown.page.route(/\/v1\/runs\?/, (route) => {
    const from = Number(new URL(route.request().url()).searchParams.get("page_token") ?? 0);
    const runs = Array.from({ length: each }, (_, at) => ({
      run_id: `run_00_${(from + at).toString(16).padStart(32, "0")}`,
      status: "RUN_STATUS_COMPLETED",
      create_time: new Date(Date.now() - (from + at) * 1_000).toISOString(),
      calls: [{ call_id: "call_0", tool: "bash", state: "CALL_STATE_COMPLETED", pool: "local" }],
    }));
    const next_page_token = from + each < all ? String(from + each) : "";
    return route.fulfill({ contentType: "application/json", body: JSON.stringify({ runs, next_page_token }) });
  });
  await shown.page.evaluate(() => {
    location.hash = "#/runs";
  });
  await shown.page.waitForSelector(".table-body [role=row]");
  const stopFrames = await startFrames(shown.page);
  const at = performance.now();
  // As a reader who holds the End key.
  await shown.page.evaluate(async (wanted) => {
    const list = document.querySelector(".table-scroll");
    while (Number(list.getAttribute("aria-rowcount")) <= wanted) {
      list.scrollTop = list.scrollHeight;
      await new Promise((resolve) => requestAnimationFrame(resolve));
    }
  }, all);
  const took = performance.now() - at;
  const frames = await stopFrames();
  const [rows, heap] = await shown.page.evaluate(() => [
    document.querySelectorAll(".table-body [role=row]").length,
    Math.round(performance.memory.usedJSHeapSize / 1_048_576),
  ]);
  console.log(
    `100,000 rows in ${Math.round(took / 1_000)} s, ${rows} in the document, heap ${heap} MB; ${frames.text}`,
  );
  assert.ok(rows < 100, `${rows} rows in the document`);
  assert.ok(frames.script < SCRIPT_MS_MAX, `a script took ${frames.script} ms`);
  await shown.close();
});

/** CPU seconds and resident megabytes of a process. */
function used(pid) {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  const resident = Number(readFileSync(`/proc/${pid}/statm`, "utf8").split(" ")[1]);
  return { cpu: (Number(stat[11]) + Number(stat[12])) / 100, megabytes: (resident * 4_096) / 1_048_576 };
}

test("50 consoles cost the coordinator little", async () => {
  const seconds = 20;
  // A coordinator of its own, so that neither a worker nor the opening of runs is in its figures.
  const served = await coordinator(yard.nats_url, await freePort());
  const id = await api.run([bash("for i in $(seq 1 2000); do echo $i; sleep 0.1; done")]);
  const measure = async (during) => {
    const stop = new AbortController();
    const all = during(stop.signal);
    // The first requests of a console are not what it costs while it is open.
    await sleep(3_000);
    const before = used(served.pid);
    await sleep(seconds * 1_000);
    const after = used(served.pid);
    stop.abort();
    await Promise.allSettled(all);
    return { cpu: ((after.cpu - before.cpu) / seconds) * 100, megabytes: after.megabytes };
  };
  let requests = 0;
  const poll = async (path, everyMs, signal) => {
    await sleep(Math.random() * everyMs);
    while (!signal.aborted) {
      requests += 1;
      await (await fetch(`${served.url}/v1${path}`, { signal })).text();
      await sleep(everyMs);
    }
  };
  const follow = async (signal) => {
    const response = await fetch(`${served.url}/v1/runs/${id}/events`, { signal });
    for await (const _ of response.body) if (signal.aborted) return;
  };
  const without = await measure(() => []);
  // What a visible tab with the overview and one with a run ask for: 25 of each.
  const withThem = await measure((signal) =>
    Array.from({ length: 25 }, () => [
      ...["/overview", "/counts"].map((path) => poll(path, 2_000, signal)),
      poll("/counts", 5_000, signal),
      poll(`/runs/${id}`, 30_000, signal),
      poll(`/runs/${id}/calls/call_0/why`, 30_000, signal),
      follow(signal),
    ]).flat(),
  );
  const [cpu, megabytes] = [withThem.cpu - without.cpu, withThem.megabytes - without.megabytes];
  console.log(
    `the coordinator takes ${without.cpu.toFixed(1)} % of a CPU and ${without.megabytes.toFixed(0)} MB without consoles, ` +
      `${withThem.cpu.toFixed(1)} % and ${withThem.megabytes.toFixed(0)} MB with 50: ` +
      `${cpu.toFixed(1)} % and ${megabytes.toFixed(1)} MB more, for ${Math.round(requests / seconds)} requests a second`,
  );
  await api.post(`/runs/${id}/cancel`);
  await served.kill("SIGTERM");
  assert.ok(megabytes < 100, `${megabytes} MB`);
});
