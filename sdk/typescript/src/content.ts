/** What tools give back and stream, and its form for the native part. */

import { ToolError } from "./errors.js";
import { encoded } from "./json.js";
import type { Part } from "./native.js";

/** A part of a result, or a piece of output, that says what it is. Make it by {@link text}, {@link json}, {@link data} or {@link image}. */
export class Content {
  /** @internal */
  constructor(readonly part: Part) {}
}

/** Options of a piece of output: a stream beside others of the call, as `stderr`. Parts of results have none. */
export interface PieceOptions {
  channel?: string;
}

/** A text. */
export function text(value: string, options: PieceOptions = {}): Content {
  return new Content({ kind: "text", text: value, ...options });
}

/** A JSON value. */
export function json(value: unknown, options: PieceOptions = {}): Content {
  return new Content({ kind: "json", text: stringified(value), ...options });
}

/** Bytes with a media type. */
export function data(
  bytes: Uint8Array | ArrayBuffer,
  mediaType = "application/octet-stream",
  options: PieceOptions = {},
): Content {
  const own = bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes);
  return new Content({ kind: "data", data: own, mediaType, ...options });
}

/** An image, which models see if their vendor's form has images. */
export function image(bytes: Uint8Array | ArrayBuffer, mediaType = "image/png"): Content {
  return data(bytes, mediaType);
}

/** A result with values for the state of the run, which the caller reads and the model does not see. */
export class ResultWithState {
  /** @internal */
  constructor(
    readonly value: ToolResult,
    readonly state: Record<string, unknown>,
  ) {}
}

/** Adds values for the state of the run to a result. */
export function withState(value: ToolResult, state: Record<string, unknown>): ResultWithState {
  return new ResultWithState(value, state);
}

/** A value that JSON can express. Interfaces and classes with only such members are taken too. */
// biome-ignore lint/complexity/noBannedTypes: an interface does not fit an index signature.
export type JsonLike = string | number | boolean | null | undefined | object | {};

/**
 * What a tool gives back: nothing is `"Done"`, a string is text, bytes are bytes, {@link Content} and lists of it are what
 * they say, and anything else is JSON.
 */
export type ToolResult = JsonLike | Content | Content[] | Uint8Array | undefined;

/** What a generator yields: text, JSON values, bytes or {@link Content}. */
export type Piece = JsonLike | Content | Uint8Array;

/** A piece of output. */
export function piece(value: unknown): Part {
  if (value instanceof Content) {
    return value.part;
  }
  if (typeof value === "string") {
    return { kind: "text", text: value };
  }
  if (value instanceof Uint8Array || value instanceof ArrayBuffer) {
    return data(value).part;
  }
  return json(value).part;
}

/** The parts of a result. */
export function parts(value: unknown): Part[] {
  if (value === undefined) {
    return [];
  }
  if (Array.isArray(value) && value.length > 0 && value.every((part) => part instanceof Content)) {
    return (value as Content[]).map((content) => content.part);
  }
  return [piece(value)];
}

function stringified(value: unknown): string {
  let text: string | undefined;
  try {
    text = encoded(value);
  } catch (error) {
    throw new ToolError(`the tool's result is not JSON: ${error instanceof Error ? error.message : error}`);
  }
  if (text === undefined) {
    throw new ToolError(`the tool's result is not JSON: it is a ${typeof value}`);
  }
  return text;
}
