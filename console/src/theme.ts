import { effect, signal } from "@preact/signals";
import { ofBrowser } from "./storage";

export type Theme = "system" | "light" | "dark";
const KEY = "toolyard.theme";
const stored = ofBrowser.get(KEY);

/** Light, dark, or as the system is set. */
export const theme = signal<Theme>(stored === "light" || stored === "dark" ? stored : "system");

effect(() => {
  if (theme.value === "system") {
    ofBrowser.remove(KEY);
    delete document.documentElement.dataset["theme"];
  } else {
    ofBrowser.set(KEY, theme.value);
    document.documentElement.dataset["theme"] = theme.value;
  }
});

const NEXT = { system: "light", light: "dark", dark: "system" } as const;

export function nextTheme(): void {
  theme.value = NEXT[theme.value];
}
