import { signal } from "@preact/signals";
import { Text } from "./basics";

interface Toast {
  id: number;
  text: string;
  tone: "good" | "bad";
}

const toasts = signal<Toast[]>([]);
let last = 0;

/** Shows a short message for some seconds, and has it read out. */
export function announce(text: string, tone: "good" | "bad"): void {
  last += 1;
  const id = last;
  toasts.value = [...toasts.value.slice(-3), { id, text, tone }];
  setTimeout(() => dismiss(id), tone === "bad" ? 12_000 : 4_000);
}

function dismiss(id: number): void {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((toast) => (
        <div key={toast.id} class={`toast tone-${toast.tone}`}>
          <span>
            <Text>{toast.text}</Text>
          </span>
          <button type="button" aria-label="Dismiss" onClick={() => dismiss(toast.id)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}
