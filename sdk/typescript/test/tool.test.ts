/** Tools without a broker: schemas, results, output, errors, and what a call knows. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { toStandardJsonSchema } from "@valibot/to-json-schema";
import {
  BadInput,
  DefinitionError,
  data,
  type InputOf,
  image,
  type JsonSchema,
  json,
  ModelRetry,
  NeedsInput,
  RateLimited,
  Retry,
  resource,
  ToolError,
  testClient,
  text,
  tool,
  withState,
} from "toolyard";
import * as v from "valibot";
import { z } from "zod";

const read = { readOnly: true, description: "A tool of a test." };

test("a schema of zod is checked, converted and typed", async () => {
  const input = z.object({
    name: z.string().trim().min(1),
    code: z
      .string()
      .optional()
      .transform((code) => code?.length),
    times: z.int().default(2),
  });
  const typed: InputOf<typeof input> = { name: "Ada", times: 1, code: 3 };
  assert.equal(typed.times, 1);
  const greet = tool({
    ...read,
    name: "greet",
    input,
    execute: ({ name, times, code = 0 }) => `${name} ${code + 1} `.repeat(times),
  });
  const client = testClient([greet]);
  assert.equal((await client.call("greet", { name: " Ada ", code: "xyz" })).answer, "Ada 4 Ada 4 ");
  await assert.rejects(async () => await client.call("greet", {}), BadInput);
  await assert.rejects(async () => await client.call("greet", { name: "Ada", times: 1.5 }), BadInput);
});

test("what only the library can check is refused with its place", async () => {
  const input = z.object({
    range: z
      .object({ low: z.number(), high: z.number() })
      .refine((range) => range.low < range.high, "low is above high"),
  });
  const client = testClient([tool({ ...read, name: "range", input, execute: () => "fine" })]);
  const { error } = await client.call("range", { range: { low: 2, high: 1 } }).settled();
  assert.ok(error instanceof BadInput);
  assert.equal(error.message, "the arguments are of no use: at /range: low is above high");
});

test("schemas of other libraries and plain JSON Schema are taken", async () => {
  const pair = v.object({ n: v.pipe(v.number(), v.maxValue(3)) });
  const client = testClient([
    tool({ ...read, name: "valibot", input: toStandardJsonSchema(pair), execute: ({ n }) => ({ twice: n * 2 }) }),
    tool({
      ...read,
      name: "pair",
      input: { validate: pair, jsonSchema: { type: "object" } },
      execute: ({ n }) => n + 1,
    }),
    tool({
      ...read,
      name: "plain",
      input: { type: "object", properties: { n: { type: "number" } }, required: ["n"] },
      execute: ({ n }) => String(n),
    }),
    tool({ ...read, name: "none", execute: () => undefined }),
  ]);
  assert.deepEqual((await client.call("valibot", { n: 2 })).value, { twice: 4 });
  assert.equal((await client.call("pair", { n: 2 })).value, 3);
  await assert.rejects(async () => await client.call("pair", { n: 4 }), BadInput);
  assert.equal((await client.call("plain", { n: 7 })).value, "7");
  await assert.rejects(async () => await client.call("plain", {}), BadInput);
  assert.equal((await client.call("none")).value, "Done");
  await assert.rejects(async () => await client.call("none", { more: 1 }), BadInput);
});

test("a tool that could not be hosted is refused with what is wrong", () => {
  const execute = () => "";
  assert.throws(() => testClient([tool({ ...read, name: "a b", execute })]), /a b/);
  assert.throws(() => testClient([tool({ ...read, name: "a", timeout: -1, execute })]), /timeout is -1 seconds/);
  assert.throws(
    () => testClient([tool({ ...read, name: "a", execute }), tool({ ...read, name: "a", execute })]),
    /has the name a/,
  );
  const unknown = { colour: "red" } as object;
  assert.throws(
    () => testClient([tool({ ...read, ...unknown, name: "a", execute })]),
    /tool "a": unknown field `colour`/,
  );
  assert.throws(() => testClient([tool({ ...read, name: "a", input: { type: "array" }, execute })]), /input_schema/);
  assert.throws(() => tool({ ...read, name: "a", input: z.object({ f: z.date() }), execute }), /tool a: .*Date/);
});

test("results are text, JSON, bytes, images, lists of them, and state", async () => {
  const results: Record<string, () => unknown> = {
    text: () => "text",
    nothing: () => {},
    object: () => ({ a: [1, null] }),
    list: () => [1, 2],
    empty: () => [],
    number: () => 0,
    bytes: () => new Uint8Array([1, 2]),
    image: () => image(new Uint8Array([3]), "image/jpeg"),
    parts: () => [text("one"), json({ two: 2 }), data(new Uint8Array([3]), "x/y")],
    state: () => withState("kept", { cart: ["tea"] }),
  };
  const client = testClient(Object.entries(results).map(([name, execute]) => tool({ ...read, name, execute })));
  const value = async (name: string) => (await client.call(name)).value;
  assert.equal(await value("text"), "text");
  assert.equal(await value("nothing"), "Done");
  assert.deepEqual(await value("object"), { a: [1, null] });
  assert.deepEqual(await value("list"), [1, 2]);
  assert.deepEqual(await value("empty"), []);
  assert.equal(await value("number"), 0);
  assert.deepEqual(new Uint8Array((await value("bytes")) as Uint8Array), new Uint8Array([1, 2]));
  assert.equal((await client.call("image")).result[0]?.mediaType, "image/jpeg");
  assert.deepEqual(
    (await client.call("parts")).result.map((part) => part.kind),
    ["text", "json", "data"],
  );
  assert.deepEqual((await client.call("state")).state, { cart: ["tea"] });
});

test("what is not JSON fails its call with a reason", async () => {
  const cycle: Record<string, unknown> = {};
  cycle.self = cycle;
  const results: Record<string, () => unknown> = { cycle: () => cycle, big: () => 1n, code: () => () => 1 };
  const client = testClient(Object.entries(results).map(([name, execute]) => tool({ ...read, name, execute })));
  for (const name of Object.keys(results)) {
    await assert.rejects(async () => await client.call(name), /the tool's result is not JSON/);
  }
});

test("generators stream what they yield, and return the result", async () => {
  const client = testClient([
    tool({
      ...read,
      name: "async",
      async *execute(_, context) {
        yield "one";
        yield text("two", { channel: "stderr" });
        await context.progress(1, 4, "a quarter");
        yield { three: 3 };
        yield new Uint8Array([4]);
        return { five: 5 };
      },
    }),
    tool({
      ...read,
      name: "sync",
      *execute() {
        yield "a";
        yield "b";
      },
    }),
    tool({
      ...read,
      name: "never",
      // biome-ignore lint/correctness/useYield: that is what is tested.
      async *execute() {
        return "only this";
      },
    }),
  ]);
  const called = await client.call("async");
  assert.deepEqual(
    called.output.map((part) => part.kind),
    ["text", "text", "progress", "json", "data"],
  );
  assert.deepEqual([called.text(), called.text("stderr"), called.value], ["one", "two", { five: 5 }]);
  const sync = await client.call("sync");
  assert.deepEqual([sync.text(), sync.answer], ["ab", "Done"]);
  assert.equal((await client.call("never")).answer, "only this");
});

test("output is seen while the tool runs", async () => {
  let goOn = () => {};
  const waits = new Promise<void>((resolve) => {
    goOn = resolve;
  });
  const execute = async function* () {
    yield "first";
    await waits;
    yield "second";
  };
  const seen: unknown[] = [];
  for await (const part of testClient([tool({ ...read, name: "waits", execute })]).call("waits")) {
    seen.push(part.text);
    goOn();
  }
  assert.deepEqual(seen, ["first", "second"]);
});

test("errors keep their kind, and anything that is thrown is one", async () => {
  const odd = {
    toString() {
      throw new Error("no");
    },
  };
  const thrown: Record<string, unknown> = {
    error: new ToolError("final"),
    retry: new Retry("later", { after: 1.5 }),
    limited: new RateLimited("slow", { after: 3 }),
    model: new ModelRetry("try with b"),
    needs: new NeedsInput("a login"),
    input: new BadInput("there is no such city", { path: "/city" }),
    other: new TypeError("x is undefined", { cause: new Error("the cause") }),
    text: "a text",
    nothing: undefined,
    odd,
    own: new (class extends ToolError {
      override readonly kind = "of_my_own";
    })("my own kind"),
  };
  const fails = Object.entries(thrown).map(([name, error]) =>
    tool({
      ...read,
      name,
      execute: () => {
        throw error;
      },
    }),
  );
  const client = testClient(fails);
  const error = async (name: string) => (await client.call(name).settled()).error;
  const told = async (name: string) => {
    const failed = await error(name);
    return [failed?.constructor.name, failed?.message, failed?.retryable];
  };
  assert.deepEqual(await told("error"), ["ToolError", "final", false]);
  assert.deepEqual(await told("retry"), ["Retry", "later", true]);
  assert.equal(((await error("retry")) as Retry).after, 1.5);
  assert.deepEqual(await told("limited"), ["RateLimited", "slow", true]);
  assert.deepEqual(await told("model"), ["ModelRetry", "try with b", false]);
  assert.deepEqual(await told("needs"), ["NeedsInput", "a login", false]);
  assert.deepEqual(await told("input"), [
    "BadInput",
    "the arguments are of no use: at /city: there is no such city",
    false,
  ]);
  assert.deepEqual(await told("other"), ["ToolError", "TypeError: x is undefined: the cause", false]);
  assert.deepEqual(await told("text"), ["ToolError", "the tool threw a text", false]);
  assert.deepEqual(await told("nothing"), ["ToolError", "the tool threw undefined", false]);
  assert.deepEqual(await told("own"), ["ToolError", "ToolError: my own kind", false]);
  assert.match(String((await told("odd"))[1]), /the tool threw \{\}/);
});

test("a call knows itself, its caller, its context and its files", async () => {
  const client = testClient([
    tool({
      ...read,
      name: "knows",
      contextKeys: ["user"],
      execute: async (_, context) => ({
        tool: context.tool,
        attempt: context.attempt,
        tenant: context.tenant,
        caller: context.caller,
        user: context.given("user"),
        other: context.given("other") ?? null,
        stored: context.isStored,
        key: context.idempotencyKey.startsWith(`${context.runId}/`),
        inTime: context.deadline.getTime() > Date.now() && context.callDeadline >= context.deadline,
        files: context.files.map((file) => [file.name, file.size]),
        notes: await context.file("notes").text(),
      }),
    }),
    tool({ ...read, name: "lacks", execute: (_, context) => context.file("nowhere").text() }),
  ]);
  const options = {
    context: { user: { id: 7 }, other: 1 },
    tenant: "acme",
    caller: "shop",
    store: false,
    files: { notes: "some text" },
  };
  assert.deepEqual((await client.call("knows", {}, options)).value, {
    tool: "knows",
    attempt: 1,
    tenant: "acme",
    caller: "shop",
    user: { id: 7 },
    other: null,
    stored: false,
    key: true,
    inTime: true,
    files: [["notes", 9]],
    notes: "some text",
  });
  await assert.rejects(
    async () => await client.call("lacks", {}, options),
    /there is no file "nowhere"; there are: notes/,
  );
});

test("a tool asks, with options, a schema or nothing but a text", async () => {
  const person = z.object({ name: z.string(), age: z.int().optional() });
  const client = testClient([
    tool({
      ...read,
      name: "asks",
      async execute(_, context) {
        const colour = await context.ask({ message: "Which colour?", options: ["red", "blue"] });
        const several = await context.ask({ message: "Which ones?", options: ["a", "b"], several: true });
        const who = await context.ask({ message: "Who?", schema: person });
        const why = await context.ask("Why?");
        const last = await context.ask("And then?");
        return [colour, several, who.action === "accept" ? who.value.name : who.action, why, last];
      },
    }),
  ]);
  const accept = (content: Record<string, unknown>) => ({ action: "accept" as const, content });
  const answers = [
    accept({ answer: "blue" }),
    accept({ answer: ["a", "b"] }),
    accept({ name: "Ada" }),
    { action: "decline" as const },
  ];
  assert.deepEqual((await client.call("asks", {}, { answers })).value, [
    { action: "accept", value: "blue" },
    { action: "accept", value: ["a", "b"] },
    "Ada",
    { action: "decline" },
    { action: "cancel" },
  ]);
});

test("a cancel aborts the signal, and a generator's finally runs before the call ends", async () => {
  const happened: string[] = [];
  const client = testClient([
    tool({
      ...read,
      name: "waits",
      async execute(_, context) {
        await context.text("began");
        await new Promise((_, reject) => context.signal.addEventListener("abort", () => reject(context.signal.reason)));
      },
    }),
    tool({
      ...read,
      name: "streams",
      async *execute() {
        try {
          for (;;) {
            yield "again";
            await new Promise((resolve) => setImmediate(resolve));
          }
        } finally {
          happened.push("closed");
        }
      },
    }),
  ]);
  for (const name of ["waits", "streams"]) {
    const abort = new AbortController();
    const call = client.call(name, {}, { signal: abort.signal });
    for await (const _ of call) {
      abort.abort();
    }
    const { error } = await call.settled();
    assert.match(error?.message ?? "", /stop/);
  }
  assert.deepEqual(happened, ["closed"]);
});

test("a piece that is too large fails the call, and text is split", async () => {
  const client = testClient([
    tool({ ...read, name: "bytes", execute: (_, context) => context.send(new Uint8Array(70_000)) }),
    tool({ ...read, name: "text", execute: (_, context) => context.send("x".repeat(70_000)) }),
  ]);
  await assert.rejects(async () => await client.call("bytes"), /70000 bytes/);
  const called = await client.call("text");
  assert.deepEqual([called.output.length, called.text().length], [2, 70_000]);
});

test("what a tool does after its end is refused and harms nothing", async () => {
  let late: (() => Promise<void>) | undefined;
  const execute = (_: unknown, context: { text(value: string): Promise<void> }) => {
    late = () => context.text("too late");
    return "done";
  };
  const client = testClient([tool({ ...read, name: "early", execute })]);
  assert.equal((await client.call("early")).answer, "done");
  await assert.rejects(async () => await late?.(), /the call is over/);
});

test("half of a surrogate pair harms no result, output, state or error", async () => {
  const half = "a😀".slice(0, 2);
  const client = testClient([
    tool({ ...read, name: "text", execute: () => half }),
    tool({ ...read, name: "json", execute: () => ({ [half]: [half, "\\ud83d", "😀"] }) }),
    tool({ ...read, name: "state", execute: () => withState("kept", { half }) }),
    tool({
      ...read,
      name: "yields",
      async *execute(_, context) {
        yield half;
        yield { half };
        await context.progress(1, 2, half);
      },
    }),
    tool({ ...read, name: "asks", execute: async (_, context) => (await context.ask(half)).action }),
    tool({
      ...read,
      name: "throws",
      execute: () => {
        throw new Error(`cannot parse ${half}`);
      },
    }),
    tool({
      ...read,
      name: "refuses",
      execute: () => {
        throw new Retry(half);
      },
    }),
  ]);
  const whole = "a\uFFFD";
  assert.equal((await client.call("text")).answer, whole);
  assert.deepEqual((await client.call("json")).value, { [whole]: [whole, "\\ud83d", "😀"] });
  assert.deepEqual((await client.call("state")).state, { half: whole });
  const { output } = await client.call("yields");
  assert.deepEqual(
    output.map((part) => part.text),
    [whole, JSON.stringify({ half: whole }), whole],
  );
  assert.equal((await client.call("asks", {}, { answers: [{ action: "decline" }] })).answer, "decline");
  const failed = async (name: string) => (await client.call(name).settled()).error;
  assert.equal((await failed("throws"))?.message, `cannot parse ${whole}`);
  assert.deepEqual([(await failed("refuses"))?.message, (await failed("refuses"))?.retryable], [whole, true]);
});

test("an error that goes round in a circle, or cannot be read, fails its call and nothing else", async () => {
  const circle = new Error("again");
  circle.cause = circle;
  const unreadable = new Error("no");
  Object.defineProperty(unreadable, "name", {
    get() {
      throw new Error("not even this");
    },
  });
  const thrown = { circle, unreadable };
  const client = testClient(
    Object.entries(thrown).map(([name, error]) =>
      tool({
        ...read,
        name,
        execute: () => {
          throw error;
        },
      }),
    ),
  );
  const told = async (name: string) => (await client.call(name).settled()).error?.message;
  assert.match((await told("circle")) ?? "", /^again(: again)+$/);
  assert.equal(await told("unreadable"), "the tool threw an error that cannot be read");
});

test("a generator that is promised streams as any other", async () => {
  async function* lines() {
    yield "one";
    yield "two";
    return "both";
  }
  const client = testClient([tool({ ...read, name: "promised", execute: async () => lines() })]);
  const called = await client.call("promised");
  assert.deepEqual([called.text(), called.answer], ["onetwo", "both"]);
});

test("a part of JSON that is none fails its call", async () => {
  const broken = json(1);
  broken.part.text = "{";
  const client = testClient([tool({ ...read, name: "broken", execute: () => broken })]);
  await assert.rejects(async () => await client.call("broken"), /not JSON/);
});

test("a schema without JSON schema, or that is none, is an error that says what to give", () => {
  const execute = () => "";
  const declared = (input: unknown) => () => tool({ ...read, name: "a", input: input as JsonSchema, execute });
  assert.throws(declared(v.object({ n: v.number() })), DefinitionError);
  assert.throws(declared(v.object({ n: v.number() })), /tool a: schemas of valibot have no JSON Schema: give/);
  class ObjectSchema {}
  assert.throws(declared(new ObjectSchema()), /tool a: its schema is a ObjectSchema, which has no JSON Schema: give/);
  assert.throws(declared("string"), /tool a: its schema is string: give/);
  assert.throws(declared(null), DefinitionError);
  assert.throws(() => testClient([tool({ ...read, name: "a b", execute })]), DefinitionError);
});

test("resources are opened once, in their order, and closed in the other order", async () => {
  const happened: string[] = [];
  const database = resource(async function* () {
    happened.push("open database");
    yield { rows: 7 };
    happened.push("close database");
  });
  const cache = resource(async () => ({
    hits: 3,
    [Symbol.asyncDispose]: async () => {
      happened.push("close cache");
    },
  }));
  const unused = resource(() => 1);
  const client = testClient([
    tool({
      ...read,
      name: "counts",
      uses: [database, cache],
      execute: (_, context) => context.use(database).rows + context.use(cache).hits,
    }),
    tool({ ...read, name: "strays", uses: [database], execute: (_, context) => context.use(unused) }),
  ]);
  const [one, other] = await Promise.all([client.call("counts"), client.call("counts")]);
  assert.deepEqual([one.value, other.value], [10, 10]);
  await assert.rejects(async () => await client.call("strays"), /uses a resource that is not in its `uses`/);
  await client.close();
  assert.deepEqual(happened, ["open database", "close cache", "close database"]);
});

test("a resource that fails closes those before it, and every call has its error", async () => {
  const happened: string[] = [];
  const first = resource(function* () {
    yield 1;
    happened.push("closed");
  });
  const broken = resource((): number => {
    throw new RangeError("no route to the database");
  });
  const never = resource(async function* (): AsyncGenerator<number, void> {});
  const execute = () => "";
  const client = testClient([tool({ ...read, name: "a", uses: [first, broken], execute })]);
  await assert.rejects(async () => await client.call("a"), /no route to the database/);
  assert.deepEqual(happened, ["closed"]);
  const other = testClient([tool({ ...read, name: "a", uses: [never], execute })]);
  await assert.rejects(async () => await other.call("a"), /must yield once/);

  const late = resource(async function* () {
    yield 1;
    throw new RangeError("cannot close");
  });
  const closes = testClient([tool({ ...read, name: "a", uses: [first, late], execute })]);
  await closes.call("a");
  await assert.rejects(closes.close(), /cannot close/);
  assert.deepEqual(happened, ["closed", "closed"]);
});
