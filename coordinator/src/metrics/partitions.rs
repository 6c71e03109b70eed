//! Metrics of the log's partitions, and of what is carried beside them.

use telemetry::metrics::{Counter, Family, Gauge, Metric};

pub(super) const METRICS: [Metric; 3] =
    [Metric::Gauge(&LEADERLESS), Metric::Counter(&RUNS_CARRIED), Metric::Gauge(&CARRIED_FILLED)];

pub(super) static LEADERLESS: Family<Gauge> = Family::new(
    "toolyard_log_partitions_leaderless",
    "Partitions of the log that have had no leader for 3 s, as far as this coordinator sees. Their runs stand still, \
     and new runs go to the others.",
    &[],
)
.exported_as("toolyard.log.partitions_leaderless", "{partition}");
pub(super) static RUNS_CARRIED: Family<Counter> = Family::new(
    "toolyard_runs_carried_total",
    "How often entries of a run that stays open for long were stored beside the log, so that they may leave it.",
    &[],
)
.exported_as("toolyard.runs.carried", "{run}");
pub(super) static CARRIED_FILLED: Family<Gauge> = Family::new(
    "toolyard_carried_filled_ratio",
    "How full the bucket of carried runs is: 1 is full. From 0.85 on, runs that may last for longer than 24 h are \
     refused.",
    &[],
)
.exported_as("toolyard.carried.filled", "1");
