/** Workers: they take the calls of a pool and execute them. */

import { host } from "./execute.js";
import { type NativeWorker, native } from "./native.js";
import { Lifespan } from "./resource.js";
import type { Tool } from "./tool.js";

/** The options of a worker. Each has a variable of the environment, as that of `toolyard worker`. */
export interface WorkerOptions {
  tools: readonly Tool[];
  /** The pool whose queue the worker serves (`TOOLYARD_POOL`). */
  pool?: string;
  /** The broker's address (`TOOLYARD_NATS_URL`); `nats://127.0.0.1:4222` unless set. */
  natsUrl?: string;
  /** The file of the NKey seed of a worker of the pool (`TOOLYARD_NATS_NKEY`). */
  natsNkey?: string;
  /** The file of the authorities that sign the broker's certificate (`TOOLYARD_NATS_CA`). */
  natsCa?: string;
  /** Calls that it runs at once (`TOOLYARD_SLOTS`); 16 unless set. */
  slots?: number;
  /** Seconds that running calls may take to end after a stop (`TOOLYARD_DRAIN`); 120 unless set. */
  drain?: number;
  /** The hooks file (`TOOLYARD_HOOKS`). */
  hooks?: string;
  /** The bucket for large results (`TOOLYARD_OBJECTS`), the same as that of the coordinators; the broker unless set. */
  objects?: { url: string; endpoint?: string; region?: string; allowHttp?: boolean };
  /** The address of the admin port (`TOOLYARD_ADMIN_LISTEN`); none unless set. */
  adminListen?: string;
  /** The names under which the admin port is served, beside addresses and `localhost` (`TOOLYARD_HOST_NAMES`). */
  hostNames?: string[];
  /** Whether traces include arguments and results. */
  includeContent?: boolean;
  /** Logs as JSON. */
  jsonLogs?: boolean;
}

export interface RunOptions {
  /** Called once, with the worker's id, when it takes calls. */
  onReady?: (workerId: string) => void;
  /** Drains the worker when it is aborted. */
  signal?: AbortSignal;
  /** `false`: SIGTERM and SIGINT are not handled here. */
  handleSignals?: boolean;
}

/** A worker of one process. */
export class Worker {
  readonly #native: NativeWorker;
  readonly #tools: readonly Tool[];
  readonly #lifespan = new Lifespan();

  /** @internal */
  constructor(options: WorkerOptions) {
    const { tools, ...given } = options;
    this.#tools = tools;
    this.#native = new (native().NativeWorker)(JSON.stringify(settings(given)), host(tools, this.#lifespan));
  }

  /**
   * Serves calls until it is stopped: by {@link stop}, by the signal, by `toolyard workers drain`, by SIGTERM or by
   * SIGINT. Then it takes no more calls, lets those that run end, gives back the rest, and the promise resolves. A second
   * SIGTERM or SIGINT ends the process at once. Resources of the tools are opened before, and closed after.
   */
  async run(options: RunOptions = {}): Promise<void> {
    const { onReady = () => {}, signal, handleSignals = true } = options;
    const stop = () => this.stop();
    const interrupted = () => {
      unlisten();
      stop();
    };
    const unlisten = () => {
      process.off("SIGTERM", interrupted);
      process.off("SIGINT", interrupted);
    };
    if (handleSignals) {
      process.on("SIGTERM", interrupted);
      process.on("SIGINT", interrupted);
    }
    signal?.addEventListener("abort", stop, { once: true });
    if (signal?.aborted) {
      stop();
    }
    try {
      await this.#lifespan.open(this.#tools.flatMap((tool) => tool.uses));
      try {
        // The second function is how the native part sees that the event loop is not blocked.
        await this.#native.run(onReady, () => {});
      } finally {
        await this.#lifespan.close();
      }
    } finally {
      unlisten();
      signal?.removeEventListener("abort", stop);
    }
  }

  /** Drains the worker: {@link run} resolves when it is done. */
  stop(): void {
    this.#native.stop();
  }
}

/** Makes a worker; {@link Worker.run} starts it. */
export function worker(options: WorkerOptions): Worker {
  return new Worker(options);
}

/** The options, and those of the environment that are not given. */
function settings(given: Omit<WorkerOptions, "tools">): object {
  const { env } = process;
  const bucket = env.TOOLYARD_OBJECTS && {
    url: env.TOOLYARD_OBJECTS,
    endpoint: env.TOOLYARD_OBJECTS_ENDPOINT,
    region: env.TOOLYARD_OBJECTS_REGION,
    allowHttp: env.TOOLYARD_OBJECTS_ALLOW_HTTP === "true",
  };
  const { pool, natsUrl, natsNkey, natsCa, slots, drain, hooks, objects, adminListen, hostNames, ...rest } = given;
  const chosen = pool ?? env.TOOLYARD_POOL;
  if (!chosen) {
    throw new TypeError("a worker needs a pool: give `pool`, or set TOOLYARD_POOL");
  }
  return {
    ...rest,
    pool: chosen,
    natsUrl: natsUrl ?? env.TOOLYARD_NATS_URL ?? "nats://127.0.0.1:4222",
    natsNkey: natsNkey ?? env.TOOLYARD_NATS_NKEY,
    natsCa: natsCa ?? env.TOOLYARD_NATS_CA,
    slots: slots ?? number("TOOLYARD_SLOTS"),
    drain: drain ?? number("TOOLYARD_DRAIN"),
    hooks: hooks ?? env.TOOLYARD_HOOKS,
    objects: objects ?? (bucket || undefined),
    adminListen: adminListen ?? env.TOOLYARD_ADMIN_LISTEN,
    hostNames: hostNames ?? env.TOOLYARD_HOST_NAMES?.split(",") ?? [],
  };
}

function number(name: string): number | undefined {
  const text = process.env[name];
  if (text === undefined) {
    return undefined;
  }
  const value = Number(text);
  if (!Number.isFinite(value)) {
    throw new TypeError(`${name} is ${JSON.stringify(text)}: write a number`);
  }
  return value;
}
