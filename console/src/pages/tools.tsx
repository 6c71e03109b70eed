// The catalogue of tools.

import { useMemo } from "preact/hooks";
import { all } from "../api/all";
import { api, type Schemas } from "../api/client";
import { usePoll } from "../api/poll";
import { Availability, hintsOf, PermissionChip } from "../fleet/tools";
import { count } from "../format";
import { FilterBar, TextFilter } from "../list/filters";
import { href, route, setQuery } from "../router";
import "../styles/page-fleet.css";
import "../styles/page-lists.css";
import { Chip, ErrorBox, FilterChip, Page, Panel, Text } from "../ui/basics";
import { type Column, Table } from "../ui/table";

type Tool = Schemas["Tool"];

const PERMISSIONS = ["read", "write", "external"] as const;
const ORIGINS = [
  ["built_in", "built in"],
  ["external", "HTTP endpoint"],
  ["mcp", "MCP server"],
  ["plugin", "program"],
] as const;
const TOOLS_MS = 4_000;
/** The most that a search returns: more than fit one look. */
const FOUND_MAX = 50;

const COLUMNS: Column<Tool>[] = [
  {
    key: "name",
    title: "Name",
    width: "minmax(11rem, 1fr)",
    cell: (tool) => (
      <a class="mono" href={href("tools", tool.name ?? "")}>
        <Text>{tool.name}</Text>
      </a>
    ),
  },
  { key: "state", title: "State", width: "8.5rem", cell: (tool) => <Availability tool={tool} /> },
  { key: "permission", title: "Permission", width: "7.5rem", cell: (tool) => <PermissionChip tool={tool} /> },
  {
    key: "description",
    title: "Description",
    width: "minmax(16rem, 3fr)",
    cell: (tool) => (
      <span class="muted">
        {tool.alias_of && (
          <>
            alias of <Text>{tool.alias_of}</Text>.{" "}
          </>
        )}
        <Text>{(tool.title || tool.description || "").slice(0, 200)}</Text>
      </span>
    ),
  },
  {
    key: "hints",
    title: "Hints",
    width: "minmax(10rem, 1.4fr)",
    cell: (tool) => {
      const hints = hintsOf(tool).map(([name]) => name);
      return <span title={hints.join(", ")}>{hints.join(" · ") || <span class="muted">–</span>}</span>;
    },
  },
  {
    key: "pools",
    title: "Pools",
    width: "minmax(7rem, 1fr)",
    cell: (tool) => <Text>{(tool.pools ?? []).map((pool) => pool.pool).join(", ") || "–"}</Text>,
  },
  { key: "version", title: "Version", width: "6rem", cell: (tool) => <Text>{tool.version || "–"}</Text> },
];

export function ToolsPage() {
  const { query } = route.value;
  const words = query.get("q") ?? "";
  const permission = PERMISSIONS.find((one) => one === query.get("permission"));
  const origin = ORIGINS.find(([one]) => one === query.get("origin"))?.[0];
  const [category, pool] = [query.get("category") ?? "", query.get("pool") ?? ""];
  const include = query.get("gone") === "1";
  const polled = usePoll(
    (signal) =>
      all(
        (page_token) =>
          api.get("/v1/tools", {
            query: {
              ...(words ? { query: words, page_size: FOUND_MAX } : { page_size: 1000, page_token }),
              ...(permission
                ? { permission: `TOOL_PERMISSION_${permission.toUpperCase()}` as "TOOL_PERMISSION_READ" }
                : {}),
              ...(origin ? { origin: `TOOL_ORIGIN_${origin.toUpperCase()}` as "TOOL_ORIGIN_MCP" } : {}),
              ...(include ? { include_unavailable: true } : {}),
              category,
              pool,
            },
            signal,
          }),
        (page) => page.tools,
      ),
    TOOLS_MS,
    [words, permission, origin, category, pool, include],
  );
  const { data, error } = polled.value;
  const rows = data?.rows ?? [];
  const refused = data?.first?.refused ?? [];
  const categories = useCategories(rows, category);
  return (
    <Page title="Tools" fill>
      <div class="chips" role="group" aria-label="Tools by permission">
        {PERMISSIONS.map((one) => (
          <FilterChip
            key={one}
            on={permission === one}
            tone={one === "read" ? "good" : one === "write" ? "late" : "bad"}
            onPress={() => setQuery({ permission: permission === one ? undefined : one })}
          >
            {one}
          </FilterChip>
        ))}
        <FilterChip on={include} onPress={() => setQuery({ gone: include ? undefined : "1" })}>
          also without workers
        </FilterChip>
      </div>
      <FilterBar>
        <TextFilter name="q" label="Search names, descriptions, arguments" width="20rem" />
        <select
          aria-label="Category"
          value={category}
          onChange={(event) => setQuery({ category: event.currentTarget.value })}
        >
          <option value="">any category</option>
          {categories.map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
        <select
          aria-label="Origin"
          value={origin ?? ""}
          onChange={(event) => setQuery({ origin: event.currentTarget.value })}
        >
          <option value="">any origin</option>
          {ORIGINS.map(([value, label]) => (
            <option key={value} value={value}>
              {label}
            </option>
          ))}
        </select>
        <TextFilter name="pool" label="Pool" />
      </FilterBar>
      <ErrorBox error={error?.isTransient && data ? undefined : error} onRetry={polled.refresh} />
      <Table
        label="Tools"
        columns={COLUMNS}
        rows={rows}
        keyOf={(tool) => tool.name ?? ""}
        hrefOf={(tool) => href("tools", tool.name ?? "")}
        empty={
          data ? (words ? "No tool has one of these words." : "No worker hosts a tool that matches.") : "Reading …"
        }
        footer={
          <span>
            {count(rows.length)} {rows.length === 1 ? "tool" : "tools"}
            {words && ", the best first"}
            {data?.more && " and more; narrow the filters"}
          </span>
        }
      />
      {refused.length > 0 && <Refused refused={refused} />}
    </Page>
  );
}

/** The categories of the tools; the chosen one stays in the list although it filters the others out. */
function useCategories(rows: readonly Tool[], chosen: string): string[] {
  return useMemo(() => {
    const names = new Set(rows.map((tool) => tool.category ?? ""));
    names.add(chosen);
    names.delete("");
    return [...names].sort();
  }, [rows, chosen]);
}

function Refused({ refused }: { refused: Schemas["RefusedTool"][] }) {
  return (
    <Panel title="Refused tools" aside={`${refused.length} hosted, but not callable there`} class="refused">
      <div class="scroll-x">
        <table class="plain">
          <thead>
            <tr>
              <th>Tool</th>
              <th>Pool</th>
              <th>Why, and what to do</th>
            </tr>
          </thead>
          <tbody>
            {refused.map((one) => (
              <tr key={`${one.tool} ${one.hosts?.pool}`}>
                <td class="mono">
                  <Text>{one.tool}</Text>
                </td>
                <td>
                  <Text>{one.hosts?.pool}</Text>{" "}
                  {one.holder?.pool && (
                    <Chip>
                      held by <Text>{one.holder.pool}</Text>
                    </Chip>
                  )}
                </td>
                <td>
                  <Text>{one.reason}</Text>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}
