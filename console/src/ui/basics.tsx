// Small pieces that every page uses.

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { OperationName } from "../api/client";
import { type ApiError, toApiError } from "../api/problem";
import { denied } from "../api/session";
import { constant, duration, shortId, time } from "../format";
import { pieces, plain } from "../text/escape";
import { now } from "./clock";
import { announce } from "./toast";

/** Text from tools or clients, with invisible characters made visible. Use it for everything that others wrote. */
export function Text({ children }: { children: string | undefined }) {
  const all = pieces(children ?? "");
  if (all.length === 1 && !all[0]?.isEscape) return <>{all[0]?.text}</>;
  return (
    <bdi>
      {all.map((piece, at) =>
        piece.isEscape ? (
          <span key={at} class="escape">
            {piece.text}
          </span>
        ) : (
          piece.text
        ),
      )}
    </bdi>
  );
}

export type Tone = "neutral" | "run" | "wait" | "ask" | "good" | "bad" | "late" | "off";

/** A small label. */
export function Chip({
  tone = "neutral",
  title,
  children,
}: {
  tone?: Tone;
  title?: string;
  children: ComponentChildren;
}) {
  return (
    <span class={`chip tone-${tone}`} title={title}>
      {children}
    </span>
  );
}

/** A chip that filters when it is pressed. */
export function FilterChip(props: {
  on: boolean;
  count?: number | undefined;
  onPress: () => void;
  tone?: Tone;
  children: ComponentChildren;
}) {
  return (
    <button
      type="button"
      class={`chip filter tone-${props.tone ?? "neutral"}`}
      aria-pressed={props.on}
      onClick={props.onPress}
    >
      {props.children}
      {props.count !== undefined && <span class="count">{props.count.toLocaleString("en")}</span>}
    </button>
  );
}

const TONES: Record<string, Tone> = {
  IN_PROGRESS: "run",
  REQUIRES_ACTION: "ask",
  COMPLETED: "good",
  CANCELLED: "off",
  EXPIRED: "late",
  FAILED: "bad",
  ACCEPTED: "wait",
  QUEUED: "wait",
  DELAYED: "wait",
  RUNNING: "run",
  WAITING_FOR_CLIENT: "ask",
  AWAITING_APPROVAL: "ask",
  ACTIVE: "run",
  PAUSED: "late",
  ENDED: "off",
};

export function toneOf(state: string | undefined): Tone {
  return TONES[(state ?? "").replace(/^(RUN_STATUS|CALL_STATE|SCHEDULE_STATUS)_/, "")] ?? "neutral";
}

/** The state of a run, a call or a schedule: a dot and a word, so that colour is not all that tells them apart. */
export function StateBadge({ state }: { state: string | undefined }) {
  const word = constant(state, "RUN_STATUS_").replace("call state ", "").replace("schedule status ", "");
  return (
    <span class={`state tone-${toneOf(state)}`}>
      <span class="dot" aria-hidden="true" />
      {word || "unknown"}
    </span>
  );
}

/** A time of the API. `age` shows how long ago it was. */
export function Time({ at, age }: { at: string | undefined; age?: boolean }) {
  if (!at) return <span class="muted">–</span>;
  const date = new Date(at);
  const text = age ? ago(now.value - date.getTime()) : time(date);
  return (
    <time dateTime={at} title={at}>
      {text}
    </time>
  );
}

function ago(ms: number): string {
  if (ms < -1_000) return `in ${roughly(-ms)}`;
  return ms < 1_000 ? "now" : `${roughly(ms)} ago`;
}

/** A duration in one unit. */
function roughly(ms: number): string {
  const seconds = Math.floor(ms / 1_000);
  if (seconds < 100) return `${seconds} s`;
  if (seconds < 100 * 60) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 48 * 3_600) return `${Math.floor(seconds / 3_600)} h`;
  return `${Math.floor(seconds / 86_400)} days`;
}

/** From one time to another, or to now. */
export function Duration({ from, to }: { from: string | undefined; to?: string | undefined }) {
  if (!from) return <span class="muted">–</span>;
  const start = new Date(from).getTime();
  const end = to ? new Date(to).getTime() : now.value;
  return <span class="number">{duration(Math.max(0, end - start))}</span>;
}

/** The end of an id with the whole as its title, as a link if `to` is given. */
export function Id({ id, to }: { id: string; to?: string }) {
  const text = plain(shortId(id));
  return to ? (
    <a class="id" href={to} title={plain(id)}>
      {text}
    </a>
  ) : (
    <span class="id" title={plain(id)}>
      {text}
    </span>
  );
}

/** What failed, and what to do. */
export function ErrorBox({ error, onRetry }: { error: ApiError | undefined; onRetry?: () => void }) {
  if (!error) return null;
  return (
    <div class="error-box" role="alert">
      <strong>
        <Text>{error.message}</Text>
      </strong>
      {error.remedy && (
        <p>
          <Text>{error.remedy}</Text>
        </p>
      )}
      <p class="muted">
        {error.reason}
        {error.status > 0 && ` · ${error.status}`}
      </p>
      {onRetry && (
        <button type="button" onClick={onRetry}>
          Try again
        </button>
      )}
    </div>
  );
}

/** A page's title, what belongs beside it, and its content. */
export function Page(props: {
  title: ComponentChildren;
  actions?: ComponentChildren;
  fill?: boolean;
  children: ComponentChildren;
}) {
  return (
    <div class={props.fill ? "page fill" : "page"}>
      <header class="page-head">
        <h1>{props.title}</h1>
        <div class="actions">{props.actions}</div>
      </header>
      {props.children}
    </div>
  );
}

export function Panel(props: {
  title: ComponentChildren;
  aside?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
}) {
  return (
    <section class={`panel ${props.class ?? ""}`}>
      <header>
        <h2>{props.title}</h2>
        <div class="aside">{props.aside}</div>
      </header>
      {props.children}
    </section>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

interface ActionProps {
  /** The operation that it performs: once it was refused for a missing role, the button is disabled. */
  operation: OperationName;
  onPress: () => Promise<unknown> | undefined;
  kind?: "primary" | "danger" | "plain";
  title?: string;
  disabled?: boolean;
  children: ComponentChildren;
}

/** A button that performs an operation of the API. It is disabled meanwhile, and a failure is announced. */
export function ActionButton(props: ActionProps) {
  const [busy, setBusy] = useState(false);
  const refusal = denied.value.get(props.operation);
  const press = async () => {
    setBusy(true);
    try {
      await props.onPress();
    } catch (error) {
      const problem = toApiError(error);
      announce(`${problem.message}${problem.remedy ? ` – ${problem.remedy}` : ""}`, "bad");
    } finally {
      setBusy(false);
    }
  };
  return (
    <button
      type="button"
      class={props.kind ?? "plain"}
      disabled={busy || props.disabled || refusal !== undefined}
      title={refusal ? plain(refusal) : props.title}
      onClick={press}
    >
      {props.children}
    </button>
  );
}

/** Copies a text. */
export function CopyButton({ text, children }: { text: () => string; children: ComponentChildren }) {
  const press = async () => {
    try {
      await navigator.clipboard.writeText(text());
      announce("Copied", "good");
    } catch {
      announce("The browser does not permit copying from this page; it needs HTTPS or localhost", "bad");
    }
  };
  return (
    <button type="button" class="plain" onClick={press}>
      {children}
    </button>
  );
}

/** A name and a value in a list of them. */
export function Fact({ name, children }: { name: string; children: ComponentChildren }): JSX.Element {
  return (
    <div class="fact">
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
