import { expect, it } from "vitest";
import { EventParser } from "../src/api/sse";
import { random } from "./random";

const STREAM =
  ': heartbeat\n\nid: 0\ndata: {"a":1}\n\nid: 1\r\ndata: x\r\ndata: y\r\n\r\nevent: end\rdata: {}\r\rdata: rest';

it("splits a stream into events, however it arrives", () => {
  const expected = [
    { id: "0", name: "", data: '{"a":1}' },
    { id: "1", name: "", data: "x\ny" },
    { id: "1", name: "end", data: "{}" },
  ];
  expect(new EventParser().push(STREAM)).toEqual(expected);
  for (let seed = 1; seed <= 200; seed += 1) {
    const next = random(seed);
    const parser = new EventParser();
    const events = [];
    for (let at = 0; at < STREAM.length; ) {
      const to = at + Math.floor(next() * 6);
      events.push(...parser.push(STREAM.slice(at, to)));
      at = to;
    }
    expect(events, `seed ${seed}`).toEqual(expected);
  }
});

it("takes a line of 10 MB in small pieces", () => {
  const parser = new EventParser();
  const start = performance.now();
  parser.push("data: ");
  for (let at = 0; at < 10_000; at += 1) parser.push("x".repeat(1_000));
  expect(parser.push("\n\n")[0]?.data.length).toBe(10_000_000);
  expect(performance.now() - start).toBeLessThan(3_000);
});
