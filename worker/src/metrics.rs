//! Metrics of a worker. Handles are made once for every tool that it begins to host; a name that it does not host
//! counts as `other`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use run::{PoolId, ToolName};
use telemetry::metrics::{Counter, Family, Gauge, Histogram, Metric, OTHER, publish};
use telemetry::trace::SpanContext;
use tokio::time::Instant;

use crate::attempt::Ending;

static ATTEMPTS: Family<Counter> =
    Family::new("toolyard_attempts_total", "Attempts that ended, by how.", &["pool", "tool", "outcome"])
        .exported_as("toolyard.attempts", "{attempt}");
static ATTEMPT: Family<Histogram> = Family::new(
    "toolyard_attempt_seconds",
    "From an attempt's beginning until its end was stored in the log.",
    &["pool", "tool"],
)
.exported_as("toolyard.attempt.duration", "s");
static QUEUE_WAIT: Family<Histogram> = Family::new(
    "toolyard_queue_wait_seconds",
    "From a job's entry in the log to its first delivery to a worker.",
    &["pool", "tool"],
)
.exported_as("toolyard.queue.wait.duration", "s");
static FIRST_CHUNK: Family<Histogram> = Family::new(
    "toolyard_first_chunk_seconds",
    "From a job's entry in the log to the first piece of output of an attempt.",
    &["pool", "tool"],
)
.exported_as("toolyard.first_chunk.duration", "s");
static OUTPUT_BYTES: Family<Counter> =
    Family::new("toolyard_output_bytes_total", "Output that attempts said, results not counted.", &["pool", "tool"])
        .exported_as("toolyard.output.io", "By");
static REDELIVERIES: Family<Counter> = Family::new(
    "toolyard_redeliveries_total",
    "Jobs that were delivered again: after a failed attempt, a lost worker or a lost acknowledgement.",
    &["pool"],
)
.exported_as("toolyard.jobs.redelivered", "{job}");
static DUPLICATES: Family<Counter> = Family::new(
    "toolyard_duplicates_suppressed_total",
    "Jobs that were delivered though nothing was left to do, and so were not executed.",
    &["pool"],
)
.exported_as("toolyard.jobs.duplicates_suppressed", "{job}");
static LEASES_LOST: Family<Counter> = Family::new(
    "toolyard_leases_lost_total",
    "Jobs whose lease the broker did not confirm in time, so that their attempts were given up.",
    &["pool"],
)
.exported_as("toolyard.leases.lost", "{job}");
static SLOTS: Family<Gauge> = Family::new("toolyard_worker_slots", "Calls that this worker runs at once.", &["pool"])
    .exported_as("toolyard.worker.slots", "{slot}");
static RUNNING: Family<Gauge> = Family::new("toolyard_worker_running", "Calls that this worker runs now.", &["pool"])
    .exported_as("toolyard.worker.running", "{call}");

static FREE_SLOTS: Family<Gauge> =
    Family::new("toolyard_worker_free_slots", "Calls that this worker could begin now.", &["pool"])
        .exported_as("toolyard.worker.free_slots", "{slot}");

const METRICS: [Metric; 11] = [
    Metric::Counter(&ATTEMPTS),
    Metric::Histogram(&ATTEMPT),
    Metric::Histogram(&QUEUE_WAIT),
    Metric::Histogram(&FIRST_CHUNK),
    Metric::Counter(&OUTPUT_BYTES),
    Metric::Counter(&REDELIVERIES),
    Metric::Counter(&DUPLICATES),
    Metric::Counter(&LEASES_LOST),
    Metric::Gauge(&SLOTS),
    Metric::Gauge(&RUNNING),
    Metric::Gauge(&FREE_SLOTS),
];

/// Of one pool's worker.
#[derive(Debug)]
pub(crate) struct Counts {
    pool: PoolId,
    /// By every name under which a tool is called.
    tools: RefCell<HashMap<ToolName, Rc<OfTool>>>,
    other: Rc<OfTool>,
    pub(crate) redeliveries: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) leases_lost: Counter,
    slots: Gauge,
    running: Gauge,
    free_slots: Gauge,
}

/// Of one tool.
#[derive(Debug, Clone)]
pub(crate) struct OfTool {
    completed: Counter,
    failed: Counter,
    cancelled: Counter,
    expired: Counter,
    returned: Counter,
    abandoned: Counter,
    attempt: Histogram,
    pub(crate) queue_wait: Histogram,
    first_chunk: Histogram,
    output_bytes: Counter,
}

impl Counts {
    pub(crate) fn new(pool: &PoolId) -> Self {
        publish(&METRICS);
        publish(&hooks::METRICS);
        let (id, pool) = (pool.clone(), pool.as_str());
        Self {
            pool: id,
            tools: RefCell::default(),
            other: Rc::new(OfTool::new(pool, OTHER)),
            redeliveries: REDELIVERIES.with(&[pool]),
            duplicates: DUPLICATES.with(&[pool]),
            leases_lost: LEASES_LOST.with(&[pool]),
            slots: SLOTS.with(&[pool]),
            running: RUNNING.with(&[pool]),
            free_slots: FREE_SLOTS.with(&[pool]),
        }
    }

    pub(crate) fn note(&self, slots: u32, running: u32, free: u32) {
        self.slots.set(f64::from(slots));
        self.running.set(f64::from(running));
        self.free_slots.set(f64::from(free));
    }

    /// `names` are those under which tools are called from now on, each with the tool's own.
    pub(crate) fn host<'a>(&self, names: impl Iterator<Item = (&'a ToolName, &'a ToolName)>) {
        let of_tool = |tool: &ToolName| Rc::new(OfTool::new(self.pool.as_str(), tool.as_str()));
        self.tools.replace(names.map(|(name, tool)| (name.clone(), of_tool(tool))).collect());
    }

    pub(crate) fn of(&self, tool: &ToolName) -> Rc<OfTool> {
        Rc::clone(self.tools.borrow().get(tool).unwrap_or(&self.other))
    }
}

impl OfTool {
    fn new(pool: &str, tool: &str) -> Self {
        let ended = |outcome| ATTEMPTS.with(&[pool, tool, outcome]);
        Self {
            completed: ended("completed"),
            failed: ended("failed"),
            cancelled: ended("cancelled"),
            expired: ended("expired"),
            returned: ended("returned"),
            abandoned: ended("abandoned"),
            attempt: ATTEMPT.with(&[pool, tool]),
            queue_wait: QUEUE_WAIT.with(&[pool, tool]),
            first_chunk: FIRST_CHUNK.with(&[pool, tool]),
            output_bytes: OUTPUT_BYTES.with(&[pool, tool]),
        }
    }

    /// An attempt ended; `None` if it was abandoned without a stored end.
    pub(crate) fn ended(&self, how: Option<&Ending>, took: Duration, trace: Option<SpanContext>) {
        self.attempt.record_of(took, trace);
        let count = match how {
            Some(Ending::Completed { .. }) => &self.completed,
            Some(Ending::Failed(_)) => &self.failed,
            Some(Ending::Cancelled) => &self.cancelled,
            Some(Ending::Expired) => &self.expired,
            Some(Ending::Returned) => &self.returned,
            None => &self.abandoned,
        };
        count.add(1);
    }

    /// Counts the output of an attempt whose job was stored this long before `since`.
    pub(crate) fn output(&self, since: Instant, waited: Duration) -> OutputCount {
        OutputCount { first: Some((self.first_chunk.clone(), since, waited)), bytes: self.output_bytes.clone() }
    }
}

/// How an attempt ended, in a word.
pub(crate) fn word(how: Option<&Ending>) -> &'static str {
    match how {
        Some(Ending::Completed { .. }) => "completed",
        Some(Ending::Failed(_)) => "failed",
        Some(Ending::Cancelled) => "cancelled",
        Some(Ending::Expired) => "expired",
        Some(Ending::Returned) => "returned",
        None => "abandoned",
    }
}

/// Counts the output of one attempt.
#[derive(Debug, Default)]
pub(crate) struct OutputCount {
    /// Until the first piece has come.
    first: Option<(Histogram, Instant, Duration)>,
    bytes: Counter,
}

impl OutputCount {
    pub(crate) fn said(&mut self, bytes: usize) {
        if let Some((first, since, waited)) = self.first.take() {
            first.record(waited + since.elapsed());
        }
        self.bytes.add(u64::try_from(bytes).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_of_metrics_is_current() {
        telemetry::metrics::check_reference("worker", &[&METRICS[..], &hooks::METRICS].concat());
    }
}
