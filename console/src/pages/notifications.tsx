import { Empty, Page } from "../ui/basics";

export function NotificationsPage() {
  return (
    <Page title="Notifications">
      <Empty>This page is not there yet.</Empty>
    </Page>
  );
}
