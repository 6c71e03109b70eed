// Which lines of a text are those of a unified diff.

export type DiffKind = "added" | "removed" | "hunk" | "file" | "same";

const HUNK = /^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@/m;

/** Whether a text is a unified diff. */
export function isDiff(text: string): boolean {
  return text.length < 2_000_000 && HUNK.test(text) && /^[+-]/m.test(text);
}

export function kindOf(line: string): DiffKind {
  if (/^(\+\+\+ |--- |diff |index )/.test(line)) return "file";
  if (line.startsWith("@@")) return "hunk";
  if (line.startsWith("+")) return "added";
  if (line.startsWith("-")) return "removed";
  return "same";
}
