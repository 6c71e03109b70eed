// Numbers and times for people.

/** The milliseconds of a duration of the API, such as `"1.5s"`. */
export function parseDuration(text: string | undefined): number | undefined {
  const seconds = Number.parseFloat(text ?? "");
  return Number.isNaN(seconds) ? undefined : seconds * 1000;
}

export function duration(ms: number): string {
  const abs = Math.abs(ms);
  if (abs < 1) return "0 ms";
  if (abs < 1_000) return `${Math.round(ms)} ms`;
  if (abs < 10_000) return `${(ms / 1_000).toFixed(2)} s`;
  if (abs < 60_000) return `${(ms / 1_000).toFixed(1)} s`;
  const seconds = Math.round(abs / 1_000);
  const sign = ms < 0 ? "-" : "";
  if (seconds < 3_600) return `${sign}${Math.floor(seconds / 60)}m ${seconds % 60}s`;
  if (seconds < 86_400) return `${sign}${Math.floor(seconds / 3_600)}h ${Math.floor((seconds % 3_600) / 60)}m`;
  return `${sign}${Math.floor(seconds / 86_400)}d ${Math.floor((seconds % 86_400) / 3_600)}h`;
}

export function bytes(count: number): string {
  if (count < 1_024) return `${count} B`;
  if (count < 1_048_576) return `${(count / 1_024).toFixed(1)} KiB`;
  if (count < 1_073_741_824) return `${(count / 1_048_576).toFixed(1)} MiB`;
  return `${(count / 1_073_741_824).toFixed(2)} GiB`;
}

const COUNT = new Intl.NumberFormat("en");

export function count(number: number): string {
  return COUNT.format(number);
}

export function rate(perSecond: number): string {
  if (perSecond === 0) return "0";
  if (perSecond < 10) return perSecond.toFixed(perSecond < 1 ? 2 : 1);
  return COUNT.format(Math.round(perSecond));
}

const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** The time of day, with the date if it is not today. */
export function time(at: Date, now = new Date()): string {
  const isToday = at.toDateString() === now.toDateString();
  return isToday ? TIME.format(at) : `${DAY.format(at)} ${TIME.format(at)}`;
}

/** `RUN_STATUS_IN_PROGRESS` as `in progress`. */
export function constant(name: string | undefined, prefix: string): string {
  return (name ?? "").replace(prefix, "").replace(/_/g, " ").toLowerCase();
}

/** The end of an id, which tells ids apart: their beginnings are times. */
export function shortId(id: string): string {
  return id.length > 16 ? `…${id.slice(-8)}` : id;
}

/** JSON with line breaks; the text itself if it is no JSON. */
export function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}
