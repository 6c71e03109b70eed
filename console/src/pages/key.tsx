import { useState } from "preact/hooks";
import { signIn } from "../api/session";
import { Text } from "../ui/basics";
import { Icon } from "../ui/icons";

/** Asks for the caller's key. */
export function KeyPage({ why }: { why: string }) {
  const [typed, setTyped] = useState("");
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    if (typed.trim() !== "") signIn(typed.trim());
  };
  return (
    <main class="key-page">
      <form class="panel" onSubmit={submit}>
        <p class="brand">
          <Icon name="logo" /> <span>Toolyard</span>
        </p>
        <h1>Enter your key</h1>
        <p role="alert">
          <Text>{why}</Text>
        </p>
        <div class="field">
          <label for="key">API key or token</label>
          <input
            id="key"
            type="password"
            autocomplete="off"
            spellcheck={false}
            value={typed}
            onInput={(event) => setTyped(event.currentTarget.value)}
          />
          <p class="hint">It stays in this tab until the tab is closed, and is sent to this coordinator alone.</p>
        </div>
        <button type="submit" class="primary" disabled={typed.trim() === ""}>
          Continue
        </button>
      </form>
    </main>
  );
}
