import { Empty, Page } from "../ui/basics";

export function WorkersPage() {
  return (
    <Page title="Workers">
      <Empty>This page is not there yet.</Empty>
    </Page>
  );
}
