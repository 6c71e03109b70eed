// A safe subset of a terminal: colours and styles, carriage return, backspace, tab, erasing a line, moving within a
// line and up to a few lines above. All other sequences are swallowed. Nothing that output contains makes memory or
// time grow faster than the output itself.

/** A colour: an index of the palette of 256, or `#rrggbb`. */
export type Colour = number | string;

export interface Style {
  fg?: Colour;
  bg?: Colour;
  bold?: true;
  dim?: true;
  italic?: true;
  underline?: true;
  strike?: true;
  inverse?: true;
}

export interface Segment {
  text: string;
  style: Style;
}

const PLAIN: Style = Object.freeze({});
/** Columns that a cursor may move to beyond the end of a line; more would let a few bytes make a huge line. */
const COLUMN_MAX = 500;
const PADDING = " ".repeat(COLUMN_MAX);
/** A longer line is not edited: what would overwrite it begins a new line. */
const EDITED_MAX = 16_384;
/** Characters that may be filled or erased for each character of output. */
const WORK_EACH = 8;
/** Lines that a cursor may go up. */
const UP_MAX = 50;
/** A sequence that is longer is no sequence, and dropped. */
const SEQUENCE_MAX = 4_096;
/** Segments of a line: an ANSI bomb changes the colour at each character. Beyond it styles are ignored. */
const SEGMENTS_MAX = 2_000;

/** A line of output. It is a list of segments until something in it is overwritten, and then one of cells. */
export class Line {
  /** Code units of its text. */
  length = 0;
  /** Counts up with each change. */
  version = 0;
  private made: Segment[] = [];
  private cells: string[] | undefined;
  private styles: Style[] = [];
  private isMade = true;

  /** The line as stretches of one style. */
  get segments(): readonly Segment[] {
    if (!this.isMade) {
      this.made = [];
      const cells = this.cells ?? [];
      for (let from = 0; from < cells.length; ) {
        const style = this.styles[from] as Style;
        let to = from + 1;
        while (to < cells.length && this.styles[to] === style) to += 1;
        this.made.push({ text: cells.slice(from, to).join(""), style });
        from = to;
      }
      this.isMade = true;
    }
    return this.made;
  }

  get text(): string {
    return this.segments.map((segment) => segment.text).join("");
  }

  /** Writes at a column, which is at most the length. */
  write(column: number, text: string, style: Style): void {
    this.version += 1;
    if (column < this.length) this.edit();
    if (this.cells) {
      for (let at = 0; at < text.length; at += 1) {
        this.cells[column + at] = text[at] as string;
        this.styles[column + at] = style;
      }
      this.length = this.cells.length;
      this.isMade = false;
      return;
    }
    const last = this.made.at(-1);
    if (last && (last.style === style || this.made.length >= SEGMENTS_MAX)) last.text += text;
    else this.made.push({ text, style });
    this.length += text.length;
  }

  truncate(to: number): void {
    if (to >= this.length) return;
    this.version += 1;
    this.edit();
    if (this.cells) this.cells.length = to;
    this.styles.length = to;
    this.length = to;
    this.isMade = false;
  }

  private edit(): void {
    if (this.cells) return;
    const text = this.text;
    this.styles = this.made.flatMap((segment) => new Array<Style>(segment.text.length).fill(segment.style));
    this.cells = text.split("");
  }
}

type State = "text" | "escape" | "csi" | "string" | "stringEscape" | "skip";

/** The text of one channel of one attempt, as lines. */
export class Terminal {
  readonly lines: Line[] = [];
  private row = 0;
  private column = 0;
  private style: Style = PLAIN;
  private state: State = "text";
  private sequence = "";
  private work = 0;

  /** Takes the next output. Returns the index of the first line that changed, or -1 if none did. */
  push(text: string): number {
    let first = -1;
    const touch = (row: number) => {
      if (first < 0 || row < first) first = row;
    };
    let from = 0;
    const length = text.length;
    this.work = Math.min(this.work + length * WORK_EACH, 1_000_000);
    while (from < length) {
      if (this.state === "text") {
        const end = nextControl(text, from);
        if (end > from) {
          this.write(text.slice(from, end));
          touch(this.row);
          from = end;
          continue;
        }
      }
      this.control(text.charCodeAt(from), text[from] as string, touch);
      from += 1;
    }
    return first;
  }

  private control(code: number, character: string, touch: (row: number) => void): void {
    switch (this.state) {
      case "text":
        this.textControl(code, character, touch);
        return;
      case "escape":
        this.escape(character);
        return;
      case "skip":
        this.state = "text";
        return;
      case "csi":
        if (code >= 0x40 && code <= 0x7e) {
          this.state = "text";
          this.csi(character, touch);
        } else if (code === 0x1b) {
          this.state = "escape";
        } else if (code < 0x20 || code > 0x7e || this.sequence.length >= SEQUENCE_MAX) {
          this.state = "text";
        } else {
          this.sequence += character;
        }
        return;
      case "string":
        // OSC, DCS and the like: titles, links, clipboards. They end with BEL or ESC \, or at a line feed, because an
        // unterminated one must not hide the rest of the output.
        if (code === 0x07 || code === 0x9c) this.state = "text";
        else if (code === 0x1b) this.state = "stringEscape";
        else if (code === 0x0a || this.sequence.length >= SEQUENCE_MAX) {
          this.state = "text";
          this.textControl(code, character, touch);
        } else this.sequence += ".";
        return;
      case "stringEscape":
        if (character === "\\") this.state = "text";
        else this.escape(character);
        return;
    }
  }

  private textControl(code: number, character: string, touch: (row: number) => void): void {
    switch (code) {
      case 0x0a:
        this.line();
        touch(this.row);
        this.row += 1;
        this.column = 0;
        return;
      case 0x0d:
        this.column = 0;
        return;
      case 0x08:
        this.column = Math.max(0, this.column - 1);
        return;
      case 0x1b:
        this.state = "escape";
        this.sequence = "";
        return;
      case 0x9b:
        this.state = "csi";
        this.sequence = "";
        return;
      case 0x90:
      case 0x98:
      case 0x9d:
      case 0x9e:
      case 0x9f:
        this.state = "string";
        this.sequence = "";
        return;
      default:
        // A control character without a meaning here is shown as an escape.
        this.write(character);
        touch(this.row);
    }
  }

  private escape(character: string): void {
    this.sequence = "";
    if (character === "[") this.state = "csi";
    else if ("]PX^_".includes(character)) this.state = "string";
    else if ("()*+-./#%".includes(character)) this.state = "skip";
    else this.state = character === "\x1b" ? "escape" : "text";
  }

  private csi(final: string, touch: (row: number) => void): void {
    const private_ = /^[<=>?]/.test(this.sequence);
    const numbers = this.sequence.split(/[;:]/).map((part) => (part === "" ? 0 : Number.parseInt(part, 10) || 0));
    const count = Math.max(1, numbers[0] ?? 1);
    if (private_) return;
    switch (final) {
      case "m":
        this.style = styled(this.style, numbers);
        return;
      case "K":
        this.erase(numbers[0] ?? 0);
        touch(this.row);
        return;
      case "G":
        this.column = Math.min(count - 1, this.reach());
        return;
      case "C":
        this.column = Math.min(this.column + Math.min(count, COLUMN_MAX), this.reach());
        return;
      case "D":
        this.column = Math.max(0, this.column - count);
        return;
      case "A":
      case "F": {
        this.row = Math.max(0, this.row - count, this.lines.length - UP_MAX);
        if (final === "F") this.column = 0;
        return;
      }
      case "B":
      case "E":
        this.row = Math.min(this.row + count, Math.max(this.row, this.lines.length));
        if (final === "E") this.column = 0;
        return;
    }
  }

  private reach(): number {
    return Math.max(this.line().length, COLUMN_MAX);
  }

  private line(): Line {
    while (this.lines.length <= this.row) this.lines.push(new Line());
    return this.lines[this.row] as Line;
  }

  private write(text: string): void {
    let line = this.line();
    if (this.column < line.length && line.length > EDITED_MAX) {
      this.row = this.lines.length;
      this.column = 0;
      line = this.line();
    }
    const gap = Math.min(this.column - line.length, COLUMN_MAX);
    if (gap > 0 && gap <= this.work) {
      this.work -= gap;
      line.write(line.length, PADDING.slice(0, gap), PLAIN);
    }
    this.column = Math.min(this.column, line.length);
    line.write(this.column, text, this.style);
    this.column += text.length;
  }

  private erase(what: number): void {
    const line = this.line();
    const blank = Math.min(this.column + 1, line.length);
    if (line.length > EDITED_MAX) return;
    if (what === 0) {
      line.truncate(this.column);
    } else if (what === 2) {
      line.truncate(0);
    } else if (what === 1 && blank > 0 && blank <= this.work) {
      this.work -= blank;
      line.write(0, " ".repeat(blank), PLAIN);
    }
  }
}

/** The index of the next control character, or the end of the text. */
function nextControl(text: string, from: number): number {
  for (let at = from; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    // A tab is text.
    if ((code < 0x20 && code !== 0x09) || (code >= 0x80 && code <= 0x9f)) return at;
  }
  return text.length;
}

/** The style after a sequence `m`. Equal to the old one by identity if nothing changes. */
function styled(old: Style, numbers: number[]): Style {
  let style: Style = { ...old };
  for (let at = 0; at < numbers.length; at += 1) {
    const number = numbers[at] as number;
    if (number === 0) style = {};
    else if (number === 1) style.bold = true;
    else if (number === 2) style.dim = true;
    else if (number === 3) style.italic = true;
    else if (number === 4) style.underline = true;
    else if (number === 7) style.inverse = true;
    else if (number === 9) style.strike = true;
    else if (number === 22) {
      delete style.bold;
      delete style.dim;
    } else if (number === 23) delete style.italic;
    else if (number === 24) delete style.underline;
    else if (number === 27) delete style.inverse;
    else if (number === 29) delete style.strike;
    else if (number >= 30 && number <= 37) style.fg = number - 30;
    else if (number >= 90 && number <= 97) style.fg = number - 82;
    else if (number === 39) delete style.fg;
    else if (number >= 40 && number <= 47) style.bg = number - 40;
    else if (number >= 100 && number <= 107) style.bg = number - 92;
    else if (number === 49) delete style.bg;
    else if (number === 38 || number === 48) {
      const [colour, used] = extended(numbers, at + 1);
      at += used;
      if (colour !== undefined) style[number === 38 ? "fg" : "bg"] = colour;
    }
  }
  return intern(style);
}

/** A colour of 256 or of 24 bits, and how many numbers it took. */
function extended(numbers: number[], at: number): [Colour | undefined, number] {
  const byte = (number: number | undefined) => Math.min(255, Math.max(0, number ?? 0));
  if (numbers[at] === 5) return [byte(numbers[at + 1]), 2];
  if (numbers[at] === 2) {
    const rgb = [1, 2, 3].map((offset) =>
      byte(numbers[at + offset])
        .toString(16)
        .padStart(2, "0"),
    );
    return [`#${rgb.join("")}`, 4];
  }
  return [undefined, 0];
}

const interned = new Map<string, Style>();
const INTERNED_MAX = 4_096;

/** One object for equal styles, so that neighbouring pieces of the same style are one segment. */
function intern(style: Style): Style {
  const { fg, bg, bold, dim, italic, underline, strike, inverse } = style;
  const key = [fg, bg, bold, dim, italic, underline, strike, inverse].join(",");
  if (key === ",,,,,,,") return PLAIN;
  const found = interned.get(key);
  if (found) return found;
  if (interned.size >= INTERNED_MAX) interned.clear();
  interned.set(key, style);
  return style;
}

/** A text that is complete, as lines. */
export function toLines(text: string): Line[] {
  const terminal = new Terminal();
  terminal.push(text);
  return terminal.lines;
}
