/** Turns against a fake `fetch`, whose connections break or stall at chosen events. They need no running Toolyard. */

import assert from "node:assert/strict";
import { mock, type TestContext, test } from "node:test";
import { CallsWait, NeedsApproval, Toolyard } from "toolyard/client";
import { toolUse } from "./yard.js";

const OPENED = { run_opened: { run_id: "run", calls: [{ call_id: "a", tool: "flood" }] } };
const APPROVAL = { call_awaiting_approval: { call_id: "a", tool: "flood", arguments: "{}" } };
const WAITS = { run_status_changed: { status: "RUN_STATUS_REQUIRES_ACTION" } };
const ENDED = { call_ended: { call_id: "a", tool: "flood", outcome: { state: "CALL_STATE_COMPLETED" } } };
const END = 'event: end\ndata: {"reason":"STREAM_END_REASON_RUN_ENDED"}\n\n';

/** Events of a run as the server sends them; the first one has this number. */
function sent(first: number, ...events: object[]): string {
  return events.map((event, index) => `id: ${first + index}\ndata: ${JSON.stringify(event)}\n\n`).join("");
}

function answer(complete: boolean): object {
  return { messages: ["answer"], complete, format: "anthropic", run_id: "run" };
}

function messages(complete: boolean): string {
  return `event: messages\ndata: ${JSON.stringify(answer(complete))}\n\n`;
}

/** The body of a response, which the test writes. */
class Stream {
  readonly #body = new TransformStream<Uint8Array, Uint8Array>();
  readonly #writer = this.#body.writable.getWriter();
  readonly response = new Response(this.#body.readable, { headers: { "content-type": "text/event-stream" } });

  send(text: string): this {
    this.#writer.write(new TextEncoder().encode(text)).catch(() => {});
    return this;
  }

  /** The connection breaks after what was sent. */
  cut(): this {
    this.#writer.close().catch(() => {});
    return this;
  }
}

/** A client whose streams are these, one after the other. Other requests for messages find the run in this state. */
function served(streams: Stream[], isComplete = () => true): { client: Toolyard; requests: string[] } {
  const requests: string[] = [];
  const fake: typeof fetch = async (input, init) => {
    const headers = new Headers(init?.headers);
    const after = headers.get("last-event-id");
    const { pathname, searchParams } = new URL(`${input}`);
    const format = searchParams.get("format");
    requests.push([init?.method ?? "GET", pathname, format, after && `after ${after}`].filter(Boolean).join(" "));
    if (headers.get("accept") !== "text/event-stream") {
      return Response.json(answer(isComplete()));
    }
    const stream = streams.shift();
    assert.ok(stream, `no further stream was expected: ${requests.join(", ")}`);
    return stream.response;
  };
  return { client: new Toolyard({ url: "http://fake", fetch: fake }), requests };
}

const BATCH = "POST /v1/tool_calls:batch";
const REST = "GET /v1/runs/run/events after 0";

test("a turn that is not stored is sent once, although its stream breaks before the form is known", async () => {
  const { client, requests } = served([
    new Stream().send(sent(0, OPENED)).cut(),
    new Stream().send(sent(1, ENDED)).send(END),
  ]);
  const turn = client.turn(toolUse(["a", "flood", {}]), { store: false });
  await assert.rejects(async () => await turn, /run.*store: false.*set format/);
  assert.deepEqual(requests, [BATCH, REST]);
});

test("a turn that is not stored and names its form reads its messages from the run", async () => {
  const { client, requests } = served([
    new Stream().send(sent(0, OPENED)).cut(),
    new Stream().send(sent(1, ENDED)).send(END),
  ]);
  const turn = client.turn(toolUse(["a", "flood", {}]), { store: false, format: "anthropic" });
  assert.deepEqual((await turn).messages, ["answer"]);
  assert.deepEqual(requests, [`${BATCH} anthropic`, REST, "GET /v1/runs/run/messages anthropic"]);
});

test("a turn that is not stored does not settle if its stream breaks before the form is known", async () => {
  const { client, requests } = served([new Stream().send(sent(0, OPENED, APPROVAL, WAITS)).cut(), new Stream()]);
  const turn = client.turn(toolUse(["a", "flood", {}]), { store: false });
  await assert.rejects(turn.settled(), /run.*store: false.*set format/);
  turn.stop();
  assert.equal(requests.filter((request) => request.startsWith(BATCH)).length, 1, requests.join(", "));
});

test("a turn that is not stored settles with the form that the server has recognised", async () => {
  const { client, requests } = served(
    [
      new Stream()
        .send(sent(0, OPENED, APPROVAL, WAITS))
        .send(messages(false))
        .cut(),
      new Stream(),
    ],
    () => false,
  );
  const isWaiting = (error: unknown) => error instanceof CallsWait && error.open[0]?.callId === "a";
  await assert.rejects(client.runCalls(toolUse(["a", "flood", {}]), { store: false }), isWaiting);
  assert.equal(requests.filter((request) => request.startsWith(BATCH)).length, 1, requests.join(", "));
  assert.ok(requests.includes("GET /v1/runs/run/messages anthropic"), requests.join(", "));
});

test("a turn settles again after more events than are kept", async () => {
  const output = { call_output: { call_id: "a", content: { text: "a piece" } } };
  const pieces = Array.from({ length: 1_500 }, () => output);
  const stream = new Stream().send(sent(0, OPENED, ...pieces, APPROVAL, WAITS));
  let isApproved = false;
  const { client, requests } = served([stream], () => isApproved);
  const turn = client.turn(toolUse(["a", "flood", {}]));
  const { open } = await turn.settled();
  assert.ok(open[0] instanceof NeedsApproval);
  assert.deepEqual((await turn.settled()).open, open, "nobody has acted, so it settles at once");

  await open[0].approve();
  isApproved = true;
  stream.send(sent(1_503, ENDED)).send(messages(true));
  const { open: none, results, messages: answers } = await turn.settled();
  assert.deepEqual([none, results.map((result) => result.state), answers], [[], ["completed"], ["answer"]]);
  assert.ok(requests.includes("POST /v1/runs/run/decisions"), requests.join(", "));
});

/** Lets time pass, and then everything that is due happen. */
async function pass(milliseconds: number): Promise<void> {
  await happened();
  mock.timers.tick(milliseconds);
  await happened();
}

async function happened(): Promise<void> {
  for (let turn = 0; turn < 50; turn += 1) {
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function withFakeTime(test: TestContext): void {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  test.after(() => mock.timers.reset());
}

test("a connection that is silent for 45 s is replaced by another one, from the last event on", async (t) => {
  withFakeTime(t);
  const [stalls, goesOn] = [new Stream().send(sent(0, OPENED)), new Stream()];
  const { client, requests } = served([stalls, goesOn]);
  const turn = client.turn(toolUse(["a", "flood", {}]));
  const result = turn.then(({ messages }) => messages);
  await pass(40_000);
  stalls.send(": heartbeat\n\n");
  await pass(43_000);
  // Longer than the pause before a client connects again.
  await pass(1_000);
  assert.deepEqual(requests, [BATCH], "a comment shows that the connection is alive");
  await pass(1_000);
  await pass(1_000);
  assert.deepEqual(requests, [BATCH, REST]);
  goesOn.send(sent(1, ENDED)).send(END);
  assert.deepEqual(await result, ["answer"]);
});

test("a reader that takes long between two events does not make a connection silent", async (t) => {
  withFakeTime(t);
  const stream = new Stream().send(sent(0, OPENED));
  const { client, requests } = served([stream]);
  const events = client.resume("run", { format: "anthropic" })[Symbol.asyncIterator]();
  await events.next();
  const output = { call_output: { call_id: "a", content: { text: "a piece" } } };
  stream.send(sent(1, ...Array.from({ length: 2_000 }, () => output)));
  await pass(100_000);
  stream.send(sent(2_001, ENDED)).send(END);
  for (let taken = 0; taken < 2_001; taken += 1) {
    await events.next();
  }
  assert.deepEqual(
    requests.filter((request) => request.includes("/events")),
    ["GET /v1/runs/run/events"],
  );
});
