import { Empty, Page } from "../ui/basics";

export function CallsPage() {
  return (
    <Page title="Calls">
      <Empty>This page is not there yet.</Empty>
    </Page>
  );
}
