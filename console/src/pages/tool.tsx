// One tool: its manifest, its pools, and a form to try it.

import { api, type Schemas } from "../api/client";
import { usePoll } from "../api/poll";
import { FIGURES_MS, useOverview } from "../fleet/figures";
import { PauseButton } from "../fleet/pause";
import { Availability, hintsOf, PermissionChip } from "../fleet/tools";
import { TryIt } from "../fleet/try";
import { constant, duration, parseDuration, pretty } from "../format";
import { href, route } from "../router";
import "../styles/page-fleet.css";
import { Chip, CopyButton, Empty, ErrorBox, Fact, Page, Panel, Text, Time } from "../ui/basics";
import { JsonTree, LongText } from "../ui/json-tree";

type Tool = Schemas["Tool"];

const TOOL_MS = 4_000;

export function ToolPage({ name }: { name: string }) {
  const polled = usePoll((signal) => api.get("/v1/tools/{name}", { path: { name }, signal }), TOOL_MS, [name]);
  const overview = useOverview(FIGURES_MS);
  const { data, error } = polled.value;
  const tool = data?.tool;
  if (!tool) {
    return (
      <Page title={<Text>{name}</Text>}>
        {error ? <ErrorBox error={error} onRetry={polled.refresh} /> : <Empty>Reading …</Empty>}
        <p>
          <a href={href("tools")}>All tools</a>
        </p>
      </Page>
    );
  }
  const self = tool.alias_of || tool.name || name;
  const pause = overview.value.data?.pauses?.find((one) => one.tool === self);
  const refresh = () => {
    polled.refresh();
    overview.refresh();
  };
  return (
    <Page
      title={
        <span class="mono tool-name">
          <Text>{tool.name}</Text>
        </span>
      }
      actions={
        <>
          <a class="action-link" href={href("calls", { tool: name })}>
            Its calls
          </a>
          <PauseButton target={{ tool: name }} paused={tool.paused === true} onDone={refresh} />
        </>
      }
    >
      <ErrorBox error={error?.isTransient ? undefined : error} />
      {tool.paused && (
        <p class="notice tone-late">
          Paused
          {pause?.by && (
            <>
              {" "}
              by <Text>{pause.by}</Text>
            </>
          )}{" "}
          <Time at={pause?.time} age />
          {pause?.reason && (
            <>
              : <Text>{pause.reason}</Text>
            </>
          )}
          . Its calls are accepted and wait.
        </p>
      )}
      <div class="tool-columns">
        <div class="tool-main">
          <Panel title={tool.title ? <Text>{tool.title}</Text> : "What it does"} aside={<Availability tool={tool} />}>
            <div class="panel-body tool-about">
              <p class="tool-description">
                <LongText text={tool.description || "It has no description."} first={1_500} />
              </p>
              <div class="chips">
                <PermissionChip tool={tool} />
                {hintsOf(tool).map(([hint, meaning]) => (
                  <Chip key={hint} title={meaning}>
                    {hint}
                  </Chip>
                ))}
              </div>
              <Facts tool={tool} />
            </div>
          </Panel>
          <Pools tool={tool} />
          <SchemaPanel title="Arguments" schema={tool.input_schema} empty="It takes any object." />
          <SchemaPanel title="Result" schema={tool.output_schema} empty="It declares no schema of its result." />
          <Policy tool={tool} />
        </div>
        <div class="tool-side">
          <TryIt
            key={`${tool.name} ${tool.version} ${tool.input_schema}`}
            tool={tool}
            runId={route.value.query.get("run") ?? undefined}
          />
        </div>
      </div>
    </Page>
  );
}

function Facts({ tool }: { tool: Tool }) {
  return (
    <dl class="facts">
      {tool.alias_of && (
        <Fact name="Alias of">
          <a href={href("tools", tool.alias_of)}>
            <Text>{tool.alias_of}</Text>
          </a>
        </Fact>
      )}
      {(tool.aliases ?? []).length > 0 && (
        <Fact name="Other names">
          <Text>{(tool.aliases ?? []).map((alias) => alias.name).join(", ")}</Text>
        </Fact>
      )}
      {tool.version && (
        <Fact name="Version">
          <Text>{tool.version}</Text>
        </Fact>
      )}
      {tool.category && (
        <Fact name="Category">
          <a href={href("tools", { category: tool.category })}>
            <Text>{tool.category}</Text>
          </a>
        </Fact>
      )}
      {(tool.tags ?? []).length > 0 && (
        <Fact name="Tags">
          <Text>{(tool.tags ?? []).join(", ")}</Text>
        </Fact>
      )}
      <Fact name="Origin">{constant(tool.origin, "TOOL_ORIGIN_") || "built in"}</Fact>
      <Fact name="Beside other calls of its run">
        {constant(tool.concurrency, "TOOL_CONCURRENCY_").replace("unspecified", "") || "by its permission"}
      </Fact>
      {tool.max_concurrent ? <Fact name="At once in a worker">{tool.max_concurrent}</Fact> : null}
      {tool.running_max ? <Fact name="At once in all workers">{tool.running_max}</Fact> : null}
      {tool.side_effect_scope && (
        <Fact name="Scope of its effects">
          <Text>{tool.side_effect_scope}</Text>
        </Fact>
      )}
      {(tool.context_keys ?? []).length > 0 && (
        <Fact name="Context that it receives">
          <Text>{(tool.context_keys ?? []).join(", ")}</Text>
        </Fact>
      )}
    </dl>
  );
}

function Pools({ tool }: { tool: Tool }) {
  const pools = tool.pools ?? [];
  return (
    <Panel title="Pools">
      {pools.length === 0 ? (
        <Empty>{tool.definition_only ? "The client answers its calls." : "No pool hosts it at present."}</Empty>
      ) : (
        <div class="scroll-x">
          <table class="plain">
            <thead>
              <tr>
                <th>Pool</th>
                <th>Version</th>
                <th class="end">Live workers</th>
                <th class="end">Taking calls</th>
                <th>Share</th>
              </tr>
            </thead>
            <tbody>
              {pools.map((pool) => (
                <tr key={pool.pool}>
                  <td>
                    <a href={href("workers", { pool: pool.pool })}>
                      <Text>{pool.pool}</Text>
                    </a>{" "}
                    {pool.paused && <Chip tone="late">paused</Chip>}
                  </td>
                  <td class="mono">
                    <Text>{pool.version || "–"}</Text>
                  </td>
                  <td class="end">{pool.live_workers ?? 0}</td>
                  <td class="end">{pool.pulling_workers ?? 0}</td>
                  <td>
                    {pool.replaces ? (
                      <>
                        {pool.share ?? 0} % of the calls of <Text>{pool.replaces}</Text>
                      </>
                    ) : (
                      <span class="muted">–</span>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}

function SchemaPanel({ title, schema, empty }: { title: string; schema: string | undefined; empty: string }) {
  return (
    <Panel
      title={`${title}, as JSON Schema`}
      aside={schema ? <CopyButton text={() => pretty(schema)}>Copy</CopyButton> : undefined}
    >
      <div class="panel-body tool-schema">
        {schema ? (
          <JsonTree json={schema} open={3} label={`Schema: ${title.toLowerCase()}`} />
        ) : (
          <p class="muted">{empty}</p>
        )}
      </div>
    </Panel>
  );
}

const RETRIES: [keyof Schemas["RetryOn"], string, boolean][] = [
  ["lost", "the worker was lost", true],
  ["retryable", "the tool marks the error as retryable", true],
  ["timeout", "the attempt took too long", true],
  ["panic", "the tool panicked", false],
  ["other", "any other error", false],
];

function Policy({ tool }: { tool: Tool }) {
  const { policy } = tool;
  if (!policy) return null;
  const time = (text: string | undefined) => {
    const ms = parseDuration(text);
    return ms === undefined ? undefined : duration(ms);
  };
  const retried = RETRIES.filter(([name, , standard]) => policy.retry_on?.[name] ?? standard).map(([, text]) => text);
  const attempts = policy.attempts_max ?? 0;
  return (
    <Panel title="Attempts">
      <div class="panel-body">
        <dl class="facts">
          <Fact name="At most">{attempts === 0 ? "the default" : attempts}</Fact>
          <Fact name="Executed again after it began">{policy.repeatable ? "yes, it is safe to repeat" : "no"}</Fact>
          {time(policy.attempt_timeout) && <Fact name="An attempt takes at most">{time(policy.attempt_timeout)}</Fact>}
          {time(policy.idle_timeout) && <Fact name="Silent for at most">{time(policy.idle_timeout)}</Fact>}
          {time(policy.backoff_first) && (
            <Fact name="Wait between attempts">
              {time(policy.backoff_first)}
              {time(policy.backoff_longest) ? `, doubled up to ${time(policy.backoff_longest)}` : ", doubled"}
            </Fact>
          )}
          <Fact name="Output of an interrupted attempt">
            {constant(policy.after_partial_output, "AFTER_PARTIAL_OUTPUT_").replace("unspecified", "") || "restart"}
          </Fact>
          {attempts !== 1 && <Fact name="Another attempt if">{retried.join(", ") || "never"}</Fact>}
        </dl>
      </div>
    </Panel>
  );
}
