/** Resources of tools: opened before the first call of their worker, shared by all calls, closed after the last one. */

import { DefinitionError } from "./errors.js";

/** How long resources may take to close. */
const CLOSE_MS = 10_000;

/** Something that tools share, for example a pool of connections. {@link resource} makes one. */
export class Resource<T> {
  /** @internal */
  constructor(readonly make: () => unknown) {}

  /** Only so that `T` is a part of the type. */
  declare private readonly value: T;
}

/**
 * Declares a resource. A generator yields it once, and what follows closes it. A value that is returned is closed by
 * its `Symbol.asyncDispose` or `Symbol.dispose`, if it has one.
 *
 * ```ts
 * const db = resource(async function* () {
 *   const pool = new pg.Pool();
 *   yield pool;
 *   await pool.end();
 * });
 *
 * const count = tool({
 *   name: "count",
 *   description: "Counts the rows of a table.",
 *   uses: [db],
 *   execute: (_, context) => context.use(db).query("select count(*) from things"),
 * });
 * ```
 */
export function resource<T>(make: () => AsyncGenerator<T, void, unknown> | Generator<T, void, unknown>): Resource<T>;
export function resource<T>(make: () => T | Promise<T>): Resource<T>;
export function resource(make: () => unknown): Resource<unknown> {
  return new Resource(make);
}

/** The resources of running tools. */
export class Lifespan {
  readonly #values = new Map<Resource<unknown>, unknown>();
  readonly #closers: (() => unknown)[] = [];

  /** Opens resources in their order. If one fails, those before it are closed. */
  async open(resources: Iterable<Resource<unknown>>): Promise<void> {
    try {
      for (const resource of new Set(resources)) {
        this.#values.set(resource, await this.#opened(resource));
      }
    } catch (error) {
      await this.close().catch(() => {});
      throw error;
    }
  }

  value<T>(resource: Resource<T>): T {
    return this.#values.get(resource) as T;
  }

  /** Closes them, the last one first; each, also if another one fails or does not end. */
  async close(): Promise<void> {
    const failures: unknown[] = [];
    for (let close = this.#closers.pop(); close !== undefined; close = this.#closers.pop()) {
      await inTime(close).catch((error: unknown) => failures.push(error));
    }
    if (failures.length > 0) {
      throw failures.length === 1 ? failures[0] : new AggregateError(failures, "resources could not be closed");
    }
  }

  async #opened(resource: Resource<unknown>): Promise<unknown> {
    const made = resource.make();
    if (!isGenerator(made)) {
      const value = await made;
      const { [Symbol.asyncDispose]: dispose, [Symbol.dispose]: disposeNow } = Object(value);
      const close = dispose ?? disposeNow;
      if (typeof close === "function") {
        this.#closers.push(() => close.call(value));
      }
      return value;
    }
    const first = await made.next();
    if (first.done) {
      throw new DefinitionError("a resource's generator ended before it yielded: it must yield once");
    }
    this.#closers.push(async () => {
      if (!(await made.next()).done) {
        await made.return(undefined);
        throw new DefinitionError("a resource's generator yielded twice: it must yield once");
      }
    });
    return first.value;
  }
}

function isGenerator(made: unknown): made is AsyncGenerator<unknown> {
  const kind = Object.prototype.toString.call(made);
  return kind === "[object AsyncGenerator]" || kind === "[object Generator]";
}

async function inTime(close: () => unknown): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise((_, reject) => {
    const why = `a resource was not closed within ${CLOSE_MS / 1000} s, and is left as it is`;
    timer = setTimeout(() => reject(new Error(why)), CLOSE_MS);
  });
  try {
    await Promise.race([close(), late]);
  } finally {
    clearTimeout(timer);
  }
}
