// The public HTTP API, typed by docs/openapi.json. Every request of the console passes through `send`.

import type { components, paths } from "../../../sdk/typescript/src/openapi";
import { ApiError } from "./problem";
import { authorization, deny, key, signOut } from "./session";

export type Schemas = components["schemas"];

type Methods = "get" | "post" | "delete";
type PathsOf<M extends Methods> = {
  [P in keyof paths]: paths[P][M] extends { responses: unknown } ? P : never;
}[keyof paths];
type JsonOf<T> = T extends { content: { "application/json": infer J } }
  ? J
  : // Returned as one JSON object to clients that do not accept a stream.
    T extends { content: { "text/event-stream": infer E } }
    ? E
    : never;
type Answer<O> = O extends { responses: infer R }
  ? R extends { 201: infer A }
    ? JsonOf<A>
    : R extends { 200: infer A }
      ? JsonOf<A>
      : unknown
  : unknown;
type Query<O> = O extends { parameters: { query?: infer Q } } ? Q : never;
type PathParameters<O> = O extends { parameters: { path: infer P } } ? P : never;
type Body<O> = O extends { requestBody?: { content: { "application/json": infer B } } } ? B : never;

export interface Options<O> {
  path?: PathParameters<O>;
  query?: Query<O>;
  body?: Body<O>;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
}

/** The address of the API: beside the console, whatever the path prefix. */
export function address(path: string, query?: Record<string, unknown>): string {
  const url = new URL(`..${path}`, document.baseURI);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value === undefined || value === null || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) url.searchParams.append(name, String(one));
  }
  return url.href;
}

/** Puts the parameters into a path such as `/v1/runs/{run_id}`. */
export function fill(path: string, parameters: Record<string, unknown> = {}): string {
  return path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(parameters[name] ?? "")));
}

/** Refusals that hold for every further request of the operation. Others concern one run or one tool. */
const LASTING = new Set(["ROLE_MISSING", "ANSWER_TOKENS_OFF"]);

/**
 * Sends a request and returns a successful response. Every other answer is thrown as an [`ApiError`]. A request with an
 * `authorization` of its own does not touch the session.
 */
export async function send(method: string, url: string, init: RequestInit = {}, operation?: string): Promise<Response> {
  const sentKey = key.value;
  const own = init.headers as Record<string, string> | undefined;
  const hasOwnKey = own?.["authorization"] !== undefined;
  let response: Response;
  try {
    const headers = { ...authorization(), ...own };
    response = await fetch(url, { ...init, method, headers, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw ApiError.unreachable(error);
  }
  if (response.ok) return response;
  const error = await ApiError.of(response);
  if (hasOwnKey) throw error;
  if (response.status === 401 && key.value === sentKey) {
    signOut(sentKey === "" ? "This coordinator knows its callers." : `The session has ended: ${error.message}`);
  }
  if (operation !== undefined && LASTING.has(error.reason)) deny(operation, error.message);
  throw error;
}

async function json<O>(method: Methods, path: string, options: Options<O>): Promise<Answer<O>> {
  const url = address(fill(path, options.path as Record<string, unknown>), options.query as Record<string, unknown>);
  const init: RequestInit = { headers: { accept: "application/json", ...options.headers } };
  if (options.signal) init.signal = options.signal;
  if (method === "post") {
    (init.headers as Record<string, string>)["content-type"] = "application/json";
    init.body = JSON.stringify(options.body ?? {});
  }
  const response = await send(method.toUpperCase(), url, init, `${method.toUpperCase()} ${path}`);
  const text = await response.text();
  return (text === "" ? {} : JSON.parse(text)) as Answer<O>;
}

export const api = {
  get: <P extends PathsOf<"get">>(path: P, options: Options<paths[P]["get"]> = {}) => json("get", path, options),
  post: <P extends PathsOf<"post">>(path: P, options: Options<paths[P]["post"]> = {}) => json("post", path, options),
  delete: <P extends PathsOf<"delete">>(path: P, options: Options<paths[P]["delete"]> = {}) =>
    json("delete", path, options),
};

/** An operation as [`denied`] names it. */
export type OperationName = `POST ${PathsOf<"post">}` | `DELETE ${PathsOf<"delete">}`;

/** Reads an object. The caller revokes the blob's address, if it creates one. */
export async function readObject(id: string, signal?: AbortSignal): Promise<Blob> {
  const init: RequestInit = signal ? { signal } : {};
  return (await send("GET", address(fill("/v1/objects/{object_id}", { object_id: id })), init)).blob();
}
