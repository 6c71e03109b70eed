// The filters of the lists of runs and calls. They live in the address.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { href, navigate, route, setQuery } from "../router";

const SINCE: [string, string, number][] = [
  ["15m", "last 15 minutes", 15 * 60_000],
  ["1h", "last hour", 3_600_000],
  ["6h", "last 6 hours", 6 * 3_600_000],
  ["24h", "last 24 hours", 86_400_000],
];

/** The bounds of the creation, from the address. `since` is taken once, because pages belong to one filter. */
export function createdOf(query: URLSearchParams, now: number): { created_from?: string; created_before?: string } {
  const since = SINCE.find(([value]) => value === query.get("since"))?.[2];
  const from = since !== undefined ? new Date(now - since).toISOString() : instant(query.get("from"));
  const before = instant(query.get("before"));
  return { ...(from ? { created_from: from } : {}), ...(before ? { created_before: before } : {}) };
}

function instant(text: string | null): string | undefined {
  const at = Date.parse(text ?? "");
  return Number.isNaN(at) ? undefined : new Date(at).toISOString();
}

/** A text filter that sets the address a moment after the last key. */
export function TextFilter({ name, label, width = "9rem" }: { name: string; label: string; width?: string }) {
  const value = route.value.query.get(name) ?? "";
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  useEffect(() => {
    if (typed === value) return;
    const timer = setTimeout(() => setQuery({ [name]: typed.trim() }), 250);
    return () => clearTimeout(timer);
  }, [typed]);
  return (
    <input
      type="search"
      class="filter-text"
      style={{ width }}
      aria-label={label}
      placeholder={label}
      value={typed}
      onInput={(event) => setTyped(event.currentTarget.value)}
    />
  );
}

export function SinceFilter() {
  const { query } = route.value;
  const isCustom = query.has("from") || query.has("before");
  const value = isCustom ? "custom" : (query.get("since") ?? "");
  const choose = (chosen: string) => {
    if (chosen === "custom") {
      const hourAgo = new Date(Date.now() - 3_600_000).toISOString().slice(0, 16);
      setQuery({ since: undefined, from: `${hourAgo}Z` });
    } else setQuery({ since: chosen, from: undefined, before: undefined });
  };
  return (
    <>
      <select aria-label="Created" value={value} onChange={(event) => choose(event.currentTarget.value)}>
        <option value="">any time</option>
        {SINCE.map(([name, label]) => (
          <option key={name} value={name}>
            {label}
          </option>
        ))}
        <option value="custom">from … to …</option>
      </select>
      {isCustom && (
        <>
          <Instant name="from" label="Created from" />
          <Instant name="before" label="Created before" />
        </>
      )}
    </>
  );
}

function Instant({ name, label }: { name: string; label: string }) {
  const at = Date.parse(route.value.query.get(name) ?? "");
  const local = Number.isNaN(at)
    ? ""
    : new Date(at - new Date(at).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
  return (
    <input
      type="datetime-local"
      aria-label={label}
      value={local}
      onChange={(event) => {
        const typed = Date.parse(event.currentTarget.value);
        setQuery({ [name]: Number.isNaN(typed) ? undefined : new Date(typed).toISOString() });
      }}
    />
  );
}

const RUN_ID = /^run_[0-9a-z]{2}_[0-9a-f]{32}$/;

/** A part of an id. A whole id of a run opens it. */
export function IdFilter() {
  const value = route.value.query.get("id") ?? "";
  useEffect(() => {
    if (RUN_ID.test(value)) navigate(href("runs", value));
  }, [value]);
  return <TextFilter name="id" label="Part of an id" width="13rem" />;
}

export function FilterBar({ children }: { children: ComponentChildren }) {
  const isFiltered = [...route.value.query.keys()].length > 0;
  return (
    <search class="filter-bar">
      {children}
      {isFiltered && (
        <a class="clear" href={href(...route.value.parts)}>
          Clear
        </a>
      )}
    </search>
  );
}
