// How the console holds under load. Figures are printed; the limits are wide, because machines differ.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { browser, open } from "./page.mjs";
import { bash, client, dev } from "./yard.mjs";

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

/** Measures frames, and the CPU time of the page's main thread, until `stopFrames`. */
async function startFrames(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  const busy = async () => {
    const { metrics } = await session.send("Performance.getMetrics");
    return metrics.find((metric) => metric.name === "TaskDuration").value;
  };
  await page.evaluate(() => {
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
    const [longest, p99] = await page.evaluate(() => {
      cancelAnimationFrame(window.frame);
      const sorted = window.gaps.slice(1).sort((a, b) => a - b);
      return [sorted.at(-1), sorted[Math.floor(sorted.length * 0.99)]].map(Math.round);
    });
    // A frame may also be late because the machine has no time for the browser: the CPU time tells what the page took.
    return {
      share,
      text: `the page took ${(share * 100).toFixed(0)} % of a CPU; longest frame ${longest} ms, p99 ${p99} ms`,
    };
  };
}

test("a run that emits many events a second does not block the page", async () => {
  const each = 1_500;
  const command = `i=0; while [ $i -lt ${each} ]; do i=$((i+1)); echo "line $i of a build that says much"; sleep 0.006; done`;
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

/** CPU seconds and resident megabytes of a process. */
function used(pid) {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  const resident = Number(readFileSync(`/proc/${pid}/statm`, "utf8").split(" ")[1]);
  return { cpu: (Number(stat[11]) + Number(stat[12])) / 100, megabytes: (resident * 4_096) / 1_048_576 };
}

test("50 consoles cost the coordinator little", async () => {
  const seconds = 10;
  const id = await api.run([bash("for i in $(seq 1 2000); do echo $i; sleep 0.1; done")]);
  const measure = async (during) => {
    const before = used(yard.pid);
    const stop = new AbortController();
    const all = during(stop.signal);
    await sleep(seconds * 1_000);
    const after = used(yard.pid);
    stop.abort();
    await Promise.allSettled(all);
    return { cpu: ((after.cpu - before.cpu) / seconds) * 100, megabytes: after.megabytes };
  };
  const idle = await measure(() => []);
  // What a tab with the overview and one with a run ask for: 25 of each.
  const poll = async (path, everyMs, signal) => {
    await sleep(Math.random() * everyMs);
    while (!signal.aborted) {
      await (await fetch(`${yard.url}/v1${path}`, { signal })).text();
      await sleep(everyMs);
    }
  };
  const follow = async (signal) => {
    const response = await fetch(`${yard.url}/v1/runs/${id}/events`, { signal });
    for await (const _ of response.body) if (signal.aborted) return;
  };
  const busy = await measure((signal) =>
    Array.from({ length: 25 }, () => [
      ...["/overview", "/counts"].map((path) => poll(path, 2_000, signal)),
      poll("/pauses", 5_000, signal),
      ...[0, 1].map(() => poll("/counts", 5_000, signal)),
      poll(`/runs/${id}`, 2_000, signal),
      poll(`/runs/${id}/calls/call_0/why`, 3_000, signal),
      follow(signal),
    ]).flat(),
  );
  const [cpu, megabytes] = [busy.cpu - idle.cpu, busy.megabytes - idle.megabytes];
  console.log(`50 consoles: ${cpu.toFixed(1)} % of a CPU and ${megabytes.toFixed(1)} MB more than without`);
  await api.post(`/runs/${id}/cancel`);
  assert.ok(megabytes < 100, `${megabytes} MB`);
});
