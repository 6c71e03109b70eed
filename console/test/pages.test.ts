// Logic of the pages inbox, tools, workers, schedules and health.

import { describe, expect, it } from "vitest";
import { all } from "../src/api/all";
import { countEach, loadsOf, poolsOf } from "../src/fleet/pools";
import { availability, hintsOf, permissionOf } from "../src/fleet/tools";
import { add } from "../src/fleet/verify";
import { fromRoute, toFragment } from "../src/inbox/link";
import { neighbour, preview, rowKey } from "../src/inbox/rows";
import { EMPTY, problems, seconds, timing, toolsOf, toSpec } from "../src/schedule/spec";
import { defaults, missing, parseSchema, resolve, wellFormed } from "../src/ui/schema-form";

function parse(fragment: string) {
  const [path = "", query = ""] = fragment.replace(/^#\/?/, "").split(/\?(.*)/s);
  return fromRoute(path.split("/").map(decodeURIComponent), new URLSearchParams(query));
}

describe("answer links", () => {
  const base = { runId: "run_0b_0198", callId: "ask/1 ü", token: "to+k/en==" };

  it("come back as they were, with any characters", () => {
    const asked = { tool: "ask_user", args: '{"question":"Größe? \u202e 漢字 🎉"}', outputSchema: '{"type":"string"}' };
    expect(parse(toFragment({ ...base, asked }))).toEqual({ ...base, asked });
  });

  it("lose the schema first, then the question, if they are too long", () => {
    const asked = { tool: "t", args: '{"a":1}', outputSchema: `{"description":"${"x".repeat(9_000)}"}` };
    expect(parse(toFragment({ ...base, asked }))?.asked).toEqual({ tool: "t", args: '{"a":1}' });
    const long = { tool: "t", args: "x".repeat(9_000) };
    expect(parse(toFragment({ ...base, asked: long }))).toEqual({ ...base, asked: undefined });
  });

  it("are refused if a part is missing, and tolerate a damaged question", () => {
    expect(fromRoute(["answer", "run"], new URLSearchParams("token=t"))).toBeUndefined();
    expect(fromRoute(["answer", "run", "call"], new URLSearchParams())).toBeUndefined();
    for (const q of ["", "***", "AAAA", btoa('{"a":1}'), btoa('["t"]'), btoa("[1,2,3]")]) {
      expect(fromRoute(["answer", "r", "c"], new URLSearchParams({ token: "t", q }))?.asked).toBeUndefined();
    }
  });
});

describe("rows of the inbox", () => {
  const rows = ["a", "b", "c"].map((call_id) => ({ run_id: "run_1", call: { call_id } }));
  it("have neighbours", () => {
    expect(neighbour(rows, "run_1 a", 1)).toBe(rows[1]);
    expect(neighbour(rows, "run_1 a", -1)).toBeUndefined();
    expect(neighbour(rows, "run_1 c", 1)).toBeUndefined();
    expect(neighbour(rows, "run_1 gone", 1)).toBeUndefined();
    expect(rowKey({ run_id: "run_1", call: { call_id: "x y" } })).toBe("run_1 x y");
  });
  it("are previewed in one line with invisible characters named", () => {
    expect(preview('{\n "a": "\u202e"}')).toBe('{ "a": "⟨U+202E⟩"}');
  });
});

describe("forms of schemas", () => {
  const schema = {
    type: "object",
    required: ["name", "kind", "inner"],
    properties: {
      name: { type: "string" },
      kind: { oneOf: [{ const: 1, title: "One" }, { const: "two" }] },
      size: { type: "integer", default: 3 },
      inner: { $ref: "#/$defs/inner" },
    },
    $defs: { inner: { type: "object", required: ["deep"], properties: { deep: { type: "string" } } } },
  };

  it("begin with the defaults", () => {
    expect(defaults(schema)).toEqual({ size: 3 });
    expect(defaults({ type: "object", properties: {} })).toEqual({});
  });

  it("name the required fields that lack a value", () => {
    expect(missing(schema, {})).toEqual(["name", "kind", "inner"]);
    expect(missing(schema, { name: "", kind: 1, inner: {} })).toEqual(["inner.deep"]);
    expect(missing(schema, { name: "", kind: 1, inner: { deep: "x" } })).toEqual([]);
  });

  it("show the titles of choices", () => {
    const kind = resolve(schema, schema.properties.kind);
    expect(kind.enum).toEqual([1, "two"]);
    expect(kind.enumNames).toEqual(["One", "two"]);
  });

  it("are not broken by members of a wrong type, or by depth", () => {
    const hostile = {
      type: 5,
      description: { a: 1 },
      enum: "abc",
      required: [1],
      properties: { a: null, b: true, c: { type: "string", properties: 7 } },
      items: [1],
      anyOf: { x: 1 },
    };
    expect(wellFormed(hostile)).toEqual({ properties: { a: {}, b: {}, c: { type: "string" } } });
    expect(wellFormed(null)).toEqual({});
    expect(parseSchema("[1")).toBeUndefined();
    let deep: object = { type: "string" };
    for (let level = 0; level < 10_000; level += 1) deep = { properties: { a: deep } };
    expect(() => wellFormed(deep)).not.toThrow();
    const circular = { $ref: "#/$defs/a", $defs: { a: { $ref: "#/$defs/a" } } };
    expect(resolve(circular, circular)).toEqual({});
    expect(missing(circular, {})).toEqual([]);
  });
});

describe("pools", () => {
  const workers = [
    { worker_id: "1", pool: "b", slots: 4, pulling: true, release: "0.1.0" },
    { worker_id: "2", pool: "b", slots: 8, draining: true, release: "0.2.0" },
    { worker_id: "3", pool: "a", slots: 2 },
  ];
  it("add up workers, tools and pauses", () => {
    const tools = [
      { name: "t", pools: [{ pool: "b" }, { pool: "gone" }] },
      { name: "alias", alias_of: "t", pools: [{ pool: "b" }] },
    ];
    const rows = poolsOf(workers, tools, [{ pool: "gone", reason: "disk" }, { tool: "t" }] as never);
    expect(rows.map((row) => row.pool)).toEqual(["a", "b", "gone"]);
    expect(rows[1]).toMatchObject({ workers: 2, pulling: 1, draining: 1, slots: 4, tools: 1, pause: undefined });
    expect(rows[1]?.releases).toEqual([
      ["0.1.0", 1],
      ["0.2.0", 1],
    ]);
    expect(rows[2]).toMatchObject({ workers: 0, tools: 1, pause: { reason: "disk" } });
  });
  it("are known by their tools alone if the workers cannot be read", () => {
    const tools = [
      { name: "t", pools: [{ pool: "b", live_workers: 2, pulling_workers: 1, paused: true }] },
      { name: "u", pools: [{ pool: "b", live_workers: 3, pulling_workers: 3 }] },
    ];
    expect(poolsOf(undefined, tools, [])).toMatchObject([
      { pool: "b", workers: 3, pulling: 3, slots: undefined, tools: 2, paused: true },
    ]);
  });
  it("have loads only if an overview was read", () => {
    expect(loadsOf(undefined)).toBeUndefined();
    const tools = [
      { pool: "a", tool: "x", waiting: 1, running: 2 },
      { pool: "a", tool: "y", waiting: 3, without_worker: 3 },
    ];
    expect(loadsOf({ tools } as never)?.get("a")).toEqual({ waiting: 4, running: 2, withoutWorker: 3 });
  });
  it("count the most frequent first", () => {
    expect(countEach(["b", "a", "b"])).toEqual([
      ["b", 2],
      ["a", 1],
    ]);
  });
});

describe("tools", () => {
  it("derive the permission as the API does", () => {
    expect(permissionOf({ permission: "TOOL_PERMISSION_EXTERNAL", effects: { read_only: true } })).toBe("external");
    expect(permissionOf({ effects: { read_only: true } })).toBe("read");
    expect(permissionOf({ effects: { open_world: true } })).toBe("external");
    expect(permissionOf({})).toBe("write");
  });
  it("are available or not, with the reason", () => {
    const pools = [{ pool: "a", live_workers: 1, pulling_workers: 1 }];
    expect(availability({ available: true, pools }).word).toBe("available");
    expect(availability({ available: true, paused: true, pools }).word).toBe("paused");
    expect(availability({ available: true, pools: [{ pool: "a", paused: true }] }).word).toBe("pool paused");
    expect(availability({ available: true, pools: [{ pool: "a", pulling_workers: 0 }] }).word).toBe("not taken");
    expect(availability({ pools }).word).toBe("no worker");
    expect(hintsOf({ requires_confirmation: true, effects: { destructive: true } }).map(([name]) => name)).toEqual([
      "needs approval",
      "destructive",
    ]);
  });
});

describe("schedules", () => {
  it("read durations", () => {
    expect(["45", "90s", "10m", "1h 30m", "1d", "1.5h"].map(seconds)).toEqual([45, 90, 600, 5_400, 86_400, 5_400]);
    for (const wrong of ["", "x", "10 minutes", "m", "-5s"]) expect(seconds(wrong)).toBeUndefined();
  });
  it("name what a draft lacks", () => {
    expect(problems(EMPTY)).toHaveLength(2);
    expect(problems({ ...EMPTY, kind: "every", every: "1h", tool: "bash" })).toEqual([]);
    expect(problems({ ...EMPTY, kind: "once", once: "2030-01-01T10:00", tool: "bash", firingsMax: "0" })).toHaveLength(
      1,
    );
  });
  it("become a specification", () => {
    const draft = {
      ...EMPTY,
      expression: "0 9 * * *",
      timeZone: "Europe/Berlin",
      tool: "bash",
      args: '{"command":"x"}',
    };
    expect(toSpec(draft)).toEqual({
      cron: { expression: "0 9 * * *", time_zone: "Europe/Berlin" },
      overlap_policy: "OVERLAP_POLICY_SKIP",
      missed_policy: "MISSED_POLICY_LATEST",
      run: { calls: [{ tool: "bash", arguments: '{"command":"x"}' }] },
    });
    expect(
      toSpec({ ...EMPTY, kind: "every", every: "1h", jitter: "30s", tool: "t", confirmation: false }),
    ).toMatchObject({
      every: "3600s",
      jitter: "30s",
      run: { rules: { confirmation: "CONFIRMATION_NONE" } },
    });
  });
  it("are described", () => {
    expect(timing({ cron: { expression: "* * * * *" } } as never)).toBe("* * * * * UTC");
    expect(timing({ every: "600s" } as never)).toBe("every 10m");
    expect(timing({ every: "5400s" } as never)).toBe("every 1h 30m");
    expect(timing({ every: "5s" } as never)).toBe("every 5 s");
    expect(timing({ once_at: "2030-01-01T00:00:00Z" } as never)).toBe("once");
    expect(timing(undefined)).toBe("");
    expect(toolsOf({ run: { calls: [{ tool: "a" }, { tool: "b" }, { tool: "a" }] } } as never)).toBe("a, b");
  });
});

describe("the comparison of the index", () => {
  it("adds up messages", () => {
    const none = { entries: 0, runs: 0, differences: [], end: undefined };
    const some = add(none, { entries: 10, runs: 2, differences: [{ run_id: "r", what: "w" }] });
    expect(add(some, { entries: 20, runs: 4, end: { differences: 1, complete: true } } as never)).toEqual({
      entries: 20,
      runs: 4,
      differences: [{ run: "r", what: "w" }],
      end: { differences: 1, complete: true },
    });
  });
});

describe("lists read as a whole", () => {
  it("end with the last page, and after many pages", async () => {
    const three = await all(
      async (token) => ({ rows: [token], next_page_token: token === "xx" ? "" : `${token}x` }),
      (page) => page.rows,
    );
    expect(three).toMatchObject({ rows: ["", "x", "xx"], more: false });
    const endless = await all(
      async () => ({ rows: [1], next_page_token: "again" }),
      (page) => page.rows,
    );
    expect(endless.rows).toHaveLength(20);
    expect(endless.more).toBe(true);
  });
});
