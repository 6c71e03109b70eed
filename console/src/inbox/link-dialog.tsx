// Makes a link by which somebody without a key can answer one call.

import { useId, useState } from "preact/hooks";
import { api } from "../api/client";
import { type ApiError, toApiError } from "../api/problem";
import { ActionButton, CopyButton, ErrorBox, Time } from "../ui/basics";
import { openDialog } from "../ui/dialog";
import { type AskedCall, toFragment } from "./link";

interface Props {
  runId: string;
  callId: string;
  asked: AskedCall;
}

const LIFETIMES: [string, string][] = [
  ["900s", "15 minutes"],
  ["3600s", "1 hour"],
  ["14400s", "4 hours"],
  ["86400s", "1 day"],
];

export function openLinkDialog(props: Props): void {
  openDialog({ title: "Have somebody else answer", body: <LinkMaker {...props} /> });
}

function LinkMaker({ runId, callId, asked }: Props) {
  const id = useId();
  const [lifetime, setLifetime] = useState("900s");
  const [made, setMade] = useState<{ link: string; until: string | undefined; isWhole: boolean }>();
  const [error, setError] = useState<ApiError | undefined>(undefined);
  const make = async () => {
    setError(undefined);
    try {
      const answer = await api.post("/v1/runs/{run_id}/calls/{call_id}/answer_token", {
        path: { run_id: runId, call_id: callId },
        body: { lifetime },
      });
      const fragment = toFragment({ runId, callId, token: answer.token ?? "", asked });
      const link = new URL(fragment, document.baseURI).href;
      setMade({ link, until: answer.expire_time, isWhole: fragment.includes("q=") });
    } catch (failure) {
      setError(toApiError(failure));
    }
  };
  return (
    <div class="dialog-body">
      <p>
        The holder of the link can answer this call once, without a key, and can do nothing else. The link has the
        question in it, because the token permits no reading.
      </p>
      {made ? (
        <>
          <div class="field">
            <label for={`${id}-link`}>Link</label>
            <textarea id={`${id}-link`} class="code" rows={4} readOnly value={made.link} />
          </div>
          <p class="muted">
            Valid until <Time at={made.until} />, or until the call is answered.
            {!made.isWhole && " The question is too long for a link: tell the recipient what is asked."}
          </p>
          <div class="act-buttons">
            <CopyButton text={() => made.link}>Copy the link</CopyButton>
          </div>
        </>
      ) : (
        <>
          <div class="field">
            <label for={id}>Valid for</label>
            <select id={id} value={lifetime} onChange={(event) => setLifetime(event.currentTarget.value)}>
              {LIFETIMES.map(([value, label]) => (
                <option key={value} value={value}>
                  {label}
                </option>
              ))}
            </select>
          </div>
          <p class="muted">It is never valid for longer than the call may wait.</p>
          <div class="act-buttons">
            <ActionButton operation="POST /v1/runs/{run_id}/calls/{call_id}/answer_token" kind="primary" onPress={make}>
              Make the link
            </ActionButton>
          </div>
        </>
      )}
      <ErrorBox error={error} />
    </div>
  );
}
