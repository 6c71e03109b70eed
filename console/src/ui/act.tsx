// The forms by which a person answers a call, or decides on it. The run page and the inbox share them.

import { useState } from "preact/hooks";
import { api } from "../api/client";
import { usePoll } from "../api/poll";
import { pretty } from "../format";
import { ActionButton, Text } from "./basics";
import { JsonTree } from "./json-tree";
import { type Json, SchemaForm } from "./schema-form";
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

/** Answers a call that waits for its client. */
export function AnswerForm({ runId, callId, tool, args, onDone }: OfCall) {
  const manifest = useTool(tool);
  const [failing, setFailing] = useState(false);
  const send = async (output: { result?: { text: string }[] | { json: string }[]; error?: string }) => {
    await api.post("/v1/runs/{run_id}/outputs", {
      path: { run_id: runId },
      body: { outputs: [{ call_id: callId, ...output }] },
    });
    announce("Answered", "good");
    onDone?.();
  };
  const parsed = parseObject(args);
  const isQuestion = typeof parsed["question"] === "string";
  return (
    <div class="act">
      {isQuestion ? (
        <QuestionForm
          question={parsed as Question}
          onSend={(result) => send({ result: [result] as { text: string }[] })}
        />
      ) : (
        <>
          <JsonTree json={args} label="Arguments" />
          <ResultForm
            schema={manifest?.output_schema || undefined}
            onSend={(result) => send({ result: [result] as { text: string }[] })}
          />
        </>
      )}
      {failing ? (
        <FailForm onSend={(error) => send({ error })} onBack={() => setFailing(false)} />
      ) : (
        <button type="button" class="link" onClick={() => setFailing(true)}>
          It cannot be answered …
        </button>
      )}
    </div>
  );
}

type Result = { text: string } | { json: string };

function QuestionForm({ question, onSend }: { question: Question; onSend: (result: Result) => Promise<unknown> }) {
  const options = (question.options ?? []).map((option) =>
    typeof option === "string"
      ? { label: option, description: "" }
      : { label: option.label ?? "", description: option.description ?? "" },
  );
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
            name="option"
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
  const [value, setValue] = useState<Json | undefined>(undefined);
  const [isValid, setValid] = useState(true);
  const [text, setText] = useState("");
  if (!schema) {
    return (
      <>
        <div class="field">
          <label for="answer">Result, as text</label>
          <textarea id="answer" rows={4} value={text} onInput={(event) => setText(event.currentTarget.value)} />
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
  const [why, setWhy] = useState("");
  return (
    <div class="field">
      <label for="why-not">Why it cannot be answered, for the model</label>
      <textarea id="why-not" rows={2} value={why} onInput={(event) => setWhy(event.currentTarget.value)} />
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
  const decide = async (decision: { approve: { arguments?: string } } | { reject: { reason: string } }) => {
    await api.post("/v1/runs/{run_id}/decisions", {
      path: { run_id: runId },
      body: { decisions: [{ call_id: callId, ...decision }] },
    });
    announce("approve" in decision ? "Approved" : "Rejected", "good");
    onDone?.();
  };
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
    </div>
  );
}

/** The arguments of a call as they are sent, for copying. */
export function argumentsText(args: string): string {
  return pretty(args === "" ? "{}" : args);
}
