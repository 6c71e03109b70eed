import { describe, expect, it } from "vitest";
import { cut, pieces, plain, safeLink } from "../src/text/escape";
import { random } from "./random";

const escapes = (text: string) =>
  pieces(text)
    .filter((piece) => piece.isEscape)
    .map((piece) => piece.text);

describe("invisible characters", () => {
  it("are made visible", () => {
    expect(escapes("a\u202eb\u2066c\u200bd\ufeff")).toEqual(["U+202E", "U+2066", "U+200B", "U+FEFF"]);
    expect(escapes("\x00\x1b\x07\x7f\x85")).toEqual(["NUL", "ESC", "BEL", "DEL", "U+0085"]);
    expect(escapes("\u{e0041}\u3164\u00ad\u2028")).toEqual(["U+E0041", "U+3164", "U+00AD", "U+2028"]);
    expect(escapes("\ud800x\udc00")).toEqual(["U+D800", "U+DC00"]);
  });

  it("do not include those of ordinary text", () => {
    for (const text of ["tab\tand\nline", "Grüße, 漢字, हिन्दी, עברית, العربية", "❤️ 👍🏽 👨‍👩‍👧 🏳️‍🌈 🇩🇪"]) {
      expect(escapes(text), text).toEqual([]);
    }
  });

  it("are visible in titles", () => {
    expect(plain("exe\u202egpj")).toBe("exe⟨U+202E⟩gpj");
  });

  it("are found in any text, and nothing else changes", () => {
    for (let seed = 1; seed <= 500; seed += 1) {
      const next = random(seed);
      let text = "";
      for (let at = 0; at < 100; at += 1) text += String.fromCharCode(Math.floor(next() * 0x10000));
      const all = pieces(text);
      const shown = all
        .filter((piece) => !piece.isEscape)
        .map((piece) => piece.text)
        .join("");
      expect(shown, `seed ${seed}`).not.toMatch(
        /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/,
      );
      expect(
        all.some((piece) => piece.text === ""),
        `seed ${seed}`,
      ).toBe(false);
    }
  });
});

describe("a cut text", () => {
  it("keeps surrogate pairs whole", () => {
    expect(cut("a😀b", 2)).toBe("a");
    expect(cut("a😀b", 3)).toBe("a😀");
    expect(cut("ab", 5)).toBe("ab");
  });
});

describe("links", () => {
  it("are http or https", () => {
    expect(safeLink("https://example.com/a?b")).toBe("https://example.com/a?b");
    for (const address of [
      "javascript:alert(1)",
      " java\nscript:alert(1)",
      "data:text/html,x",
      "file:///etc/passwd",
      "//x",
      "",
      "vbscript:x",
      "blob:https://x/y",
    ]) {
      expect(safeLink(address), address).toBeUndefined();
    }
  });
});
