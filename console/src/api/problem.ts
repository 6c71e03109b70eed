import type { components } from "../../../sdk/typescript/src/openapi";

/** An error of the API: a problem (RFC 9457), or a failed connection. */
export class ApiError extends Error {
  constructor(
    /** The HTTP status; 0 if there was no answer. */
    readonly status: number,
    /** The reason, such as `RUN_NOT_FOUND`; `UNREACHABLE` if there was no answer. */
    readonly reason: string,
    detail: string,
    /** What to do about it; may be empty. */
    readonly remedy: string,
    /** When the same request may succeed, in seconds. */
    readonly retryAfter?: number,
  ) {
    super(detail);
    this.name = "ApiError";
  }

  /** Whether the same request may succeed later without a change. */
  get isTransient(): boolean {
    return (
      this.status === 0 || this.status === 429 || this.status === 502 || this.status === 503 || this.status === 504
    );
  }

  static unreachable(cause: unknown): ApiError {
    const detail = cause instanceof Error ? cause.message : String(cause);
    return new ApiError(0, "UNREACHABLE", `the coordinator did not answer: ${detail}`, "it is tried again");
  }

  static fromProblem(
    problem: Partial<components["schemas"]["Problem"]>,
    status: number,
    retryAfter?: number,
  ): ApiError {
    const detail = problem.detail ?? problem.title ?? `the coordinator answered with status ${status}`;
    return new ApiError(
      problem.status ?? status,
      problem.reason ?? `HTTP_${status}`,
      detail,
      problem.remedy ?? "",
      retryAfter,
    );
  }

  /** Reads the error of a response. */
  static async of(response: Response): Promise<ApiError> {
    const seconds = Number(response.headers.get("retry-after"));
    const retryAfter = Number.isFinite(seconds) && seconds > 0 ? seconds : undefined;
    const text = await response.text().catch(() => "");
    try {
      return ApiError.fromProblem(JSON.parse(text), response.status, retryAfter);
    } catch {
      const detail = `status ${response.status}, and the body is no problem document: a proxy may have answered`;
      return new ApiError(response.status, `HTTP_${response.status}`, detail, "", retryAfter);
    }
  }
}

/** Any thrown value as an error of the API. */
export function toApiError(error: unknown): ApiError {
  return error instanceof ApiError ? error : ApiError.unreachable(error);
}
