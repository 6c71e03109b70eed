/** The native part of the package: what it offers, and how it is found. `native/` has its source. */

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

/** A part of a result, or a piece of output, on its way between JavaScript and Rust. */
export interface Part {
  kind: "text" | "json" | "data" | "object" | "progress";
  text?: string;
  data?: Uint8Array;
  mediaType?: string;
  channel?: string;
  done?: number;
  total?: number;
}

/** A call, until it is completed or failed. What sends gives a promise if there is no room. */
export interface NativeCall {
  readonly index: number;
  readonly arguments: string;
  info(): string;
  given(key: string): string;
  sendText(channel: string, text: string): Promise<void> | null;
  sendJson(channel: string, json: string): Promise<void> | null;
  sendData(channel: string, mediaType: string, data: Uint8Array): Promise<void> | null;
  progress(done: number, total: number | undefined, message: string): Promise<void> | null;
  /** Whether the call should stop. Asking is an acknowledgement. */
  isStopped(): boolean;
  /** `true` when the call should stop, `false` when it has ended. */
  stopped(): Promise<boolean>;
  ask(question: string): Promise<string>;
  openFile(name: string): NativeFile;
  log(level: string, message: string): void;
  complete(parts: Part[], state?: string): void;
  fail(error: string): void;
}

export interface NativeFile {
  next(): Promise<Uint8Array | null>;
}

export interface NativeTools {
  test(
    tool: string,
    input: string,
    setup: string,
    files: { name: string; data: Uint8Array }[],
  ): Promise<NativeTestCall>;
}

export interface NativeTestCall {
  next(): Promise<Part | null>;
  cancel(): void;
  end(): Promise<{ result?: Part[]; error?: string; state: string }>;
}

export interface NativeWorker {
  run(ready: (worker: string) => void, beat: () => void): Promise<void>;
  stop(): void;
}

export interface Native {
  NativeTools: new (declarations: string[], dispatch: (call: NativeCall) => void) => NativeTools;
  NativeWorker: new (options: string, tools: NativeTools) => NativeWorker;
}

let loaded: Native | undefined;

/** Loads it once, when it is first needed: importing the package stays fast. */
export function native(): Native {
  loaded ??= load();
  return loaded;
}

function load(): Native {
  const platform = `${process.platform}-${process.arch}${isMusl() ? "-musl" : ""}`;
  const file = process.env.TOOLYARD_NODE_LIBRARY ?? `../prebuilds/${platform}.node`;
  try {
    return createRequire(import.meta.url)(file) as Native;
  } catch (error) {
    const how = "the package has no native part for this platform, or it was not built: sdk/typescript/run build";
    throw new Error(`toolyard for ${platform} cannot be loaded from ${file}: ${how}`, { cause: error });
  }
}

/** Whether the system's C library is musl, as on Alpine: its loader says so in a script. */
function isMusl(): boolean {
  if (process.platform !== "linux") {
    return false;
  }
  try {
    return readFileSync("/usr/bin/ldd", "utf8").includes("musl");
  } catch {
    return false;
  }
}
