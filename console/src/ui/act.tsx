// The forms by which a person answers a call, or decides on it. The run page and the inbox share them.

import { useId, useMemo, useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { usePoll } from "../api/poll";
import { type ApiError, toApiError } from "../api/problem";
import { pretty } from "../format";
import { plain, safeLink } from "../text/escape";
import { ActionButton, ErrorBox, Text } from "./basics";
import { JsonTree } from "./json-tree";
import { defaults, type Json, missing, SchemaForm, wellFormed } from "./schema-form";
import { announce } from "./toast";

interface OfCall {
  runId: string;
  callId: string;
  tool: string;
  /** The arguments: JSON as text. */
  args: string;
  /** After the request was accepted. */
  onDone?: () => void;
}

/** The manifest of a tool; undefined while it is fetched, or if there is none. */
export function useTool(name: string) {
  const polled = usePoll((signal) => api.get("/v1/tools/{name}", { path: { name }, signal }), 300_000, [name]);
  return polled.value.data?.tool;
}

interface Question {
  question?: string;
  options?: (string | { label?: string; description?: string })[] | null;
  multi_select?: boolean | null;
  free_text?: boolean | null;
}

function parseObject(json: string): Record<string, unknown> {
  try {
    const value = JSON.parse(json);
    return typeof value === "object" && value !== null ? value : {};
  } catch {
    return {};
  }
}

/** The answer to a call, as the API takes it. */
export type Output = { result: Result[] } | { error: string };
type Result = { text: string } | { json: string };
/** One answer as `outputs` of the request. */
export function toOutput(callId: string, output: Output): Schemas["ToolOutput"] {
  return { call_id: callId, ...output } as Schemas["ToolOutput"];
}

/** Answers a call that waits for its client. */
export function AnswerForm({ runId, callId, tool, args, onDone }: OfCall) {
  const manifest = useTool(tool);
  const send = async (output: Output) => {
    await api.post("/v1/runs/{run_id}/outputs", {
      path: { run_id: runId },
      body: { outputs: [toOutput(callId, output)] },
    });
    announce("Answered", "good");
    onDone?.();
  };
  return <AnswerFields tool={tool} args={args} outputSchema={manifest?.output_schema} onSend={send} />;
}

/** Performs a request and keeps its error, so that it is shown beside the form. */
function useGuard() {
  const [error, setError] = useState<ApiError | undefined>(undefined);
  const guard = async (request: () => Promise<unknown>) => {
    setError(undefined);
    try {
      await request();
    } catch (failure) {
      setError(toApiError(failure));
    }
  };
  return { error, guard };
}

interface AnswerFieldsProps {
  tool: string;
  /** The arguments of the call: JSON as text. */
  args: string;
  outputSchema: string | undefined;
  onSend: (output: Output) => Promise<unknown>;
}

/** The form alone: it reads nothing from the API. */
export function AnswerFields({ tool, args, outputSchema, onSend }: AnswerFieldsProps) {
  const [failing, setFailing] = useState(false);
  const { error, guard } = useGuard();
  const send = (result: Result) => guard(() => onSend({ result: [result] }));
  const parsed = parseObject(args);
  const isElicitation = tool === "elicitation" && typeof parsed["message"] === "string";
  const isQuestion = !isElicitation && typeof parsed["question"] === "string";
  return (
    <div class="act">
      {isElicitation && <ElicitationForm question={parsed as unknown as Elicitation} onSend={send} />}
      {isQuestion && <QuestionForm question={parsed as Question} onSend={send} />}
      {!isElicitation && !isQuestion && (
        <>
          <JsonTree json={args === "" ? "{}" : args} label="Arguments" />
          <ResultForm key={outputSchema} schema={outputSchema || undefined} onSend={send} />
        </>
      )}
      <ErrorBox error={error} />
      {failing ? (
        <FailForm onSend={(why) => guard(() => onSend({ error: why }))} onBack={() => setFailing(false)} />
      ) : (
        <div>
          <button type="button" class="link" onClick={() => setFailing(true)}>
            It cannot be answered …
          </button>
        </div>
      )}
    </div>
  );
}

interface Elicitation {
  message: string;
  mode?: string;
  url?: string;
  requestedSchema?: unknown;
}

/** A question of a running tool: a form by its schema, or a page that the person opens. */
function ElicitationForm({
  question,
  onSend,
}: {
  question: Elicitation;
  onSend: (result: Result) => Promise<unknown>;
}) {
  const schema = useMemo(() => wellFormed(question.requestedSchema), [JSON.stringify(question.requestedSchema)]);
  const [value, setValue] = useState<Json | undefined>(() => defaults(schema));
  const [isValid, setValid] = useState(true);
  const isPage = typeof question.url === "string";
  const lacking = isPage ? [] : missing(schema, value);
  const link = isPage ? safeLink(question.url ?? "") : undefined;
  const act = (action: "accept" | "decline" | "cancel") =>
    onSend({
      json: JSON.stringify(action === "accept" && !isPage ? { action, content: value ?? {} } : { action }),
    });
  return (
    <div class="question">
      <p class="question-text">
        <Text>{question.message}</Text>
      </p>
      {isPage &&
        (link ? (
          <p>
            The question is on a page of another site:{" "}
            <a href={link} target="_blank" rel="noopener noreferrer">
              <Text>{link}</Text>
            </a>
          </p>
        ) : (
          <p>
            The question names a page that cannot be opened: <Text>{question.url}</Text>
          </p>
        ))}
      {!isPage && Object.keys(schema.properties ?? {}).length > 0 && (
        <SchemaForm schema={schema} value={value} onChange={setValue} onValid={setValid} label="Answer" />
      )}
      <div class="act-buttons">
        <ActionButton
          operation="POST /v1/runs/{run_id}/outputs"
          kind="primary"
          disabled={!isValid || lacking.length > 0}
          title={lacking.length > 0 ? `Required: ${plain(lacking.join(", "))}` : "Accept"}
          onPress={() => act("accept")}
        >
          {isPage ? "Agree" : "Send the answer"}
        </ActionButton>
        <ActionButton operation="POST /v1/runs/{run_id}/outputs" onPress={() => act("decline")}>
          Decline
        </ActionButton>
        <ActionButton operation="POST /v1/runs/{run_id}/outputs" onPress={() => act("cancel")}>
          Dismiss
        </ActionButton>
      </div>
    </div>
  );
}

function QuestionForm({ question, onSend }: { question: Question; onSend: (result: Result) => Promise<unknown> }) {
  const options = (Array.isArray(question.options) ? question.options : []).map((option) =>
    typeof option === "string"
      ? { label: option, description: "" }
      : { label: String(option?.label ?? ""), description: String(option?.description ?? "") },
  );
  const id = useId();
  const [chosen, setChosen] = useState<string[]>([]);
  const [typed, setTyped] = useState("");
  const isMulti = question.multi_select === true;
  const takesText = options.length === 0 || question.free_text !== false;
  const answer = (): Result => {
    if (isMulti) return { json: JSON.stringify([...chosen, ...(typed.trim() ? [typed.trim()] : [])]) };
    return { text: typed.trim() || (chosen[0] ?? "") };
  };
  const isReady = typed.trim() !== "" || chosen.length > 0;
  const toggle = (label: string) => {
    if (!isMulti) setChosen([label]);
    else setChosen(chosen.includes(label) ? chosen.filter((one) => one !== label) : [...chosen, label]);
  };
  return (
    <fieldset class="question">
      <legend>
        <Text>{question.question ?? ""}</Text>
      </legend>
      {options.map((option) => (
        <label key={option.label} class="option">
          <input
            type={isMulti ? "checkbox" : "radio"}
            name={id}
            checked={chosen.includes(option.label)}
            onChange={() => toggle(option.label)}
          />
          <span>
            <Text>{option.label}</Text>
            {option.description && (
              <span class="hint">
                {" "}
                <Text>{option.description}</Text>
              </span>
            )}
          </span>
        </label>
      ))}
      {takesText && (
        <textarea
          rows={2}
          aria-label={options.length > 0 ? "Another answer" : "Answer"}
          placeholder={options.length > 0 ? "Another answer" : "Your answer"}
          value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
      )}
      <div class="act-buttons">
        <ActionButton
          operation="POST /v1/runs/{run_id}/outputs"
          kind="primary"
          disabled={!isReady}
          onPress={() => onSend(answer())}
        >
          Send the answer
        </ActionButton>
      </div>
    </fieldset>
  );
}

function ResultForm({ schema, onSend }: { schema: string | undefined; onSend: (result: Result) => Promise<unknown> }) {
  const id = useId();
  const [value, setValue] = useState<Json | undefined>(undefined);
  const [isValid, setValid] = useState(true);
  const [text, setText] = useState("");
  if (!schema) {
    return (
      <>
        <div class="field">
          <label for={id}>Result, as text</label>
          <textarea id={id} rows={4} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </div>
        <div class="act-buttons">
          <ActionButton
            operation="POST /v1/runs/{run_id}/outputs"
            kind="primary"
            disabled={text === ""}
            onPress={() => onSend({ text })}
          >
            Send the result
          </ActionButton>
        </div>
      </>
    );
  }
  return (
    <>
      <SchemaForm schema={schema} value={value} onChange={setValue} onValid={setValid} label="Result" />
      <div class="act-buttons">
        <ActionButton
          operation="POST /v1/runs/{run_id}/outputs"
          kind="primary"
          disabled={!isValid || value === undefined}
          onPress={() => onSend({ json: JSON.stringify(value) })}
        >
          Send the result
        </ActionButton>
      </div>
    </>
  );
}

function FailForm({ onSend, onBack }: { onSend: (error: string) => Promise<unknown>; onBack: () => void }) {
  const id = useId();
  const [why, setWhy] = useState("");
  return (
    <div class="field">
      <label for={id}>Why it cannot be answered, for the model</label>
      <textarea id={id} rows={2} value={why} onInput={(event) => setWhy(event.currentTarget.value)} />
      <div class="act-buttons">
        <button type="button" onClick={onBack}>
          Back
        </button>
        <ActionButton
          operation="POST /v1/runs/{run_id}/outputs"
          kind="danger"
          disabled={why.trim() === ""}
          onPress={() => onSend(why)}
        >
          Send the error
        </ActionButton>
      </div>
    </div>
  );
}

/** Approves a call, as it is or with other arguments, or rejects it. */
export function ApproveForm({ runId, callId, tool, args, onDone }: OfCall) {
  const manifest = useTool(tool);
  const [edited, setEdited] = useState<Json | undefined>(undefined);
  const [isEditing, setEditing] = useState(false);
  const [isValid, setValid] = useState(true);
  const [reason, setReason] = useState("");
  const { error, guard } = useGuard();
  const decide = (decision: { approve: { arguments?: string } } | { reject: { reason: string } }) =>
    guard(async () => {
      await api.post("/v1/runs/{run_id}/decisions", {
        path: { run_id: runId },
        body: { decisions: [{ call_id: callId, ...decision }] },
      });
      announce("approve" in decision ? "Approved" : "Rejected", "good");
      onDone?.();
    });
  const approve = () =>
    decide({ approve: isEditing && edited !== undefined ? { arguments: JSON.stringify(edited) } : {} });
  const startEditing = () => {
    try {
      setEdited(JSON.parse(args === "" ? "{}" : args));
    } catch {
      setEdited(undefined);
    }
    setEditing(true);
  };
  return (
    <div class="act">
      <p>
        <strong>
          <Text>{tool}</Text>
        </strong>{" "}
        runs with these arguments only if a person approves.
      </p>
      {isEditing ? (
        <SchemaForm
          schema={manifest?.input_schema}
          value={edited}
          onChange={setEdited}
          onValid={setValid}
          label="Arguments"
        />
      ) : (
        <JsonTree json={args} label="Arguments" open={4} />
      )}
      <div class="act-buttons">
        <ActionButton operation="POST /v1/runs/{run_id}/decisions" kind="primary" disabled={!isValid} onPress={approve}>
          {isEditing ? "Approve with these arguments" : "Approve"}
        </ActionButton>
        {isEditing ? (
          <button type="button" onClick={() => setEditing(false)}>
            Keep the arguments
          </button>
        ) : (
          <button type="button" onClick={startEditing}>
            Edit the arguments
          </button>
        )}
      </div>
      <div class="act-reject">
        <input
          aria-label="Reason of a rejection, for the model"
          placeholder="Reason, for the model"
          value={reason}
          onInput={(event) => setReason(event.currentTarget.value)}
        />
        <ActionButton
          operation="POST /v1/runs/{run_id}/decisions"
          kind="danger"
          onPress={() => decide({ reject: { reason } })}
        >
          Reject
        </ActionButton>
      </div>
      <ErrorBox error={error} />
    </div>
  );
}

/** The arguments of a call as they are sent, for copying. */
export function argumentsText(args: string): string {
  return pretty(args === "" ? "{}" : args);
}
