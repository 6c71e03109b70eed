// Shortcuts of single keys. They are off while a field or a dialog has the focus.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";

export interface Shortcut {
  /** The key, or two keys in a row: `g r`. */
  keys: string;
  label: string;
  run: () => void;
}

/** The shortcuts that work at present; the help lists them. */
export const shortcuts = signal<Shortcut[]>([]);

const SEQUENCE_MS = 1_000;
let pending = "";
let pendingAt = 0;

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const target = event.target as HTMLElement;
  if (target.closest?.("input, textarea, select, [contenteditable], dialog")) return;
  const now = Date.now();
  const typed = pending !== "" && now - pendingAt < SEQUENCE_MS ? `${pending} ${event.key}` : event.key;
  const found = shortcuts.value.findLast((one) => one.keys === typed);
  pending = "";
  if (found) {
    event.preventDefault();
    found.run();
  } else if (shortcuts.value.some((one) => one.keys.startsWith(`${event.key} `))) {
    pending = event.key;
    pendingAt = now;
  }
});

/** Adds shortcuts while the component is shown. */
export function useShortcuts(added: Shortcut[], deps: unknown[] = []): void {
  useEffect(() => {
    shortcuts.value = [...shortcuts.value, ...added];
    return () => {
      shortcuts.value = shortcuts.value.filter((one) => !added.includes(one));
    };
  }, deps);
}
