/** Tools in TypeScript, hosted by a worker of their own process and called over HTTP. */

import assert from "node:assert/strict";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { modelMessageSchema, type ToolModelMessage } from "ai";
import { CallsWait, Ended, NeedsAnswer, NeedsApproval, Output, OutputWithdrawn, Progress } from "toolyard/client";
import { exited, file, hosted, logged, NOTES, toolUse, yard } from "./yard.js";

test("a tool is called over HTTP, and its arguments are checked", async (t) => {
  await hosted(t);
  const turn = yard.turn(toolUse(["a", "js_greet", { name: "Ada", times: 2 }], ["b", "js_greet", { times: 0 }]));
  const { results, messages } = await turn;
  const [greeted, refused] = ["a", "b"].map((id) => results.find((result) => result.callId === id));
  assert.equal(greeted?.text, "Hello, Ada! Hello, Ada!");
  assert.equal(refused?.error?.kind, "CALL_ERROR_KIND_ARGUMENTS_INVALID");
  const { content } = messages[0] as { content: { tool_use_id: string; is_error?: boolean }[] };
  assert.deepEqual(
    content.map((block) => [block.tool_use_id, block.is_error ?? false]),
    [
      ["a", false],
      ["b", true],
    ],
  );
});

test("the caller's context reaches the tool that declares it", async (t) => {
  await hosted(t);
  const { results } = await yard.turn(toolUse(["a", "js_greet", { name: "Ada" }]), { context: { greeting: "Salve" } });
  assert.equal(results[0]?.text, "Salve, Ada!");
});

test("output arrives piece by piece while the tool runs", async (t) => {
  await hosted(t);
  const go = file();
  const seen: string[] = [];
  for await (const event of yard.turn(toolUse(["a", "js_pieces", { go }]))) {
    if (event instanceof Output) {
      seen.push(event.text);
      // The tool goes on only now, so the first piece was not kept until its end.
      writeFileSync(go, "");
    } else if (event instanceof Progress) {
      seen.push(`${event.done} of ${event.total}: ${event.message}`);
    } else if (event instanceof Ended) {
      seen.push(event.text);
    }
  }
  assert.deepEqual(seen, ["first\n", "1 of 2: half", '{"second":true}', "both"]);
});

test("a worker that is killed in mid-stream gives a second attempt, and no doubled output", async (t) => {
  const first = await hosted(t);
  const turn = yard.turn(toolUse(["a", "js_interrupted", { go: file() }]));
  let text = "";
  let withdrawn = 0;
  let pieces = 0;
  for await (const event of turn) {
    if (event instanceof Output) {
      text += event.text;
      pieces += 1;
      if (pieces === 3) {
        first.kill("SIGKILL");
        await exited(first);
        await hosted(t);
      }
    } else if (event instanceof OutputWithdrawn) {
      withdrawn += 1;
      text = "";
    }
  }
  const { results } = await turn;
  assert.equal(withdrawn, 1);
  assert.equal(text, [0, 1, 2, 3, 4, 5].map((line) => `line ${line} of attempt 2\n`).join(""));
  assert.equal(results[0]?.text, "attempt 2");
});

test("a call that may not be done twice is not, when its worker is killed", async (t) => {
  const worker = await hosted(t);
  const turn = yard.turn(toolUse(["a", "js_once", { go: file() }]));
  for await (const event of turn) {
    if (event instanceof Output) {
      worker.kill("SIGKILL");
      await exited(worker);
      await hosted(t);
    }
  }
  assert.equal((await turn).results[0]?.error?.kind, "CALL_ERROR_KIND_INTERRUPTED");
});

test("an error that passes leads to another attempt, with the same idempotency key", async (t) => {
  await hosted(t);
  const { results } = await yard.turn(toolUse(["a", "js_flaky", {}]));
  assert.equal(results[0]?.text, '{"attempt":2,"keys":1}');
});

test("a cancel reaches the tool's signal, and is confirmed", async (t) => {
  await hosted(t);
  const note = file();
  const turn = yard.turn(toolUse(["a", "js_waits", { note }]));
  for await (const event of turn) {
    if (event instanceof Output) {
      await turn.cancel("not needed");
    }
  }
  const { results } = await turn;
  assert.equal(results[0]?.state, "cancelled");
  assert.equal(readFileSync(note, "utf8"), "AbortError");
  const run = await yard.run(turn.runId ?? "");
  assert.equal(run.calls?.[0]?.outcome?.stopped, "STOPPED_CONFIRMED");
});

test("a function that ignores its signal keeps its call until it ends", async (t) => {
  const worker = await hosted(t);
  const go = file();
  const turn = yard.turn(toolUse(["a", "js_once", { go }]));
  for await (const event of turn) {
    if (event instanceof Output) {
      const lingers = logged(worker, "a tool does not stop");
      await turn.cancel();
      await lingers;
      assert.equal((await yard.run(turn.runId ?? "")).calls?.[0]?.state, "CALL_STATE_RUNNING");
      writeFileSync(go, "");
    }
  }
  assert.equal((await turn).results[0]?.state, "cancelled");
  const run = await yard.run(turn.runId ?? "");
  assert.equal(run.calls?.[0]?.outcome?.stopped, "STOPPED_CONFIRMED");
});

test("a call waits for its approval, which may change the arguments", async (t) => {
  await hosted(t);
  const turn = yard.turn(toolUse(["a", "js_pay", { amount: 100 }], ["b", "js_pay", { amount: 1 }]));
  for await (const event of turn) {
    if (event instanceof NeedsApproval) {
      assert.equal(event.tool, "js_pay");
      await (event.arguments.amount === 100 ? event.approve({ amount: 10 }) : event.reject("too little"));
    }
  }
  const { results } = await turn;
  const ends = new Map(results.map((result) => [result.callId, result.text || result.error?.kind]));
  assert.equal(ends.get("a"), '{"paid":10}');
  assert.equal(ends.get("b"), "CALL_ERROR_KIND_REJECTED");
});

test("an approval can be decided by a callback of a turn that is only awaited", async (t) => {
  await hosted(t);
  const onApproval = (event: NeedsApproval) => event.approve();
  const { results } = await yard.turn(toolUse(["a", "js_pay", { amount: 5 }]), { onApproval });
  assert.equal(results[0]?.text, '{"paid":5}');
});

test("a running tool asks, and the client answers", async (t) => {
  await hosted(t);
  const turn = yard.turn(toolUse(["a", "js_choose", {}]));
  for await (const event of turn) {
    if (event instanceof NeedsAnswer) {
      assert.equal(event.message, "Which colour?");
      assert.equal(event.askedBy, "a");
      await event.answer("blue");
    }
  }
  const { results } = await turn;
  assert.deepEqual(
    results.map((result) => result.text),
    ["chose blue"],
    "the question is no result of the model",
  );
});

test("a large image becomes an object, which is downloaded", async (t) => {
  await hosted(t);
  const { results } = await yard.turn(toolUse(["a", "js_picture", { bytes: 400_000 }]));
  const object = results[0]?.result[0]?.object;
  assert.equal(object?.media_type, "image/png");
  const bytes = new Uint8Array(await (await yard.download(object?.object_id ?? "")).arrayBuffer());
  assert.equal(bytes.length, 400_000);
  assert.ok(bytes.every((byte) => byte === 7));
});

test("an image is one for Anthropic's model, and for that of Vercel's AI SDK", async (t) => {
  await hosted(t);
  const { messages } = await yard.turn(toolUse(["a", "js_picture", { bytes: 3 }]));
  const source = { type: "base64", media_type: "image/png", data: "BwcH" };
  assert.ok(JSON.stringify(messages).includes(JSON.stringify(source)), JSON.stringify(messages));
  const toolCalls = [{ toolCallId: "a", toolName: "js_picture", input: { bytes: 3 } }];
  const answered = await yard.turn<ToolModelMessage>({ toolCalls });
  const message = modelMessageSchema.parse(answered.messages[0]);
  assert.match(JSON.stringify(message), /"type":"image-data","data":"BwcH","mediaType":"image\/png"/);
});

test("files of a turn are uploaded and reach the tool", async (t) => {
  await hosted(t);
  const files = { notes: new Uint8Array(300_000).fill(2) };
  const { results } = await yard.turn(
    toolUse(["a", "js_reads", { file: "notes" }], ["b", "js_reads", { file: "none" }]),
    { files },
  );
  const text = (id: string) => results.find((result) => result.callId === id);
  assert.equal(text("a")?.text, '{"bytes":300000,"sum":600000}');
  assert.match(text("b")?.error?.message ?? "", /there is no file "none"; there are: notes/);
});

test("SIGTERM lets running calls end, and then the worker is gone", async (t) => {
  const worker = await hosted(t);
  const go = file();
  const turn = yard.turn(toolUse(["a", "js_once", { go }]));
  for await (const event of turn) {
    if (event instanceof Output) {
      worker.kill("SIGTERM");
      writeFileSync(go, "");
    }
  }
  assert.equal((await turn).results[0]?.text, "done");
  assert.equal(await exited(worker), 0);
  assert.ok(existsSync(go));
});

test("a worker ends after its drain although a tool ignores its signal", async (t) => {
  const worker = await hosted(t, "--drain", "0.5");
  for await (const event of yard.turn(toolUse(["a", "js_once", { go: file() }]))) {
    if (event instanceof Output) {
      worker.kill("SIGTERM");
      break;
    }
  }
  assert.equal(await exited(worker), 0);
});

test("a function that blocks the event loop is reported, and its call keeps its lease", async (t) => {
  const worker = await hosted(t);
  const reported = logged(worker, "the event loop is blocked");
  const named = logged(worker, 'tools="js_blocks"');
  const goesOn = logged(worker, "the event loop goes on");
  const { results } = await yard.turn(toolUse(["a", "js_blocks", { seconds: 3 }]));
  await Promise.all([reported, named, goesOn]);
  assert.equal(results[0]?.text, "attempt 1");
});

test("a generator that never yields has its signal aborted at its idle timeout", async (t) => {
  await hosted(t);
  const { results } = await yard.turn(toolUse(["a", "js_silent", { go: file() }]));
  assert.equal(results[0]?.error?.kind, "CALL_ERROR_KIND_IDLE_TIMEOUT");
});

test("a resource is opened before the first call, shared by all, and closed after the drain", async (t) => {
  const worker = await hosted(t);
  assert.equal(readFileSync(NOTES, "utf8").split("\n").at(-2), "opened");
  const { results } = await yard.turn(toolUse(["a", "js_notes", { line: "one" }], ["b", "js_notes", { line: "two" }]));
  assert.deepEqual(results.map((result) => result.text).sort(), ["1", "2"]);
  worker.kill("SIGTERM");
  await exited(worker);
  assert.equal(readFileSync(NOTES, "utf8").split("\n").at(-2), "closed with 2 pages");
});

test("calls that nobody decides are told, and the run goes on when somebody does", async (t) => {
  await hosted(t);
  const calls = toolUse(["a", "js_pay", { amount: 3 }], ["b", "js_greet", { name: "Ada" }]);
  const turn = yard.turn(calls);
  const { open, messages } = await turn.settled();
  assert.deepEqual(
    open.map((event) => [event.callId, event.type]),
    [["a", "needs_approval"]],
  );
  assert.match(JSON.stringify(messages), /Hello, Ada!/);
  await (open[0] as NeedsApproval).approve();
  const whole = await turn.settled();
  assert.deepEqual([whole.open, whole.results.length], [[], 2]);

  const waits = await yard.runCalls(calls, { onDisconnect: "cancel" }).catch((error: unknown) => error);
  assert.ok(waits instanceof CallsWait);
  assert.match(waits.message, /calls wait for somebody to act: a \(js_pay\)/);
  await (waits.open[0] as NeedsApproval).reject("not now");
  const { results } = await yard.resume(waits.runId, { format: "anthropic" });
  assert.deepEqual(results.map((result) => result.state).sort(), ["completed", "failed"]);
});

test("a message's calls, and one call, are executed without a turn object", async (t) => {
  await hosted(t);
  const [message] = await yard.runCalls<{ role: string }>(toolUse(["a", "js_greet", { name: "Ada" }]));
  assert.equal(message?.role, "user");
  assert.equal((await yard.call("js_greet", { name: "Bob" })).text, "Hello, Bob!");
  assert.equal((await yard.call("js_greet", {})).error?.kind, "CALL_ERROR_KIND_ARGUMENTS_INVALID");
  const onApproval = (event: NeedsApproval) => event.approve();
  assert.equal((await yard.call("js_pay", { amount: 1 }, { onApproval })).text, '{"paid":1}');
});
