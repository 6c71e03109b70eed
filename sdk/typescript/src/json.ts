/** JSON for the native part, whose parser refuses half of a surrogate pair. */

/** As `JSON.stringify`. Halves of surrogate pairs, as `"😀".slice(0, 1)` leaves them, become `U+FFFD`. */
export function encoded(value: unknown): string | undefined {
  const text = JSON.stringify(value) as string | undefined;
  // Whole pairs are not escaped. The other escapes are matched so that `\\ud83d`, which is text, is passed over.
  return text?.includes("\\ud") ? text.replace(/\\(?:ud[0-9a-f]{3}|.)/g, repaired) : text;
}

function repaired(matched: string): string {
  return matched.startsWith("\\ud") ? "\uFFFD" : matched;
}
