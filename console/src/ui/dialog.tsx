import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";

interface Shown {
  title: string;
  body: ComponentChildren;
  onClose?: (() => void) | undefined;
  wide?: boolean | undefined;
}

const shown = signal<Shown | undefined>(undefined);

/** Opens a dialog; one at a time. */
export function openDialog(dialog: Shown): void {
  shown.value = dialog;
}

export function closeDialog(): void {
  const was = shown.value;
  shown.value = undefined;
  was?.onClose?.();
}

/** Asks before something that cannot be undone. Resolves to whether it was confirmed. */
export function confirmDialog(options: {
  title: string;
  body: ComponentChildren;
  confirm: string;
  danger?: boolean;
}): Promise<boolean> {
  return new Promise((resolve) => {
    const answer = (is: boolean) => {
      resolve(is);
      if (is) closeDialog();
    };
    openDialog({
      title: options.title,
      body: (
        <>
          <div class="dialog-body">{options.body}</div>
          <div class="dialog-actions">
            <button type="button" onClick={closeDialog}>
              Back
            </button>
            <button type="button" class={options.danger ? "danger" : "primary"} onClick={() => answer(true)}>
              {options.confirm}
            </button>
          </div>
        </>
      ),
      onClose: () => resolve(false),
    });
  });
}

/** Where dialogs appear. */
export function DialogHost() {
  const element = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  const dialog = shown.value;
  useEffect(() => {
    const at = element.current;
    if (dialog && at && !at.open) at.showModal();
  }, [dialog]);
  if (!dialog) return null;
  return (
    <dialog ref={element} class={dialog.wide ? "wide" : ""} aria-labelledby={titleId} onClose={closeDialog}>
      <header>
        <h2 id={titleId}>{dialog.title}</h2>
        <button type="button" class="icon" aria-label="Close" onClick={closeDialog}>
          ×
        </button>
      </header>
      {dialog.body}
    </dialog>
  );
}
