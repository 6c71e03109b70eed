import { Empty, Page } from "../ui/basics";

export function ParkedPage() {
  return (
    <Page title="Parked">
      <Empty>This page is not there yet.</Empty>
    </Page>
  );
}
