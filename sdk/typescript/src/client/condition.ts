/** Waits for a state of a turn. */

/** Those who wait until something holds. */
export class Condition {
  readonly #checks = new Set<() => void>();

  /** Resolves when it holds: now, or after a change. */
  until(holds: () => boolean): Promise<void> {
    return new Promise((resolve) => {
      const check = () => {
        if (holds()) {
          this.#checks.delete(check);
          resolve();
        }
      };
      this.#checks.add(check);
      check();
    });
  }

  /** Something has changed that may be waited for. */
  changed(): void {
    for (const check of this.#checks) {
      check();
    }
  }
}
