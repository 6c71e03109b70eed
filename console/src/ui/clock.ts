import { signal } from "@preact/signals";

/** The time, once a second while the page is visible; for ages. */
export const now = signal(Date.now());

setInterval(() => {
  if (document.visibilityState === "visible") now.value = Date.now();
}, 1_000);
