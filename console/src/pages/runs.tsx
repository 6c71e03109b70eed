import { Empty, Page } from "../ui/basics";

export function RunsPage() {
  return (
    <Page title="Runs">
      <Empty>This page is not there yet.</Empty>
    </Page>
  );
}
