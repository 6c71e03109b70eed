// One call: its arguments, result and attempts, why it waits or ended, and what can be done with it.

import { useEffect, useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { toApiError } from "../api/problem";
import { constant } from "../format";
import { href, navigate } from "../router";
import { AnswerForm, ApproveForm, argumentsText } from "../ui/act";
import { ActionButton, Chip, CopyButton, Duration, Fact, Id, StateBadge, Text, Time } from "../ui/basics";
import { confirmDialog } from "../ui/dialog";
import { JsonTree } from "../ui/json-tree";
import { announce } from "../ui/toast";
import { Content } from "./content";
import { CopyMenu } from "./copy-menu";
import type { CallModel } from "./model";

interface Props {
  runId: string;
  /** The call as it is stored; undefined until it was fetched. */
  call: Schemas["Call"] | undefined;
  /** The call as its events tell; undefined before the first of them. */
  model: CallModel | undefined;
  run: Schemas["Run"] | undefined;
  onChanged: () => void;
}

/** How often the reason is asked for while a call waits, and while it runs, when there is little to say. */
const WHY_MS = 5_000;
const WHY_RUNNING_MS = 30_000;

/** Why a call waits, or why it ended as it did. It is asked for again while the call is open. */
function useWhy(runId: string, callId: string, state: string | undefined): string {
  const [why, setWhy] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ask = async () => {
      try {
        const answer = await api.get("/v1/runs/{run_id}/calls/{call_id}/why", {
          path: { run_id: runId, call_id: callId },
          signal: stop.signal,
        });
        setWhy(answer.why ?? "");
      } catch (error) {
        if (!stop.signal.aborted && !toApiError(error).isTransient) setWhy("");
      }
      if (!stop.signal.aborted && !isFinal(state)) {
        timer = setTimeout(ask, state === "CALL_STATE_RUNNING" ? WHY_RUNNING_MS : WHY_MS);
      }
    };
    if (callId !== "") ask();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [runId, callId, state]);
  return why;
}

function isFinal(state: string | undefined): boolean {
  return /_(COMPLETED|FAILED|CANCELLED|EXPIRED)$/.test(state ?? "");
}

export function CallPanel({ runId, call, model, run, onChanged }: Props) {
  const id = call?.call_id ?? model?.id ?? "";
  // An event may be newer than the call that was fetched.
  const state = model?.outcome?.state ?? call?.state;
  const why = useWhy(runId, id, state);
  if (!call) {
    return (
      <header>
        <h2>
          <Text>{model?.tool ?? ""}</Text>
        </h2>
      </header>
    );
  }
  const args = call.arguments ?? "{}";
  const outcome = call.outcome ?? model?.outcome;
  const common = { runId, callId: id, tool: call.tool ?? "", args, onDone: onChanged };
  return (
    <>
      <header>
        <h2 class="call-title">
          <a href={href("tools", call.tool ?? "")}>
            <Text>{call.tool ?? ""}</Text>
          </a>{" "}
          <span class="muted mono">
            <Text>{id}</Text>
          </span>
        </h2>
        <div class="aside">
          <StateBadge state={state} />
        </div>
      </header>
      <div class="call-body" tabIndex={0} role="region" aria-label={`Details of ${id}`}>
        {why && (
          <p class="why">
            <Text>{why}</Text>
          </p>
        )}
        {state === "CALL_STATE_AWAITING_APPROVAL" && <ApproveForm key={`approve ${id}`} {...common} />}
        {state === "CALL_STATE_WAITING_FOR_CLIENT" && <AnswerForm key={`answer ${id}`} {...common} />}
        <Buttons runId={runId} call={call} state={state} run={run} onChanged={onChanged} />
        <dl class="facts">
          <Fact name="Took">
            <Duration from={call.create_time} to={call.end_time} />
          </Fact>
          {call.pool && (
            <Fact name="Pool">
              <Text>{call.pool}</Text>
            </Fact>
          )}
          <Fact name="Attempts">{call.attempts ?? 0}</Fact>
          {/_(LOW|HIGH)$/.test(call.priority ?? "") && (
            <Fact name="Priority">{constant(call.priority, "PRIORITY_")}</Fact>
          )}
          {!isFinal(state) && call.deadline && (
            <Fact name="Deadline">
              <Time at={call.deadline} age />
            </Fact>
          )}
          {call.not_before && !isFinal(state) && (
            <Fact name="Not before">
              <Time at={call.not_before} age />
            </Fact>
          )}
          {call.asked_by_call_id && (
            <Fact name="Asked by">
              <Text>{call.asked_by_call_id}</Text>
            </Fact>
          )}
          {call.answered_by_hook && (
            <Fact name="Answered by hook">
              <Text>{call.answered_by_hook}</Text>
            </Fact>
          )}
          {call.redriven_run_id && (
            <Fact name="Redriven as">
              <Id id={call.redriven_run_id} to={href("runs", call.redriven_run_id)} />
            </Fact>
          )}
        </dl>
        {state !== "CALL_STATE_AWAITING_APPROVAL" && (
          <Section title="Arguments" aside={<CopyButton text={() => argumentsText(args)}>Copy</CopyButton>}>
            <JsonTree json={args} open={3} label="Arguments" />
          </Section>
        )}
        {call.decided && <Decision decided={call.decided} />}
        {outcome && <Outcome outcome={outcome} />}
        {model && model.attempts.length > 0 && <Attempts model={model} />}
        {model?.progress && !isFinal(state) && <ProgressBar progress={model.progress} />}
      </div>
    </>
  );
}

function Section({
  title,
  aside,
  children,
}: {
  title: string;
  aside?: preact.ComponentChildren;
  children: preact.ComponentChildren;
}) {
  return (
    <section class="call-section">
      <div class="call-section-head">
        <h3>{title}</h3>
        {aside}
      </div>
      {children}
    </section>
  );
}

interface ButtonsProps {
  runId: string;
  call: Schemas["Call"];
  state: string | undefined;
  run: Schemas["Run"] | undefined;
  onChanged: () => void;
}

function Buttons({ runId, call, state, run, onChanged }: ButtonsProps) {
  const path = { run_id: runId, call_id: call.call_id ?? "" };
  const cancel = async () => {
    await api.post("/v1/runs/{run_id}/calls/{call_id}/cancel", { path, body: { reason: "cancelled in the console" } });
    announce("Cancellation stored", "good");
    onChanged();
  };
  const redrive = async () => {
    const answer = await api.post("/v1/runs/{run_id}/calls/{call_id}/redrive", { path });
    announce("The call runs again, in a new run", "good");
    if (answer.run?.run_id) navigate(href("runs", answer.run.run_id));
  };
  const drop = async () => {
    const sure = await confirmDialog({
      title: "Drop the call?",
      body: <p>It leaves the parked calls for good and cannot be redriven.</p>,
      confirm: "Drop it",
      danger: true,
    });
    if (!sure) return;
    await api.post("/v1/runs/{run_id}/calls/{call_id}/drop", { path });
    onChanged();
  };
  return (
    <div class="act-buttons">
      {!isFinal(state) && (
        <ActionButton operation="POST /v1/runs/{run_id}/calls/{call_id}/cancel" kind="danger" onPress={cancel}>
          Cancel the call
        </ActionButton>
      )}
      {call.parked && (
        <>
          <ActionButton operation="POST /v1/runs/{run_id}/calls/{call_id}/redrive" kind="primary" onPress={redrive}>
            Redrive
          </ActionButton>
          <ActionButton operation="POST /v1/runs/{run_id}/calls/{call_id}/drop" onPress={drop}>
            Drop
          </ActionButton>
        </>
      )}
      {run && call.call_id && <CopyMenu run={run} call={call.call_id} />}
    </div>
  );
}

function Decision({ decided }: { decided: Schemas["CallDecided"] }) {
  return (
    <p>
      <Chip tone={decided.approved ? "good" : "bad"}>{decided.approved ? "approved" : "rejected"}</Chip>{" "}
      <Time at={decided.time} />
      {decided.by_default && " because nobody decided in time"}
      {decided.arguments_changed && ", with other arguments"}
      {decided.reason && (
        <>
          : <Text>{decided.reason}</Text>
        </>
      )}
    </p>
  );
}

function Outcome({ outcome }: { outcome: Schemas["CallOutcome"] }) {
  const { error } = outcome;
  return (
    <>
      {error && (
        <Section title={`Error: ${constant(error.kind, "CALL_ERROR_KIND_")}`}>
          <p class="call-error">
            <Text>{error.message ?? ""}</Text>
          </p>
          {error.violations?.map((violation) => (
            <p key={`${violation.path} ${violation.message}`}>
              <code>
                <Text>{violation.path || "/"}</Text>
              </code>{" "}
              <Text>{violation.message ?? ""}</Text>
            </p>
          ))}
        </Section>
      )}
      {outcome.reason && (
        <Section title="Reason">
          <p>
            <Text>{outcome.reason}</Text>
          </p>
        </Section>
      )}
      {outcome.stopped && outcome.stopped !== "STOPPED_UNSPECIFIED" && (
        <Section title="Proof of the stop">
          <p>{STOPPED[outcome.stopped]}</p>
        </Section>
      )}
      {(outcome.result?.length ?? 0) > 0 && (
        <Section title="Result">
          {outcome.result?.map((content, at) => (
            <Content key={at} content={content} />
          ))}
        </Section>
      )}
      {outcome.extra_state && (
        <Section title="Extra state">
          <JsonTree json={outcome.extra_state} />
        </Section>
      )}
    </>
  );
}

const STOPPED: Record<string, string> = {
  STOPPED_NOT_RUNNING: "No attempt was running, and none will begin.",
  STOPPED_CONFIRMED: "The worker confirmed that the tool has stopped.",
  STOPPED_UNCONFIRMED: "Whether the tool has stopped is not confirmed.",
};

function Attempts({ model }: { model: CallModel }) {
  return (
    <Section title="Attempts">
      <div class="scroll-x">
        <table class="plain">
          <thead>
            <tr>
              <th class="end">#</th>
              <th>Worker</th>
              <th class="end">Took</th>
              <th>End</th>
            </tr>
          </thead>
          <tbody>
            {model.attempts.map((attempt) => (
              <tr key={attempt.number}>
                <td class="end">{attempt.number}</td>
                <td class="mono">
                  <Text>{attempt.worker || "–"}</Text>
                </td>
                <td class="end">
                  <Duration
                    from={new Date(attempt.start).toISOString()}
                    to={attempt.end === undefined ? undefined : new Date(attempt.end).toISOString()}
                  />
                </td>
                <td>
                  {attempt.error ? <Text>{attempt.error}</Text> : attempt.end === undefined ? "runs" : "ended the call"}
                  {attempt.withdrawn && <Chip tone="late">withdrawn</Chip>}
                  {attempt.continues && <Chip>continued</Chip>}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Section>
  );
}

function ProgressBar({ progress }: { progress: Schemas["Progress"] }) {
  const { done = 0, total, message } = progress;
  return (
    <Section title="Progress">
      <progress value={total ? Math.min(done, total) : undefined} max={total || 1} aria-label="Progress of the call" />
      <p class="number">
        {done}
        {total ? ` of ${total}` : ""} <Text>{message ?? ""}</Text>
      </p>
    </Section>
  );
}
