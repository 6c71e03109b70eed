/**
 * A client of Toolyard for Node, edge runtimes and browsers: `fetch` and nothing else. It gives a model's tool calls to
 * Toolyard and gives back what the model's vendor wants next.
 */

import createClient, { type Client } from "openapi-fetch";
import type { ApiContent, Ended } from "./client/events.js";
import { refusal, refused, ToolyardError } from "./client/problem.js";
import { CallsWait, type ResumeOptions, Turn, type TurnOptions } from "./client/turn.js";
import type { components, paths } from "./openapi.js";

export type { AiPart, AiToolMessage, AiToolResult } from "./client/ai-sdk.js";
export {
  type ApiContent,
  type At,
  type CallError,
  Ended,
  NeedsAnswer,
  NeedsApproval,
  Opened,
  Other,
  Output,
  OutputWithdrawn,
  Progress,
  type RunEvent,
  type TurnEvent,
} from "./client/events.js";
export { type Problem, ToolyardError } from "./client/problem.js";
export {
  CallsWait,
  type ResumeOptions,
  Turn,
  type TurnFormat,
  type TurnOptions,
  type TurnResult,
} from "./client/turn.js";
export type { components, paths } from "./openapi.js";

type Schemas = components["schemas"];

/** The forms of definitions of tools. */
export type ToolsFormat = "openai" | "openai-chat" | "openai-upper" | "anthropic" | "gemini" | "mcp";

/** Which tools are listed: all that the caller may call, unless something is set. */
export interface ToolFilters {
  /** The name, or a pattern: `*` matches any characters, `{a,b}` either of both. */
  name?: string;
  category?: string;
  /** Tools that have all of these tags. */
  tags?: string[];
  /** Tools that this pool hosts. */
  pool?: string;
}

export interface ClientOptions {
  /** The address of a coordinator; `TOOLYARD_URL` of the environment, or `http://127.0.0.1:7420`, unless set. */
  url?: string;
  /** An API key, a JWT, or the token for one answer; `TOOLYARD_KEY` of the environment unless set. */
  key?: string;
  /** Another `fetch`. */
  fetch?: typeof fetch;
}

/** The definitions of tools, in the form of a vendor. */
export interface ToolDefinitions<T> {
  tools: T[];
  /** Names that were changed for the vendor, and the tools' own. */
  names: Record<string, string>;
  /** What is known of each tool beside its definition. */
  notes: Record<string, { needs_approval?: boolean; answered_by_client?: boolean; read_only?: boolean }>;
}

/** A coordinator, as one caller sees it. */
export class Toolyard {
  /** Every method of the API by its path, typed by the OpenAPI document. Refusals are in `error` of its answers. */
  readonly api: Client<paths>;
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions = {}) {
    // Browsers and some edge runtimes have no process.
    const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
    const environment = process?.env ?? {};
    this.#url = (options.url ?? environment.TOOLYARD_URL ?? "http://127.0.0.1:7420").replace(/\/+$/, "");
    const key = options.key ?? environment.TOOLYARD_KEY;
    this.#headers = key ? { authorization: `Bearer ${key}` } : {};
    const given = options.fetch;
    this.#fetch = given ?? ((input, init) => fetch(input, init));
    this.api = createClient<paths>({
      baseUrl: this.#url,
      headers: this.#headers,
      ...(given && { fetch: (request: Request) => given(request) }),
    });
  }

  /**
   * Executes the calls of a model's answer: an answer or a message of the SDKs of OpenAI, Anthropic and Google, a result
   * of Vercel's AI SDK, or a plain object of the same form. Await it for `messages`, iterate it for its events.
   */
  turn<M = unknown>(message: object, options: TurnOptions = {}): Turn<M> {
    return new Turn<M>(this.#requests(), { kind: "turn", message, options });
  }

  /**
   * Executes the calls of a model's answer, and returns what the model's SDK takes next. If calls wait for somebody and
   * no callback of the options decides, it throws {@link CallsWait}, and the run goes on.
   */
  async runCalls<M = unknown>(message: object, options: TurnOptions = {}): Promise<M[]> {
    const turn = this.turn<M>(message, options);
    const { messages, open } = options.onApproval || options.onQuestion ? await turn : await turn.settled();
    if (open.length > 0) {
      turn.stop();
      throw new CallsWait(turn.runId ?? "", open);
    }
    return messages;
  }

  /** Calls one tool. */
  async call(tool: string, input: object = {}, options: TurnOptions = {}): Promise<Ended> {
    const call = { id: "call", type: "function", function: { name: tool, arguments: JSON.stringify(input) } };
    const message = { role: "assistant", content: null, tool_calls: [call] };
    const { results, messages } = await this.turn(message, { ...options, format: "openai-chat" });
    const [ended] = results;
    if (ended === undefined) {
      throw new Error(`${tool} was not called: ${JSON.stringify(messages)}`);
    }
    return ended;
  }

  /** Goes on with a run, from its beginning or after a known event: exactly the rest of it is seen. */
  resume<M = unknown>(runId: string, options: ResumeOptions): Turn<M> {
    return new Turn<M>(this.#requests(), { kind: "run", runId, options });
  }

  /** The definitions of all tools that the caller may call, for a model. */
  async tools<T = Record<string, unknown>>(
    options: ToolFilters & { format: ToolsFormat; strict?: boolean },
  ): Promise<ToolDefinitions<T>> {
    const { format, strict, name, category, tags, pool } = options;
    const query = {
      format,
      ...(strict && { strict }),
      ...(name && { name }),
      ...(category && { category }),
      ...(tags && { tags }),
      ...(pool && { pool }),
    };
    const answer = await this.api.GET("/v1/tools", { params: { query } });
    const definitions = answered(answer) as unknown as Partial<ToolDefinitions<T>>;
    return { tools: definitions.tools ?? [], names: definitions.names ?? {}, notes: definitions.notes ?? {} };
  }

  /** A run and its calls. */
  async run(runId: string): Promise<Schemas["Run"]> {
    const answer = await this.api.GET("/v1/runs/{run_id}", { params: { path: { run_id: runId } } });
    return answered(answer).run ?? {};
  }

  /** Approves a call, with other arguments if they are given. */
  async approve(runId: string, callId: string, changed?: Record<string, unknown>): Promise<void> {
    const approve = changed === undefined ? {} : { arguments: JSON.stringify(changed) };
    await this.#decide(runId, { call_id: callId, approve });
  }

  /** Rejects a call; the model reads the reason. */
  async reject(runId: string, callId: string, reason = ""): Promise<void> {
    await this.#decide(runId, { call_id: callId, reject: { reason } });
  }

  /** Answers a call that waits for its client. With the token for one answer it is the only method that is allowed. */
  async submit(runId: string, callId: string, value: unknown): Promise<void> {
    const content: ApiContent = typeof value === "string" ? { text: value } : { json: JSON.stringify(value ?? null) };
    const params = { path: { run_id: runId } };
    const outputs = [{ call_id: callId, result: [content] }];
    answered(await this.api.POST("/v1/runs/{run_id}/outputs", { params, body: { outputs } }));
  }

  /** Makes a token that permits to answer one call, and nothing else: for a browser. */
  async answerToken(
    runId: string,
    callId: string,
    lifetimeSeconds?: number,
  ): Promise<Schemas["CreateAnswerTokenResponse"]> {
    const params = { path: { run_id: runId, call_id: callId } };
    const body = lifetimeSeconds === undefined ? {} : { lifetime: `${lifetimeSeconds}s` };
    return answered(await this.api.POST("/v1/runs/{run_id}/calls/{call_id}/answer_token", { params, body }));
  }

  /** Cancels a run, or one call of it. */
  async cancel(runId: string, options: { callId?: string; reason?: string } = {}): Promise<void> {
    const { callId, reason = "cancelled by the client" } = options;
    if (callId === undefined) {
      const params = { path: { run_id: runId } };
      answered(await this.api.POST("/v1/runs/{run_id}/cancel", { params, body: { reason } }));
    } else {
      const params = { path: { run_id: runId, call_id: callId } };
      answered(await this.api.POST("/v1/runs/{run_id}/calls/{call_id}/cancel", { params, body: { reason } }));
    }
  }

  /** Uploads an object, for the `files` of a turn. */
  async upload(
    data: Blob | Uint8Array,
    options: { mediaType?: string; tenant?: string } = {},
  ): Promise<Schemas["Object"]> {
    const type = options.mediaType ?? (data instanceof Blob && data.type ? data.type : "application/octet-stream");
    const query = options.tenant ? `?tenant=${encodeURIComponent(options.tenant)}` : "";
    const body = data instanceof Blob ? data : new Blob([data as Uint8Array<ArrayBuffer>]);
    const init = { method: "POST", body, headers: { "content-type": type } };
    const stored = await this.#json<Schemas["CreateObjectResponse"]>(`/v1/objects${query}`, init);
    return stored.object ?? {};
  }

  /** Reads an object: an upload, or a large result. Its body can be read as bytes, as text or as a stream. */
  async download(objectId: string, options: { signal?: AbortSignal } = {}): Promise<Response> {
    const response = await this.#send(`/v1/objects/${encodeURIComponent(objectId)}`, options);
    if (!response.ok) {
      throw await refusal(response);
    }
    return response;
  }

  async #decide(runId: string, decision: Schemas["CallDecision"]): Promise<void> {
    const params = { path: { run_id: runId } };
    answered(await this.api.POST("/v1/runs/{run_id}/decisions", { params, body: { decisions: [decision] } }));
  }

  #requests() {
    return {
      send: (path: string, init: RequestInit) => this.#send(path, init),
      json: <T>(path: string, init: RequestInit) => this.#json<T>(path, init),
      upload: async (data: Blob | Uint8Array) => (await this.upload(data)).object_id ?? "",
    };
  }

  #send(path: string, init: RequestInit): Promise<Response> {
    const headers = { ...this.#headers, ...(init.headers as Record<string, string> | undefined) };
    return this.#fetch(`${this.#url}${path}`, { ...init, headers });
  }

  async #json<T>(path: string, init: RequestInit): Promise<T> {
    const response = await this.#send(path, init);
    if (!response.ok) {
      throw await refusal(response);
    }
    return (await response.json()) as T;
  }
}

function answered<T>(answer: { data?: T; error?: unknown; response: Response }): T {
  if (answer.data === undefined) {
    throw answer.error instanceof ToolyardError ? answer.error : refused(answer.error, answer.response);
  }
  return answer.data;
}
