// Schedules in words, and the specification from a form.

import type { Schemas } from "../api/client";
import { duration, parseDuration } from "../format";

export type Kind = "cron" | "every" | "once";

export interface Draft {
  name: string;
  kind: Kind;
  expression: string;
  timeZone: string;
  /** A number with a unit: `90s`, `10m`, `6h`, `1d`. */
  every: string;
  /** The local time of a field of the type `datetime-local`. */
  once: string;
  jitter: string;
  overlap: Schemas["OverlapPolicy"];
  missed: Schemas["MissedPolicy"];
  firingsMax: string;
  tenant: string;
  tool: string;
  /** The arguments: JSON as text. */
  args: string;
  confirmation: boolean;
}

export const EMPTY: Draft = {
  name: "",
  kind: "cron",
  expression: "",
  timeZone: "UTC",
  every: "",
  once: "",
  jitter: "",
  overlap: "OVERLAP_POLICY_SKIP",
  missed: "MISSED_POLICY_LATEST",
  firingsMax: "",
  tenant: "",
  tool: "",
  args: "{}",
  confirmation: true,
};

const UNITS: Record<string, number> = { s: 1, m: 60, h: 3_600, d: 86_400 };

/** Seconds of `10m`, `1h 30m`, `45`; undefined if it is no duration. */
export function seconds(text: string): number | undefined {
  const trimmed = text.trim();
  if (/^\d+(\.\d+)?$/.test(trimmed)) return Number(trimmed);
  if (!/^(\d+(\.\d+)?\s*[smhd]\s*)+$/.test(trimmed)) return undefined;
  let total = 0;
  for (const [, number, unit] of trimmed.matchAll(/(\d+(?:\.\d+)?)\s*([smhd])/g)) {
    total += Number(number) * (UNITS[unit ?? ""] ?? 0);
  }
  return total;
}

/** What is wrong with a draft; empty if nothing is. The coordinator checks everything again. */
export function problems(draft: Draft): string[] {
  const all: string[] = [];
  if (draft.kind === "cron" && draft.expression.trim() === "") all.push("a cron expression");
  if (draft.kind === "every" && seconds(draft.every) === undefined) all.push("an interval, such as 10m or 1h 30m");
  if (draft.kind === "once" && Number.isNaN(Date.parse(draft.once))) all.push("a time");
  if (draft.jitter.trim() !== "" && seconds(draft.jitter) === undefined) all.push("a jitter, such as 30s");
  if (draft.firingsMax.trim() !== "" && !/^[1-9]\d*$/.test(draft.firingsMax.trim())) all.push("a number of firings");
  if (draft.tool.trim() === "") all.push("a tool");
  return all;
}

export function toSpec(draft: Draft): Schemas["ScheduleSpec"] {
  const jitter = seconds(draft.jitter);
  return {
    ...(draft.name.trim() ? { name: draft.name.trim() } : {}),
    ...(draft.kind === "cron"
      ? { cron: { expression: draft.expression.trim(), time_zone: draft.timeZone.trim() } }
      : draft.kind === "every"
        ? { every: `${seconds(draft.every)}s` }
        : { once_at: new Date(draft.once).toISOString() }),
    ...(jitter ? { jitter: `${jitter}s` } : {}),
    ...(draft.firingsMax.trim() ? { firings_max: Number(draft.firingsMax) } : {}),
    overlap_policy: draft.overlap,
    missed_policy: draft.missed,
    run: {
      ...(draft.tenant.trim() ? { tenant: draft.tenant.trim() } : {}),
      calls: [{ tool: draft.tool.trim(), arguments: draft.args }],
      ...(draft.confirmation ? {} : { rules: { confirmation: "CONFIRMATION_NONE" } }),
    },
  } as Schemas["ScheduleSpec"];
}

type Timing = { cron?: Schemas["CronTiming"]; every?: string; once_at?: string };

/** When a schedule fires, in words. */
export function timing(spec: Schemas["ScheduleSpec"] | undefined): string {
  const { cron, every, once_at } = (spec ?? {}) as Timing;
  if (cron) return `${cron.expression ?? ""} ${cron.time_zone || "UTC"}`;
  if (once_at) return "once";
  const ms = parseDuration(every);
  if (ms === undefined) return "";
  const text = duration(ms)
    .replace(/\.0+(?= )/, "")
    .replace(/ 0[smh]$/, "");
  return `every ${text}`;
}

/** The tools that its run calls. */
export function toolsOf(spec: Schemas["ScheduleSpec"] | undefined): string {
  const names = (spec?.run?.calls ?? []).map((call) => call.tool ?? "");
  return [...new Set(names)].join(", ");
}

export function timeOf(spec: Schemas["ScheduleSpec"] | undefined): string | undefined {
  return (spec as Timing | undefined)?.once_at;
}
