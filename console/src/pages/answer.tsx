// The page of an answer link: one question, for a person who has no key.

import { useState } from "preact/hooks";
import { api } from "../api/client";
import { fromRoute } from "../inbox/link";
import { route } from "../router";
import "../styles/page-inbox.css";
import { AnswerFields, type Output, toOutput } from "../ui/act";
import { Page, Text } from "../ui/basics";

export function AnswerPage() {
  const link = fromRoute(route.value.parts, route.value.query);
  const [isDone, setDone] = useState(false);
  if (!link) {
    return (
      <Page title="Answer">
        <p>
          The link is incomplete: it needs a run, a call and a token. Ask for the link again, and copy the whole of it.
        </p>
      </Page>
    );
  }
  if (isDone) {
    return (
      <Page title="Answered">
        <p>The answer is stored, and the call goes on with it. This page can be closed: the link works only once.</p>
      </Page>
    );
  }
  const send = async (output: Output) => {
    await api.post("/v1/runs/{run_id}/outputs", {
      path: { run_id: link.runId },
      body: { outputs: [toOutput(link.callId, output)] },
      headers: { authorization: `Bearer ${link.token}` },
    });
    setDone(true);
  };
  return (
    <Page title="A question for you">
      {link.asked ? (
        <p class="muted">
          An agent waits for your answer to a call of{" "}
          <strong>
            <Text>{link.asked.tool}</Text>
          </strong>
          .
        </p>
      ) : (
        <p>The question is too long for the link. Ask the sender what the question is. The answer is a text here.</p>
      )}
      <section class="panel answer-panel" aria-label="Answer">
        <div class="panel-body">
          <AnswerFields
            tool={link.asked?.tool ?? ""}
            args={link.asked?.args ?? "{}"}
            outputSchema={link.asked?.outputSchema}
            onSend={send}
          />
        </div>
      </section>
      <p class="muted">
        Call <Text>{link.callId}</Text> of the run <span class="mono answer-run">{link.runId}</span>
      </p>
    </Page>
  );
}
