import { describe, expect, it } from "vitest";
import { Terminal, toLines } from "../src/text/ansi";
import { random } from "./random";

const texts = (text: string) => toLines(text).map((line) => line.text);

describe("the terminal subset", () => {
  it("has lines", () => {
    expect(texts("one\ntwo\n")).toEqual(["one", "two"]);
    expect(texts("one\r\ntwo")).toEqual(["one", "two"]);
    expect(texts("\n\nx")).toEqual(["", "", "x"]);
  });

  it("has colours and styles", () => {
    const [line] = toLines("a\x1b[1;31mb\x1b[0mc\x1b[38;5;208md\x1b[48;2;1;2;3me\x1b[m");
    expect(line?.segments).toEqual([
      { text: "a", style: {} },
      { text: "b", style: { bold: true, fg: 1 } },
      { text: "c", style: {} },
      { text: "d", style: { fg: 208 } },
      { text: "e", style: { fg: 208, bg: "#010203" } },
    ]);
  });

  it("joins neighbours of the same style, also over pieces", () => {
    const terminal = new Terminal();
    for (let at = 0; at < 1_000; at += 1) terminal.push("\x1b[32mx");
    expect(terminal.lines[0]?.segments).toEqual([{ text: "x".repeat(1_000), style: { fg: 2 } }]);
  });

  it("overwrites after a carriage return", () => {
    expect(texts("10 %\r20 %\r100 %\n")).toEqual(["100 %"]);
    expect(texts("abcdef\rxy")).toEqual(["xycdef"]);
    expect(texts("abc\b\bX")).toEqual(["aXc"]);
    expect(texts("progress\r\x1b[Kdone")).toEqual(["done"]);
    expect(texts("abc\x1b[2Kx")).toEqual(["   x"]);
  });

  it("moves up for progress of several lines", () => {
    expect(texts("a: 1\nb: 1\n\x1b[2Aa: 2\x1b[K\nb: 2\x1b[K\n")).toEqual(["a: 2", "b: 2"]);
  });

  it("swallows other sequences, titles and links", () => {
    expect(texts("\x1b]0;title\x07x")).toEqual(["x"]);
    expect(texts("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\")).toEqual(["link"]);
    expect(texts("\x1b[2J\x1b[10;10Hx\x1b[?1049hy")).toEqual(["xy"]);
    expect(texts("\x1bPq#0;2;0;0;0\x1b\\x")).toEqual(["x"]);
    expect(texts("\x1b(Bx")).toEqual(["x"]);
  });

  it("does not lose output behind a sequence that never ends", () => {
    expect(texts("\x1b]0;no end\nnext")).toEqual(["", "next"]);
    expect(texts(`\x1b[${"1;".repeat(5_000)}\nnext`).at(-1)).toBe("next");
  });

  it("continues a sequence in the next piece", () => {
    const terminal = new Terminal();
    for (const character of "a\x1b[31mb") terminal.push(character);
    expect(terminal.lines[0]?.segments).toEqual([
      { text: "a", style: {} },
      { text: "b", style: { fg: 1 } },
    ]);
  });

  it("keeps other control characters, which are shown as escapes", () => {
    expect(texts("a\x00b\x07")).toEqual(["a\x00b\x07"]);
  });
});

describe("bombs", () => {
  const took = (text: string) => {
    const start = performance.now();
    const terminal = new Terminal();
    terminal.push(text);
    for (const line of terminal.lines) void line.segments;
    return { ms: performance.now() - start, terminal };
  };
  const size = (terminal: Terminal) => terminal.lines.reduce((sum, line) => sum + line.length, 0);
  // They are far above what they take here, and far below what quadratic work would take.
  const MOST_MS = 5_000;

  it("of huge moves make no huge lines", () => {
    const { ms, terminal } = took("\x1b[999999999Cx\x1b[999999999Gx\x1b[999999999B\x1b[999999999A\n".repeat(20_000));
    expect(ms).toBeLessThan(MOST_MS);
    expect(size(terminal)).toBeLessThan(20_000 * 1_100);
    expect(terminal.lines.length).toBeLessThan(20_002);
  });

  it("of colours have bounded segments", () => {
    let text = "";
    for (let at = 0; at < 200_000; at += 1) text += `\x1b[38;2;${at % 256};${(at >> 8) % 256};${at % 7}mx`;
    const { ms, terminal } = took(text);
    expect(ms).toBeLessThan(MOST_MS);
    expect(terminal.lines[0]?.segments.length).toBeLessThanOrEqual(2_000);
    expect(terminal.lines[0]?.length).toBe(200_000);
  });

  it("of carriage returns on a long line take linear time", () => {
    const { ms } = took("x".repeat(1_000_000) + "\rX".repeat(1_000_000));
    expect(ms).toBeLessThan(MOST_MS);
    expect(took("x".repeat(10_000) + "\rX".repeat(1_000_000)).ms).toBeLessThan(MOST_MS);
  });

  it("of erasures take bounded time", () => {
    expect(took(`${"x".repeat(15_000)}${"\x1b[1K".repeat(500_000)}`).ms).toBeLessThan(MOST_MS);
    expect(took(`${"x\x1b[500G".repeat(3)}${"\x1b[2K\x1b[500Gx".repeat(200_000)}`).ms).toBeLessThan(MOST_MS);
  });

  it("take a line of 10 MB", () => {
    const { ms, terminal } = took("y".repeat(10_000_000));
    expect(ms).toBeLessThan(MOST_MS);
    expect(terminal.lines[0]?.length).toBe(10_000_000);
  });
});

describe("random output", () => {
  const PARTS = [
    "\x1b",
    "[",
    "]",
    "m",
    "K",
    "A",
    "1",
    "38;5;",
    "38;2;",
    ";",
    "?",
    "\r",
    "\n",
    "\b",
    "\t",
    "\x07",
    "\x9b",
    "\x90",
    "\\",
    "é",
    "漢",
    "😀",
    "\ud83d",
    "\u202e",
    "text",
    " ",
    "<script>",
    "\x00",
  ];

  it("gives the same lines however it is cut, and only text that was there", () => {
    for (let seed = 1; seed <= 400; seed += 1) {
      const next = random(seed);
      let text = "";
      for (let at = 0; at < 200; at += 1) text += PARTS[Math.floor(next() * PARTS.length)];
      const whole = new Terminal();
      whole.push(text);
      const cut = new Terminal();
      for (let at = 0; at < text.length; ) {
        const to = at + 1 + Math.floor(next() * 7);
        cut.push(text.slice(at, to));
        at = to;
      }
      expect(
        cut.lines.map((line) => line.segments.map((one) => [one.text, one.style])),
        `seed ${seed}`,
      ).toEqual(whole.lines.map((line) => line.segments.map((one) => [one.text, one.style])));
      for (const line of whole.lines) {
        expect(line.length, `seed ${seed}`).toBe(line.text.length);
        expect(line.text, `seed ${seed}`).not.toMatch(/[\x1b\n\r\x9b]/);
      }
    }
  });
});
