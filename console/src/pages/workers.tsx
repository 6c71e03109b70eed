// Workers and pools: slots, releases, load, drain and pauses.

import { all } from "../api/all";
import { api, type Schemas } from "../api/client";
import { usePoll } from "../api/poll";
import { FIGURES_MS, useOverview } from "../fleet/figures";
import { PauseButton } from "../fleet/pause";
import { loadsOf, type PoolRow, poolsOf } from "../fleet/pools";
import { count } from "../format";
import { FilterBar, TextFilter } from "../list/filters";
import { href, route } from "../router";
import "../styles/page-fleet.css";
import "../styles/page-lists.css";
import { ActionButton, Chip, Empty, ErrorBox, Id, Page, Panel, Text, Time } from "../ui/basics";
import { confirmDialog } from "../ui/dialog";
import { type Column, Table } from "../ui/table";
import { announce } from "../ui/toast";

type Worker = Schemas["Worker"];

const WORKERS_MS = 2_000;
const TOOLS_MS = 10_000;

export function WorkersPage() {
  const pool = route.value.query.get("pool") ?? "";
  const id = route.value.query.get("id") ?? "";
  const workers = usePoll(
    (signal) =>
      all(
        (page_token) => api.get("/v1/workers", { query: { page_size: 1000, page_token }, signal }),
        (page) => page.workers,
      ),
    WORKERS_MS,
  );
  const tools = usePoll(
    (signal) =>
      all(
        (page_token) =>
          api.get("/v1/tools", { query: { page_size: 1000, page_token, include_unavailable: true }, signal }),
        (page) => page.tools,
      ),
    TOOLS_MS,
  );
  const overview = useOverview(FIGURES_MS);
  const every = workers.value.data?.rows ?? [];
  const paused = overview.value.data?.pauses ?? [];
  const pools = poolsOf(workers.value.data?.rows, tools.value.data?.rows ?? [], paused);
  const loads = loadsOf(overview.value.data);
  const shown = every.filter(
    (worker) => (pool === "" || worker.pool === pool) && (id === "" || (worker.worker_id ?? "").includes(id)),
  );
  const refresh = () => {
    workers.refresh();
    overview.refresh();
    tools.refresh();
  };
  const { error } = workers.value;
  return (
    <Page title="Workers" fill>
      <ErrorBox error={error?.isTransient && workers.value.data ? undefined : error} onRetry={workers.refresh} />
      <Panel title="Pools" aside={`${count(pools.length)}`} class="pools">
        {pools.length === 0 ? (
          <Empty>{workers.value.data ? "No worker is alive, and no pool is known." : "Reading …"}</Empty>
        ) : (
          <div class="scroll-x">
            <table class="plain">
              <thead>
                <tr>
                  <th>Pool</th>
                  <th class="end">Workers</th>
                  <th class="end">Taking calls</th>
                  <th class="end">Slots</th>
                  {loads && <th class="end">Running</th>}
                  {loads && <th class="end">Waiting</th>}
                  <th class="end">Tools</th>
                  <th>Releases</th>
                  <th>
                    <span class="visually-hidden">Operations</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {pools.map((row) => (
                  <Pool
                    key={row.pool}
                    row={row}
                    load={loads?.get(row.pool)}
                    hasLoads={loads !== undefined}
                    onDone={refresh}
                  />
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Panel>
      {paused.length > 0 && <Pauses pauses={paused} onDone={refresh} />}
      <FilterBar>
        <TextFilter name="id" label="Part of a worker's id" width="13rem" />
        <select
          aria-label="Pool"
          value={pool}
          onChange={(event) => {
            location.hash = href("workers", { pool: event.currentTarget.value, id });
          }}
        >
          <option value="">every pool</option>
          {[...new Set([...pools.map((row) => row.pool), ...(pool ? [pool] : [])])].map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
      </FilterBar>
      <Table
        label="Workers"
        columns={columns(workers.refresh)}
        rows={shown}
        keyOf={(worker) => worker.worker_id ?? ""}
        empty={workers.value.data ? "No live worker matches." : error ? "They could not be read." : "Reading …"}
        footer={
          <>
            <span>
              {workers.value.data &&
                `${count(shown.length)} of ${count(every.length)} live ${every.length === 1 ? "worker" : "workers"}`}
              {workers.value.data?.more && "; no more are read"}
            </span>
            <span>
              A worker is alive for 6 seconds after its last heartbeat.
              {(overview.value.data?.shards ?? 16) < 16 &&
                " Running and waiting calls are those of this coordinator's runs; there are others."}
            </span>
          </>
        }
      />
    </Page>
  );
}

interface PoolProps {
  row: PoolRow;
  load: { running: number; waiting: number; withoutWorker: number } | undefined;
  hasLoads: boolean;
  onDone: () => void;
}

function Pool({ row, load, hasLoads, onDone }: PoolProps) {
  return (
    <tr>
      <td>
        <a href={href("workers", { pool: row.pool })}>
          <Text>{row.pool}</Text>
        </a>{" "}
        {row.paused && <Chip tone="late">paused</Chip>}
        {row.workers === 0 && <Chip tone="bad">no worker</Chip>}
      </td>
      <td class="end">
        {count(row.workers)}
        {row.draining > 0 && <span class="muted"> ({count(row.draining)} draining)</span>}
      </td>
      <td class="end">{count(row.pulling)}</td>
      <td class="end">{row.slots === undefined ? "–" : count(row.slots)}</td>
      {hasLoads && <td class="end">{count(load?.running ?? 0)}</td>}
      {hasLoads && (
        <td class="end">
          {count(load?.waiting ?? 0)}
          {(load?.withoutWorker ?? 0) > 0 && (
            <span class="muted"> ({count(load?.withoutWorker ?? 0)} without a worker)</span>
          )}
        </td>
      )}
      <td class="end">
        <a href={href("tools", { pool: row.pool, gone: row.workers === 0 ? "1" : undefined })}>{count(row.tools)}</a>
      </td>
      <td>
        {row.releases.map(([release, number]) => (
          <span key={release} class="release">
            <span class="mono">
              <Text>{release || "unknown"}</Text>
            </span>
            {row.releases.length > 1 && <span class="muted"> × {number}</span>}
          </span>
        ))}
      </td>
      <td class="end">
        <PauseButton target={{ pool: row.pool }} paused={row.paused} onDone={onDone} />
      </td>
    </tr>
  );
}

export function Pauses({ pauses, onDone }: { pauses: Schemas["Pause"][]; onDone: () => void }) {
  return (
    <Panel title="Paused" class="paused">
      <div class="scroll-x">
        <table class="plain">
          <thead>
            <tr>
              <th>Tool or pool</th>
              <th>Paused</th>
              <th>By</th>
              <th>Reason</th>
              <th>
                <span class="visually-hidden">Operations</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {pauses.map((pause) => (
              <tr key={`${pause.tool} ${pause.pool}`}>
                <td>
                  {pause.tool ? (
                    <>
                      tool{" "}
                      <a class="mono" href={href("tools", pause.tool)}>
                        <Text>{pause.tool}</Text>
                      </a>
                    </>
                  ) : (
                    <>
                      pool{" "}
                      <a href={href("workers", { pool: pause.pool })}>
                        <Text>{pause.pool}</Text>
                      </a>
                    </>
                  )}
                </td>
                <td>
                  <Time at={pause.time} age />
                </td>
                <td>
                  <Text>{pause.by || "–"}</Text>
                </td>
                <td class="pause-reason">
                  <Text>{pause.reason || "–"}</Text>
                </td>
                <td class="end">
                  <PauseButton
                    target={pause.tool ? { tool: pause.tool } : { pool: pause.pool ?? "" }}
                    paused
                    onDone={onDone}
                  />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}

function columns(refresh: () => void): Column<Worker>[] {
  return [
    {
      key: "id",
      title: "Worker",
      width: "minmax(9rem, 1.4fr)",
      cell: ({ worker_id }) => (
        <span class="mono" title={worker_id}>
          <Text>{worker_id}</Text>
        </span>
      ),
    },
    { key: "pool", title: "Pool", width: "minmax(7rem, 1fr)", cell: (worker) => <Text>{worker.pool}</Text> },
    { key: "state", title: "State", width: "9rem", cell: (worker) => <WorkerState worker={worker} /> },
    { key: "slots", title: "Slots", width: "5rem", align: "end", cell: (worker) => count(worker.slots ?? 0) },
    {
      key: "release",
      title: "Release",
      width: "7rem",
      cell: (worker) => (
        <span class="mono">
          <Text>{worker.release || "unknown"}</Text>
        </span>
      ),
    },
    {
      key: "sandbox",
      title: "Programs of its tools",
      width: "minmax(11rem, 1.4fr)",
      cell: (worker) => <Sandbox worker={worker} />,
    },
    {
      key: "drain",
      title: "Operation",
      width: "8rem",
      align: "end",
      cell: (worker) => (
        <ActionButton
          operation="POST /v1/workers/{worker_id}/drain"
          disabled={worker.draining === true}
          onPress={() => drain(worker, refresh)}
        >
          Drain …
        </ActionButton>
      ),
    },
  ];
}

function WorkerState({ worker }: { worker: Worker }) {
  const [tone, word, why] = worker.draining
    ? ["late", "draining", "It takes no more calls, and running calls may end"]
    : worker.pulling
      ? ["good", "taking calls", "The broker answers its requests for jobs, or all its slots are in use"]
      : ["bad", "not taking calls", "It is alive, but the broker does not answer its requests for jobs"];
  return (
    <span class={`state tone-${tone}`} title={why}>
      <span class="dot" aria-hidden="true" />
      {word}
    </span>
  );
}

function Sandbox({ worker }: { worker: Worker }) {
  const { sandbox } = worker;
  if (!sandbox) return <span class="muted">–</span>;
  return (
    <>
      <Text>{sandbox.level === "none" ? "not confined" : sandbox.level}</Text>
      <span class="muted">
        {sandbox.network ? ", with network" : ", no network"}
        {sandbox.workspace && (
          <>
            , a folder of each <Text>{sandbox.workspace}</Text>
          </>
        )}
      </span>
    </>
  );
}

async function drain(worker: Worker, refresh: () => void): Promise<void> {
  const id = worker.worker_id ?? "";
  const sure = await confirmDialog({
    title: "Drain the worker?",
    body: (
      <>
        <p>
          <Id id={id} /> of the pool <Text>{worker.pool}</Text> takes no more calls, lets running calls end within its
          drain time, returns the others to the queue, and its process ends.
        </p>
        <p class="muted">What started it may start it again.</p>
      </>
    ),
    confirm: "Drain",
    danger: true,
  });
  if (!sure) return;
  await api.post("/v1/workers/{worker_id}/drain", { path: { worker_id: id } });
  announce("The worker drains", "good");
  refresh();
}
