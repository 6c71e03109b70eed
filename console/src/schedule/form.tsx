// A form for a schedule whose run has one call. Other runs are made with the command line or the API.

import { useEffect, useId, useRef, useState } from "preact/hooks";
import { api } from "../api/client";
import { usePoll } from "../api/poll";
import { type ApiError, toApiError } from "../api/problem";
import { requestId } from "../api/request-id";
import { href } from "../router";
import "../styles/page-schedules.css";
import { useTool } from "../ui/act";
import { ActionButton, ErrorBox, Page, Text } from "../ui/basics";
import { type Json, missing, parseSchema, SchemaForm } from "../ui/schema-form";
import { announce } from "../ui/toast";
import { type Draft, EMPTY, type Kind, problems, toSpec } from "./spec";

const KINDS: [Kind, string][] = [
  ["cron", "Cron expression"],
  ["every", "Interval"],
  ["once", "Once"],
];

const OVERLAPS: [Draft["overlap"], string][] = [
  ["OVERLAP_POLICY_SKIP", "make no run"],
  ["OVERLAP_POLICY_ALLOW", "make the run all the same"],
  ["OVERLAP_POLICY_CANCEL_PREVIOUS", "cancel the previous run"],
];

const MISSED: [Draft["missed"], string][] = [
  ["MISSED_POLICY_LATEST", "make up for the latest"],
  ["MISSED_POLICY_SKIP", "make up for none"],
  ["MISSED_POLICY_ALL", "make up for all, at most 100"],
];

/** Time zones that the browser knows; the coordinator checks the name. */
function zones(): string[] {
  const known = (Intl as { supportedValuesOf?: (of: string) => string[] }).supportedValuesOf?.("timeZone") ?? [];
  return ["UTC", ...known.filter((zone) => zone !== "UTC")];
}

export function NewSchedule({ onDone }: { onDone: (id: string) => void }) {
  const id = useId();
  const [draft, setDraft] = useState<Draft>({
    ...EMPTY,
    timeZone: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC",
  });
  const [args, setArgs] = useState<Json | undefined>({});
  const [isValid, setValid] = useState(true);
  const [error, setError] = useState<ApiError | undefined>(undefined);
  const sent = useRef({ id: "", body: "" });
  const set = (changes: Partial<Draft>) => setDraft((old) => ({ ...old, ...changes }));
  const names = usePoll((signal) => api.get("/v1/tools", { query: { page_size: 1000 }, signal }), 60_000);
  const tools = names.value.data?.tools ?? [];
  const isKnown = tools.some((tool) => tool.name === draft.tool);
  useEffect(() => setArgs({}), [draft.tool]);
  const full = { ...draft, args: JSON.stringify(args ?? {}) };
  const wrong = problems(full);
  const create = async () => {
    setError(undefined);
    const spec = toSpec(full);
    const text = JSON.stringify(spec);
    if (sent.current.body !== text) sent.current = { id: requestId(), body: text };
    try {
      const answer = await api.post("/v1/schedules", { body: { request_id: sent.current.id, spec } });
      announce("Created", "good");
      onDone(answer.schedule?.schedule_id ?? "");
    } catch (failure) {
      setError(toApiError(failure));
    }
  };
  const input = (name: keyof Draft, label: string, hint?: string, list?: string) => (
    <div class="field">
      <label for={`${id}-${name}`}>{label}</label>
      <input
        id={`${id}-${name}`}
        type="text"
        value={String(draft[name])}
        spellcheck={false}
        autocomplete="off"
        {...(list ? { list } : {})}
        {...(hint ? { "aria-describedby": `${id}-${name}-hint` } : {})}
        onInput={(event) => set({ [name]: event.currentTarget.value })}
      />
      {hint && (
        <p class="hint" id={`${id}-${name}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
  const select = (name: "overlap" | "missed", label: string, options: [string, string][]) => (
    <div class="field">
      <label for={`${id}-${name}`}>{label}</label>
      <select
        id={`${id}-${name}`}
        value={draft[name]}
        onChange={(event) => set({ [name]: event.currentTarget.value } as Partial<Draft>)}
      >
        {options.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </div>
  );
  return (
    <Page title="New schedule" actions={<a href={href("schedules")}>All schedules</a>}>
      <div class="panel schedule-form">
        <div class="panel-body">
          {input("name", "Name")}
          <fieldset class="field choices schedule-kinds">
            <legend>When</legend>
            {KINDS.map(([kind, label]) => (
              <label key={kind} class="option">
                <input type="radio" name={`${id}-kind`} checked={draft.kind === kind} onChange={() => set({ kind })} />
                <span>{label}</span>
              </label>
            ))}
          </fieldset>
          {draft.kind === "cron" && (
            <div class="schedule-two">
              {input("expression", "Cron expression", "minute hour day month weekday, such as 0 9 * * mon-fri")}
              {input("timeZone", "Time zone", "an IANA name", `${id}-zones`)}
              <datalist id={`${id}-zones`}>
                {zones().map((zone) => (
                  <option key={zone} value={zone} />
                ))}
              </datalist>
            </div>
          )}
          {draft.kind === "every" && input("every", "Interval", "1 second to 366 days: 90s, 10m, 1h 30m, 1d")}
          {draft.kind === "once" && (
            <div class="field">
              <label for={`${id}-once`}>Time, in the zone of this browser</label>
              <input
                id={`${id}-once`}
                type="datetime-local"
                value={draft.once}
                onChange={(event) => set({ once: event.currentTarget.value })}
              />
            </div>
          )}
          {input("tool", "Tool", undefined, `${id}-tools`)}
          <datalist id={`${id}-tools`}>
            {tools.map((tool) => (
              <option key={tool.name} value={tool.name} />
            ))}
          </datalist>
          {isKnown ? (
            <Arguments key={draft.tool} tool={draft.tool} value={args} onChange={setArgs} onValid={setValid} />
          ) : (
            draft.tool !== "" && (
              <p class="hint">No tool of this name is hosted at present. A firing would make a run whose call fails.</p>
            )
          )}
          <details class="spec-more">
            <summary>More</summary>
            <div class="schedule-more">
              {select("overlap", "If the previous run goes on", OVERLAPS)}
              {select("missed", "Firings that were missed", MISSED)}
              {input("jitter", "Jitter", "each firing is delayed by up to this, at most 1 hour")}
              {input("firingsMax", "Ends after so many firings")}
              {input("tenant", "Tenant", "that of the caller if it is empty")}
              <label class="option">
                <input
                  type="checkbox"
                  checked={!draft.confirmation}
                  onChange={(event) => set({ confirmation: !event.currentTarget.checked })}
                />
                <span>
                  Its calls need no approval. The caller needs the role to approve; tools that require confirmation wait
                  all the same.
                </span>
              </label>
            </div>
          </details>
          <div class="act-buttons try-buttons">
            <ActionButton
              operation="POST /v1/schedules"
              kind="primary"
              disabled={!isValid || wrong.length > 0}
              onPress={create}
            >
              Create
            </ActionButton>
            {wrong.length > 0 && (
              <span class="muted">
                It needs <Text>{wrong.join(", ")}</Text>.
              </span>
            )}
          </div>
          <ErrorBox error={error} />
          <p class="hint">
            For a run of several calls: <code>toolyard schedules create --run FILE</code>. A schedule cannot be changed:
            delete it, and create another.
          </p>
        </div>
      </div>
    </Page>
  );
}

interface ArgumentsProps {
  tool: string;
  value: Json | undefined;
  onChange: (value: Json | undefined) => void;
  onValid: (isValid: boolean) => void;
}

function Arguments({ tool, value, onChange, onValid }: ArgumentsProps) {
  const manifest = useTool(tool);
  if (!manifest) return <p class="hint">Reading the schema …</p>;
  const schema = parseSchema(manifest.input_schema ?? "");
  const lacking = schema ? missing(schema, value) : [];
  return (
    <>
      <SchemaForm
        schema={manifest.input_schema || undefined}
        value={value}
        onChange={onChange}
        onValid={onValid}
        label="Arguments"
      />
      {lacking.length > 0 && (
        <p class="hint">
          Required: <Text>{lacking.join(", ")}</Text>. Without them each call fails.
        </p>
      )}
      {(manifest.needs_approval || manifest.requires_confirmation) && (
        <p class="hint">Its calls await the approval of a person at each firing, unless it is waived under More.</p>
      )}
    </>
  );
}
