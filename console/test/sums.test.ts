import { expect, it } from "vitest";
import { Sums } from "../src/ui/virtual-list";
import { random } from "./random";

it("finds the item at an offset as a walk over all heights does", () => {
  const next = random(7);
  const sums = new Sums();
  const heights: number[] = [];
  for (let at = 0; at < 3_000; at += 1) {
    const height = 1 + Math.floor(next() * 50);
    heights.push(height);
    sums.push(height);
    if (at % 7 === 0) {
      const changed = Math.floor(next() * heights.length);
      sums.add(changed, 5);
      heights[changed] = (heights[changed] as number) + 5;
    }
  }
  const total = heights.reduce((sum, height) => sum + height, 0);
  expect(sums.before(heights.length)).toBe(total);
  for (let round = 0; round < 500; round += 1) {
    const offset = Math.floor(next() * total);
    let sum = 0;
    const expected = heights.findIndex((height) => {
      sum += height;
      return sum > offset;
    });
    expect(sums.at(offset)).toBe(expected);
  }
});
