/** The errors of tools. Their kind decides who can correct them, and whether the call is tried again. */

/** The form in which the native part has an error. */
export interface Failure {
  kind: string;
  message: string;
  retryable?: boolean;
  retryAfterMs?: number;
  path?: string;
}

/** Why a call failed, for the model and the caller. Another attempt would fail as well. */
export class ToolError extends Error {
  override name = "ToolError";
  /** What kind of error it is: the kind of the API, in lower case. */
  readonly kind: string = "tool_failed";
  /** Whether another attempt may succeed. */
  readonly retryable: boolean = false;

  /** @internal */
  toFailure(): Failure {
    return { kind: this.kind, message: this.message, retryable: this.retryable };
  }
}

/** Another attempt may succeed. It is made if the tool is safe to repeat and has attempts left, after its backoff. */
export class Retry extends ToolError {
  override name = "Retry";
  override readonly retryable = true;
  /** Seconds before which no attempt is made, at most an hour. */
  readonly after: number | undefined;

  constructor(message: string, options: ErrorOptions & { after?: number } = {}) {
    super(message, options);
    this.after = options.after;
  }

  override toFailure(): Failure {
    const wait = this.after === undefined ? {} : { retryAfterMs: Math.max(0, Math.round(this.after * 1000)) };
    return { ...super.toFailure(), ...wait };
  }
}

/** A service that the tool uses limits its rate. As {@link Retry}; the call holds no slot while it waits. */
export class RateLimited extends Retry {
  override name = "RateLimited";
  override readonly kind = "rate_limited";
}

/** The model should call again with other arguments; the message explains how. No further attempt of this call is made. */
export class ModelRetry extends ToolError {
  override name = "ModelRetry";
  override readonly kind = "model_retry";
}

/** The tool needs something from the caller first: a login, a file, a consent. The message names it. */
export class NeedsInput extends ToolError {
  override name = "NeedsInput";
  override readonly kind = "needs_input";
}

/** Arguments that fit their schema and are of no use all the same. `path` is a JSON pointer, as `/points/3/x`. */
export class BadInput extends ToolError {
  override name = "BadInput";
  override readonly kind = "arguments_invalid";
  readonly path: string;

  constructor(message: string, options: ErrorOptions & { path?: string } = {}) {
    super(message, options);
    this.path = options.path ?? "";
  }

  override toFailure(): Failure {
    return { ...super.toFailure(), path: this.path };
  }
}

/** A tool, its schema or a resource cannot be used. It is thrown before anything is hosted. */
export class DefinitionError extends TypeError {
  override name = "DefinitionError";
}

/** An error of the engine, such as a result that is too large. */
class EngineError extends ToolError {
  override readonly kind: string;
  override readonly retryable: boolean;

  constructor(failure: Failure) {
    super(failure.message);
    this.kind = failure.kind;
    this.retryable = failure.retryable ?? false;
  }
}

/** An error of the native part as the class that stands for its kind. */
export function raised(failure: Failure): ToolError {
  const { kind, message, retryable, retryAfterMs } = failure;
  const wait = retryAfterMs === undefined ? {} : { after: retryAfterMs / 1000 };
  switch (kind) {
    case "rate_limited":
      return new RateLimited(message, wait);
    case "model_retry":
      return new ModelRetry(message);
    case "needs_input":
      return new NeedsInput(message);
    case "arguments_invalid":
      return new BadInput(message);
    case "tool_failed":
      return retryable ? new Retry(message, wait) : new ToolError(message);
    default:
      return new EngineError(failure);
  }
}

/** What the native part threw: errors of tools are JSON there. */
export function lifted(error: unknown): unknown {
  if (!(error instanceof Error) || !error.message.startsWith('{"kind":')) {
    return error;
  }
  try {
    return raised(JSON.parse(error.message) as Failure);
  } catch {
    return error;
  }
}

/** Whatever a tool threw, as the error of its call. */
export function failure(thrown: unknown): Failure {
  if (thrown instanceof ToolError) {
    return thrown.toFailure();
  }
  return { kind: "tool_failed", message: described(thrown) };
}

/** How many causes of an error are told. They may go round in a circle. */
const CAUSES_MAX = 8;

/** A text for anything that was thrown. */
export function described(thrown: unknown, causes = CAUSES_MAX): string {
  if (!(thrown instanceof Error)) {
    return `the tool threw ${printed(thrown)}`;
  }
  const own = thrown.name === "Error" ? printed(thrown.message) : `${printed(thrown.name)}: ${printed(thrown.message)}`;
  return thrown.cause instanceof Error && causes > 0 ? `${own}: ${described(thrown.cause, causes - 1)}` : own;
}

/** A text for anything, also if it cannot be converted. */
function printed(value: unknown): string {
  try {
    return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value);
  } catch {
    return "a value that cannot be printed";
  }
}
