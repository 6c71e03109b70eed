// A form from a JSON Schema. What has no field of its own is edited as JSON; the coordinator checks everything again.

import { useId, useMemo, useState } from "preact/hooks";
import { plain } from "../text/escape";
import { Text } from "./basics";

export type Schema = {
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  enum?: unknown[];
  /** Names of the values of `enum`, for people, as MCP has them. */
  enumNames?: string[];
  const?: unknown;
  default?: unknown;
  format?: string;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  $ref?: string;
  $defs?: Record<string, Schema>;
  definitions?: Record<string, Schema>;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
};

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

interface FormProps {
  /** The schema, as JSON text or as a value. */
  schema: string | Schema | undefined;
  value: Json | undefined;
  onChange: (value: Json | undefined) => void;
  /** Whether the present text is JSON; the form cannot be sent while it is not. */
  onValid?: (isValid: boolean) => void;
  label: string;
}

/** A form with a switch to the JSON behind it. */
export function SchemaForm({ schema, value, onChange, onValid, label }: FormProps) {
  const root = useMemo(
    () => (typeof schema === "string" ? parseSchema(schema) : schema && wellFormed(schema)),
    [schema],
  );
  const [asJson, setAsJson] = useState(root === undefined);
  return (
    <fieldset class="schema-form">
      <legend>{label}</legend>
      {root && (
        <button type="button" class="link form-switch" onClick={() => setAsJson(!asJson)}>
          {asJson ? "as a form" : "as JSON"}
        </button>
      )}
      {asJson || !root ? (
        <JsonField label="JSON" value={value} onChange={onChange} onValid={onValid} rows={10} />
      ) : (
        <Field
          root={root}
          schema={root}
          value={value}
          onChange={onChange}
          onValid={onValid}
          label=""
          required
          depth={0}
        />
      )}
    </fieldset>
  );
}

/** A schema as text; undefined if it is none. */
export function parseSchema(text: string): Schema | undefined {
  try {
    const parsed = JSON.parse(text);
    return typeof parsed === "object" && parsed !== null ? wellFormed(parsed) : undefined;
  } catch {
    return undefined;
  }
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isText = (value: unknown) => typeof value === "string";
const isNumber = (value: unknown) => typeof value === "number";
const isTexts = (value: unknown) => Array.isArray(value) && value.every(isText);
const CHECKS: Record<string, (value: unknown) => boolean> = {
  type: (value) => isText(value) || isTexts(value),
  title: isText,
  description: isText,
  required: isTexts,
  enum: Array.isArray,
  enumNames: isTexts,
  format: isText,
  $ref: isText,
  minimum: isNumber,
  maximum: isNumber,
};

/** The schema without members of a wrong type: schemas of questions and tools are written by others. */
export function wellFormed(schema: unknown, depth = 0): Schema {
  if (!isObject(schema) || depth > 32) return {};
  const clean: [string, unknown][] = [];
  for (const [name, value] of Object.entries(schema)) {
    if (name === "properties" || name === "$defs" || name === "definitions") {
      if (isObject(value)) {
        const members = Object.entries(value).map(([key, member]) => [key, wellFormed(member, depth + 1)]);
        clean.push([name, Object.fromEntries(members)]);
      }
    } else if (name === "items") {
      if (isObject(value)) clean.push([name, wellFormed(value, depth + 1)]);
    } else if (name === "anyOf" || name === "oneOf" || name === "allOf") {
      if (Array.isArray(value)) clean.push([name, value.map((one) => wellFormed(one, depth + 1))]);
    } else if (CHECKS[name]?.(value) ?? (name === "const" || name === "default")) clean.push([name, value]);
  }
  return Object.fromEntries(clean) as Schema;
}

const DEPTH_MAX = 6;
/** A required choice among at most this many values is shown as all of them. */
const RADIOS_MAX = 5;
const SIMPLE = new Set(["string", "number", "integer", "boolean"]);

/** The value of an item that was just added. */
function empty(items: Schema): Json {
  if (items.default !== undefined) return items.default as Json;
  const type = typeOf(items);
  if (type === "boolean") return false;
  if (type === "number" || type === "integer") return items.minimum ?? 0;
  return type === "string" ? "" : {};
}

/** Follows references within the document, and the one kind of a value that may also be null. */
export function resolve(root: Schema, schema: Schema, depth = 0): Schema {
  if (depth > DEPTH_MAX) return {};
  if (schema.$ref?.startsWith("#/")) {
    let at: unknown = root;
    for (const part of schema.$ref.slice(2).split("/")) {
      const name = decodeURIComponent(part).replace(/~1/g, "/").replace(/~0/g, "~");
      at =
        typeof at === "object" && at !== null && Object.hasOwn(at, name)
          ? (at as Record<string, unknown>)[name]
          : undefined;
    }
    const { $ref: _, ...rest } = schema;
    return typeof at === "object" && at !== null ? resolve(root, { ...(at as Schema), ...rest }, depth + 1) : {};
  }
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) {
    const others = choices.filter((choice) => choice.type !== "null");
    if (others.length === 1) {
      const { anyOf: _a, oneOf: _o, ...rest } = schema;
      return resolve(root, { ...(others[0] as Schema), ...rest }, depth + 1);
    }
    if (others.every((choice) => choice.const !== undefined)) {
      const { anyOf: _a, oneOf: _o, ...rest } = schema;
      return {
        ...rest,
        enum: others.map((choice) => choice.const),
        enumNames: others.map((choice) => choice.title ?? optionText(choice.const)),
      };
    }
  }
  if (schema.allOf?.length === 1) {
    const { allOf: _, ...rest } = schema;
    return resolve(root, { ...(schema.allOf[0] as Schema), ...rest }, depth + 1);
  }
  return schema;
}

function optionText(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** The value with which a form begins: the defaults of the schema. */
export function defaults(root: Schema, schema: Schema = root, depth = 0): Json | undefined {
  const resolved = resolve(root, schema);
  if (resolved.default !== undefined) return resolved.default as Json;
  if (!resolved.properties || depth > DEPTH_MAX) return undefined;
  const object: Record<string, Json> = {};
  for (const [name, property] of Object.entries(resolved.properties)) {
    const value = defaults(root, property, depth + 1);
    if (value !== undefined) object[name] = value;
  }
  return Object.keys(object).length > 0 || depth === 0 ? object : undefined;
}

/** The required fields that have no value, as paths such as `file.name`. */
export function missing(root: Schema, value: Json | undefined, schema: Schema = root, depth = 0): string[] {
  const resolved = resolve(root, schema);
  if (!resolved.properties || depth > DEPTH_MAX) return [];
  const object = typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
  const paths: string[] = [];
  for (const [name, property] of Object.entries(resolved.properties)) {
    const at = Object.hasOwn(object, name) ? object[name] : undefined;
    if (at === undefined) {
      if (resolved.required?.includes(name)) paths.push(name);
    } else paths.push(...missing(root, at, property, depth + 1).map((path) => `${name}.${path}`));
  }
  return paths;
}

function typeOf(schema: Schema): string | undefined {
  if (Array.isArray(schema.type)) {
    const types = schema.type.filter((type) => type !== "null");
    return types.length === 1 ? types[0] : undefined;
  }
  return schema.type ?? (schema.properties ? "object" : undefined);
}

interface FieldProps {
  root: Schema;
  schema: Schema;
  value: Json | undefined;
  onChange: (value: Json | undefined) => void;
  onValid?: ((isValid: boolean) => void) | undefined;
  label: string;
  required: boolean;
  depth: number;
}

function Field(props: FieldProps) {
  const id = useId();
  const schema = resolve(props.root, props.schema);
  const type = typeOf(schema);
  const { value, onChange } = props;
  const hintId = `${id}-hint`;
  const hint = schema.description ? (
    <p class="hint" id={hintId}>
      <Text>{schema.description}</Text>
    </p>
  ) : null;
  const described = hint ? { "aria-describedby": hintId } : {};
  const label = props.label && (
    <label for={id}>
      <Text>{props.label}</Text>
      {props.required ? <span class="required"> required</span> : null}
    </label>
  );
  if (schema.enum) {
    const texts = schema.enum.map((one, index) => plain(schema.enumNames?.[index] ?? optionText(one)));
    const at = schema.enum.findIndex((one) => JSON.stringify(one) === JSON.stringify(value));
    const choose = (index: number) => onChange(schema.enum?.[index] as Json | undefined);
    if (props.required && texts.length <= RADIOS_MAX) {
      return (
        <fieldset class="field choices" {...described}>
          <legend>
            <Text>{props.label || "Value"}</Text> <span class="required">required</span>
          </legend>
          {texts.map((text, index) => (
            <label key={text} class="option">
              <input type="radio" name={id} checked={index === at} onChange={() => choose(index)} />
              <span>{text}</span>
            </label>
          ))}
          {hint}
        </fieldset>
      );
    }
    return (
      <div class="field">
        {label}
        <select
          id={id}
          {...described}
          aria-label={props.label ? undefined : "Value"}
          value={String(at)}
          onChange={(event) => choose(Number(event.currentTarget.value))}
        >
          <option value="-1">–</option>
          {texts.map((text, index) => (
            <option key={text} value={String(index)}>
              {text}
            </option>
          ))}
        </select>
        {hint}
      </div>
    );
  }
  if (type === "array" && schema.items && props.depth < DEPTH_MAX) {
    const items = resolve(props.root, schema.items);
    const list = Array.isArray(value) ? value : [];
    if (items.enum) {
      return (
        <fieldset class="field choices" {...described}>
          <legend>
            <Text>{props.label || "Value"}</Text>
            {props.required ? <span class="required"> required</span> : null}
          </legend>
          {items.enum.map((one, index) => {
            const has = list.some((other) => JSON.stringify(other) === JSON.stringify(one));
            const others = list.filter((other) => JSON.stringify(other) !== JSON.stringify(one));
            return (
              <label key={JSON.stringify(one)} class="option">
                <input type="checkbox" checked={has} onChange={() => onChange(has ? others : [...list, one as Json])} />
                <span>{plain(items.enumNames?.[index] ?? optionText(one))}</span>
              </label>
            );
          })}
          {hint}
        </fieldset>
      );
    }
    if (SIMPLE.has(typeOf(items) ?? "") || items.properties) {
      return (
        <fieldset class="nested" {...described}>
          <legend>
            <Text>{props.label || "Items"}</Text>
            {props.required ? <span class="required"> required</span> : null}
          </legend>
          {hint}
          {list.map((one, index) => (
            <div key={`${list.length} ${index}`} class="item">
              <Field
                root={props.root}
                schema={schema.items as Schema}
                value={one}
                onChange={(to) => onChange(list.map((old, other) => (other === index ? (to ?? empty(items)) : old)))}
                onValid={props.onValid}
                label={String(index + 1)}
                required
                depth={props.depth + 1}
              />
              <button
                type="button"
                class="plain"
                aria-label={`Remove item ${index + 1}`}
                onClick={() => onChange(list.filter((_, other) => other !== index))}
              >
                Remove
              </button>
            </div>
          ))}
          <div>
            <button type="button" class="plain" onClick={() => onChange([...list, empty(items)])}>
              Add an item
            </button>
          </div>
        </fieldset>
      );
    }
  }
  if (type === "object" && schema.properties && props.depth < DEPTH_MAX) {
    const object = typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
    const set = (name: string, to: Json | undefined) => {
      const next = { ...object };
      if (to === undefined) delete next[name];
      else next[name] = to;
      onChange(next);
    };
    const names = Object.keys(schema.properties);
    const required = new Set(schema.required ?? []);
    names.sort((a, b) => Number(required.has(b)) - Number(required.has(a)));
    const fields = names.map((name) => (
      <Field
        key={name}
        root={props.root}
        schema={schema.properties?.[name] as Schema}
        value={object[name]}
        onChange={(to) => set(name, to)}
        onValid={props.onValid}
        label={name}
        required={required.has(name)}
        depth={props.depth + 1}
      />
    ));
    if (props.depth === 0) return <>{fields}</>;
    return (
      <fieldset class="nested">
        <legend>
          <Text>{props.label}</Text>
        </legend>
        {hint}
        {fields}
      </fieldset>
    );
  }
  if (type === "boolean") {
    return (
      <div class="field">
        {label}
        <select
          id={id}
          {...described}
          aria-label={props.label ? undefined : "Value"}
          value={value === undefined || value === null ? "" : String(value)}
          onChange={(event) =>
            onChange(event.currentTarget.value === "" ? undefined : event.currentTarget.value === "true")
          }
        >
          <option value="">–</option>
          <option value="true">true</option>
          <option value="false">false</option>
        </select>
        {hint}
      </div>
    );
  }
  if (type === "number" || type === "integer") {
    return (
      <div class="field">
        {label}
        <input
          id={id}
          {...described}
          type="number"
          step={type === "integer" ? 1 : "any"}
          min={schema.minimum}
          max={schema.maximum}
          aria-label={props.label ? undefined : "Value"}
          value={typeof value === "number" ? value : ""}
          onInput={(event) =>
            onChange(event.currentTarget.value === "" ? undefined : Number(event.currentTarget.value))
          }
        />
        {hint}
      </div>
    );
  }
  if (type === "string") {
    const text = typeof value === "string" ? value : "";
    return (
      <div class="field">
        {label}
        <textarea
          id={id}
          {...described}
          rows={Math.min(12, Math.max(1, text.split("\n").length))}
          spellcheck={false}
          aria-label={props.label ? undefined : "Value"}
          value={text}
          onInput={(event) => {
            const typed = event.currentTarget.value;
            onChange(typed === "" && !props.required ? undefined : typed);
          }}
        />
        {hint}
      </div>
    );
  }
  return (
    <div class="field">
      <JsonField label={props.label || "Value"} value={value} onChange={onChange} onValid={props.onValid} rows={3} />
      {hint}
    </div>
  );
}

interface JsonFieldProps {
  label: string;
  value: Json | undefined;
  onChange: (value: Json | undefined) => void;
  onValid?: ((isValid: boolean) => void) | undefined;
  rows: number;
}

function JsonField({ label, value, onChange, onValid, rows }: JsonFieldProps) {
  const id = useId();
  const [text, setText] = useState(value === undefined ? "" : JSON.stringify(value, null, 2));
  const [error, setError] = useState("");
  const type = (typed: string) => {
    setText(typed);
    try {
      onChange(typed.trim() === "" ? undefined : JSON.parse(typed));
      setError("");
      onValid?.(true);
    } catch (failure) {
      setError(failure instanceof Error ? failure.message : String(failure));
      onValid?.(false);
    }
  };
  return (
    <>
      <label for={id}>
        <Text>{label}</Text> <span class="muted">JSON</span>
      </label>
      <textarea
        id={id}
        class="code"
        rows={rows}
        spellcheck={false}
        value={text}
        aria-invalid={error !== ""}
        aria-describedby={error ? `${id}-error` : undefined}
        onInput={(event) => type(event.currentTarget.value)}
      />
      {error && (
        <p class="field-error" id={`${id}-error`}>
          {error}
        </p>
      )}
    </>
  );
}
