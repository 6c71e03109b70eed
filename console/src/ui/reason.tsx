// A dialog that asks for a reason before something is done.

import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";
import type { OperationName } from "../api/client";
import { type ApiError, toApiError } from "../api/problem";
import { ActionButton, ErrorBox } from "./basics";
import { closeDialog, openDialog } from "./dialog";

interface Options {
  title: string;
  body: ComponentChildren;
  operation: OperationName;
  confirm: string;
  danger?: boolean;
  /** Performs it. The dialog stays, with the error, if it fails. */
  act: (reason: string) => Promise<unknown>;
}

/** Bytes that the API takes. */
const REASON_MAX = 1_024;

export function openReasonDialog(options: Options): void {
  openDialog({ title: options.title, body: <Reason {...options} /> });
}

function Reason({ body, operation, confirm, danger, act }: Options) {
  const id = useId();
  const [reason, setReason] = useState("");
  const [error, setError] = useState<ApiError | undefined>(undefined);
  const press = async () => {
    setError(undefined);
    try {
      await act(reason.trim());
      closeDialog();
    } catch (failure) {
      setError(toApiError(failure));
    }
  };
  return (
    <>
      <div class="dialog-body">
        {body}
        <div class="field">
          <label for={id}>Reason, for people</label>
          <input
            id={id}
            maxLength={REASON_MAX}
            value={reason}
            onInput={(event) => setReason(event.currentTarget.value)}
          />
        </div>
        <ErrorBox error={error} />
      </div>
      <div class="dialog-actions">
        <button type="button" onClick={closeDialog}>
          Back
        </button>
        <ActionButton operation={operation} kind={danger ? "danger" : "primary"} onPress={press}>
          {confirm}
        </ActionButton>
      </div>
    </>
  );
}
