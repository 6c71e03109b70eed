// BullMQ over Redis: one worker process with a high concurrency, as its guide on concurrency says for work that waits.
// A call waits for its job's end through QueueEvents; output that streams is the job's progress, heard there as well.

import { randomUUID } from "node:crypto";
import { parseArgs } from "node:util";
import { Queue, QueueEvents, Worker } from "bullmq";

const IN_FLIGHT = 256;
const CHUNK = "x".repeat(64);
const PATIENCE_MS = 10_000;
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: "string" },
    rounds: { type: "string", default: "3" },
    seconds: { type: "string", default: "3" },
    singles: { type: "string", default: "200" },
    chunks: { type: "string", default: "2000" },
  },
});
const { hostname: host, port } = new URL(values.url);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };

async function work(job) {
  for (let chunk = 0; chunk < (job.data.count ?? 0); chunk++) {
    await job.updateProgress({ chunk, text: CHUNK });
  }
}

if (positionals[0] === "worker") {
  const worker = new Worker("peer", work, { connection, concurrency: IN_FLIGHT });
  await worker.waitUntilReady();
  console.log("ready");
} else {
  await client();
}

async function client() {
  const kept = { removeOnComplete: { count: 1000 }, removeOnFail: { count: 1000 } };
  const queue = new Queue("peer", { connection, defaultJobOptions: kept });
  const events = new QueueEvents("peer", { connection });
  // Every call of waitUntilFinished listens.
  events.setMaxListeners(0);
  await events.waitUntilReady();
  const now = () => performance.now();

  const call = async () => (await queue.add("noop", {})).waitUntilFinished(events, 60_000);
  const rate = async (seconds) => {
    const began = now();
    let done = 0;
    const oneAfterAnother = async () => {
      while (now() - began < seconds * 1000) {
        await call();
        done += 1;
      }
    };
    await Promise.all(Array.from({ length: IN_FLIGHT }, oneAfterAnother));
    return done / ((now() - began) / 1000);
  };
  const stream = async (count) => {
    const [began, times, jobId] = [now(), [], randomUUID()];
    let allCame;
    const all = new Promise((resolve) => (allCame = resolve));
    const heard = (event) => {
      if (event.jobId !== jobId) return;
      if (event.data.chunk !== times.length) throw new Error(`${event.data.chunk} came for ${times.length}`);
      times.push(now() - began);
      if (times.length === count) allCame();
    };
    events.on("progress", heard);
    const job = await queue.add("chunks", { count }, { jobId });
    await job.waitUntilFinished(events, 60_000);
    // A job that ended before anybody waited for it is found in the store, and what it said may still be on its way.
    await Promise.race([all, new Promise((resolve) => setTimeout(resolve, PATIENCE_MS).unref())]);
    events.off("progress", heard);
    if (times.length !== count) throw new Error(`${times.length} of ${count} chunks came`);
    return times;
  };
  const quantile = (samples, part) => {
    const ordered = samples.toSorted((a, b) => a - b);
    return Number(ordered[Math.round((ordered.length - 1) * part)].toFixed(3));
  };

  const seconds = Number(values.seconds);
  await rate(seconds / 3);
  const [rates, singles, firstChunks, chunkRates] = [[], [], [], []];
  for (let round = 0; round < Number(values.rounds); round++) {
    rates.push(await rate(seconds));
    for (let single = 0; single < Number(values.singles); single++) {
      const began = now();
      await call();
      singles.push(now() - began);
    }
    for (let single = 0; single < Math.max(1, Number(values.singles) / 20); single++) {
      firstChunks.push((await stream(1))[0]);
    }
    const count = Number(values.chunks);
    chunkRates.push(count / ((await stream(count)).at(-1) / 1000));
  }
  const found = {
    in_flight: IN_FLIGHT,
    calls_per_s: quantile(rates, 0.5),
    p50_ms: quantile(singles, 0.5),
    p99_ms: quantile(singles, 0.99),
    first_chunk_p50_ms: quantile(firstChunks, 0.5),
    chunks_per_s: quantile(chunkRates, 0.5),
  };
  console.log(JSON.stringify(found));
  process.exit(0);
}
