// The address of a page is in the fragment, `#/runs?state=failed`, so that the coordinator serves one document under any
// prefix. Filters are parameters of it: a view can be kept, shared and reloaded.

import { computed, signal } from "@preact/signals";

export interface Route {
  /** The parts of the path: `["runs", "run_09_…"]`. */
  parts: string[];
  query: URLSearchParams;
}

function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter((part) => part !== "");
  return { parts: parts.map(decode), query: new URLSearchParams(query) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const hash = signal(location.hash);
addEventListener("hashchange", () => {
  hash.value = location.hash;
});

export const route = computed(() => parse(hash.value));

/** The fragment of a page: `href("runs", id)`, `href("runs", { state: "failed" })`. */
export function href(...parts: (string | Record<string, string | undefined>)[]): string {
  const last = parts.at(-1);
  const query = new URLSearchParams();
  if (typeof last === "object") {
    parts = parts.slice(0, -1);
    for (const [name, value] of Object.entries(last)) if (value) query.set(name, value);
  }
  const text = query.toString();
  return `#/${parts.map((part) => encodeURIComponent(part as string)).join("/")}${text === "" ? "" : `?${text}`}`;
}

export function navigate(to: string): void {
  location.hash = to;
}

/** Sets parameters of the present address; an empty value removes one. It makes no entry in the history. */
export function setQuery(changes: Record<string, string | undefined>): void {
  const query = new URLSearchParams(route.value.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  const path = route.value.parts.map(encodeURIComponent).join("/");
  history.replaceState(null, "", `#/${path}${text === "" ? "" : `?${text}`}`);
  hash.value = location.hash;
}
