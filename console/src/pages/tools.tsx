import { Empty, Page } from "../ui/basics";

export function ToolsPage() {
  return (
    <Page title="Tools">
      <Empty>This page is not there yet.</Empty>
    </Page>
  );
}
