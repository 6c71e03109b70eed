//! Metrics of the history of runs that have ended.

use telemetry::metrics::{Counter, Family, Gauge, Metric};

pub(super) const METRICS: [Metric; 6] = [
    Metric::Counter(&RUNS),
    Metric::Counter(&FAILED),
    Metric::Gauge(&BEHIND),
    Metric::Counter(&UNWRITTEN),
    Metric::Gauge(&STUCK),
    Metric::Counter(&LOST),
];

pub(super) static RUNS: Family<Counter> = Family::new(
    "toolyard_history_runs_total",
    "Runs that this coordinator wrote to the history. A run counts again after an entry that came after its end.",
    &[],
)
.exported_as("toolyard.history.runs", "{run}");
pub(super) static FAILED: Family<Counter> = Family::new(
    "toolyard_history_failed_total",
    "Attempts to write a shard's ended runs to the history that failed and are retried.",
    &[],
)
.exported_as("toolyard.history.failed", "{attempt}");
pub(super) static BEHIND: Family<Gauge> = Family::new(
    "toolyard_history_behind_seconds",
    "For how long runs of this coordinator's shards that have ended were not all in the history. They wait in the log.",
    &[],
)
.exported_as("toolyard.history.behind", "s");
pub(super) static UNWRITTEN: Family<Counter> = Family::new(
    "toolyard_history_unwritten_total",
    "Entries that left the log, because it was full or they were 25 h old, and that the history may not have: it lacks \
    at most so many.",
    &[],
)
.exported_as("toolyard.history.unwritten", "{entry}");
pub(super) static STUCK: Family<Gauge> = Family::new(
    "toolyard_history_shards_stuck",
    "Shards of this coordinator whose ended runs were not all in the history for 5 min.",
    &[],
)
.exported_as("toolyard.history.shards_stuck", "{shard}");
pub(super) static LOST: Family<Counter> = Family::new(
    "toolyard_history_lost_total",
    "What the history will not have: an `object` of a result that could not be read, a `run` that could not be read \
    for 4 h, or a `carried` run, for which the bucket of carried runs had no room.",
    &["what"],
)
.exported_as("toolyard.history.lost", "{item}");
