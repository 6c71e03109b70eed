import { expect, it, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null, setItem: () => undefined, removeItem: () => undefined });
vi.stubGlobal("location", { hash: "" });
vi.stubGlobal("addEventListener", () => undefined);
const { PagedList } = await import("../src/list/pages");

/** A list of the numbers below `count`, the largest first, in pages of `each`. A token is the next number. */
function numbers(source: { count: number }, each: number) {
  return async (token: string) => {
    const from = token === "" ? source.count - 1 : Number(token);
    const rows = Array.from({ length: Math.min(each, from + 1) }, (_, at) => from - at);
    return { rows, next: from - each >= 0 ? String(from - each) : "" };
  };
}

it("has each row once, although rows are added at its beginning while it is read", async () => {
  const source = { count: 1_000 };
  const list = new PagedList(numbers(source, 100), String);
  await list.refresh();
  await list.loadMore();
  source.count += 30;
  await list.refresh();
  source.count += 500;
  await list.refresh();
  await list.loadUntil((rows) => rows.length >= source.count, 50);
  const { rows, more } = list.state.value;
  expect(rows).toEqual(Array.from({ length: source.count }, (_, at) => source.count - 1 - at));
  expect(more).toBe(false);
});

it("reads 100,000 rows in little more than the time of their pages", async () => {
  const list = new PagedList(numbers({ count: 120_000 }, 200), String);
  await list.refresh();
  const start = performance.now();
  await list.loadUntil(() => false, 1_000);
  expect(list.state.value.rows.length).toBe(100_000);
  expect(list.state.value.more).toBe(false);
  expect(performance.now() - start).toBeLessThan(5_000);
});
