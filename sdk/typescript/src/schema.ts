/** The schema of a tool's arguments: JSON Schema for the model, and validation with the types of its library. */

import type { StandardJSONSchemaV1, StandardSchemaV1 } from "@standard-schema/spec";
import { BadInput, DefinitionError } from "./errors.js";

/** JSON Schema (2020-12) of an object. */
export type JsonSchema = { readonly [keyword: string]: unknown };

/** A schema of a library that implements Standard Schema and can express itself as JSON Schema: zod 4, ArkType, … */
export type StandardInput = StandardSchemaV1 & StandardJSONSchemaV1;

/** A schema of any other library of Standard Schema, with its JSON Schema beside it. */
export interface PairedInput {
  readonly validate: StandardSchemaV1;
  readonly jsonSchema: JsonSchema;
}

export type InputSchema = StandardInput | PairedInput | JsonSchema;

/** The type of the arguments that `execute` receives. */
export type InputOf<S> = S extends { "~standard": { types?: { output: infer Output } | undefined } }
  ? Output
  : S extends { validate: StandardSchemaV1<unknown, infer Output> }
    ? Output
    : Record<string, unknown>;

/** A schema, read. */
export interface Input {
  readonly jsonSchema: JsonSchema;
  /** Throws {@link BadInput} if the arguments do not fit. */
  readonly parse: (value: unknown) => unknown;
}

const KINDS =
  "give a schema of a library with Standard JSON Schema, as zod 4, { validate, jsonSchema }, or JSON Schema";

/** Without arguments. */
const NONE: JsonSchema = { type: "object", properties: {}, additionalProperties: false };

export function input(tool: string, schema: InputSchema | undefined): Input {
  if (schema === undefined) {
    return { jsonSchema: NONE, parse: (value) => value };
  }
  if ((typeof schema !== "object" && typeof schema !== "function") || schema === null) {
    throw new DefinitionError(`tool ${tool}: its schema is ${String(schema)}: ${KINDS}`);
  }
  if (isPaired(schema)) {
    return { jsonSchema: schema.jsonSchema, parse: (value) => validated(schema.validate, value) };
  }
  if (!("~standard" in schema)) {
    // The schemas of libraries that are older than Standard Schema are objects of classes.
    const kind: unknown = Object.getPrototypeOf(schema)?.constructor?.name ?? "Object";
    if (kind !== "Object") {
      throw new DefinitionError(`tool ${tool}: its schema is a ${kind}, which has no JSON Schema: ${KINDS}`);
    }
    return { jsonSchema: schema as JsonSchema, parse: (value) => value };
  }
  return {
    jsonSchema: expressed(tool, schema as StandardInput),
    parse: (value) => validated(schema as StandardInput, value),
  };
}

/** The schema of a result, which only describes it. */
export function output(tool: string, schema: StandardInput | JsonSchema | undefined): JsonSchema | undefined {
  if (schema === undefined || !("~standard" in schema)) {
    return schema as JsonSchema | undefined;
  }
  return expressed(tool, schema as StandardInput, "output");
}

function isPaired(schema: InputSchema): schema is PairedInput {
  return "validate" in schema && "jsonSchema" in schema && typeof schema.validate === "object";
}

function expressed(tool: string, schema: StandardInput, side: "input" | "output" = "input"): JsonSchema {
  const standard = schema["~standard"];
  if (!("jsonSchema" in standard)) {
    const { vendor } = standard as { vendor: string };
    const how = "give { validate: schema, jsonSchema: {…} }, or a library with Standard JSON Schema, as zod 4";
    throw new DefinitionError(`tool ${tool}: schemas of ${vendor} have no JSON Schema: ${how}`);
  }
  try {
    return standard.jsonSchema[side]({ target: "draft-2020-12" });
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new DefinitionError(`tool ${tool}: its schema cannot be expressed as JSON Schema: ${why}`, { cause: error });
  }
}

/** Validation may be asynchronous, and then a promise is returned. */
function validated(schema: StandardSchemaV1, value: unknown): unknown {
  const result = schema["~standard"].validate(value);
  return result instanceof Promise ? result.then(valid) : valid(result);
}

function valid(result: StandardSchemaV1.Result<unknown>): unknown {
  if (result.issues === undefined) {
    return result.value;
  }
  const [first, ...others] = result.issues;
  const more = others.length > 0 ? ` (and ${others.length} more)` : "";
  throw new BadInput(`${first?.message ?? "it does not fit"}${more}`, { path: pointer(first?.path ?? []) });
}

function pointer(path: ReadonlyArray<PropertyKey | StandardSchemaV1.PathSegment>): string {
  const keys = path.map((segment) => String(typeof segment === "object" ? segment.key : segment));
  return keys.map((key) => `/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
}
