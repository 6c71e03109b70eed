/** Refused requests, and which of them may be sent again. */

import type { components } from "../openapi.js";

/** Why a request was refused (RFC 9457). */
export type Problem = components["schemas"]["Problem"];

/** The statuses after which the same request may succeed: busy, overloaded, or not confirmed. */
const PASSING = new Set([408, 425, 429, 500, 502, 503, 504]);

/** A request that was refused. `reason` is for programs, and stable. */
export class ToolyardError extends Error {
  override readonly name = "ToolyardError";
  /** The HTTP status. */
  readonly status: number;
  /** A reason of `docs/reference/reasons.md`, or `undefined` if the answer is not Toolyard's. */
  readonly reason: string | undefined;
  readonly problem: Problem;
  /** Milliseconds after which the same request may succeed, if the server says so. */
  readonly retryAfterMs: number | undefined;

  constructor(problem: Problem, status: number, retryAfterMs?: number) {
    const remedy = problem.remedy ? ` (${problem.remedy})` : "";
    super(`${problem.detail ?? problem.title ?? `status ${status}`}${remedy}`);
    this.status = problem.status ?? status;
    this.reason = problem.reason;
    this.problem = problem;
    this.retryAfterMs = retryAfterMs;
  }

  /** Whether the same request may succeed later. */
  get isPassing(): boolean {
    return PASSING.has(this.status);
  }
}

/** The error of an answer that is not OK. */
export async function refusal(response: Response): Promise<ToolyardError> {
  const text = await response.text().catch(() => "");
  const seconds = Number(response.headers.get("retry-after") ?? Number.NaN);
  return new ToolyardError(read(text, response), response.status, seconds >= 0 ? seconds * 1000 : undefined);
}

/** As {@link refusal}, for a problem whose body was read. */
export function refused(problem: unknown, response: Response): ToolyardError {
  const seconds = Number(response.headers.get("retry-after") ?? Number.NaN);
  const known = typeof problem === "object" && problem !== null ? (problem as Problem) : { detail: String(problem) };
  return new ToolyardError(known, response.status, seconds >= 0 ? seconds * 1000 : undefined);
}

function read(text: string, response: Response): Problem {
  try {
    const problem: unknown = JSON.parse(text);
    if (typeof problem === "object" && problem !== null) {
      return problem as Problem;
    }
  } catch {
    // The answer of something between us and Toolyard.
  }
  return {
    title: response.statusText || `status ${response.status}`,
    detail: text.slice(0, 500) || response.statusText,
  };
}
