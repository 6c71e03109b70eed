// Makes a run of one call from a form, and shows its output as it comes.

import { useEffect, useRef, useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { type ApiError, toApiError } from "../api/problem";
import { requestId } from "../api/request-id";
import { href, setQuery } from "../router";
import { asCurl } from "../run/copy";
import { useRun } from "../run/follow";
import { Stream } from "../run/stream";
import "../styles/page-run.css";
import { AnswerForm, ApproveForm } from "../ui/act";
import { ActionButton, Chip, CopyButton, ErrorBox, Id, Panel, StateBadge, Text } from "../ui/basics";
import { defaults, type Json, missing, parseSchema, SchemaForm } from "../ui/schema-form";

type Tool = Schemas["Tool"];

const CALL_ID = "try";

export function TryIt({ tool, runId }: { tool: Tool; runId: string | undefined }) {
  const name = tool.name ?? "";
  const schema = parseSchema(tool.input_schema ?? "");
  const [value, setValue] = useState<Json | undefined>(() => (schema ? (defaults(schema) ?? {}) : {}));
  const [isValid, setValid] = useState(true);
  const [tenant, setTenant] = useState("");
  const [isApproved, setApproved] = useState(false);
  const [error, setError] = useState<ApiError | undefined>(undefined);
  // The same id for the same arguments until a run was made, so that a press after a lost answer makes no second run.
  const sent = useRef({ id: "", body: "" });
  const needsApproval = tool.needs_approval || tool.requires_confirmation;
  const lacking = schema ? missing(schema, value) : [];
  const body = {
    calls: [{ call_id: CALL_ID, tool: name, arguments: JSON.stringify(value ?? {}) }],
    ...(tool.hidden ? { tools: [name] } : {}),
    ...(tenant.trim() ? { tenant: tenant.trim() } : {}),
    ...(needsApproval && isApproved ? { approve: [CALL_ID] } : {}),
  };
  const start = async () => {
    setError(undefined);
    const text = JSON.stringify(body);
    if (sent.current.body !== text) sent.current = { id: requestId(), body: text };
    try {
      const answer = await api.post("/v1/runs", { body: { ...body, request_id: sent.current.id } });
      sent.current = { id: "", body: "" };
      setQuery({ run: answer.run?.run_id });
    } catch (failure) {
      setError(toApiError(failure));
    }
  };
  return (
    <Panel title="Try it" aside={tool.effects?.destructive ? <Chip tone="bad">may destroy something</Chip> : undefined}>
      <div class="panel-body try">
        <SchemaForm
          schema={tool.input_schema || undefined}
          value={value}
          onChange={setValue}
          onValid={setValid}
          label="Arguments"
        />
        {schema && Object.keys(schema.properties ?? {}).length === 0 && <p class="muted">It takes no arguments.</p>}
        <details class="try-options">
          <summary>Options</summary>
          <div class="field">
            <label for="try-tenant">Tenant</label>
            <input
              id="try-tenant"
              value={tenant}
              placeholder="that of the caller"
              onInput={(event) => setTenant(event.currentTarget.value)}
            />
          </div>
        </details>
        {needsApproval && (
          <label class="option">
            <input
              type="checkbox"
              checked={isApproved}
              onChange={(event) => setApproved(event.currentTarget.checked)}
            />
            <span>
              Approve the call with the request. Otherwise it waits for an approval here and in the{" "}
              <a href={href("inbox")}>inbox</a>.
            </span>
          </label>
        )}
        <div class="act-buttons try-buttons">
          <ActionButton
            operation="POST /v1/runs"
            kind="primary"
            disabled={!isValid || lacking.length > 0}
            onPress={start}
          >
            Run
          </ActionButton>
          <CopyButton text={() => asCurl({ ...body, calls: body.calls } as Schemas["Run"])}>Copy as curl</CopyButton>
          {lacking.length > 0 && (
            <span class="muted">
              Required: <Text>{lacking.join(", ")}</Text>
            </span>
          )}
        </div>
        <ErrorBox error={error} />
        {runId && <TryRun key={runId} runId={runId} />}
      </div>
    </Panel>
  );
}

/** The output of the run, with the forms if its calls wait. */
function TryRun({ runId }: { runId: string }) {
  const { model, version, summary, state } = useRun(runId, "FLOOR_POLICY_ARRIVAL");
  // The calls of the model change with it.
  void summary.value;
  const watching = state.value;
  const [run, setRun] = useState<Schemas["Run"] | undefined>(undefined);
  const [refreshes, setRefreshes] = useState(0);
  const head = useRef<HTMLDivElement>(null);
  // The state is read again whenever the status of the run changes, and that is when a call begins to wait.
  const status = model.status;
  const calls = model.calls.size;
  useEffect(() => {
    const stop = new AbortController();
    api
      .get("/v1/runs/{run_id}", { path: { run_id: runId }, signal: stop.signal })
      .then((answer) => setRun(answer.run))
      .catch(() => undefined);
    return () => stop.abort();
  }, [runId, status, calls, refreshes]);
  useEffect(() => head.current?.scrollIntoView({ block: "nearest", behavior: "smooth" }), [runId]);
  const isOpen = model.ended === undefined && watching.is !== "ended";
  const waiting = (run?.calls ?? []).filter(
    (call) =>
      isOpen &&
      (call.state === "CALL_STATE_AWAITING_APPROVAL" || call.state === "CALL_STATE_WAITING_FOR_CLIENT") &&
      model.calls.get(call.call_id ?? "")?.ended === undefined,
  );
  const again = () => setRefreshes((old) => old + 1);
  const cancel = () =>
    api.post("/v1/runs/{run_id}/cancel", { path: { run_id: runId }, body: { reason: "cancelled in the console" } });
  return (
    <div class="try-run">
      <div class="try-head" ref={head}>
        <StateBadge state={status ?? run?.status} />
        <span>
          Run <Id id={runId} to={href("runs", runId)} />
        </span>
        <span class="try-head-end">
          <a href={href("runs", runId)}>Open the run</a>
          {isOpen && (
            <ActionButton operation="POST /v1/runs/{run_id}/cancel" kind="danger" onPress={cancel}>
              Cancel
            </ActionButton>
          )}
        </span>
      </div>
      {watching.is === "failed" && <ErrorBox error={watching.error} />}
      {waiting.map((call) => {
        const common = {
          runId,
          callId: call.call_id ?? "",
          tool: call.tool ?? "",
          args: call.arguments ?? "",
          onDone: again,
        };
        return (
          <section key={call.call_id} class="try-waiting" aria-label="It waits for a person">
            {call.state === "CALL_STATE_AWAITING_APPROVAL" ? <ApproveForm {...common} /> : <AnswerForm {...common} />}
          </section>
        );
      })}
      <div class="try-output">
        <Stream model={model} version={version} />
      </div>
    </div>
  );
}
