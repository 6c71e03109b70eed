/** An id that makes a request idempotent: a repetition after a lost answer returns what the first one made. */
export function requestId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `console-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
