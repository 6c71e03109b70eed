// Output of tools with the styles of a terminal, in text nodes alone.

import type { CSSProperties, JSX } from "preact";
import { useState } from "preact/hooks";
import { type Colour, type Line, type Style, toLines } from "../text/ansi";
import { cut, pieces } from "../text/escape";

/** Characters of a line that are shown at first, and at most. Beyond it the text can be saved. */
const LINE_SHOWN = 2_000;
const LINE_MOST = 200_000;
const LINES_SHOWN = 200;

/** One line. `version` is that of the line, so that an unchanged one is not rendered again. */
export function TerminalLine({ line }: { line: Line; version?: number }) {
  const [shown, setShown] = useState(LINE_SHOWN);
  const parts: JSX.Element[] = [];
  let left = shown;
  for (const segment of line.segments) {
    if (left <= 0) break;
    const text = cut(segment.text, left);
    left -= text.length;
    parts.push(<Styled key={parts.length} text={text} style={segment.style} />);
  }
  const hidden = line.length - shown;
  return (
    <>
      {parts}
      {hidden > 0 && (
        <span class="line-rest">
          {shown < LINE_MOST && (
            <button type="button" class="link" onClick={() => setShown(Math.min(LINE_MOST, line.length))}>
              show all
            </button>
          )}
          <span class="muted"> … {hidden.toLocaleString("en")} more characters </span>
          <button type="button" class="link" onClick={() => saveText(line.text, "line.txt")}>
            save
          </button>
        </span>
      )}
    </>
  );
}

function Styled({ text, style }: { text: string; style: Style }) {
  const all = pieces(text);
  const content = all.map((piece, at) =>
    piece.isEscape ? (
      <span key={at} class="escape">
        {piece.text}
      </span>
    ) : (
      piece.text
    ),
  );
  const classes = classesOf(style);
  const colours = coloursOf(style);
  if (classes === "" && !colours) return <>{content}</>;
  return (
    <span class={classes} style={colours}>
      {content}
    </span>
  );
}

function classesOf(style: Style): string {
  const names: string[] = [];
  for (const name of ["bold", "dim", "italic", "underline", "strike"] as const)
    if (style[name]) names.push(`t-${name}`);
  if (style.inverse) names.push("t-inverse");
  if (typeof style.fg === "number" && style.fg < 16) names.push(`t-fg${style.fg}`);
  if (typeof style.bg === "number" && style.bg < 16) names.push(`t-bg${style.bg}`);
  return names.join(" ");
}

function coloursOf(style: Style): CSSProperties | undefined {
  const fg = custom(style.fg);
  const bg = custom(style.bg);
  if (!fg && !bg) return undefined;
  // A colour of the output on the background of the page may be unreadable: only together are they taken as they are.
  return { ...(fg ? { color: fg } : {}), ...(bg ? { backgroundColor: bg } : {}) };
}

const STEPS = [0, 95, 135, 175, 215, 255];

function custom(colour: Colour | undefined): string | undefined {
  if (colour === undefined) return undefined;
  if (typeof colour === "string") return colour;
  if (colour < 16) return undefined;
  if (colour >= 232) {
    const grey = 8 + (colour - 232) * 10;
    return `rgb(${grey} ${grey} ${grey})`;
  }
  const at = colour - 16;
  return `rgb(${STEPS[Math.floor(at / 36)]} ${STEPS[Math.floor(at / 6) % 6]} ${STEPS[at % 6]})`;
}

/** A text that is complete. Of many lines the first are shown until more are wanted. */
export function TerminalText({ text }: { text: string }) {
  const [shown, setShown] = useState(LINES_SHOWN);
  const lines = toLines(text);
  return (
    <div class="terminal">
      {lines.slice(0, shown).map((line, at) => (
        <div key={at} class="line">
          <TerminalLine line={line} />
        </div>
      ))}
      {lines.length > shown && (
        <button type="button" class="link" onClick={() => setShown(shown * 10)}>
          {(lines.length - shown).toLocaleString("en")} more lines
        </button>
      )}
    </div>
  );
}

/** Saves a text as a file. It is a download of plain text, which no browser executes. */
export function saveText(text: string, name: string): void {
  saveBlob(new Blob([text], { type: "text/plain;charset=utf-8" }), name);
}

export function saveBlob(blob: Blob, name: string): void {
  // As bytes, so that a page that opens the address shows nothing.
  const address = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name.replace(/[^\w.-]+/g, "_").slice(0, 100);
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
