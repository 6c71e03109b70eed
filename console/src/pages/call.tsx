import { Empty, Page } from "../ui/basics";

export function CallPage({ runId, callId }: { runId: string; callId: string }) {
  return (
    <Page title={`${runId} ${callId}`}>
      <Empty>This page is not there yet.</Empty>
    </Page>
  );
}
