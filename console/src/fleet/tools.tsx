// What the manifest of a tool says, for people.

import type { Schemas } from "../api/client";
import { constant } from "../format";
import { Chip, type Tone } from "../ui/basics";

type Tool = Schemas["Tool"];

/** The permission class, as the API derives it if the manifest sets none. */
export function permissionOf(tool: Tool): "read" | "write" | "external" {
  const named = constant(tool.permission, "TOOL_PERMISSION_");
  if (named === "read" || named === "write" || named === "external") return named;
  if (tool.effects?.read_only) return "read";
  return tool.effects?.open_world ? "external" : "write";
}

const PERMISSION_TONES: Record<string, Tone> = { read: "good", write: "late", external: "bad" };

export function PermissionChip({ tool }: { tool: Tool }) {
  const permission = permissionOf(tool);
  return (
    <Chip tone={PERMISSION_TONES[permission] ?? "neutral"} title="The permission that a caller needs">
      {permission}
    </Chip>
  );
}

/** Hints of the manifest, with what each means. */
export function hintsOf(tool: Tool): [string, string][] {
  const { effects } = tool;
  const all: [boolean | undefined, string, string][] = [
    [tool.needs_approval || tool.requires_confirmation, "needs approval", "Its calls await the approval of a person"],
    [tool.definition_only, "answered by the client", "It is never executed here"],
    [effects?.read_only, "read-only", "It changes nothing"],
    [effects?.idempotent, "idempotent", "A second execution changes nothing further"],
    [effects?.destructive, "destructive", "It may destroy something"],
    [effects?.open_world, "open world", "It reaches beyond this system"],
    [effects?.uses_machine, "uses the machine", "It reads or writes files or starts processes on its worker"],
    [tool.streaming, "streams", "It sends output while it runs"],
    [tool.final, "final", "Its result is part of the message to the user"],
    [tool.return_direct, "returns directly", "Its result may be the answer to the user"],
    [tool.hidden, "hidden", "It can be called only by runs that attach it"],
  ];
  return all.filter(([is]) => is).map(([, name, meaning]) => [name, meaning]);
}

/** Whether it can be called at present: one word and its tone. */
export function availability(tool: Tool): { word: string; tone: Tone; why: string } {
  if (tool.paused) return { word: "paused", tone: "late", why: "Its calls wait until it is resumed" };
  if (tool.definition_only) return { word: "defined", tone: "neutral", why: "The client answers its calls" };
  if (!tool.available) return { word: "no worker", tone: "bad", why: "No live worker hosts it" };
  const pools = tool.pools ?? [];
  if (pools.length > 0 && pools.every((pool) => pool.paused))
    return { word: "pool paused", tone: "late", why: "No calls are taken from the queue of its pool" };
  if (pools.length > 0 && pools.every((pool) => (pool.pulling_workers ?? 0) === 0))
    return {
      word: "not taken",
      tone: "late",
      why: "Its workers take no calls: they drain, or cannot reach the broker",
    };
  return { word: "available", tone: "good", why: "A live worker hosts it" };
}

export function Availability({ tool }: { tool: Tool }) {
  const { word, tone, why } = availability(tool);
  return (
    <span class={`state tone-${tone}`} title={why}>
      <span class="dot" aria-hidden="true" />
      {word}
    </span>
  );
}
