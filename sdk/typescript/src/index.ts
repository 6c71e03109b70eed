/** Tools, workers and tests of tools for Toolyard. The client is in `toolyard/client`, which has no native code. */

export {
  Content,
  data,
  image,
  type JsonLike,
  json,
  type Piece,
  type PieceOptions,
  ResultWithState,
  type ToolResult,
  text,
  withState,
} from "./content.js";
export { type Answer, CallFile, type Context, type PastCall, type Question } from "./context.js";
export { BadInput, DefinitionError, ModelRetry, NeedsInput, RateLimited, Retry, ToolError } from "./errors.js";
export type { Part } from "./native.js";
export { type Resource, resource } from "./resource.js";
export type { InputOf, InputSchema, JsonSchema, PairedInput, StandardInput } from "./schema.js";
export { Called, TestCall, TestClient, type TestOptions, testClient } from "./testing.js";
export { type Executed, type Produced, Tool, type ToolAttributes, type ToolOptions, tool } from "./tool.js";
export { type RunOptions, Worker, type WorkerOptions, worker } from "./worker.js";
