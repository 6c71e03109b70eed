// JSON as a tree that opens level by level. Long lists and long texts are shown in parts.

import { useState } from "preact/hooks";
import { cut } from "../text/escape";
import { Text } from "./basics";

const CHILDREN_SHOWN = 100;
const TEXT_SHOWN = 2_000;

/** A JSON text. A text that is no JSON is shown as it is. Numbers keep all their digits. */
export function JsonTree({ json, open = 2, label }: { json: string; open?: number; label?: string }) {
  const parsed = parseJson(json);
  if (parsed === undefined)
    return (
      <pre class="json">
        <LongText text={json} />
      </pre>
    );
  return (
    <div class="json" role="group" aria-label={label ?? "JSON"}>
      <Node value={parsed} open={open} />
    </div>
  );
}

/** A number as its digits, because JavaScript's numbers have 15 of them. */
class Digits {
  constructor(readonly text: string) {}
}

function parseJson(json: string): unknown {
  try {
    // Newer engines give the source of a number; in older ones numbers lose digits beyond the 15th.
    const keep = (_: string, value: unknown, context?: { source?: string }) =>
      typeof value === "number" && context?.source && !Number.isSafeInteger(value) ? new Digits(context.source) : value;
    return JSON.parse(json, keep as (key: string, value: unknown) => unknown);
  } catch {
    return undefined;
  }
}

function Node({ name, value, open }: { name?: string; value: unknown; open: number }) {
  const [isOpen, setOpen] = useState(open > 0);
  const [shown, setShown] = useState(CHILDREN_SHOWN);
  const label =
    name === undefined ? null : (
      <>
        <span class="json-key">
          <Text>{name}</Text>
        </span>
        <span class="json-mark">: </span>
      </>
    );
  if (typeof value !== "object" || value === null || value instanceof Digits) {
    return (
      <div class="json-line">
        {label}
        <Leaf value={value} />
      </div>
    );
  }
  const isList = Array.isArray(value);
  const entries: [string, unknown][] = isList ? value.map((one, at) => [String(at), one]) : Object.entries(value);
  const [before, after] = isList ? ["[", "]"] : ["{", "}"];
  if (entries.length === 0) {
    return (
      <div class="json-line">
        {label}
        <span class="json-mark">
          {before}
          {after}
        </span>
      </div>
    );
  }
  return (
    <div class="json-node">
      <button type="button" class="json-toggle" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        {label}
        <span class="json-mark">
          {before}
          {!isOpen && ` ${entries.length} ${isList ? "items" : "members"} ${after}`}
        </span>
      </button>
      {isOpen && (
        <div class="json-children">
          {entries.slice(0, shown).map(([key, child]) => (
            <Node key={key} name={key} value={child} open={open - 1} />
          ))}
          {entries.length > shown && (
            <button type="button" class="link" onClick={() => setShown(shown * 10)}>
              {entries.length - shown} more
            </button>
          )}
        </div>
      )}
      {isOpen && <div class="json-mark">{after}</div>}
    </div>
  );
}

function Leaf({ value }: { value: unknown }) {
  if (typeof value === "string") {
    return (
      <span class="json-text">
        "<LongText text={value} />"
      </span>
    );
  }
  return <span class="json-value">{value instanceof Digits ? value.text : String(value)}</span>;
}

/** A text of which the beginning is shown until more is wanted. */
export function LongText({ text, first = TEXT_SHOWN }: { text: string; first?: number }) {
  const [shown, setShown] = useState(first);
  return (
    <>
      <Text>{cut(text, shown)}</Text>
      {text.length > shown && (
        <button type="button" class="link" onClick={() => setShown(shown * 10)}>
          … {(text.length - shown).toLocaleString("en")} more characters
        </button>
      )}
    </>
  );
}
