import { expect, it } from "vitest";
import type { RunEvent } from "../src/api/watch";
import { barsOf } from "../src/run/bars";
import { ITEMS_MAX, RunModel } from "../src/run/model";

let sequence = 0;

function events(...all: [string, object, number?][]): RunEvent[] {
  return all.map(([name, data, at = 0]) => {
    sequence += 1;
    return { sequence, time: new Date(at).toISOString(), [name]: data } as unknown as RunEvent;
  });
}

function opened(): RunModel {
  sequence = 0;
  const model = new RunModel();
  model.take(
    events([
      "run_opened",
      {
        run_id: "r",
        calls: [
          { call_id: "a", tool: "bash" },
          { call_id: "b", tool: "grep" },
        ],
      },
    ]),
  );
  return model;
}

it("makes lines of output, by call, attempt and channel", () => {
  const model = opened();
  const output = (text: string, channel = "stdout") =>
    ["call_output", { call_id: "a", attempt: 1, channel, content: { text } }] as [string, object];
  model.take(
    events(
      ["call_speaking", { call_id: "a", tool: "bash" }],
      output("on"),
      output("warn\n", "stderr"),
      output("e\ntwo\n"),
    ),
  );
  const lines = model.items.filter((item) => item.kind === "line").map((item) => item.line.text);
  expect(lines).toEqual(["one", "warn", "two"]);
});

it("ignores events that it has, so that a resumed stream shows nothing twice", () => {
  const model = opened();
  const batch = events(["call_output", { call_id: "a", attempt: 1, channel: "", content: { text: "x\n" } }]);
  model.take(batch);
  model.take(batch);
  expect(model.items.filter((item) => item.kind === "line").length).toBe(1);
});

it("marks withdrawn output, and keeps that of the next attempt", () => {
  const model = opened();
  const output = (attempt: number, text: string) =>
    ["call_output", { call_id: "a", attempt, channel: "", content: { text } }] as [string, object];
  model.take(events(["attempt_started", { call_id: "a", attempt: 1, worker_id: "w1" }, 10], output(1, "lost\n")));
  model.take(
    events(
      ["call_output_withdrawn", { call_id: "a", attempt: 1 }, 20],
      ["attempt_started", { call_id: "a", attempt: 2, worker_id: "w2" }, 20],
      output(2, "kept\n"),
    ),
  );
  model.take(events(["call_ended", { call_id: "a", outcome: { state: "CALL_STATE_COMPLETED" } }, 40]));
  const lines = model.items.filter((item) => item.kind === "line");
  expect(lines.map((item) => [item.line.text, item.withdrawn === true])).toEqual([
    ["lost", true],
    ["kept", false],
  ]);
  const call = model.calls.get("a");
  const bars = barsOf(call as NonNullable<typeof call>, 100);
  expect(bars.map((bar) => [bar.kind, bar.from, bar.to])).toEqual([
    ["wait", 0, 10],
    ["void", 10, 20],
    ["run", 20, 40],
  ]);
});

it("tells the wait for a turn from the wait for a worker, if it is known when the turn came", () => {
  const model = opened();
  model.take(events(["attempt_started", { call_id: "a", attempt: 1 }, 30]));
  const call = model.calls.get("a") as NonNullable<ReturnType<typeof model.calls.get>>;
  const bars = (queued?: number) => barsOf(call, 40, queued).map((bar) => [bar.kind, bar.from, bar.to]);
  expect(bars(20)).toEqual([
    ["wait", 0, 20],
    ["queue", 20, 30],
    ["run", 30, 40],
  ]);
  // Its job may be stored at once, and by another clock a moment after its first attempt.
  expect(bars(0).map(([kind]) => kind)).toEqual(["queue", "run"]);
  expect(bars(31).map(([kind]) => kind)).toEqual(["wait", "run"]);
  expect(bars().map(([kind]) => kind)).toEqual(["wait", "run"]);
});

it("has a bar for each phase of a call that waits for a person", () => {
  const model = opened();
  model.take(
    events(
      ["call_awaiting_approval", { call_id: "b", tool: "grep", arguments: "{}" }, 5],
      ["call_approved", { call_id: "b" }, 30],
      ["attempt_started", { call_id: "b", attempt: 1 }, 35],
    ),
  );
  const call = model.calls.get("b");
  expect(barsOf(call as NonNullable<typeof call>, 60).map((bar) => [bar.kind, bar.from, bar.to])).toEqual([
    ["ask", 5, 30],
    ["wait", 30, 35],
    ["run", 35, 60],
  ]);
});

it("keeps a bounded number of lines, and takes 100,000 events quickly", () => {
  const model = opened();
  const start = performance.now();
  for (let batch = 0; batch < 260; batch += 1) {
    model.take(
      events(
        ...Array.from(
          { length: 1_000 },
          (_, at) =>
            ["call_output", { call_id: "a", attempt: 1, channel: "", content: { text: `${batch} ${at}\n` } }] as [
              string,
              object,
            ],
        ),
      ),
    );
  }
  expect(model.items.length).toBeLessThanOrEqual(ITEMS_MAX + 20_000);
  expect(model.droppedItems).toBeGreaterThan(0);
  expect(performance.now() - start).toBeLessThan(30_000);
});

it("finds the runs that a call made", () => {
  const model = opened();
  model.take(
    events([
      "call_output",
      { call_id: "a", attempt: 1, progress: { message: "run run_09_01a2190e572d72ceafec6724e4419d2f" } },
    ]),
  );
  expect(model.calls.get("a")?.children).toEqual(["run_09_01a2190e572d72ceafec6724e4419d2f"]);
});
