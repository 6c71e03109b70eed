import { signal } from "@preact/signals";
import { ofTab } from "../storage";

const KEY = "toolyard.key";

/** The key that requests are sent with; empty if none. It is kept until the tab is closed. */
export const key = signal(ofTab.get(KEY) ?? "");

/** Why the page asks for a key; empty while it does not ask. */
export const keyNeeded = signal("");

/** Operations that were refused because a role is missing, with the detail of the refusal. */
export const denied = signal<ReadonlyMap<string, string>>(new Map());

export function signIn(newKey: string): void {
  ofTab.set(KEY, newKey);
  key.value = newKey;
  denied.value = new Map();
  keyNeeded.value = "";
}

export function signOut(why: string): void {
  ofTab.remove(KEY);
  key.value = "";
  denied.value = new Map();
  keyNeeded.value = why;
}

/** Remembers that the caller may not perform an operation, so that its buttons are disabled. */
export function deny(operation: string, detail: string): void {
  denied.value = new Map(denied.value).set(operation, detail);
}

/** The headers that identify the caller. */
export function authorization(): Record<string, string> {
  return key.value === "" ? {} : { authorization: `Bearer ${key.value}` };
}
