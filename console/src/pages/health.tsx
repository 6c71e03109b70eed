import { Empty, Page } from "../ui/basics";

export function HealthPage() {
  return (
    <Page title="Health">
      <Empty>This page is not there yet.</Empty>
    </Page>
  );
}
