/** The readers of a turn: each sees all its events, in its own time. */

import type { TurnEvent } from "./events.js";

/** Events that are kept for readers who begin later, and that may wait for a slow reader. */
const EVENTS_MAX = 1_000;

/** Gives the events of a turn to all who iterate it. */
export class Readers {
  readonly #readers = new Set<Reader>();
  /** All events so far; `undefined` when there were more than are kept. */
  #kept: TurnEvent[] | undefined = [];
  #waits = true;

  /** A reader of all events from the first on. */
  begin(): Reader {
    if (this.#kept === undefined) {
      const why = `the first of more than ${EVENTS_MAX} events of this turn are not kept any more`;
      throw new Error(`${why}: iterate the turn before it is awaited, or iterate resume(turn.runId, …)`);
    }
    const reader = new Reader(this.#kept, this.#waits);
    this.#readers.add(reader);
    return reader;
  }

  end(reader: Reader): void {
    this.#readers.delete(reader);
    reader.hurry();
  }

  /** Gives out an event, and waits for readers that are far behind. */
  async push(event: TurnEvent): Promise<void> {
    if (this.#kept !== undefined && this.#kept.push(event) > EVENTS_MAX) {
      this.#kept = undefined;
    }
    const readers = [...this.#readers];
    for (const reader of readers) {
      reader.push(event);
    }
    for (const reader of readers) {
      await reader.hasRoom();
    }
  }

  /** From now on no reader is waited for: what it has not read yet is held for it. */
  hurry(): void {
    this.#waits = false;
    for (const reader of this.#readers) {
      reader.hurry();
    }
  }
}

/** Events on their way to one reader. */
export class Reader implements AsyncIterable<TurnEvent> {
  readonly #waiting: TurnEvent[];
  #ended: { error?: unknown } | undefined;
  #waits: boolean;
  #changed: () => void = () => {};
  #taken: () => void = () => {};

  constructor(seen: readonly TurnEvent[], waits: boolean) {
    this.#waiting = [...seen];
    this.#waits = waits;
  }

  push(event: TurnEvent): void {
    this.#waiting.push(event);
    this.#changed();
  }

  /** Waits while the reader is far behind. */
  async hasRoom(): Promise<void> {
    while (this.#waits && this.#waiting.length >= EVENTS_MAX) {
      await new Promise<void>((resolve) => {
        this.#taken = resolve;
      });
    }
  }

  /** It is not waited for any more. */
  hurry(): void {
    this.#waits = false;
    this.#taken();
  }

  end(): void {
    this.#ended = {};
    this.#changed();
  }

  fail(error: unknown): void {
    this.#ended = { error };
    this.#changed();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<TurnEvent, void> {
    for (;;) {
      const event = this.#waiting.shift();
      if (event !== undefined) {
        this.#taken();
        yield event;
      } else if (this.#ended !== undefined) {
        if ("error" in this.#ended) {
          throw this.#ended.error;
        }
        return;
      } else {
        await new Promise<void>((resolve) => {
          this.#changed = resolve;
        });
      }
    }
  }
}
