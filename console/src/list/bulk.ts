// Operations on many rows.

import { toApiError } from "../api/problem";
import { announce } from "../ui/toast";

const AT_ONCE = 8;

/** Performs an operation for each item, some at once, and announces how it went. Failures are counted, not retried. */
export async function each<T>(
  items: readonly T[],
  what: string,
  operation: (item: T) => Promise<unknown>,
): Promise<void> {
  let done = 0;
  const failures: string[] = [];
  let at = 0;
  const work = async () => {
    while (at < items.length) {
      const item = items[at] as T;
      at += 1;
      try {
        await operation(item);
        done += 1;
      } catch (error) {
        const problem = toApiError(error);
        failures.push(problem.message);
        // Without the role, or without a coordinator, no other one would succeed.
        if (problem.status === 401 || problem.status === 403 || problem.status === 0) at = items.length;
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(AT_ONCE, items.length) }, work));
  if (failures.length === 0) announce(`${what}: ${done}`, "good");
  else announce(`${what}: ${done}; refused: ${failures.length}, the first because ${failures[0]}`, "bad");
}

/** Rows as JSON lines. */
export function jsonLines(rows: readonly unknown[]): Blob {
  const parts: string[] = [];
  for (const row of rows) parts.push(JSON.stringify(row), "\n");
  return new Blob(parts, { type: "application/x-ndjson" });
}
