// What the HTTP API tells about the health of the fleet, and the settings of this console.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { all } from "../api/all";
import { address, api, send } from "../api/client";
import { type Polled, usePoll } from "../api/poll";
import { type ApiError, toApiError } from "../api/problem";
import { denied, key, signOut } from "../api/session";
import { useCounts, useOverview } from "../fleet/figures";
import { countEach, poolsOf } from "../fleet/pools";
import { type Verified, verifyIndex } from "../fleet/verify";
import { bytes, count, duration, parseDuration } from "../format";
import { href } from "../router";
import "../styles/page-fleet.css";
import "../styles/page-schedules.css";
import { type Theme, theme } from "../theme";
import { ActionButton, CopyButton, ErrorBox, Fact, Id, Page, Panel, Text, Time, type Tone } from "../ui/basics";
import { confirmDialog } from "../ui/dialog";
import { announce } from "../ui/toast";
import { Pauses } from "./workers";

const HEALTH_MS = 3_000;

/** One line of the list: a state in a word, and what it rests on. */
interface Check {
  name: string;
  tone: Tone;
  word: string;
  detail: ComponentChildren;
}

/** A check that could not be made. */
function unknown<T>(name: string, polled: Polled<T>): Check {
  const { error } = polled;
  return {
    name,
    tone: "neutral",
    word: error ? "not known" : "reading",
    detail: error ? (
      <>
        <Text>{error.message}</Text>
        {error.remedy && (
          <>
            {" – "}
            <Text>{error.remedy}</Text>
          </>
        )}
      </>
    ) : null,
  };
}

export function HealthPage() {
  const version = usePoll(readVersion, 30_000);
  const counts = useCounts(HEALTH_MS);
  const overview = useOverview(HEALTH_MS);
  const workers = usePoll(
    (signal) =>
      all(
        (page_token) => api.get("/v1/workers", { query: { page_size: 1000, page_token }, signal }),
        (page) => page.workers,
      ),
    HEALTH_MS,
  );
  const tools = usePoll(
    (signal) => api.get("/v1/tools", { query: { page_size: 1, include_unavailable: true }, signal }),
    HEALTH_MS,
  );
  const paused = overview.value.data?.pauses ?? [];
  const every = workers.value.data?.rows ?? [];
  const log = overview.value.data?.log;
  const refused = tools.value.data?.refused ?? [];

  const checks: Check[] = [];
  checks.push(
    version.value.data
      ? {
          name: "Coordinator",
          tone: version.value.error ? "bad" : "good",
          word: version.value.error ? "not reachable" : "answers",
          detail: (
            <>
              release{" "}
              <span class="mono">
                <Text>{version.value.data.version}</Text>
              </span>
              , {duration(version.value.data.tookMs)} for an answer
            </>
          ),
        }
      : unknown("Coordinator", version.value),
  );
  checks.push(log ? logCheck(log) : unknown("Log and broker", overview.value));
  const coverage = counts.value.data?.coverage;
  checks.push(
    counts.value.data
      ? {
          name: "Index",
          tone: coverage?.complete ? (coverage.cut_before ? "late" : "good") : "late",
          word: coverage?.complete ? "covers all runs" : "incomplete",
          detail: coverage?.cut_before ? (
            <>
              Ended runs from before <Time at={coverage.cut_before} /> are missing.
            </>
          ) : coverage?.complete ? null : (
            "It is being rebuilt, or other coordinators own some of the runs and keep their own index in memory."
          ),
        }
      : unknown("Index", counts.value),
  );
  const idle = every.filter((worker) => !worker.pulling && !worker.draining).length;
  const draining = every.filter((worker) => worker.draining).length;
  const alone = poolsOf(every, [], []).filter((pool) => pool.workers > 0 && pool.pulling === 0);
  checks.push(
    workers.value.data
      ? {
          name: "Workers",
          tone: every.length === 0 ? "bad" : idle > 0 || alone.length > 0 ? "late" : "good",
          word: every.length === 0 ? "none" : `${count(every.length)} alive`,
          detail: (
            <>
              {draining > 0 && `${count(draining)} drain. `}
              {idle > 0 && `${count(idle)} take no calls: the broker does not answer their requests for jobs. `}
              {alone.map((pool) => (
                <span key={pool.pool}>
                  No worker of <Text>{pool.pool}</Text> takes calls.{" "}
                </span>
              ))}
              <a href={href("workers")}>Workers</a>
            </>
          ),
        }
      : unknown("Workers", workers.value),
  );
  const releases = countEach(every.map((worker) => worker.release || "unknown"));
  if (releases.length > 0) {
    checks.push({
      name: "Releases of workers",
      tone: releases.length > 1 ? "late" : "good",
      word: releases.length > 1 ? `${releases.length} releases` : "one release",
      detail: releases.map(([release, number]) => (
        <span key={release} class="release">
          <span class="mono">
            <Text>{release}</Text>
          </span>{" "}
          <span class="muted">× {count(number)}</span>
        </span>
      )),
    });
  }
  checks.push(
    overview.value.data
      ? {
          name: "Pauses",
          tone: paused.length > 0 ? "late" : "good",
          word: paused.length > 0 ? `${count(paused.length)} paused` : "none",
          detail: paused.length > 0 ? "Their calls wait; the list is below." : null,
        }
      : unknown("Pauses", overview.value),
  );
  // The list of refused tools is for admins, as that of workers is; others get an empty one.
  if (workers.value.data && tools.value.data) {
    checks.push({
      name: "Tools",
      tone: refused.length > 0 ? "bad" : "good",
      word: refused.length > 0 ? `${count(refused.length)} refused` : "none refused",
      detail: refused.length > 0 ? <a href={href("tools")}>Which, and why</a> : null,
    });
  }
  const parked = counts.value.data?.parked ?? 0;
  if (counts.value.data) {
    checks.push({
      name: "Parked calls",
      tone: parked > 0 ? "late" : "good",
      word: parked > 0 ? count(parked) : "none",
      detail: parked > 0 ? <a href={href("parked")}>Redrive or drop them</a> : null,
    });
  }
  return (
    <Page title="Health and settings">
      <Panel title="Health">
        <div class="scroll-x">
          <table class="plain checks">
            <tbody>
              {checks.map((check) => (
                <tr key={check.name}>
                  <th scope="row">{check.name}</th>
                  <td>
                    <span class={`state tone-${check.tone}`}>
                      <span class="dot" aria-hidden="true" />
                      {check.word}
                    </span>
                  </td>
                  <td class="check-detail">{check.detail}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Panel>
      {paused.length > 0 && <Pauses pauses={paused} onDone={overview.refresh} />}
      <div class="health-columns">
        <Doctor />
        <IndexPanel />
        <Session isAdmin={allows(workers.value)} isReader={allows(counts.value)} />
        <Settings />
      </div>
    </Page>
  );
}

async function readVersion(signal: AbortSignal): Promise<{ version: string; tookMs: number }> {
  const from = performance.now();
  const response = await send("GET", address("/v1/openapi.json"), { signal });
  const document = (await response.json()) as { info?: { version?: string } };
  return { version: document.info?.version ?? "unknown", tookMs: performance.now() - from };
}

/** From this share of the log on, the coordinator refuses new work. */
const FULL = 0.85;

function logCheck(log: {
  reachable?: boolean;
  bytes?: number;
  bytes_max?: number;
  lag?: string;
  replicas?: number;
  replicas_current?: number;
}): Check {
  const share = log.bytes_max ? (log.bytes ?? 0) / log.bytes_max : 0;
  const behind = (log.replicas ?? 1) - (log.replicas_current ?? 1);
  const lag = parseDuration(log.lag) ?? 0;
  const [tone, word]: [Tone, string] = !log.reachable
    ? ["bad", "not reachable"]
    : share >= FULL
      ? ["bad", "full"]
      : behind > 0
        ? ["late", "copies behind"]
        : ["good", "reachable"];
  return {
    name: "Log and broker",
    tone,
    word,
    detail: (
      <>
        {bytes(log.bytes ?? 0)} of {bytes(log.bytes_max ?? 0)} ({Math.round(share * 100)} %),{" "}
        {log.replicas_current ?? 0} of {log.replicas ?? 0} {log.replicas === 1 ? "copy" : "copies"} up to date, entries
        arrive after {duration(lag)}
        {share >= FULL && ". New work is refused until there is room"}
      </>
    ),
  };
}

/** Whether a read was permitted; undefined while that is not known. */
function allows(polled: Polled<unknown>): boolean | undefined {
  if (polled.data !== undefined) return true;
  return polled.error?.status === 403 ? false : undefined;
}

const DOCTOR = "toolyard doctor --nats-url nats://BROKER:4222";

function Doctor() {
  return (
    <Panel title="Examine the broker" aside={<CopyButton text={() => DOCTOR}>Copy</CopyButton>}>
      <div class="panel-body health-text">
        <p>
          The full examination has no HTTP API, because it needs access to the broker. Run it on a machine that reaches
          the broker:
        </p>
        <pre class="command">{DOCTOR}</pre>
        <p class="muted">
          It examines the log, its copies and its room, the queues of the pools, and the processes that are alive, and
          names what to do.
        </p>
      </div>
    </Panel>
  );
}

function IndexPanel() {
  const [so, setSo] = useState<Verified | undefined>(undefined);
  const [error, setError] = useState<ApiError | undefined>(undefined);
  const stop = useRef<AbortController | undefined>(undefined);
  useEffect(() => () => stop.current?.abort(), []);
  const verify = async () => {
    setError(undefined);
    setSo(undefined);
    const running = new AbortController();
    stop.current = running;
    try {
      await verifyIndex(setSo, running.signal);
    } catch (failure) {
      if (!running.signal.aborted) setError(toApiError(failure));
    }
  };
  const rebuild = async () => {
    const sure = await confirmDialog({
      title: "Rebuild the index?",
      body: (
        <p>
          The index is emptied and filled again from the log. Meanwhile lists, counts and this console lack runs. Runs
          themselves are not touched.
        </p>
      ),
      confirm: "Rebuild",
      danger: true,
    });
    if (!sure) return;
    await api.post("/v1/index/rebuild", { body: {} });
    announce("The index is being rebuilt", "good");
  };
  return (
    <Panel title="Index">
      <div class="panel-body health-text">
        <p>Lists and counts come from the index. It can be compared with the log, and rebuilt from it.</p>
        <div class="act-buttons">
          <ActionButton operation="POST /v1/index/verify" onPress={verify}>
            Compare with the log
          </ActionButton>
          <ActionButton operation="POST /v1/index/rebuild" kind="danger" onPress={rebuild}>
            Rebuild …
          </ActionButton>
        </div>
        {so && (
          <div role="status">
            <p>
              {so.end ? "Compared" : "Comparing"}: {count(so.runs)} runs, {count(so.entries)} entries of the log.
              {so.end &&
                ` ${(so.end.differences ?? 0) === 0 ? "No difference." : `${count(so.end.differences ?? 0)} differences.`}`}
              {so.end && !so.end.complete && " The index did not cover all runs at the time."}
            </p>
            {so.differences.slice(0, 100).map((one) => (
              <p key={`${one.run} ${one.what}`}>
                <Id id={one.run} to={href("runs", one.run)} /> <Text>{one.what}</Text>
              </p>
            ))}
          </div>
        )}
        <ErrorBox error={error} />
      </div>
    </Panel>
  );
}

function Session({ isAdmin, isReader }: { isAdmin: boolean | undefined; isReader: boolean | undefined }) {
  const may = (is: boolean | undefined) => (is === undefined ? "not known" : is ? "yes" : "no");
  return (
    <Panel title="Who you are">
      <div class="panel-body health-text">
        <dl class="facts">
          <Fact name="Key">
            {key.value === "" ? "none is sent" : "sent with each request, kept until the tab is closed"}
          </Fact>
          <Fact name="May read">{may(isReader)}</Fact>
          <Fact name="May administer">{may(isAdmin)}</Fact>
        </dl>
        {denied.value.size > 0 && (
          <div>
            <h3>Refused in this tab</h3>
            <ul class="denied">
              {[...denied.value].map(([operation, why]) => (
                <li key={operation}>
                  <span class="mono">{operation}</span> <Text>{why}</Text>
                </li>
              ))}
            </ul>
          </div>
        )}
        <p class="muted">
          The API does not tell the name and the roles of a key. Whether it may submit, answer or approve shows when it
          is tried: the button is disabled after a refusal, with the reason.
        </p>
        {key.value !== "" && (
          <div>
            <button type="button" onClick={() => signOut("You have signed out.")}>
              Use another key
            </button>
          </div>
        )}
      </div>
    </Panel>
  );
}

const THEMES: [Theme, string][] = [
  ["system", "as the system"],
  ["light", "light"],
  ["dark", "dark"],
];

function Settings() {
  return (
    <Panel title="Settings of this console">
      <div class="panel-body health-text">
        <fieldset class="field choices schedule-kinds">
          <legend>Theme</legend>
          {THEMES.map(([value, label]) => (
            <label key={value} class="option">
              <input
                type="radio"
                name="theme"
                checked={theme.value === value}
                onChange={() => {
                  theme.value = value;
                }}
              />
              <span>{label}</span>
            </label>
          ))}
        </fieldset>
        <p class="muted">
          Kept in this browser. The coordinator is configured by its options and files, which the API does not show.
        </p>
      </div>
    </Panel>
  );
}
