// Text from tools is hostile. It is only ever put into text nodes, and what a reader would not see is made visible here.

/** A stretch of text, or an escape that stands for one invisible character. */
export interface Piece {
  text: string;
  /** Whether `text` is the visible name of a character, such as `U+202E`. */
  isEscape: boolean;
}

// Controls (without tab and line feed), format characters (marks, overrides and isolates of direction, zero-width
// characters, tags), separators of lines and paragraphs, lone surrogates, and others that have no picture, such as
// fillers. The selectors of the form of an emoji may stay.
// biome-ignore lint/suspicious/noMisleadingCharacterClass: the selectors are meant alone
const INVISIBLE = /(?![\t\n\ufe0e\ufe0f])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{DI}]/gu;

/** Zero-width joiners between these are part of an emoji. */
const PICTURE = /\p{Extended_Pictographic}|\p{Emoji_Modifier}|\ufe0f/u;

const NAMES: Record<number, string> = { 0: "NUL", 7: "BEL", 8: "BS", 13: "CR", 27: "ESC", 127: "DEL" };

/** The visible name of a character. */
export function nameOf(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  return NAMES[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

function joinsEmoji(text: string, at: number): boolean {
  const before = text.codePointAt(at - 2) !== undefined && PICTURE.test(text.slice(Math.max(0, at - 2), at));
  return before && PICTURE.test(text.slice(at + 1, at + 3));
}

/** Splits text so that each invisible character is an escape of its own. */
export function pieces(text: string): Piece[] {
  const all: Piece[] = [];
  let from = 0;
  INVISIBLE.lastIndex = 0;
  for (const found of text.matchAll(INVISIBLE)) {
    const at = found.index;
    if (found[0] === "\u200d" && joinsEmoji(text, at)) continue;
    if (at > from) all.push({ text: text.slice(from, at), isEscape: false });
    all.push({ text: nameOf(found[0]), isEscape: true });
    from = at + found[0].length;
  }
  if (from < text.length) all.push({ text: text.slice(from), isEscape: false });
  return all;
}

/** Text for attributes and titles, which cannot have marks of their own. */
export function plain(text: string): string {
  return pieces(text)
    .map((piece) => (piece.isEscape ? `⟨${piece.text}⟩` : piece.text))
    .join("");
}

/** At most `max` characters of a text, without half a surrogate pair. */
export function cut(text: string, max: number): string {
  if (text.length <= max) return text;
  const code = text.charCodeAt(max - 1);
  return text.slice(0, code >= 0xd800 && code <= 0xdbff ? max - 1 : max);
}

/** The address of a link, if it is one that may be followed: http or https. */
export function safeLink(address: string): string | undefined {
  try {
    const url = new URL(address);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : undefined;
  } catch {
    return undefined;
  }
}
