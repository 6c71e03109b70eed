// What the lists of workers, tools and pauses add up to for each pool.

import type { Schemas } from "../api/client";

export interface PoolRow {
  pool: string;
  workers: number;
  /** Workers that take calls. */
  pulling: number;
  draining: number;
  /** Slots of the workers that do not drain; undefined if the workers could not be read. */
  slots: number | undefined;
  /** It is paused; `pause` says why, if it could be read. */
  paused: boolean;
  /** How many workers have each release, the most common first; an empty name if it is unknown. */
  releases: [string, number][];
  tools: number;
  pause: Schemas["Pause"] | undefined;
}

/**
 * All pools that have a worker, a tool or a pause, by their names. Without a list of workers, which is for admins, the
 * pools of the tools tell how many there are at least.
 */
export function poolsOf(
  workers: readonly Schemas["Worker"][] | undefined,
  tools: readonly Schemas["Tool"][],
  pauses: readonly Schemas["Pause"][],
): PoolRow[] {
  const rows = new Map<string, PoolRow>();
  const row = (pool: string) => {
    let found = rows.get(pool);
    if (!found) {
      found = {
        pool,
        workers: 0,
        pulling: 0,
        draining: 0,
        slots: workers ? 0 : undefined,
        releases: [],
        tools: 0,
        paused: false,
        pause: undefined,
      };
      rows.set(pool, found);
    }
    return found;
  };
  const releases = new Map<string, string[]>();
  for (const worker of workers ?? []) {
    const pool = worker.pool ?? "";
    const at = row(pool);
    at.workers += 1;
    if (worker.pulling) at.pulling += 1;
    if (worker.draining) at.draining += 1;
    else at.slots = (at.slots ?? 0) + (worker.slots ?? 0);
    releases.set(pool, [...(releases.get(pool) ?? []), worker.release ?? ""]);
  }
  for (const tool of tools) {
    for (const hosted of tool.pools ?? []) {
      const at = row(hosted.pool ?? "");
      if (!tool.alias_of) at.tools += 1;
      if (hosted.paused) at.paused = true;
      if (workers) continue;
      at.workers = Math.max(at.workers, hosted.live_workers ?? 0);
      at.pulling = Math.max(at.pulling, hosted.pulling_workers ?? 0);
    }
  }
  for (const pause of pauses) if (pause.pool) Object.assign(row(pause.pool), { pause, paused: true });
  for (const [pool, names] of releases) row(pool).releases = countEach(names);
  return [...rows.values()].sort((a, b) => (a.pool < b.pool ? -1 : 1));
}

/** How often each value occurs, the most frequent first. */
export function countEach(values: readonly string[]): [string, number][] {
  const counts = new Map<string, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort(([a, many], [b, more]) => more - many || (a < b ? -1 : 1));
}

export interface Load {
  waiting: number;
  running: number;
  withoutWorker: number;
}

/** Calls of each pool, from the overview of a coordinator; undefined if there is none. */
export function loadsOf(overview: Schemas["GetOverviewResponse"] | undefined): Map<string, Load> | undefined {
  if (!overview) return undefined;
  const loads = new Map<string, Load>();
  for (const tool of overview.tools ?? []) {
    const pool = tool.pool ?? "";
    const load = loads.get(pool) ?? { waiting: 0, running: 0, withoutWorker: 0 };
    load.waiting += tool.waiting ?? 0;
    load.running += tool.running ?? 0;
    load.withoutWorker += tool.without_worker ?? 0;
    loads.set(pool, load);
  }
  return loads;
}
