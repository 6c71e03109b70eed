import type { Schemas } from "../api/client";
import { cut, plain } from "../text/escape";

type Call = Schemas["ListedCall"];

/** Runs and calls together; ids of runs have no spaces. */
export function rowKey(row: Call): string {
  return `${row.run_id} ${row.call?.call_id}`;
}

/** The row some steps behind another; undefined beyond the ends, and if the other is not there. */
export function neighbour(rows: readonly Call[], of: string | undefined, step: number): Call | undefined {
  const at = rows.findIndex((row) => rowKey(row) === of);
  return at < 0 ? undefined : rows[at + step];
}

const PREVIEW = 200;

/** Arguments in one line, for a title. */
export function preview(args: string): string {
  return plain(cut(args.replace(/\s+/g, " "), PREVIEW));
}
