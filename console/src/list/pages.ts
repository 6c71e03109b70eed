// A list that is fetched page by page as the reader scrolls, and whose beginning is kept up to date.

import { signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { connectionLost } from "../api/poll";
import { type ApiError, toApiError } from "../api/problem";
import { key } from "../api/session";
import { pause } from "../api/watch";
import { useCounts } from "../fleet/figures";

export const ROWS_MAX = 100_000;
export const PAGE_ROWS = 200;
/** How often it is looked whether anything has changed. */
const REFRESH_MS = 2_000;
/** How often the first page is read although nothing seems to have changed: counts do not show each change of a row. */
const UNCHANGED_MS = 10_000;
/** Pages that are fetched in a row without a scroll, because the filter of the page leaves too few of their rows. */
const PAGES_AT_ONCE = 50;

export interface PageOf<Row> {
  rows: Row[];
  next: string;
  /** The index does not cover all runs. */
  incomplete?: boolean;
  cutBefore?: string | undefined;
}

export interface Listed<Row> {
  rows: Row[];
  /** There are more rows behind these. */
  more: boolean;
  loading: boolean;
  error: ApiError | undefined;
  incomplete: boolean;
  cutBefore: string | undefined;
}

type Fetch<Row> = (token: string, signal: AbortSignal) => Promise<PageOf<Row>>;

export class PagedList<Row> {
  readonly state = signal<Listed<Row>>({
    rows: [],
    more: true,
    loading: true,
    error: undefined,
    incomplete: false,
    cutBefore: undefined,
  });
  private next = "";
  private busy: Promise<void> | undefined;
  /** The keys of `knownOf`, because those of 100,000 rows are not to be collected for each page. */
  private known = new Set<string>();
  private knownOf: readonly Row[] = [];
  private wake = new AbortController();
  private seen: string | undefined;
  private readonly stop = new AbortController();

  constructor(
    private readonly fetcher: Fetch<Row>,
    private readonly keyOf: (row: Row) => string,
  ) {}

  /** Fetches the first page again and again, until `end`. */
  async keep(): Promise<void> {
    const { signal } = this.stop;
    signal.addEventListener("abort", () => this.wake.abort());
    while (!signal.aborted) {
      if (document.visibilityState === "visible") await this.refresh();
      // The sum of all counts tells of most changes. Without it, the page is read as often as the sum would be.
      const wait = this.seen === undefined ? REFRESH_MS : UNCHANGED_MS;
      this.wake = new AbortController();
      await pause(connectionLost.value === "" ? wait : wait * 2, this.wake.signal);
    }
  }

  /** Fetches the first page soon if this is not what was seen before. `undefined`: it is not known. */
  changed(seen: string | undefined): void {
    if (seen !== undefined && this.seen !== undefined && seen !== this.seen) this.wake.abort();
    this.seen = seen;
  }

  end(): void {
    this.stop.abort();
  }

  /** Fetches the first page, and puts it in the place of the rows that it covers. */
  async refresh(): Promise<void> {
    try {
      const page = await this.fetcher("", this.stop.signal);
      if (this.stop.signal.aborted) return;
      connectionLost.value = "";
      const old = this.state.value.rows;
      const last = page.rows.at(-1);
      const at =
        last === undefined || page.next === "" ? -1 : old.findIndex((row) => this.keyOf(row) === this.keyOf(last));
      const rows = at < 0 ? page.rows : [...page.rows, ...old.slice(at + 1)];
      if (at < 0) this.next = page.next;
      this.set({
        rows,
        more: this.next !== "" && rows.length < ROWS_MAX,
        loading: false,
        error: undefined,
        ...covered(page),
      });
    } catch (error) {
      this.failed(error);
    }
  }

  /** Fetches the next page, unless one is being fetched. */
  loadMore(): Promise<void> {
    if (!this.busy && this.next !== "" && this.state.value.rows.length < ROWS_MAX) {
      this.busy = this.load().finally(() => {
        this.busy = undefined;
      });
    }
    return this.busy ?? Promise.resolve();
  }

  /** Fetches pages until `enough` says so, or there are no more. */
  async loadUntil(enough: (rows: readonly Row[]) => boolean, pagesMax = PAGES_AT_ONCE): Promise<void> {
    for (let page = 0; page < pagesMax && !enough(this.state.value.rows); page += 1) {
      if (this.next === "" || this.state.value.error || this.stop.signal.aborted) return;
      await this.loadMore();
    }
  }

  private async load(): Promise<void> {
    this.set({ loading: true });
    try {
      const page = await this.fetcher(this.next, this.stop.signal);
      if (this.stop.signal.aborted) return;
      this.next = page.next;
      const { rows: old } = this.state.value;
      // A refresh puts other rows in the place of the first ones.
      if (this.knownOf !== old) this.known = new Set(old.map(this.keyOf));
      const added = page.rows.filter((row) => !this.known.has(this.keyOf(row))).slice(0, ROWS_MAX - old.length);
      for (const row of added) this.known.add(this.keyOf(row));
      const rows = old.concat(added);
      this.knownOf = rows;
      this.set({ rows, more: this.next !== "" && rows.length < ROWS_MAX, loading: false, error: undefined });
    } catch (error) {
      this.failed(error);
    }
  }

  private failed(error: unknown): void {
    if (this.stop.signal.aborted) return;
    const problem = toApiError(error);
    if (problem.isTransient) connectionLost.value = problem.message;
    this.set({ loading: false, error: problem });
  }

  private set(changes: Partial<Listed<Row>>): void {
    this.state.value = { ...this.state.value, ...changes };
  }
}

function covered(page: PageOf<unknown>): { incomplete: boolean; cutBefore: string | undefined } {
  return { incomplete: page.incomplete ?? false, cutBefore: page.cutBefore };
}

/** A list for as long as the component is shown. If one of `deps` changes, it is read again. */
export function usePages<Row>(fetcher: Fetch<Row>, keyOf: (row: Row) => string, deps: unknown[]): PagedList<Row> {
  const list = useMemo(() => new PagedList(fetcher, keyOf), [...deps, key.value]);
  const counts = useCounts(REFRESH_MS).value;
  const seen = counts.error || !counts.data ? undefined : JSON.stringify(counts.data);
  useEffect(() => list.changed(seen), [list, seen]);
  useEffect(() => {
    list.keep();
    return () => list.end();
  }, [list]);
  return list;
}
