/** Declares tools. */

import type { Piece, ResultWithState, ToolResult } from "./content.js";
import type { Context } from "./context.js";
import type { Resource } from "./resource.js";
import {
  type Input,
  type InputOf,
  type InputSchema,
  input,
  type JsonSchema,
  output,
  type StandardInput,
} from "./schema.js";

/** What a model, callers and operators read of a tool, and how its calls are attempted. Times are in seconds. */
export interface ToolAttributes {
  /** It has no effects, so a call whose worker is lost may be executed again. */
  readOnly?: boolean;
  /** A second execution changes nothing further, so a call whose worker is lost may be executed again. */
  idempotent?: boolean;
  /** It may destroy something. */
  destructive?: boolean;
  /** It reaches beyond this system. */
  openWorld?: boolean;
  /** It reads or writes files or starts processes on its worker's machine, where other calls find them. */
  usesMachine?: boolean;
  /** It sends output while it runs. On by itself for an async generator. */
  streaming?: boolean;
  /** It only waits for other calls, such as those of an agent, so its calls take no slot of their worker. */
  waiting?: boolean;
  /** A person must approve each call before it runs. */
  needsApproval?: boolean;
  /** Its result is shown to the user as a part of the assistant's message. */
  final?: boolean;
  /** Its result may be the final answer. */
  returnDirect?: boolean;
  /** It is not listed, and can be called only if it is attached. */
  hidden?: boolean;
  /** How long one attempt may take; 300 unless set. */
  timeout?: number;
  /** How long a running attempt may send nothing; 60 for a streaming tool, no limit for others, unless set. 0 is no limit. */
  idleTimeout?: number;
  /** How many attempts a call may use up: 3 unless set. A tool that is not safe to repeat has one, whatever is set. */
  attempts?: number;
  /** The first pause between attempts and the longest one; 1 and 60 unless set. */
  backoff?: [first: number, longest: number];
  /** How many calls one worker executes at once. */
  maxConcurrent?: number;
  /** How many of its calls may be queued or running at once, on all workers together. */
  runningMax?: number;
  /** What happens to the output of an attempt if another one follows: it is withdrawn unless set. */
  afterPartialOutput?: "restart" | "continue" | "buffer";
  permission?: "read" | "write" | "external";
  /** Whether its calls may run beside other calls of their run. */
  concurrency?: "parallel" | "exclusive";
  /** A call whose arguments match this JSON Schema runs alone, or may run beside others. */
  exclusiveWhen?: JsonSchema;
  parallelWhen?: JsonSchema;
  category?: string;
  sideEffectScope?: string;
  tags?: string[];
  /** Numbers with dots between them. Set a higher one whenever the schema changes. */
  version?: string;
  /** A name for people. */
  title?: string;
  aliases?: { name: string; description?: string }[];
  /** Keys of the caller's context that its calls are given. */
  contextKeys?: string[];
}

export interface ToolOptions<S extends InputSchema> extends ToolAttributes {
  /** The name by which models call it: 1 to 128 of `A-Z a-z 0-9 _ . -`. */
  name: string;
  /** What it does, for the model. */
  description: string;
  /** The schema of the arguments; none unless set. */
  input?: S;
  /** The schema of the result. Results are not checked against it. */
  output?: StandardInput | JsonSchema;
  /** The resources that {@link Context.use} gives. They are opened before the first call. */
  uses?: readonly Resource<unknown>[];
  /** Does it. An async generator yields output while it runs, and returns the result. */
  execute: (input: InputOf<S>, context: Context) => Executed;
}

/** What `execute` may give back, also as a promise. */
export type Executed = Produced | Promise<Produced>;

/** A result, or a generator that yields output and returns the result. */
export type Produced =
  | ToolResult
  | ResultWithState
  | AsyncGenerator<Piece, ToolResult | ResultWithState, unknown>
  | Generator<Piece, ToolResult | ResultWithState, unknown>
  | AsyncIterable<Piece>;

/** A tool, for {@link worker} and {@link testClient}. */
export class Tool {
  readonly name: string;
  /** @internal What the native part reads. */
  readonly declaration: string;
  /** @internal */
  readonly input: Input;
  /** @internal */
  readonly uses: readonly Resource<unknown>[];
  /** @internal */
  readonly execute: (input: never, context: Context) => unknown;

  /** @internal */
  constructor(options: ToolOptions<InputSchema>) {
    const { name, description, input: schema, output: result, uses = [], execute, ...attributes } = options;
    this.name = name;
    this.input = input(name, schema);
    this.uses = uses;
    this.execute = execute as (input: never, context: Context) => unknown;
    const outputSchema = output(name, result);
    this.declaration = JSON.stringify({
      name,
      description,
      inputSchema: this.input.jsonSchema,
      ...(outputSchema && { outputSchema }),
      streaming: execute.constructor.name === "AsyncGeneratorFunction",
      ...attributes,
    });
  }
}

/**
 * Declares a tool.
 *
 * ```ts
 * const greet = tool({
 *   name: "greet",
 *   description: "Greets a person.",
 *   readOnly: true,
 *   input: z.object({ name: z.string().describe("Whom to greet") }),
 *   execute: ({ name }) => `Hello, ${name}!`,
 * });
 * ```
 */
export function tool<const S extends InputSchema = JsonSchema>(options: ToolOptions<S>): Tool {
  return new Tool(options as unknown as ToolOptions<InputSchema>);
}
