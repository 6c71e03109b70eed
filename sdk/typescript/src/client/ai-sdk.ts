/**
 * Turns of Vercel's AI SDK. The server knows the forms of vendors and not that of the AI SDK, so its calls are sent in
 * the form of Chat Completions, and the results become a message of the role `tool`.
 */

import type { Ended } from "./events.js";

interface AiToolCall {
  readonly toolCallId: string;
  readonly toolName: string;
  readonly input: unknown;
  readonly providerExecuted?: boolean;
}

/** A message of the AI SDK with the results of calls. */
export interface AiToolMessage {
  role: "tool";
  content: AiToolResult[];
}

export interface AiToolResult {
  type: "tool-result";
  toolCallId: string;
  toolName: string;
  output:
    | { type: "text" | "error-text"; value: string }
    | { type: "json"; value: unknown }
    | { type: "content"; value: AiPart[] };
}

/** A part of a result with images. */
export type AiPart = { type: "text"; text: string } | { type: "image-data"; data: string; mediaType: string };

/** The calls of a result of `generateText`, of an assistant's message, or of a list of calls; `undefined` if it is none. */
export function callsOf(turn: object): AiToolCall[] | undefined {
  const given: unknown =
    "toolCalls" in turn ? turn.toolCalls : "role" in turn && "content" in turn ? turn.content : turn;
  if (!Array.isArray(given)) {
    return undefined;
  }
  const calls = given.filter(
    (part): part is AiToolCall => typeof part === "object" && part !== null && "toolCallId" in part,
  );
  const isResult = "toolCalls" in turn;
  return isResult || calls.length > 0 ? calls.filter((call) => !call.providerExecuted) : undefined;
}

/** The calls in the form of Chat Completions. */
export function asChat(calls: AiToolCall[]): object {
  const tool_calls = calls.map((call) => ({
    id: call.toolCallId,
    type: "function",
    function: { name: call.toolName, arguments: JSON.stringify(call.input ?? {}) },
  }));
  return { role: "assistant", content: null, tool_calls };
}

/** The message that answers the calls. `answers` are the messages of the role `tool` that the server made. */
export function asToolMessage(calls: AiToolCall[], answers: unknown[], results: Ended[]): AiToolMessage {
  const texts = new Map<string, string>();
  for (const answer of answers as { tool_call_id?: string; content?: unknown }[]) {
    texts.set(
      answer.tool_call_id ?? "",
      typeof answer.content === "string" ? answer.content : JSON.stringify(answer.content),
    );
  }
  const content = calls.map(({ toolCallId, toolName }): AiToolResult => {
    const ended = results.find((result) => result.callId === toolCallId);
    const value = texts.get(toolCallId) ?? "";
    return { type: "tool-result", toolCallId, toolName, output: output(ended, value) };
  });
  return { role: "tool", content };
}

function output(ended: Ended | undefined, text: string): AiToolResult["output"] {
  if (ended === undefined || ended.state !== "completed") {
    return { type: ended === undefined ? "text" : "error-text", value: text };
  }
  const images = ended.result.filter((part) => part.data?.media_type?.startsWith("image/"));
  if (images.length === 0) {
    return { type: "text", value: text };
  }
  const media = images.map(
    (part): AiPart => ({
      type: "image-data",
      data: part.data?.data ?? "",
      mediaType: part.data?.media_type ?? "",
    }),
  );
  return { type: "content", value: [{ type: "text", text }, ...media] };
}
