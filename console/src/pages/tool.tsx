import { Empty, Page } from "../ui/basics";

export function ToolPage({ name }: { name: string }) {
  return (
    <Page title={name}>
      <Empty>This page is not there yet.</Empty>
    </Page>
  );
}
