// Notifications that could not be delivered in time.

import { useMemo, useState } from "preact/hooks";
import { all } from "../api/all";
import { api, type Schemas } from "../api/client";
import { usePoll } from "../api/poll";
import { count } from "../format";
import { href, route, setQuery } from "../router";
import "../styles/page-fleet.css";
import "../styles/page-lists.css";
import { ActionButton, ErrorBox, Id, Page, Panel, Text, Time } from "../ui/basics";
import { confirmDialog, openDialog } from "../ui/dialog";
import { JsonTree } from "../ui/json-tree";
import { type Column, Table } from "../ui/table";
import { announce } from "../ui/toast";

type Webhook = Schemas["ParkedWebhook"];

const PARKED_MS = 5_000;
/** The most that one request delivers again. */
const REDRIVE_MAX = 1_000;

/** The type of a notification, such as `run.completed`. */
export function typeOf(body: string | undefined): string {
  try {
    const parsed = JSON.parse(body ?? "");
    return typeof parsed?.type === "string" ? parsed.type : "";
  } catch {
    return "";
  }
}

function showBody(webhook: Webhook): void {
  openDialog({
    title: "Notification",
    wide: true,
    body: (
      <div class="dialog-body">
        <p class="mono">
          <Text>{webhook.webhook_id}</Text>
        </p>
        <JsonTree json={webhook.body ?? ""} open={4} label="Body" />
      </div>
    ),
  });
}

const COLUMNS: Column<Webhook>[] = [
  { key: "endpoint", title: "Endpoint", width: "minmax(8rem, 1fr)", cell: (one) => <Text>{one.endpoint}</Text> },
  {
    key: "type",
    title: "Type",
    width: "minmax(10rem, 1fr)",
    cell: (one) => (
      <span class="mono">
        <Text>{typeOf(one.body) || "–"}</Text>
      </span>
    ),
  },
  {
    key: "run",
    title: "Run",
    width: "7.5rem",
    cell: ({ run_id }) => <Id id={run_id ?? ""} to={href("runs", run_id ?? "")} />,
  },
  { key: "queued", title: "Queued", width: "8.5rem", cell: (one) => <Time at={one.queue_time} age /> },
  {
    key: "id",
    title: "Notification",
    width: "minmax(14rem, 2fr)",
    cell: (one) => (
      <span class="mono" title={one.webhook_id}>
        <Text>{one.webhook_id}</Text>
      </span>
    ),
  },
  {
    key: "body",
    title: "Body",
    width: "7rem",
    align: "end",
    cell: (one) => (
      <button type="button" class="link" onClick={() => showBody(one)}>
        Show …
      </button>
    ),
  },
];

export function NotificationsPage() {
  const endpoint = route.value.query.get("endpoint") ?? "";
  const polled = usePoll(
    (signal) =>
      all(
        (page_token) => api.get("/v1/webhooks/parked", { query: { page_size: 1000, page_token }, signal }),
        (page) => page.webhooks,
      ),
    PARKED_MS,
  );
  const { data, error } = polled.value;
  const isOff = error?.reason === "WEBHOOKS_OFF";
  const every = data?.rows ?? [];
  const endpoints = useMemo(() => [...new Set(every.map((one) => one.endpoint ?? ""))].sort(), [every]);
  const rows = endpoint === "" ? every : every.filter((one) => one.endpoint === endpoint);
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const chosen = rows.filter((one) => selected.has(one.webhook_id ?? ""));
  const redrive = async (body: Schemas["RedriveWebhooksRequest"]): Promise<number> => {
    const answer = await api.post("/v1/webhooks/redrive", { body });
    return answer.count ?? 0;
  };
  const redriveChosen = async () => {
    let total = 0;
    for (let at = 0; at < chosen.length; at += REDRIVE_MAX) {
      const webhook_ids = chosen.slice(at, at + REDRIVE_MAX).map((one) => one.webhook_id ?? "");
      total += await redrive({ webhook_ids });
    }
    finish(total);
  };
  const redriveAll = async () => {
    const sure = await confirmDialog({
      title: endpoint ? "Send all of this endpoint?" : "Send all?",
      body: (
        <p>
          All parked notifications
          {endpoint && (
            <>
              {" "}
              of <Text>{endpoint}</Text>
            </>
          )}{" "}
          are sent as if they were new. An endpoint that still refuses them parks them again after its time.
        </p>
      ),
      confirm: "Send them",
    });
    if (!sure) return;
    let total = 0;
    for (let sent = REDRIVE_MAX; sent >= REDRIVE_MAX; total += sent) sent = await redrive({ endpoint });
    finish(total);
  };
  const finish = (total: number) => {
    announce(`Sent again: ${count(total)}`, "good");
    setSelected(new Set());
    polled.refresh();
  };
  return (
    <Page
      title="Parked notifications"
      fill
      actions={
        <>
          <ActionButton
            operation="POST /v1/webhooks/redrive"
            kind="primary"
            disabled={chosen.length === 0}
            onPress={redriveChosen}
          >
            Send again{chosen.length > 0 ? ` ${chosen.length}` : ""}
          </ActionButton>
          <ActionButton operation="POST /v1/webhooks/redrive" disabled={rows.length === 0} onPress={redriveAll}>
            Send all {endpoint ? "of the endpoint " : ""}…
          </ActionButton>
        </>
      }
    >
      <p class="muted page-note">
        A notification is parked when its endpoint has not accepted it within the time of the endpoint. It is kept until
        it is 7 days old.
      </p>
      {isOff ? (
        <Panel title="Notifications are off">
          <div class="panel-body health-text">
            <p>
              <Text>{error.message}</Text>.
            </p>
            <p class="muted">
              The file names the endpoints that are told when runs end or need a person. Without it nothing is sent and
              nothing can be parked.
            </p>
          </div>
        </Panel>
      ) : (
        <>
          <search class="filter-bar">
            <select
              aria-label="Endpoint"
              value={endpoint}
              onChange={(event) => setQuery({ endpoint: event.currentTarget.value })}
            >
              <option value="">every endpoint</option>
              {[...new Set([...endpoints, ...(endpoint ? [endpoint] : [])])].map((one) => (
                <option key={one} value={one}>
                  {one}
                </option>
              ))}
            </select>
          </search>
          <ErrorBox error={error?.isTransient && data ? undefined : error} onRetry={polled.refresh} />
          <Table
            label="Parked notifications"
            columns={COLUMNS}
            rows={rows}
            keyOf={(one) => one.webhook_id ?? ""}
            selected={selected}
            onSelect={setSelected}
            empty={data ? "No notification is parked." : error ? "They could not be read." : "Reading …"}
            footer={
              <span class="number">
                {count(rows.length)}
                {data?.more && "; no more are read"}
              </span>
            }
          />
        </>
      )}
    </Page>
  );
}
