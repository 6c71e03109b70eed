// Server-sent events over `fetch`, because `EventSource` cannot send the header that identifies the caller.

/** An event of a stream. `name` is empty unless the stream names it. */
export interface StreamEvent {
  id: string;
  name: string;
  data: string;
}

/** Splits a stream into events. A line may arrive in many pieces, so that its parts are joined once, at its end. */
export class EventParser {
  private parts: string[] = [];
  private id = "";
  private name = "";
  private data: string[] = [];
  private endsWithReturn = false;

  /** Takes the next text of the stream and returns the events that it completes. */
  push(text: string): StreamEvent[] {
    const events: StreamEvent[] = [];
    let from = 0;
    // A line feed after a carriage return ends no further line, also if it begins the next piece.
    if (this.endsWithReturn && text.startsWith("\n")) from = 1;
    if (text !== "") this.endsWithReturn = false;
    const ends = /\r\n|\n|\r/g;
    ends.lastIndex = from;
    for (let end = ends.exec(text); end !== null; end = ends.exec(text)) {
      this.parts.push(text.slice(from, end.index));
      const line = this.parts.length === 1 ? (this.parts[0] ?? "") : this.parts.join("");
      this.parts = [];
      from = ends.lastIndex;
      if (end[0] === "\r" && from === text.length) this.endsWithReturn = true;
      this.line(line, events);
    }
    if (from < text.length) this.parts.push(text.slice(from));
    return events;
  }

  private line(line: string, events: StreamEvent[]): void {
    if (line === "") {
      if (this.data.length > 0) events.push({ id: this.id, name: this.name, data: this.data.join("\n") });
      this.name = "";
      this.data = [];
      return;
    }
    if (line.startsWith(":")) return;
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.data.push(value);
    else if (field === "event") this.name = value;
    else if (field === "id") this.id = value;
  }
}

/** The events of a response, in batches as they arrive. */
export async function* events(response: Response): AsyncGenerator<StreamEvent[]> {
  if (response.body === null) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const batch = parser.push(decoder.decode(value, { stream: true }));
      if (batch.length > 0) yield batch;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
