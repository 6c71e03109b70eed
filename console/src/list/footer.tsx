import { count } from "../format";
import { Time } from "../ui/basics";
import type { Listed } from "./pages";
import { ROWS_MAX } from "./pages";

interface Props {
  listed: Listed<unknown>;
  /** Rows that the filters of the page leave. */
  shown: number;
  /** Filters that are applied to fetched rows, because the index does not have them. */
  local: boolean;
}

/** How many rows there are, and what is missing. */
export function ListFooter({ listed, shown, local }: Props) {
  const { rows, more, loading } = listed;
  return (
    <>
      <span class="number">
        {count(shown)}
        {local && ` of ${count(rows.length)} read`}
        {more ? "+" : ""} {loading && rows.length > 0 ? "· reading" : ""}
        {rows.length >= ROWS_MAX && " · no more are read; narrow the filters"}
      </span>
      <span>
        {listed.incomplete && "The index does not have all runs at present. "}
        {listed.cutBefore && (
          <>
            Ended runs from before <Time at={listed.cutBefore} /> are not in the index.
          </>
        )}
      </span>
    </>
  );
}
