// Lists that are small enough to be read as a whole.

interface Page {
  next_page_token?: string;
}

/** Pages that are read at most: lists of the fleet are bounded by it. */
const PAGES_MAX = 20;

/** Reads a list page by page and joins it. The second value is whether more is left. */
export async function all<P extends Page, Row>(
  fetchPage: (token: string) => Promise<P>,
  rowsOf: (page: P) => Row[] | undefined,
): Promise<{ rows: Row[]; more: boolean; first: P | undefined }> {
  const rows: Row[] = [];
  let first: P | undefined;
  let token = "";
  for (let read = 0; read < PAGES_MAX; read += 1) {
    const page = await fetchPage(token);
    first ??= page;
    rows.push(...(rowsOf(page) ?? []));
    token = page.next_page_token ?? "";
    if (token === "") return { rows, more: false, first };
  }
  return { rows, more: true, first };
}
