import { Empty, Page } from "../ui/basics";

export function SchedulesPage() {
  return (
    <Page title="Schedules">
      <Empty>This page is not there yet.</Empty>
    </Page>
  );
}
