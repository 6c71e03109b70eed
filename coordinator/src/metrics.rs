//! The coordinator's metrics. Those of calls are about the runs of its own shards, so the sum over all coordinators
//! counts each call once. Those of workers are the same at every coordinator. Calls of a tool that is not advertised
//! are counted as `other`.

mod history;
mod partitions;
pub(crate) mod schedules;
pub(crate) mod tenants;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use opentelemetry_semantic_conventions::metric::RPC_SERVER_CALL_DURATION;
use proto::Reason;
use run::{AttemptNumber, Call, Fact, Outcome, PoolId, Route, Run, Timestamp, ToolName};
use telemetry::metrics::{Counter, Family, Gauge, Histogram, Metric, OTHER, publish};

use self::tenants::TenantCounts;
use crate::fleet::registry::{Catalog, Registry};
use crate::overview::Figures;

const OF_TOOL: &[&str] = &["pool", "tool"];

pub(crate) static WAITING: Family<Gauge> = Family::new(
    "toolyard_calls_waiting",
    "Calls that have not started, including those waiting for their turn.",
    OF_TOOL,
)
.exported_as("toolyard.calls.waiting", "{call}");
pub(crate) static WITHOUT_WORKER: Family<Gauge> =
    Family::new("toolyard_calls_without_worker", "Calls that wait while no worker of their pool is pulling.", OF_TOOL)
        .exported_as("toolyard.calls.without_worker", "{call}");
pub(crate) static RUNNABLE: Family<Gauge> = Family::new(
    "toolyard_calls_runnable",
    "Calls that a worker with a free slot could start now: in the queue, or waiting for their turn there.",
    OF_TOOL,
)
.exported_as("toolyard.calls.runnable", "{call}");
pub(crate) static TURNS_WAITING: Family<Gauge> = Family::new(
    "toolyard_turns_waiting",
    "Calls that wait for their turn in a pool and are not in its queue yet, by the priority that they have now.",
    &["pool", "priority"],
)
.exported_as("toolyard.turns.waiting", "{call}");
pub(crate) static RUNNING: Family<Gauge> =
    Family::new("toolyard_calls_running", "Calls that a worker is executing.", OF_TOOL)
        .exported_as("toolyard.calls.running", "{call}");
pub(crate) static QUEUE_AGE: Family<Gauge> =
    Family::new("toolyard_queue_age_seconds", "Age of the oldest call in the queue.", OF_TOOL)
        .exported_as("toolyard.queue.age", "s");
pub(crate) static POOL_WORKERS: Family<Gauge> =
    Family::new("toolyard_pool_workers", "Live workers. Every coordinator reports the same number.", &["pool"])
        .exported_as("toolyard.pool.workers", "{worker}");
pub(crate) static POOL_PULLING: Family<Gauge> = Family::new(
    "toolyard_pool_workers_pulling",
    "Workers that pull jobs and do not drain. Every coordinator reports the same number.",
    &["pool"],
)
.exported_as("toolyard.pool.workers_pulling", "{worker}");
pub(crate) static POOL_DRAINING: Family<Gauge> = Family::new(
    "toolyard_pool_workers_draining",
    "Workers that finish their calls and take no more. Every coordinator reports the same number.",
    &["pool"],
)
.exported_as("toolyard.pool.workers_draining", "{worker}");
pub(crate) static POOL_SLOTS: Family<Gauge> = Family::new(
    "toolyard_pool_slots",
    "Calls that the live workers that do not drain can execute concurrently.",
    &["pool"],
)
.exported_as("toolyard.pool.slots", "{slot}");
pub(crate) static POOL_PAUSED: Family<Gauge> =
    Family::new("toolyard_pool_paused", "1 for a pool whose queue is paused.", &["pool"])
        .exported_as("toolyard.pool.paused", "1");
pub(crate) static TOOL_PAUSED: Family<Gauge> =
    Family::new("toolyard_tool_paused", "1 for a tool that is paused.", &["tool"])
        .exported_as("toolyard.tool.paused", "1");

pub(crate) static TOOLS_REFUSED: Family<Gauge> = Family::new(
    "toolyard_tools_refused",
    "Tools that live workers of a pool host and that no call is routed to; `tools ls` has the reasons.",
    &["pool"],
)
.exported_as("toolyard.tools.refused", "{tool}");

static ENDED: Family<Counter> =
    Family::new("toolyard_calls_ended_total", "Calls that ended, by outcome.", &["pool", "tool", "outcome"])
        .exported_as("toolyard.calls.ended", "{call}");
static CALL_SECONDS: Family<Histogram> = Family::new(
    "toolyard_call_seconds",
    "From a call's acceptance to its end, by the times of its entries in the log, which are whole milliseconds.",
    &["pool", "outcome"],
)
.exported_as("toolyard.call.duration", "s");
static PARKED: Family<Counter> = Family::new(
    "toolyard_calls_parked_total",
    "Calls that ended without a result although another attempt might have returned one.",
    OF_TOOL,
)
.exported_as("toolyard.calls.parked", "{call}");
static HANDED_BACK: Family<Counter> = Family::new(
    "toolyard_jobs_handed_back_total",
    "Jobs of lost workers that were returned to their queue.",
    &["pool"],
)
.exported_as("toolyard.jobs.handed_back", "{job}");
static WEBHOOKS: Family<Counter> = Family::new(
    "toolyard_webhooks_total",
    "Attempts to deliver a notification, by outcome, and notifications that are parked.",
    &["endpoint", "outcome"],
)
.exported_as("toolyard.webhooks", "{delivery}");
static REPEATED: Family<Counter> = Family::new(
    "toolyard_requests_repeated_total",
    "Requests whose id was used before, and that therefore opened no second run.",
    &[],
)
.exported_as("toolyard.requests.repeated", "{request}");
static FLOOR_WAIT: Family<Histogram> = Family::new(
    "toolyard_floor_wait_seconds",
    "How long a call's first output waited for the floor, for each reader. A call that no pool executes counts as \
    other.",
    &["tool"],
)
.exported_as("toolyard.floor.wait.duration", "s");
static CLIENT_CALLS: Family<Gauge> =
    Family::new("toolyard_client_calls_waiting", "Calls that wait for their client's answer.", &[])
        .exported_as("toolyard.client_calls.waiting", "{call}");
static APPROVALS: Family<Gauge> = Family::new("toolyard_approvals_waiting", "Calls that await approval.", &[])
    .exported_as("toolyard.approvals.waiting", "{call}");
static RUNS_OPEN: Family<Gauge> =
    Family::new("toolyard_runs_open", "Runs that have not ended.", &[]).exported_as("toolyard.runs.open", "{run}");
static RUNS_RESTING: Family<Gauge> = Family::new(
    "toolyard_runs_resting",
    "Open runs that are kept packed: each of their calls has ended or waits for its client, an approval or its time.",
    &[],
)
.exported_as("toolyard.runs.resting", "{run}");
static SHARDS: Family<Gauge> = Family::new("toolyard_shards_owned", "Shards that this coordinator owns.", &[])
    .exported_as("toolyard.shards.owned", "{shard}");
static SHARDS_ALL: Family<Gauge> =
    Family::new("toolyard_shards", "Shards of the log: 16 for each of its partitions.", &[])
        .exported_as("toolyard.shards", "{shard}");
static ERASURES: Family<Gauge> = Family::new(
    "toolyard_erasures_pending",
    "Ended runs that are to be erased and are not erased yet, due or not.",
    &[],
)
.exported_as("toolyard.erasures.pending", "{run}");
static TAKEOVER_AGE: Family<Gauge> = Family::new(
    "toolyard_takeover_seconds",
    "How long the oldest takeover of a shard has been in progress; 0 if there is none. Runs of that shard make no \
    progress meanwhile.",
    &[],
)
.exported_as("toolyard.takeover.age", "s");
static LOG_LAG: Family<Gauge> = Family::new(
    "toolyard_log_lag_seconds",
    "Age of the newest log entry when it arrived here: the maximum of the last 20 to 40 s.",
    &[],
)
.exported_as("toolyard.log.lag", "s");
static LOG_REACHED: Family<Gauge> = Family::new(
    "toolyard_log_reachable",
    "1 while the log has a leader and this coordinator's lease is renewed, else 0.",
    &[],
)
.exported_as("toolyard.log.reachable", "1");
static LOG_AGE: Family<Gauge> = Family::new(
    "toolyard_log_age_seconds",
    "Age of the oldest log entry. Runs that have ended leave the log with `--tail` or `--tail-percent`. Everything \
     behind these stays: the job of a call that is queued or executed, a run that the history does not have yet, and \
     an open run that cannot be carried.",
    &[],
)
.exported_as("toolyard.log.age", "s");
static LOG_BYTES: Family<Gauge> =
    Family::new("toolyard_log_bytes", "Bytes used by the log.", &[]).exported_as("toolyard.log.size", "By");
static LOG_BYTES_MAX: Family<Gauge> =
    Family::new("toolyard_log_max_bytes", "Limit of the log in bytes; from 85 % on new work is refused.", &[])
        .exported_as("toolyard.log.size_max", "By");
static LOG_FILLED: Family<Gauge> = Family::new(
    "toolyard_log_filled_ratio",
    "How full the fullest partition of the log is, by bytes or messages: 1 is full. From 0.85 on it takes no new runs.",
    &[],
)
.exported_as("toolyard.log.filled", "1");
static LOG_MESSAGES: Family<Gauge> =
    Family::new("toolyard_log_messages", "Messages in the log.", &[]).exported_as("toolyard.log.messages", "{message}");
static LOG_MESSAGES_MAX: Family<Gauge> = Family::new(
    "toolyard_log_max_messages",
    "Limit of the log in messages; from 85 % on new work is refused. +Inf if the log has no such limit.",
    &[],
)
.exported_as("toolyard.log.messages_max", "{message}");
static LOG_SUBJECTS: Family<Gauge> =
    Family::new("toolyard_log_subjects", "Subjects of the log. Each server of the broker keeps all in memory.", &[])
        .exported_as("toolyard.log.subjects", "{subject}");
static BROKER_MEMORY: Family<Gauge> = Family::new(
    "toolyard_broker_memory_estimated_bytes",
    "Memory that a server of the broker needs for its streams: estimated from subjects, not measured.",
    &[],
)
.exported_as("toolyard.broker.memory_estimated", "By");
static BROKER_MEMORY_MAX: Family<Gauge> = Family::new(
    "toolyard_broker_memory_max_bytes",
    "Memory that a server of the broker may use, as set with --broker-memory.",
    &[],
)
.exported_as("toolyard.broker.memory_max", "By");
static LOG_REPLICAS: Family<Gauge> =
    Family::new("toolyard_log_replicas", "Configured copies of the log, each on a server of its own.", &[])
        .exported_as("toolyard.log.replicas", "{replica}");
static LOG_REPLICAS_CURRENT: Family<Gauge> =
    Family::new("toolyard_log_replicas_current", "Copies of the log that are up to date.", &[])
        .exported_as("toolyard.log.replicas_current", "{replica}");
static OBJECTS_BYTES: Family<Gauge> =
    Family::new("toolyard_objects_bytes", "Bytes used by objects at the broker, without objects in a bucket.", &[])
        .exported_as("toolyard.objects.size", "By");
static OBJECTS_BYTES_MAX: Family<Gauge> =
    Family::new("toolyard_objects_max_bytes", "Limit of objects at the broker in bytes.", &[])
        .exported_as("toolyard.objects.size_max", "By");
static INDEX_COMPLETE: Family<Gauge> = Family::new(
    "toolyard_index_complete",
    "1 while the index in Redis has every run, 0 while it is rebuilt or Redis does not answer.",
    &[],
)
.exported_as("toolyard.index.complete", "1");
static REDIS_REACHED: Family<Gauge> =
    Family::new("toolyard_redis_reachable", "1 while Redis answers this coordinator, else 0.", &[])
        .exported_as("toolyard.redis.reachable", "1");
static ERASURES_FAILED: Family<Counter> =
    Family::new("toolyard_erasures_failed_total", "Attempts to erase a run that failed and are retried.", &[])
        .exported_as("toolyard.erasures.failed", "{attempt}");
static CERTIFICATE_EXPIRES: Family<Gauge> = Family::new(
    "toolyard_certificate_expires_seconds",
    "When the certificate of the client port expires, in seconds since 1970.",
    &[],
)
.exported_as("toolyard.certificate.expires", "s");

/// By protocol (`grpc`, `http`), method, and result: a gRPC code, or an HTTP status.
pub(crate) static REQUESTS: Family<Counter> = Family::new(
    "toolyard_requests_total",
    "Answered requests, by result. A stream counts when it begins.",
    &["protocol", "method", "code"],
)
.exported_as("toolyard.requests", "{request}");
pub(crate) static REQUEST_SECONDS: Family<Histogram> = Family::new(
    "toolyard_request_seconds",
    "Time from a request's arrival to the beginning of its response.",
    &["protocol", "method"],
)
.exported_as(RPC_SERVER_CALL_DURATION, "s");
static REFUSALS: Family<Counter> = Family::new(
    "toolyard_refusals_total",
    "Refusals of requests, by the reason in the response, including those in the middle of a stream.",
    &["reason"],
)
.exported_as("toolyard.refusals", "{refusal}");

/// Records how long the first output of a call waited for the floor. Pools execute only advertised tools, so the labels
/// are bounded.
pub(crate) fn floor_wait(call: Option<&Call>, waited: Duration) {
    thread_local! {
        /// The series by tool, because a look into their family takes a lock, and this runs for each call and reader.
        static WAITS: RefCell<HashMap<ToolName, Histogram>> = RefCell::default();
    }
    let spec = call.map(|call| call.spec()).filter(|spec| matches!(spec.route, Route::Pool { .. }));
    let Some(tool) = spec.map(|spec| &spec.tool) else { return FLOOR_WAIT.with(&[OTHER]).record(waited) };
    WAITS.with_borrow_mut(|waits| match waits.get(tool) {
        Some(series) => series.record(waited),
        None => waits.entry(tool.clone()).or_insert(FLOOR_WAIT.with(&[tool.as_str()])).record(waited),
    });
}

/// Counts an error by its reason.
pub(crate) fn refused(reason: Reason) {
    REFUSALS.with(&[reason.code()]).add(1);
}

const METRICS: [Metric; 50] = [
    Metric::Counter(&REQUESTS),
    Metric::Histogram(&REQUEST_SECONDS),
    Metric::Counter(&REFUSALS),
    Metric::Gauge(&WAITING),
    Metric::Gauge(&WITHOUT_WORKER),
    Metric::Gauge(&RUNNABLE),
    Metric::Gauge(&TURNS_WAITING),
    Metric::Gauge(&RUNNING),
    Metric::Gauge(&QUEUE_AGE),
    Metric::Gauge(&POOL_WORKERS),
    Metric::Gauge(&POOL_PULLING),
    Metric::Gauge(&POOL_DRAINING),
    Metric::Gauge(&POOL_SLOTS),
    Metric::Gauge(&POOL_PAUSED),
    Metric::Gauge(&TOOL_PAUSED),
    Metric::Gauge(&TOOLS_REFUSED),
    Metric::Counter(&ENDED),
    Metric::Histogram(&CALL_SECONDS),
    Metric::Counter(&PARKED),
    Metric::Counter(&HANDED_BACK),
    Metric::Counter(&REPEATED),
    Metric::Counter(&WEBHOOKS),
    Metric::Histogram(&FLOOR_WAIT),
    Metric::Gauge(&CLIENT_CALLS),
    Metric::Gauge(&APPROVALS),
    Metric::Gauge(&RUNS_OPEN),
    Metric::Gauge(&RUNS_RESTING),
    Metric::Gauge(&SHARDS),
    Metric::Gauge(&SHARDS_ALL),
    Metric::Gauge(&ERASURES),
    Metric::Gauge(&TAKEOVER_AGE),
    Metric::Gauge(&LOG_LAG),
    Metric::Gauge(&LOG_REACHED),
    Metric::Gauge(&LOG_BYTES),
    Metric::Gauge(&LOG_AGE),
    Metric::Gauge(&LOG_BYTES_MAX),
    Metric::Gauge(&LOG_FILLED),
    Metric::Gauge(&LOG_MESSAGES),
    Metric::Gauge(&LOG_MESSAGES_MAX),
    Metric::Gauge(&LOG_SUBJECTS),
    Metric::Gauge(&BROKER_MEMORY),
    Metric::Gauge(&BROKER_MEMORY_MAX),
    Metric::Gauge(&LOG_REPLICAS),
    Metric::Gauge(&LOG_REPLICAS_CURRENT),
    Metric::Gauge(&OBJECTS_BYTES),
    Metric::Gauge(&OBJECTS_BYTES_MAX),
    Metric::Gauge(&INDEX_COMPLETE),
    Metric::Gauge(&REDIS_REACHED),
    Metric::Counter(&ERASURES_FAILED),
    Metric::Gauge(&CERTIFICATE_EXPIRES),
];

/// Metrics without labels that are updated in many places.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) repeated: Counter,
    pub(crate) client_calls: Gauge,
    pub(crate) approvals: Gauge,
    pub(crate) runs_open: Gauge,
    pub(crate) runs_resting: Gauge,
    pub(crate) shards: Gauge,
    pub(crate) shards_all: Gauge,
    pub(crate) erasures: Gauge,
    pub(crate) takeover_age: Gauge,
    pub(crate) log_lag: Gauge,
    pub(crate) log_reached: Gauge,
    pub(crate) log_age: Gauge,
    pub(crate) log_bytes: Gauge,
    pub(crate) log_bytes_max: Gauge,
    pub(crate) log_filled: Gauge,
    pub(crate) log_messages: Gauge,
    pub(crate) log_messages_max: Gauge,
    pub(crate) log_subjects: Gauge,
    pub(crate) log_replicas: Gauge,
    pub(crate) log_replicas_current: Gauge,
    pub(crate) erasures_failed: Counter,
    pub(crate) runs_carried: Counter,
    pub(crate) carried_filled: Gauge,
    pub(crate) log_leaderless: Gauge,
    pub(crate) history_runs: Counter,
    pub(crate) history_failed: Counter,
    pub(crate) history_behind: Gauge,
    pub(crate) history_unwritten: Counter,
    pub(crate) history_stuck: Gauge,
    pub(crate) history_lost_objects: Counter,
    pub(crate) history_lost_runs: Counter,
    pub(crate) history_lost_carried: Counter,
}

pub(crate) static COUNTS: LazyLock<Counts> = LazyLock::new(|| {
    publish(&METRICS);
    publish(&schedules::METRICS);
    publish(&tenants::METRICS);
    publish(&hooks::METRICS);
    publish(&history::METRICS);
    publish(&partitions::METRICS);
    Counts {
        repeated: REPEATED.with(&[]),
        client_calls: CLIENT_CALLS.with(&[]),
        approvals: APPROVALS.with(&[]),
        runs_open: RUNS_OPEN.with(&[]),
        runs_resting: RUNS_RESTING.with(&[]),
        shards: SHARDS.with(&[]),
        shards_all: SHARDS_ALL.with(&[]),
        erasures: ERASURES.with(&[]),
        takeover_age: TAKEOVER_AGE.with(&[]),
        log_lag: LOG_LAG.with(&[]),
        log_reached: LOG_REACHED.with(&[]),
        log_age: LOG_AGE.with(&[]),
        log_bytes: LOG_BYTES.with(&[]),
        log_bytes_max: LOG_BYTES_MAX.with(&[]),
        log_filled: LOG_FILLED.with(&[]),
        log_messages: LOG_MESSAGES.with(&[]),
        log_messages_max: LOG_MESSAGES_MAX.with(&[]),
        log_subjects: LOG_SUBJECTS.with(&[]),
        log_replicas: LOG_REPLICAS.with(&[]),
        log_replicas_current: LOG_REPLICAS_CURRENT.with(&[]),
        erasures_failed: ERASURES_FAILED.with(&[]),
        runs_carried: partitions::RUNS_CARRIED.with(&[]),
        carried_filled: partitions::CARRIED_FILLED.with(&[]),
        log_leaderless: partitions::LEADERLESS.with(&[]),
        history_runs: history::RUNS.with(&[]),
        history_failed: history::FAILED.with(&[]),
        history_behind: history::BEHIND.with(&[]),
        history_unwritten: history::UNWRITTEN.with(&[]),
        history_stuck: history::STUCK.with(&[]),
        history_lost_objects: history::LOST.with(&["object"]),
        history_lost_runs: history::LOST.with(&["run"]),
        history_lost_carried: history::LOST.with(&["carried"]),
    }
});

/// The label of a tool.
pub(crate) fn label<'a>(tool: &ToolName, registry: &'a Registry) -> &'a str {
    let entry = registry.catalog.find(tool);
    entry.map_or(OTHER, |entry| entry.alias_of.as_ref().unwrap_or(&entry.name).as_str())
}

/// Creates the counters of losses with value 0 as soon as they may count, because an increase is only visible from a
/// known value on.
pub(crate) fn begin_losses(catalog: &Catalog) {
    for entry in catalog.after(None).iter().filter(|entry| entry.alias_of.is_none()) {
        for pool in entry.all_pools() {
            HANDED_BACK.with(&[pool.as_str()]);
            PARKED.with(&[pool.as_str(), entry.name.as_str()]);
        }
    }
}

/// Creates the counters of an endpoint.
pub(crate) fn begin_webhook(endpoint: &str) {
    WEBHOOKS.with(&[endpoint, "parked"]);
}

/// Sets the used and the maximum bytes of objects at the broker.
pub(crate) fn objects(bytes: u64, bytes_max: u64) {
    OBJECTS_BYTES.with(&[]).set(bytes as f64);
    OBJECTS_BYTES_MAX.with(&[]).set(bytes_max as f64);
}

/// Sets the memory that a server of the broker needs, and may use.
pub(crate) fn broker_memory(bytes: u64, bytes_max: Option<u64>) {
    BROKER_MEMORY.with(&[]).set(bytes as f64);
    if let Some(bytes_max) = bytes_max {
        BROKER_MEMORY_MAX.with(&[]).set(bytes_max as f64);
    }
}

/// Whether Redis answers.
pub(crate) fn redis_is_reached(reached: bool) {
    REDIS_REACHED.with(&[]).set(f64::from(u8::from(reached)));
}

pub(crate) fn index_is_complete(complete: bool) {
    INDEX_COMPLETE.with(&[]).set(f64::from(u8::from(complete)));
}

pub(crate) fn certificate_expires(at: i64) {
    CERTIFICATE_EXPIRES.with(&[]).set(at as f64);
}

/// Counts a job of a lost worker that was returned to its queue.
pub(crate) fn handed_back(pool: &PoolId) {
    HANDED_BACK.with(&[pool.as_str()]).add(1);
}

/// Counts an attempt to deliver a notification, or a parked notification.
pub(crate) fn webhook(endpoint: &str, outcome: &str) {
    WEBHOOKS.with(&[endpoint, outcome]).add(1);
}

/// Counts accepted and ended calls. Caches the handles of each pool and tool.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pools: HashMap<PoolId, HashMap<ToolName, OfTool>>,
    tenants: TenantCounts,
    /// For the overview.
    pub(crate) figures: Figures,
}

#[derive(Debug)]
struct OfTool {
    completed: Ended,
    failed: Ended,
    cancelled: Ended,
    expired: Ended,
    parked: Counter,
}

/// Calls that ended with one outcome.
#[derive(Debug)]
struct Ended {
    count: Counter,
    took: Histogram,
}

impl OfTool {
    fn new(pool: &str, tool: &str) -> Self {
        let ended =
            |outcome| Ended { count: ENDED.with(&[pool, tool, outcome]), took: CALL_SECONDS.with(&[pool, outcome]) };
        Self {
            completed: ended("completed"),
            failed: ended("failed"),
            cancelled: ended("cancelled"),
            expired: ended("expired"),
            parked: PARKED.with(&[pool, tool]),
        }
    }

    fn ended(&self, call: &Call, at: Timestamp) {
        let ended = match call.outcome() {
            Some(Outcome::Completed(_)) => &self.completed,
            Some(Outcome::Failed(_)) => &self.failed,
            Some(Outcome::Cancelled { .. }) => &self.cancelled,
            Some(Outcome::Expired(_)) => &self.expired,
            None => return,
        };
        ended.count.add(1);
        ended.took.record_of(at.since(call.accepted_at()), crate::trace::context(call.spec()));
        if call.is_parked() {
            self.parked.add(1);
        }
    }
}

impl Ends {
    /// Counts the start of an attempt that was stored at this time, if it is the first one of its call.
    pub(crate) fn started(&mut self, call: &Call, number: AttemptNumber, at: Timestamp, registry: &Registry) {
        let spec = call.spec();
        if let Route::Pool { pool, .. } = &spec.route
            && number == AttemptNumber(1)
        {
            let of = (pool.as_str(), label(&spec.tool, registry));
            self.figures.started(of, at.since(call.in_turn_since()), ::nats::now());
        }
    }

    /// Counts the calls of a run that may have been opened, or extended.
    pub(crate) fn accepted(&mut self, run: &Run, heard: &Fact) {
        let Some(tenant) = run.tenant() else { return };
        match heard {
            Fact::RunOpened => self.tenants.accepted(tenant, run.calls().len()),
            Fact::CallsAppended { count, .. } => self.tenants.accepted(tenant, usize::from(*count)),
            _ => {}
        }
    }

    /// Counts a call that ended with an entry stored at this time. Calls without a pool have an empty pool label.
    pub(crate) fn count(&mut self, run: &Run, call: &Call, at: Timestamp, registry: &Registry) {
        let spec = call.spec();
        if let (Some(tenant), Some(outcome)) = (run.tenant(), call.outcome()) {
            self.tenants.ended(tenant, outcome);
        }
        if let Some(outcome) = call.outcome() {
            let pool = if let Route::Pool { pool, .. } = &spec.route { pool.as_str() } else { "" };
            let of = (pool, label(&spec.tool, registry));
            self.figures.ended(of, outcome, at.since(call.accepted_at()), ::nats::now());
        }
        let Route::Pool { pool, .. } = &spec.route else {
            return OfTool::new("", label(&spec.tool, registry)).ended(call, at);
        };
        let known = self.pools.get(pool).and_then(|tools| tools.get(&spec.tool));
        if let Some(known) = known {
            return known.ended(call, at);
        }
        let of_tool = OfTool::new(pool.as_str(), label(&spec.tool, registry));
        of_tool.ended(call, at);
        // The call was routed, so its tool was advertised: the number of labels is bounded by what workers host.
        self.pools.entry(pool.clone()).or_default().insert(spec.tool.clone(), of_tool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_of_metrics_is_current() {
        telemetry::metrics::check_reference(
            "coordinator",
            &[
                &METRICS[..],
                &schedules::METRICS,
                &tenants::METRICS,
                &hooks::METRICS,
                &history::METRICS,
                &partitions::METRICS,
            ]
            .concat(),
        );
    }
}
