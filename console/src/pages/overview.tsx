import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import type { Schemas } from "../api/client";
import { FIGURES_MS, useCounts, useOverview } from "../fleet/figures";
import { bytes, count, duration, parseDuration, rate } from "../format";
import { href } from "../router";
import "../styles/page-overview.css";
import { Chip, Empty, ErrorBox, Page, Panel, StateBadge, Text, Time, type Tone } from "../ui/basics";
import { Spark } from "../ui/spark";

type Overview = Schemas["GetOverviewResponse"];
type ToolFigures = Schemas["ToolOverview"];

/** Parts of the window from which a rate is taken: one minute of parts of 5 seconds. */
const RATE_PARTS = 12;

/** Adds up, by parts of the window. The newest part is not over, so it is left out. */
function curve(tools: readonly ToolFigures[]): number[] {
  const sums: number[] = [];
  for (const tool of tools) {
    for (const [at, ended] of (tool.ended_each ?? []).entries()) sums[at] = (sums[at] ?? 0) + ended;
  }
  return sums.slice(0, -1);
}

function sum(tools: readonly ToolFigures[], of: (tool: ToolFigures) => number | undefined): number {
  return tools.reduce((total, tool) => total + (of(tool) ?? 0), 0);
}

/** Ends a second, over the last minute. */
function rateOf(each: readonly number[], partMs: number): number {
  const last = each.slice(-RATE_PARTS);
  return last.length === 0 ? 0 : last.reduce((total, ended) => total + ended, 0) / ((last.length * partMs) / 1_000);
}

function partMs(overview: Overview | undefined): number {
  const parts = overview?.tools?.[0]?.ended_each?.length ?? 60;
  return (parseDuration(overview?.window) ?? 300_000) / parts;
}

export function OverviewPage() {
  const overview = useOverview(FIGURES_MS).value;
  const counts = useCounts(FIGURES_MS).value;
  const tools = overview.data?.tools ?? [];
  const refused = overview.error?.status === 403 ? overview.error : undefined;
  return (
    <Page
      title="Overview"
      actions={<Health overview={overview.data} lost={overview.error !== undefined && !refused} />}
    >
      {refused && (
        <p class="note">
          Rates, times and workers are not shown: <Text>{refused.message}</Text>.
        </p>
      )}
      {overview.error && !refused && !overview.error.isTransient && <ErrorBox error={overview.error} />}
      <Tiles overview={overview.data} counts={counts.data} tools={tools} />
      <div class="overview-columns">
        <div class="overview-main">
          {!refused && <ToolTable overview={overview.data} tools={tools} />}
          <RunStates counts={counts.data} />
        </div>
        {!refused && (
          <div class="overview-side">
            <Pools overview={overview.data} />
            <Pauses pauses={overview.data?.pauses ?? []} />
            <Log overview={overview.data} counts={counts.data} />
          </div>
        )}
      </div>
    </Page>
  );
}

function Health({ overview, lost }: { overview: Overview | undefined; lost: boolean }) {
  if (lost) return <Chip tone="bad">coordinator not reached</Chip>;
  if (!overview) return null;
  if (!overview.log?.reachable) return <Chip tone="bad">the log is not reachable</Chip>;
  if (fullness(overview) >= 0.85) return <Chip tone="bad">the log is full: new work is refused</Chip>;
  if (fullness(overview) >= 0.7) return <Chip tone="late">the log fills up</Chip>;
  const { coordinators = 1 } = overview;
  return (
    <>
      <Chip tone="neutral">{coordinators === 1 ? "1 coordinator" : `${count(coordinators)} coordinators`}</Chip>
      <Chip tone="good">healthy</Chip>
    </>
  );
}

/** How full the log is, by bytes or by messages. */
function fullness(overview: Overview): number {
  const { bytes = 0, bytes_max = 0, messages = 0, messages_max = 0 } = overview.log ?? {};
  return Math.max(bytes_max ? bytes / bytes_max : 0, messages_max ? messages / messages_max : 0);
}

interface TilesProps {
  overview: Overview | undefined;
  counts: Schemas["CountRunsResponse"] | undefined;
  tools: ToolFigures[];
}

function Tiles({ overview, counts, tools }: TilesProps) {
  const each = useMemo(() => curve(tools), [tools]);
  const perSecond = rateOf(each, partMs(overview));
  const ended = sum(
    tools,
    (tool) => (tool.completed ?? 0) + (tool.failed ?? 0) + (tool.expired ?? 0) + (tool.cancelled ?? 0),
  );
  const bad = sum(tools, (tool) => (tool.failed ?? 0) + (tool.expired ?? 0));
  const oldest = Math.max(0, ...tools.map((tool) => parseDuration(tool.oldest_waiting) ?? 0));
  const callsIn = (state: string) => counts?.calls?.find((each) => each.state === `CALL_STATE_${state}`)?.count ?? 0;
  const person = (counts?.awaiting_approval ?? 0) + (counts?.waiting_for_client ?? 0);
  const slots = (overview?.pools ?? []).reduce((total, pool) => total + (pool.slots ?? 0), 0);
  const workers = (overview?.pools ?? []).reduce((total, pool) => total + (pool.workers ?? 0), 0);
  const running = overview ? sum(tools, (tool) => tool.running) : callsIn("RUNNING");
  const waiting = overview ? sum(tools, (tool) => tool.waiting) : callsIn("QUEUED") + callsIn("ACCEPTED");
  const without = sum(tools, (tool) => tool.without_worker);
  return (
    <div class="tiles">
      {overview && (
        <Tile label="Ended per second" value={rate(perSecond)} note={`${count(ended)} in 5 minutes`} wide>
          <Spark values={each} label="Calls that ended, in the last 5 minutes" width={150} height={30} />
        </Tile>
      )}
      <Tile
        label="Running"
        value={count(running)}
        tone="run"
        to={href("calls", { state: "running" })}
        note={overview ? `of ${count(slots)} slots` : ""}
      />
      <Tile
        label="Waiting"
        value={count(waiting)}
        tone={without > 0 ? "bad" : "wait"}
        to={href("calls", { state: "queued" })}
        note={
          without > 0
            ? `${count(without)} without a worker`
            : oldest > 0
              ? `the oldest for ${duration(oldest)}`
              : "nothing is late"
        }
      />
      <Tile
        label="For a person"
        value={count(person)}
        tone={person > 0 ? "ask" : "wait"}
        to={href("inbox")}
        note={person > 0 ? "answer or decide" : "nothing to decide"}
      />
      {overview && (
        <Tile
          label="Errors"
          value={ended === 0 ? "0 %" : `${((bad / ended) * 100).toFixed(bad > 0 && bad / ended < 0.1 ? 1 : 0)} %`}
          tone={bad > 0 ? "bad" : "wait"}
          to={href("calls", { state: "failed" })}
          note={`${count(bad)} of ${count(ended)} calls`}
        />
      )}
      <Tile
        label="Parked"
        value={count(counts?.parked ?? 0)}
        tone={(counts?.parked ?? 0) > 0 ? "late" : "wait"}
        to={href("parked")}
        note="can be redriven"
      />
      {overview && (
        <Tile
          label="Workers"
          value={count(workers)}
          tone={workers === 0 ? "bad" : "wait"}
          to={href("workers")}
          note={overview.pools?.length === 1 ? "in 1 pool" : `in ${count(overview.pools?.length ?? 0)} pools`}
        />
      )}
    </div>
  );
}

interface TileProps {
  label: string;
  value: string;
  note: string;
  tone?: Tone;
  to?: string;
  wide?: boolean;
  children?: ComponentChildren;
}

function Tile({ label, value, note, tone = "wait", to, wide, children }: TileProps) {
  const inner = (
    <>
      <span class="tile-label">{label}</span>
      <span class="tile-row">
        <span class="tile-value">{value}</span>
        {children}
      </span>
      <span class="tile-note">{note}</span>
    </>
  );
  const name = `tile tone-${tone} ${wide ? "wide" : ""}`;
  return to ? (
    <a class={name} href={to}>
      {inner}
    </a>
  ) : (
    <div class={name}>{inner}</div>
  );
}

function time(text: string | undefined): string {
  const ms = parseDuration(text);
  return ms === undefined ? "–" : duration(ms);
}

function ToolTable({ overview, tools }: { overview: Overview | undefined; tools: ToolFigures[] }) {
  const part = partMs(overview);
  const busy = (tool: ToolFigures) => (tool.waiting ?? 0) + (tool.running ?? 0);
  const sorted = [...tools].sort(
    (a, b) => busy(b) - busy(a) || rateOf(b.ended_each ?? [], part) - rateOf(a.ended_each ?? [], part),
  );
  return (
    <Panel title="Tools, last 5 minutes" class="scroll-x">
      {sorted.length === 0 ? (
        <Empty>{overview ? "No call in the last 5 minutes." : "Reading …"}</Empty>
      ) : (
        <table class="plain tool-figures">
          <thead>
            <tr>
              <th>Tool</th>
              <th>Pool</th>
              <th class="end">Waiting</th>
              <th class="end">Running</th>
              <th class="end">Oldest</th>
              <th class="end">Errors</th>
              <th
                class="end"
                title="From acceptance or approval to the first attempt: half, and 95 %, took at most this"
              >
                To start
              </th>
              <th class="end" title="From acceptance to end: half, and 95 %, took at most this">
                To end
              </th>
              <th class="end">Per second</th>
              <th>Ended</th>
            </tr>
          </thead>
          <tbody>
            {sorted.map((tool) => (
              <ToolRow key={`${tool.pool} ${tool.tool}`} tool={tool} part={part} />
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}

function ToolRow({ tool, part }: { tool: ToolFigures; part: number }) {
  const ended = (tool.completed ?? 0) + (tool.failed ?? 0) + (tool.cancelled ?? 0) + (tool.expired ?? 0);
  const bad = (tool.failed ?? 0) + (tool.expired ?? 0);
  const each = (tool.ended_each ?? []).slice(0, -1);
  return (
    <tr>
      <td>
        <a href={href("tools", tool.tool ?? "")}>
          <Text>{tool.tool ?? ""}</Text>
        </a>
      </td>
      <td class="muted">
        <Text>{tool.pool || "client"}</Text>
      </td>
      <td class="end">
        {tool.waiting ?? 0}
        {(tool.without_worker ?? 0) > 0 && <span class="trouble"> ({tool.without_worker} without a worker)</span>}
      </td>
      <td class="end">{tool.running ?? 0}</td>
      <td class="end">{time(tool.oldest_waiting)}</td>
      <td class={`end ${bad > 0 ? "trouble" : ""}`}>{bad > 0 ? `${bad} of ${ended}` : "0"}</td>
      <td class="end">
        {time(tool.to_start_p50)} <span class="muted">/ {time(tool.to_start_p95)}</span>
      </td>
      <td class="end">
        {time(tool.to_end_p50)} <span class="muted">/ {time(tool.to_end_p95)}</span>
      </td>
      <td class="end">{rate(rateOf(each, part))}</td>
      <td>
        <Spark width={72} values={each} label={`${ended} calls of ${tool.tool} ended in the last 5 minutes`} />
      </td>
    </tr>
  );
}

const RUN_STATES = ["IN_PROGRESS", "REQUIRES_ACTION", "COMPLETED", "FAILED", "CANCELLED", "EXPIRED"] as const;

function RunStates({ counts }: { counts: Schemas["CountRunsResponse"] | undefined }) {
  const of = (state: string) => counts?.runs?.find((one) => one.status === `RUN_STATUS_${state}`)?.count ?? 0;
  return (
    <Panel
      title="Runs in the index"
      aside={counts?.coverage?.complete === false ? <Chip tone="late">index incomplete</Chip> : undefined}
    >
      <dl class="run-states">
        {RUN_STATES.map((state) => (
          <div key={state}>
            <dt>
              <StateBadge state={`RUN_STATUS_${state}`} />
            </dt>
            <dd>
              <a class="number" href={href("runs", { state: state.toLowerCase() })}>
                {count(of(state))}
              </a>
            </dd>
          </div>
        ))}
      </dl>
    </Panel>
  );
}

function Pools({ overview }: { overview: Overview | undefined }) {
  const running = new Map<string, number>();
  for (const tool of overview?.tools ?? [])
    running.set(tool.pool ?? "", (running.get(tool.pool ?? "") ?? 0) + (tool.running ?? 0));
  return (
    <Panel title="Pools" aside={<a href={href("workers")}>Workers</a>}>
      {(overview?.pools ?? []).length === 0 && (
        <Empty>{overview ? "No pool has a worker or a tool." : "Reading …"}</Empty>
      )}
      <ul class="bars">
        {(overview?.pools ?? []).map((pool) => {
          const used = running.get(pool.pool ?? "") ?? 0;
          const slots = pool.slots ?? 0;
          return (
            <li key={pool.pool}>
              <span class="bars-head">
                <strong>
                  <Text>{pool.pool ?? ""}</Text>
                </strong>
                {pool.paused && <Chip tone="late">paused</Chip>}
                {(pool.draining ?? 0) > 0 && <Chip tone="late">{pool.draining} draining</Chip>}
                {pool.workers === 0 && <Chip tone="bad">no worker</Chip>}
                <span class="bars-value number">
                  {used} of {slots} slots, {pool.workers ?? 0} {pool.workers === 1 ? "worker" : "workers"}
                </span>
              </span>
              <Meter value={used} most={slots} label={`Slots in use in ${pool.pool}`} />
            </li>
          );
        })}
      </ul>
    </Panel>
  );
}

function Meter({ value, most, label }: { value: number; most: number; label: string }) {
  const part = most > 0 ? Math.min(1, value / most) : 0;
  const tone = part >= 0.85 ? "bad" : part >= 0.7 ? "late" : "run";
  return (
    <span
      class={`meter tone-${tone}`}
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={most || 1}
      aria-valuenow={Math.min(value, most || 1)}
    >
      <span style={{ width: `${part * 100}%` }} />
    </span>
  );
}

function Pauses({ pauses }: { pauses: Schemas["Pause"][] }) {
  if (pauses.length === 0) return null;
  return (
    <Panel title="Paused">
      <ul class="rows">
        {pauses.map((pause) => {
          const { tool, pool } = pause as { tool?: string; pool?: string };
          return (
            <li key={`${tool} ${pool}`}>
              <Chip tone="late">{tool ? "tool" : "pool"}</Chip>{" "}
              <strong>
                <Text>{tool ?? pool ?? ""}</Text>
              </strong>{" "}
              <Time at={pause.time} age /> {pause.by && <>by {<Text>{pause.by}</Text>}</>}
              {pause.reason && (
                <p class="muted">
                  <Text>{pause.reason}</Text>
                </p>
              )}
            </li>
          );
        })}
      </ul>
    </Panel>
  );
}

function Log({
  overview,
  counts,
}: {
  overview: Overview | undefined;
  counts: Schemas["CountRunsResponse"] | undefined;
}) {
  const log = overview?.log;
  if (!overview || !log) return null;
  const lag = parseDuration(log.lag) ?? 0;
  return (
    <Panel
      title="Log and broker"
      aside={<Chip tone={log.reachable ? "good" : "bad"}>{log.reachable ? "reachable" : "not reachable"}</Chip>}
    >
      <ul class="bars">
        <li>
          <span class="bars-head">
            Bytes
            <span class="bars-value number">
              {bytes(log.bytes ?? 0)} of {bytes(log.bytes_max ?? 0)}
            </span>
          </span>
          <Meter value={log.bytes ?? 0} most={log.bytes_max ?? 0} label="Bytes of the log" />
        </li>
        <li>
          <span class="bars-head">
            Messages
            <span class="bars-value number">
              {count(log.messages ?? 0)} {log.messages_max ? `of ${count(log.messages_max)}` : ""}
            </span>
          </span>
          <Meter value={log.messages ?? 0} most={log.messages_max ?? 0} label="Messages of the log" />
        </li>
      </ul>
      <dl class="pairs">
        <dt>Lag of the log</dt>
        <dd class={lag > 2_000 ? "trouble" : ""}>{duration(lag)}</dd>
        <dt>Copies up to date</dt>
        <dd class={(log.replicas_current ?? 0) < (log.replicas ?? 0) ? "trouble" : ""}>
          {log.replicas_current ?? 0} of {log.replicas ?? 0}
        </dd>
        <dt>Shards of this coordinator</dt>
        <dd>{overview.shards ?? 0} of 16</dd>
        <dt>Open runs</dt>
        <dd>{count(overview.runs_open ?? 0)}</dd>
        <dt>Index</dt>
        <dd>{counts?.coverage?.complete === false ? "incomplete" : "complete"}</dd>
      </dl>
      {(overview.shards ?? 0) < 16 && (
        <p class="note">Other coordinators have the other shards. Calls and rates here are those of this one.</p>
      )}
    </Panel>
  );
}
