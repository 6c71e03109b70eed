/** Executes calls that the native part dispatches. */

import { parts, piece, ResultWithState } from "./content.js";
import { Context, emit } from "./context.js";
import { DefinitionError, described, type Failure, failure, ToolError } from "./errors.js";
import { encoded } from "./json.js";
import { type NativeCall, type NativeTools, native } from "./native.js";
import { Lifespan } from "./resource.js";
import type { Tool } from "./tool.js";

/** Hosts tools in the native part. What no worker could host is an error. */
export function host(tools: readonly Tool[], lifespan = new Lifespan()): NativeTools {
  const declarations = tools.map((tool) => tool.declaration);
  const dispatch = (call: NativeCall): void => {
    // It settles the call, whatever happens.
    void execute(tools[call.index] as Tool, call, lifespan);
  };
  const { NativeTools } = native();
  try {
    return new NativeTools(declarations, dispatch);
  } catch (error) {
    throw new DefinitionError(error instanceof Error ? error.message : String(error), { cause: error });
  }
}

async function execute(tool: Tool, call: NativeCall, lifespan: Lifespan): Promise<void> {
  try {
    const input = await tool.input.parse(JSON.parse(call.arguments));
    const produced = await tool.execute(input as never, new Context(call, tool.uses, lifespan));
    const value = isGenerator(produced) ? await streamed(produced, call) : produced;
    const { value: result, state } = value instanceof ResultWithState ? value : { value, state: undefined };
    call.complete(parts(result), state && encoded(state));
  } catch (error) {
    fail(call, error);
  }
}

/** It never throws: an error of one call must not end the worker. */
function fail(call: NativeCall, error: unknown): void {
  const ways: (() => Failure)[] = [
    () => failure(error),
    // An error with a kind, a message or a path of its own that is none.
    () => ({ kind: "tool_failed", message: described(error) }),
    // One whose name, message or cause cannot even be read.
    () => ({ kind: "tool_failed", message: "the tool threw an error that cannot be read" }),
  ];
  for (const way of ways) {
    try {
      call.fail(encoded(way()) ?? "");
      return;
    } catch {
      // The next way says less.
    }
  }
}

type AnyGenerator = AsyncIterator<unknown, unknown> | Iterator<unknown, unknown>;

/** Texts, lists and maps can be iterated too, and are results. */
function isGenerator(produced: unknown): produced is AsyncIterable<unknown> | Iterable<unknown> {
  if (typeof produced !== "object" || produced === null) {
    return false;
  }
  return Symbol.asyncIterator in produced || (Symbol.iterator in produced && "next" in produced);
}

/** Sends what a generator yields until it returns, or the call is to stop. */
async function streamed(produced: AsyncIterable<unknown> | Iterable<unknown>, call: NativeCall): Promise<unknown> {
  const iterator: AnyGenerator =
    Symbol.asyncIterator in produced ? produced[Symbol.asyncIterator]() : produced[Symbol.iterator]();
  for (;;) {
    const step = await iterator.next();
    if (step.done) {
      return step.value;
    }
    try {
      if (call.isStopped()) {
        throw new ToolError("the call was stopped");
      }
      const waits = emit(call, piece(step.value));
      if (waits !== undefined) {
        await waits;
      }
    } catch (error) {
      // Its `finally` runs before the call ends.
      await iterator.return?.();
      throw error;
    }
  }
}
