// Schedules: their times, their firings, and what can be done with them.

import { useEffect, useState } from "preact/hooks";
import { all } from "../api/all";
import { api, type Schemas } from "../api/client";
import { usePoll } from "../api/poll";
import { requestId } from "../api/request-id";
import { constant, count } from "../format";
import { TextFilter } from "../list/filters";
import { href, navigate, route, setQuery } from "../router";
import { NewSchedule } from "../schedule/form";
import { timeOf, timing, toolsOf } from "../schedule/spec";
import "../styles/page-fleet.css";
import "../styles/page-lists.css";
import "../styles/page-schedules.css";
import {
  ActionButton,
  Chip,
  Empty,
  ErrorBox,
  Fact,
  FilterChip,
  Id,
  Page,
  StateBadge,
  Text,
  Time,
  type Tone,
  toneOf,
} from "../ui/basics";
import { confirmDialog } from "../ui/dialog";
import { JsonTree } from "../ui/json-tree";
import { openReasonDialog } from "../ui/reason";
import { type Column, Table } from "../ui/table";
import { announce } from "../ui/toast";

type Schedule = Schemas["Schedule"];

const STATUSES = ["ACTIVE", "PAUSED", "ENDED"] as const;
const LIST_MS = 3_000;
const ONE_MS = 2_000;

function choose(schedule_id: string | undefined): string {
  return href("schedules", { ...Object.fromEntries(route.value.query), schedule: schedule_id });
}

const COLUMNS: Column<Schedule>[] = [
  {
    key: "name",
    title: "Name",
    width: "minmax(9rem, 1.4fr)",
    cell: ({ schedule_id, spec }) => (
      <a href={choose(schedule_id)}>{spec?.name ? <Text>{spec.name}</Text> : <Id id={schedule_id ?? ""} />}</a>
    ),
  },
  { key: "status", title: "Status", width: "6rem", cell: ({ status }) => <StateBadge state={status} /> },
  {
    key: "when",
    title: "When",
    width: "minmax(9rem, 1.2fr)",
    cell: ({ spec }) => (
      <>
        <span class="mono">
          <Text>{timing(spec)}</Text>
        </span>{" "}
        {timeOf(spec) && <Time at={timeOf(spec)} />}
      </>
    ),
  },
  {
    key: "next",
    title: "Next",
    width: "7.5rem",
    cell: ({ next_fire_times }) => <Time at={next_fire_times?.[0]} age />,
  },
  { key: "tools", title: "Tools", width: "minmax(7rem, 1fr)", cell: ({ spec }) => <Text>{toolsOf(spec)}</Text> },
  {
    key: "last",
    title: "Latest run",
    width: "7.5rem",
    cell: ({ last_run_id }) =>
      last_run_id ? <Id id={last_run_id} to={href("runs", last_run_id)} /> : <span class="muted">–</span>,
  },
  { key: "runs", title: "Runs", width: "5rem", align: "end", cell: ({ counts }) => count(counts?.runs ?? 0) },
  {
    key: "not",
    title: "Without a run",
    width: "7.5rem",
    align: "end",
    cell: ({ counts }) => <Failures counts={counts} />,
  },
  { key: "tenant", title: "Tenant", width: "7rem", cell: ({ tenant }) => <Text>{tenant || "–"}</Text> },
];

/** Firings that made no run, with what became of them. */
function Failures({ counts }: { counts: Schemas["ScheduleCounts"] | undefined }) {
  const [refused, skipped, missed] = [counts?.refused ?? 0, counts?.skipped ?? 0, counts?.missed ?? 0];
  const total = refused + skipped + missed;
  if (total === 0) return <span class="muted">0</span>;
  return <span title={`${refused} refused, ${skipped} skipped, ${missed} missed`}>{count(total)}</span>;
}

export function SchedulesPage() {
  const { query } = route.value;
  const tenant = query.get("tenant") ?? "";
  const status = STATUSES.find((one) => one.toLowerCase() === query.get("status"));
  const polled = usePoll(
    (signal) =>
      all(
        (page_token) =>
          api.get("/v1/schedules", {
            query: {
              page_size: 500,
              page_token,
              tenant,
              ...(status ? { status: `SCHEDULE_STATUS_${status}` as const } : {}),
            },
            signal,
          }),
        (page) => page.schedules,
      ),
    LIST_MS,
    [tenant, status],
  );
  if (query.get("new") === "1") {
    return (
      <NewSchedule
        onDone={(id) => {
          navigate(href("schedules", { schedule: id }));
          polled.refresh();
        }}
      />
    );
  }
  const { data, error } = polled.value;
  const rows = data?.rows ?? [];
  const chosen = query.get("schedule") ?? "";
  return (
    <Page
      title="Schedules"
      fill
      actions={
        <a class="button primary" href={href("schedules", { new: "1" })}>
          New schedule
        </a>
      }
    >
      <div class="chips" role="group" aria-label="Schedules by status">
        {STATUSES.map((one) => (
          <FilterChip
            key={one}
            on={status === one}
            tone={toneOf(one)}
            onPress={() => setQuery({ status: status === one ? undefined : one.toLowerCase() })}
          >
            {one.toLowerCase()}
          </FilterChip>
        ))}
      </div>
      <search class="filter-bar">
        <TextFilter name="tenant" label="Tenant" />
      </search>
      <ErrorBox error={error?.isTransient && data ? undefined : error} onRetry={polled.refresh} />
      <div class={chosen ? "schedules with-one" : "schedules"}>
        <Table
          label="Schedules"
          columns={COLUMNS}
          rows={rows}
          keyOf={({ schedule_id }) => schedule_id ?? ""}
          hrefOf={({ schedule_id }) => choose(schedule_id)}
          empty={data ? "No schedule matches." : "Reading …"}
          footer={
            <span class="number">
              {count(rows.length)}
              {data?.more && "; no more are read"}
            </span>
          }
        />
        {chosen && <One key={chosen} id={chosen} onChanged={polled.refresh} />}
      </div>
    </Page>
  );
}

function One({ id, onChanged }: { id: string; onChanged: () => void }) {
  const polled = usePoll(
    (signal) => api.get("/v1/schedules/{schedule_id}", { path: { schedule_id: id }, signal }),
    ONE_MS,
    [id],
  );
  const { data, error } = polled.value;
  const schedule = data?.schedule;
  const close = choose(undefined);
  if (!schedule) {
    return (
      <section class="panel schedule" aria-label="Schedule">
        <div class="panel-body">
          {error ? <ErrorBox error={error} onRetry={polled.refresh} /> : <Empty>Reading …</Empty>}
          <a href={close}>Close</a>
        </div>
      </section>
    );
  }
  const refresh = () => {
    polled.refresh();
    onChanged();
  };
  const { spec } = schedule;
  return (
    <section class="panel schedule" aria-label="Schedule">
      <header>
        <h2 class="schedule-name">
          <Text>{spec?.name || "Schedule"}</Text>
        </h2>
        <div class="aside">
          <StateBadge state={schedule.status} />
          <a class="schedule-close" href={close} aria-label="Close the schedule">
            ×
          </a>
        </div>
      </header>
      <div class="panel-body schedule-body">
        <Operations schedule={schedule} onChanged={refresh} close={close} />
        {schedule.pause && (
          <p class="notice tone-late">
            Paused <Time at={schedule.pause.time} age />
            {schedule.pause.by && (
              <>
                {" "}
                by <Text>{schedule.pause.by}</Text>
              </>
            )}
            {schedule.pause.reason && (
              <>
                : <Text>{schedule.pause.reason}</Text>
              </>
            )}
          </p>
        )}
        <dl class="facts">
          <Fact name="When">
            <span class="mono">
              <Text>{timing(spec)}</Text>
            </span>{" "}
            {timeOf(spec) && <Time at={timeOf(spec)} />}
          </Fact>
          {spec?.jitter && <Fact name="Jitter">up to {spec.jitter}</Fact>}
          <Fact name="If the previous run goes on">
            {constant(spec?.overlap_policy, "OVERLAP_POLICY_").replace("unspecified", "") || "allow"}
          </Fact>
          <Fact name="Missed firings">
            {constant(spec?.missed_policy, "MISSED_POLICY_").replace("unspecified", "") || "latest"}
          </Fact>
          {spec?.firings_max ? <Fact name="Ends after">{count(spec.firings_max)} firings</Fact> : null}
          {spec?.end_time && (
            <Fact name="Ends">
              <Time at={spec.end_time} />
            </Fact>
          )}
          <Fact name="Created">
            <Time at={schedule.create_time} age />
          </Fact>
          {schedule.caller && (
            <Fact name="Fires in the name of">
              <Text>{schedule.caller}</Text>
            </Fact>
          )}
          {schedule.tenant && (
            <Fact name="Tenant">
              <Text>{schedule.tenant}</Text>
            </Fact>
          )}
          <Fact name="Id">
            <Id id={schedule.schedule_id ?? ""} />
          </Fact>
        </dl>
        <div>
          <h3>Next times</h3>
          {(schedule.next_fire_times ?? []).length === 0 ? (
            <p class="muted">None{schedule.status === "SCHEDULE_STATUS_PAUSED" ? " while it is paused" : ""}.</p>
          ) : (
            <ul class="times">
              {(schedule.next_fire_times ?? []).map((at) => (
                <li key={at}>
                  <Time at={at} />{" "}
                  <span class="muted">
                    <Time at={at} age />
                  </span>
                </li>
              ))}
            </ul>
          )}
        </div>
        <Firings schedule={schedule} />
        <details>
          <summary>The run that it makes</summary>
          <JsonTree json={JSON.stringify(spec?.run ?? {})} open={4} label="Run" />
        </details>
        <ErrorBox error={error?.isTransient ? undefined : error} />
      </div>
    </section>
  );
}

const OUTCOMES: Record<string, Tone> = { run: "good", refused: "bad", skipped: "late", missed: "late" };

function Firings({ schedule }: { schedule: Schedule }) {
  const firings = [...(schedule.firings ?? [])].reverse();
  const { counts } = schedule;
  return (
    <div>
      <h3>Latest firings</h3>
      {firings.length === 0 ? (
        <p class="muted">It has not fired yet.</p>
      ) : (
        <ul class="firings">
          {firings.map((firing) => {
            const outcome = constant(firing.outcome, "FIRING_OUTCOME_");
            return (
              <li key={`${firing.fire_time} ${firing.time}`}>
                <Chip tone={OUTCOMES[outcome] ?? "neutral"}>{outcome}</Chip>
                <span>
                  <Time at={firing.fire_time} />
                  {firing.by_request && <span class="muted"> by request</span>}
                </span>
                {firing.run_id && <Id id={firing.run_id} to={href("runs", firing.run_id)} />}
                {firing.reason && (
                  <span class="firing-why">
                    <Text>{firing.message || firing.reason}</Text>{" "}
                    <span class="muted">
                      <Text>{firing.reason}</Text>
                    </span>
                  </span>
                )}
              </li>
            );
          })}
        </ul>
      )}
      <p class="muted">
        In all: runs {count(counts?.runs ?? 0)}, refused {count(counts?.refused ?? 0)}, skipped{" "}
        {count(counts?.skipped ?? 0)}, missed {count(counts?.missed ?? 0)}.{" "}
        <a href={href("runs", { schedule: schedule.schedule_id })}>Its runs</a>
      </p>
    </div>
  );
}

function Operations({ schedule, onChanged, close }: { schedule: Schedule; onChanged: () => void; close: string }) {
  const path = { schedule_id: schedule.schedule_id ?? "" };
  const [request, setRequest] = useState(requestId);
  useEffect(() => setRequest(requestId()), [path.schedule_id]);
  const isPaused = schedule.status === "SCHEDULE_STATUS_PAUSED";
  const isEnded = schedule.status === "SCHEDULE_STATUS_ENDED";
  const runNow = async () => {
    const answer = await api.post("/v1/schedules/{schedule_id}/run", { path, body: { request_id: request } });
    setRequest(requestId());
    announce(`Fired: run ${answer.run?.run_id ?? ""}`, "good");
    onChanged();
  };
  const resume = async () => {
    await api.post("/v1/schedules/{schedule_id}/resume", { path });
    announce("Resumed", "good");
    onChanged();
  };
  const pause = async () =>
    openReasonDialog({
      title: "Pause the schedule?",
      body: <p>It does not fire until it is resumed. Times that fall into the pause are not made up for.</p>,
      operation: "POST /v1/schedules/{schedule_id}/pause",
      confirm: "Pause",
      act: async (reason) => {
        await api.post("/v1/schedules/{schedule_id}/pause", { path, body: { reason } });
        announce("Paused", "good");
        onChanged();
      },
    });
  const remove = async () => {
    const sure = await confirmDialog({
      title: "Delete the schedule?",
      body: <p>It does not fire any more, and its firings are forgotten. Runs that it created go on.</p>,
      confirm: "Delete",
      danger: true,
    });
    if (!sure) return;
    await api.delete("/v1/schedules/{schedule_id}", { path });
    announce("Deleted", "good");
    navigate(close);
    onChanged();
  };
  return (
    <div class="act-buttons">
      <ActionButton operation="POST /v1/schedules/{schedule_id}/run" kind="primary" onPress={runNow}>
        Run now
      </ActionButton>
      {isPaused ? (
        <ActionButton operation="POST /v1/schedules/{schedule_id}/resume" onPress={resume}>
          Resume
        </ActionButton>
      ) : (
        <ActionButton operation="POST /v1/schedules/{schedule_id}/pause" disabled={isEnded} onPress={pause}>
          Pause …
        </ActionButton>
      )}
      <ActionButton operation="DELETE /v1/schedules/{schedule_id}" kind="danger" onPress={remove}>
        Delete …
      </ActionButton>
    </div>
  );
}
