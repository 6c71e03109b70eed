// A table of up to 100,000 rows, of which only those in view are in the document.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { navigate } from "../router";
import { useShortcuts } from "../shortcuts";

export interface Column<Row> {
  key: string;
  title: string;
  /** As in `grid-template-columns`: `8rem`, `minmax(10rem, 2fr)`. */
  width: string;
  align?: "end";
  cell: (row: Row) => ComponentChildren;
}

interface TableProps<Row> {
  label: string;
  columns: Column<Row>[];
  rows: readonly Row[];
  keyOf: (row: Row) => string;
  /** The page of a row; Enter and a click open it. */
  hrefOf?: (row: Row) => string;
  /** The chosen rows, if rows can be chosen. */
  selected?: ReadonlySet<string>;
  onSelect?: (keys: Set<string>) => void;
  /** The end of the rows is near: fetch more. */
  onEnd?: () => void;
  /** Below the rows: what is missing. */
  footer?: ComponentChildren;
  empty?: ComponentChildren;
}

const ROW = 32;
const OVERSCAN = 8;
/** The width below which the columns are not squeezed: head and rows are separate grids, and must agree on it. */
export function leastWidth(columns: readonly { width: string }[], hasBoxes: boolean): string {
  const rems = columns.map((column) => Number(/([\d.]+)rem/.exec(column.width)?.[1] ?? 0));
  return `${rems.reduce((sum, rem) => sum + rem, hasBoxes ? 2 : 0)}rem`;
}

/** Rows from the end at which more are fetched. */
const NEAR_END = 60;

export function Table<Row>(props: TableProps<Row>) {
  const { columns, rows, keyOf, hrefOf, selected, onSelect, onEnd } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [active, setActive] = useState(-1);
  const measure = () => {
    const at = scroller.current;
    if (!at) return;
    const top = Math.floor(at.scrollTop / ROW);
    setView((old) => (old.top === top && old.height === at.clientHeight ? old : { top, height: at.clientHeight }));
  };
  useLayoutEffect(() => {
    measure();
    const observer = new ResizeObserver(measure);
    if (scroller.current) observer.observe(scroller.current);
    return () => observer.disconnect();
  }, []);
  const first = Math.max(0, view.top - OVERSCAN);
  const last = Math.min(rows.length, view.top + Math.ceil(view.height / ROW) + OVERSCAN);
  useEffect(() => {
    if (onEnd && last >= rows.length - NEAR_END) onEnd();
  }, [last, rows.length, onEnd]);

  const move = (to: number) => {
    const row = Math.max(0, Math.min(rows.length - 1, to));
    setActive(row);
    const at = scroller.current;
    if (!at) return;
    const head = ROW;
    if (row * ROW < at.scrollTop) at.scrollTop = row * ROW;
    else if ((row + 1) * ROW + head > at.scrollTop + at.clientHeight)
      at.scrollTop = (row + 1) * ROW + head - at.clientHeight;
  };
  const open = () => {
    const row = rows[active];
    if (row && hrefOf) navigate(hrefOf(row));
  };
  const toggle = (key: string) => {
    if (!selected || !onSelect) return;
    const next = new Set(selected);
    if (!next.delete(key)) next.add(key);
    onSelect(next);
  };
  useShortcuts(
    [
      { keys: "j", label: "Next row", run: () => move(active + 1) },
      { keys: "k", label: "Previous row", run: () => move(active - 1) },
      { keys: "o", label: "Open the row", run: open },
      ...(onSelect
        ? [{ keys: "x", label: "Choose the row", run: () => rows[active] && toggle(keyOf(rows[active] as Row)) }]
        : []),
    ],
    [active, rows, selected],
  );
  const onKeyDown = (event: KeyboardEvent) => {
    const page = Math.max(1, Math.floor(view.height / ROW) - 2);
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    if (event.target !== scroller.current) return;
    const step = steps[event.key];
    if (step !== undefined) move(active + step);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(rows.length - 1);
    else if (event.key === "Enter") open();
    else return;
    event.preventDefault();
  };

  const template = `${onSelect ? "2rem " : ""}${columns.map((column) => column.width).join(" ")}`;
  const minWidth = leastWidth(columns, onSelect !== undefined);
  const isAll = rows.length > 0 && selected !== undefined && rows.every((row) => selected.has(keyOf(row)));
  return (
    <div class="table-box">
      <div
        class="table-scroll"
        ref={scroller}
        onScroll={measure}
        tabIndex={0}
        onKeyDown={onKeyDown}
        role="table"
        aria-label={props.label}
        aria-rowcount={rows.length + 1}
      >
        <div role="rowgroup" class="table-head" style={{ minWidth }}>
          <div class="tr" role="row" aria-rowindex={1} style={{ gridTemplateColumns: template }}>
            {onSelect && (
              <span role="columnheader" class="th">
                <input
                  type="checkbox"
                  aria-label="Choose all rows that are loaded"
                  checked={isAll}
                  onChange={() => onSelect(isAll ? new Set() : new Set(rows.map(keyOf)))}
                />
              </span>
            )}
            {columns.map((column) => (
              <span key={column.key} role="columnheader" class={`th ${column.align ?? ""}`}>
                {column.title}
              </span>
            ))}
          </div>
        </div>
        <div role="rowgroup" class="table-body" style={{ height: `${rows.length * ROW}px`, minWidth }}>
          {rows.slice(first, last).map((row, offset) => {
            const at = first + offset;
            const key = keyOf(row);
            return (
              <div
                key={key}
                role="row"
                class={`tr ${at === active ? "active" : ""} ${selected?.has(key) ? "selected" : ""} ${hrefOf ? "opens" : ""}`}
                aria-rowindex={at + 2}
                style={{ gridTemplateColumns: template, transform: `translateY(${at * ROW}px)` }}
                onClick={(event) => {
                  if ((event.target as HTMLElement).closest("a, button, input, label")) return;
                  if (getSelection()?.toString()) return;
                  setActive(at);
                  if (hrefOf) navigate(hrefOf(row));
                }}
              >
                {onSelect && (
                  <span role="cell" class="td">
                    <input
                      type="checkbox"
                      aria-label={`Choose ${key}`}
                      checked={selected?.has(key) ?? false}
                      onChange={() => toggle(key)}
                    />
                  </span>
                )}
                {columns.map((column) => (
                  <span key={column.key} role="cell" class={`td ${column.align ?? ""}`}>
                    {column.cell(row)}
                  </span>
                ))}
              </div>
            );
          })}
        </div>
        {rows.length === 0 && props.empty && <div class="table-empty">{props.empty}</div>}
      </div>
      {props.footer && <div class="table-foot">{props.footer}</div>}
    </div>
  );
}
