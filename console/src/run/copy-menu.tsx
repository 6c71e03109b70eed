import { useEffect, useRef, useState } from "preact/hooks";
import type { Schemas } from "../api/client";
import { CopyButton } from "../ui/basics";
import { saveText } from "../ui/terminal-text";
import { asCurl, asPython, asTypeScript } from "./copy";

/** Copies the request that makes a run again, or one of its calls. */
export function CopyMenu({ run, call }: { run: Schemas["Run"] | undefined; call?: string }) {
  const [isOpen, setOpen] = useState(false);
  const menu = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    const close = (event: MouseEvent) => {
      if (!menu.current?.contains(event.target as Node)) setOpen(false);
    };
    addEventListener("click", close);
    return () => removeEventListener("click", close);
  }, [isOpen]);
  if (!run) return null;
  const save = () => saveText(JSON.stringify(run, null, 2), `${run.run_id ?? "run"}.json`);
  return (
    <details
      ref={menu}
      class="menu"
      open={isOpen}
      onToggle={(event) => setOpen(event.currentTarget.open)}
      onKeyDown={(event) => {
        if (event.key === "Escape") setOpen(false);
      }}
    >
      <summary>Copy as</summary>
      <div class="menu-items">
        <CopyButton text={() => asCurl(run, call)}>curl</CopyButton>
        <CopyButton text={() => asPython(run, call)}>Python</CopyButton>
        <CopyButton text={() => asTypeScript(run, call)}>TypeScript</CopyButton>
        <CopyButton text={() => call ?? run.run_id ?? ""}>The id</CopyButton>
        {!call && (
          <button type="button" class="plain" onClick={save}>
            Save as JSON
          </button>
        )}
      </div>
    </details>
  );
}
