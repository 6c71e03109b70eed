import { Empty, Page } from "../ui/basics";

export function InboxPage() {
  return (
    <Page title="Inbox">
      <Empty>This page is not there yet.</Empty>
    </Page>
  );
}
