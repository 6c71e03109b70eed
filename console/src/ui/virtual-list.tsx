// A list of many items of different heights, of which only those in view are in the document. It stays at its end while
// items are added, until the reader scrolls up.

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** An item. `height` is kept on it, so that it outlives its index. */
export interface Sized {
  height: number;
}

interface Props<Item extends Sized> {
  items: readonly Item[];
  /** Changes whenever items do. */
  version: number;
  keyOf: (item: Item) => number;
  render: (item: Item) => ComponentChildren;
  label: string;
}

/** Sums of heights: adding one and finding the item at an offset take logarithmic time. */
export class Sums {
  private tree: Float64Array = new Float64Array(1024);
  private size = 0;

  get length(): number {
    return this.size;
  }

  push(height: number): void {
    this.size += 1;
    if (this.size >= this.tree.length) {
      const larger = new Float64Array(this.tree.length * 2);
      larger.set(this.tree);
      this.tree = larger;
    }
    // The node covers the items from here back to the lowest set bit.
    let sum = height;
    for (let step = 1; step < (this.size & -this.size); step *= 2) sum += this.tree[this.size - step] as number;
    this.tree[this.size] = sum;
  }

  add(index: number, change: number): void {
    for (let at = index + 1; at <= this.size; at += at & -at) this.tree[at] = (this.tree[at] as number) + change;
  }

  /** The heights of the first `count` items. */
  before(count: number): number {
    let sum = 0;
    for (let at = count; at > 0; at -= at & -at) sum += this.tree[at] as number;
    return sum;
  }

  /** The index of the item at an offset. */
  at(offset: number): number {
    let index = 0;
    let left = offset;
    for (let step = 2 ** Math.floor(Math.log2(Math.max(1, this.size))); step > 0; step = Math.floor(step / 2)) {
      const next = index + step;
      if (next <= this.size && (this.tree[next] as number) <= left) {
        index = next;
        left -= this.tree[next] as number;
      }
    }
    return Math.min(index, Math.max(0, this.size - 1));
  }

  clear(): void {
    this.size = 0;
  }
}

const OVERSCAN_PX = 300;
const NEAR_END_PX = 24;
const MEASURES_MAX = 20;

export function VirtualList<Item extends Sized>(props: Props<Item>) {
  const { items, keyOf } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const sums = useRef(new Sums()).current;
  const first = useRef<Item | undefined>(undefined);
  const follows = useRef(true);
  const lastTop = useRef(0);
  const viewHeight = useRef(600);
  const scrolledByList = useRef(false);
  const measures = useRef(0);
  const [isAway, setAway] = useState(false);
  const [, setTick] = useState(0);

  // Items are added at the end. If they were dropped at the beginning, the sums are calculated again.
  if (first.current !== items[0] || sums.length > items.length) {
    sums.clear();
    first.current = items[0];
  }
  while (sums.length < items.length) sums.push((items[sums.length] as Item).height);

  // Reading them from the document here would lay it out once more.
  const top = lastTop.current;
  const height = viewHeight.current;
  const total = sums.before(items.length);
  const at = follows.current ? Math.max(0, total - height) : top;
  const from = items.length === 0 ? 0 : sums.at(Math.max(0, at - OVERSCAN_PX));
  const to = items.length === 0 ? 0 : Math.min(items.length, sums.at(at + height + OVERSCAN_PX) + 1);

  useLayoutEffect(() => {
    const box = inner.current;
    const view = scroller.current;
    if (!box || !view) return;
    let shift = 0;
    let changed = false;
    for (let offset = 0; offset < box.children.length; offset += 1) {
      const item = items[from + offset];
      const measured = (box.children[offset] as HTMLElement).offsetHeight;
      if (!item || measured === 0 || measured === item.height) continue;
      const change = measured - item.height;
      if (sums.before(from + offset) + item.height <= top) shift += change;
      sums.add(from + offset, change);
      item.height = measured;
      changed = true;
    }
    const before = lastTop.current;
    if (follows.current) view.scrollTop = view.scrollHeight;
    else if (shift !== 0) view.scrollTop += shift;
    lastTop.current = view.scrollTop;
    if (lastTop.current !== before) scrolledByList.current = true;
    // Heights that never settle must not render for ever.
    measures.current = changed ? measures.current + 1 : 0;
    if (changed && measures.current < MEASURES_MAX) setTick((tick) => tick + 1);
  });
  useLayoutEffect(() => {
    const observer = new ResizeObserver((entries) => {
      viewHeight.current = entries[0]?.contentRect.height ?? viewHeight.current;
      setTick((tick) => tick + 1);
    });
    if (scroller.current) observer.observe(scroller.current);
    return () => observer.disconnect();
  }, []);

  const onScroll = () => {
    const view = scroller.current;
    if (!view) return;
    if (scrolledByList.current) {
      scrolledByList.current = false;
      setAway(!follows.current);
      return;
    }
    const left = view.scrollHeight - view.scrollTop - view.clientHeight;
    const followed = follows.current;
    if (left <= NEAR_END_PX) follows.current = true;
    else if (view.scrollTop < lastTop.current) follows.current = false;
    lastTop.current = view.scrollTop;
    if (followed && follows.current) return;
    setAway(!follows.current);
    setTick((tick) => tick + 1);
  };
  // Scrolling up by hand counts even in a frame in which the list itself scrolled to its end.
  const leaveEnd = () => {
    const view = scroller.current;
    if (!follows.current || !view || view.scrollHeight <= view.clientHeight) return;
    follows.current = false;
    setAway(true);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.target === scroller.current && ["ArrowUp", "PageUp", "Home"].includes(event.key)) leaveEnd();
  };
  const toEnd = () => {
    follows.current = true;
    setAway(false);
    setTick((tick) => tick + 1);
  };
  return (
    <div class="virtual">
      <div
        class="virtual-scroll"
        ref={scroller}
        onScroll={onScroll}
        onWheel={(event) => event.deltaY < 0 && leaveEnd()}
        onTouchMove={leaveEnd}
        onKeyDown={onKeyDown}
        tabIndex={0}
        role="region"
        aria-label={props.label}
      >
        <div class="virtual-space" style={{ height: `${total}px` }}>
          <div ref={inner} class="virtual-window" style={{ transform: `translateY(${sums.before(from)}px)` }}>
            {items.slice(from, to).map((item) => (
              <div key={keyOf(item)}>{props.render(item)}</div>
            ))}
          </div>
        </div>
      </div>
      {isAway && (
        <button type="button" class="virtual-end" onClick={toEnd}>
          ↓ To the end
        </button>
      )}
    </div>
  );
}
