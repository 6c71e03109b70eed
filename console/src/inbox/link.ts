// The link by which a person without a key answers one call. All of it that is secret or about the call is in the
// fragment, which browsers do not send to any server.

/** What the page of the link shows. The token permits an answer and no reading, so the question is in the link. */
export interface AskedCall {
  tool: string;
  /** The arguments: JSON as text. */
  args: string;
  /** The schema of the answer, if the tool has one. */
  outputSchema?: string | undefined;
}

export interface AnswerLink {
  runId: string;
  callId: string;
  token: string;
  /** Undefined if the call was too large for the link. */
  asked: AskedCall | undefined;
}

/** Links beyond this many characters are cut by some chat programs. */
const ASKED_CHARS_MAX = 6_000;

/** The fragment of the link. The schema, then the whole question, is left out if it is too large. */
export function toFragment(link: AnswerLink): string {
  const query = new URLSearchParams({ token: link.token });
  const { asked } = link;
  const whole = asked && encode(asked);
  const short = asked && encode({ tool: asked.tool, args: asked.args });
  const packed = [whole, short].find((one) => one !== undefined && one.length <= ASKED_CHARS_MAX);
  if (packed !== undefined) query.set("q", packed);
  return `#/answer/${encodeURIComponent(link.runId)}/${encodeURIComponent(link.callId)}?${query}`;
}

/** The link of an address; undefined if something is missing. */
export function fromRoute(parts: readonly string[], query: URLSearchParams): AnswerLink | undefined {
  const [, runId, callId] = parts;
  const token = query.get("token");
  if (!runId || !callId || !token) return undefined;
  return { runId, callId, token, asked: decode(query.get("q") ?? "") };
}

function encode(asked: AskedCall): string {
  const bytes = new TextEncoder().encode(JSON.stringify([asked.tool, asked.args, asked.outputSchema ?? ""]));
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function decode(text: string): AskedCall | undefined {
  try {
    const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
    const parsed: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    if (!Array.isArray(parsed)) return undefined;
    const [tool, args, outputSchema] = parsed;
    if (typeof tool !== "string" || typeof args !== "string") return undefined;
    return { tool, args, ...(typeof outputSchema === "string" && outputSchema !== "" ? { outputSchema } : {}) };
  } catch {
    return undefined;
  }
}
