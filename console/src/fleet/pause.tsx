// Pausing and resuming a tool or a pool.

import { api } from "../api/client";
import { ActionButton, Text } from "../ui/basics";
import { openReasonDialog } from "../ui/reason";
import { announce } from "../ui/toast";

export type Target = { tool: string } | { pool: string };

function nameOf(target: Target): string {
  return "tool" in target ? target.tool : target.pool;
}

interface Props {
  target: Target;
  paused: boolean;
  onDone: () => void;
}

/** Pauses with a reason, or resumes. */
export function PauseButton({ target, paused, onDone }: Props) {
  const kind = "tool" in target ? "tool" : "pool";
  const name = nameOf(target);
  const resume = async () => {
    await api.post("/v1/pauses/resume", { body: target });
    announce(`Resumed: ${name}`, "good");
    onDone();
  };
  const pause = async () =>
    openReasonDialog({
      title: `Pause the ${kind}?`,
      body: (
        <p>
          Calls of{" "}
          <strong>
            <Text>{name}</Text>
          </strong>{" "}
          are accepted and wait until it is resumed. Their deadlines keep running. Running calls continue.
        </p>
      ),
      operation: "POST /v1/pauses",
      confirm: "Pause",
      act: async (reason) => {
        await api.post("/v1/pauses", { body: { ...target, reason } });
        announce(`Paused: ${name}`, "good");
        onDone();
      },
    });
  return paused ? (
    <ActionButton operation="POST /v1/pauses/resume" onPress={resume}>
      Resume
    </ActionButton>
  ) : (
    <ActionButton operation="POST /v1/pauses" onPress={pause}>
      Pause …
    </ActionButton>
  );
}
