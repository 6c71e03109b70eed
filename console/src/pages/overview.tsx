import { Empty, Page } from "../ui/basics";

export function OverviewPage() {
  return (
    <Page title="Overview">
      <Empty>This page is not there yet.</Empty>
    </Page>
  );
}
