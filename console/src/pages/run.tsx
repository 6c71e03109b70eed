import { Empty, Page } from "../ui/basics";

export function RunPage({ runId }: { runId: string }) {
  return (
    <Page title={runId}>
      <Empty>This page is not there yet.</Empty>
    </Page>
  );
}
