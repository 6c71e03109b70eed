import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const KEY = "toolyard.theme";
const stored = localStorage.getItem(KEY);

/** Light, dark, or as the system is set. */
export const theme = signal<Theme>(stored === "light" || stored === "dark" ? stored : "system");

effect(() => {
  if (theme.value === "system") {
    localStorage.removeItem(KEY);
    delete document.documentElement.dataset["theme"];
  } else {
    localStorage.setItem(KEY, theme.value);
    document.documentElement.dataset["theme"] = theme.value;
  }
});

const NEXT = { system: "light", light: "dark", dark: "system" } as const;

export function nextTheme(): void {
  theme.value = NEXT[theme.value];
}
