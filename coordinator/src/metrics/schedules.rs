//! Metrics of schedules. Firings are counted where they are decided, so the sum over all coordinators counts each once.

use std::time::Duration;

use proto::v1::FiringOutcome;
use telemetry::metrics::{Counter, Family, Gauge, Histogram, Metric};

static SCHEDULES: Family<Gauge> =
    Family::new("toolyard_schedules", "Schedules that are stored. Every coordinator reports the same number.", &[])
        .exported_as("toolyard.schedules", "{schedule}");
static FIRINGS: Family<Counter> = Family::new(
    "toolyard_schedule_firings_total",
    "Firings of schedules, by outcome: run, refused, skipped or missed.",
    &["outcome"],
)
.exported_as("toolyard.schedule.firings", "{firing}");
static LATENESS: Family<Histogram> = Family::new(
    "toolyard_schedule_lateness_seconds",
    "How much later than due, jitter included, firings were decided.",
    &[],
)
.exported_as("toolyard.schedule.lateness", "s");

pub(super) const METRICS: [Metric; 3] =
    [Metric::Gauge(&SCHEDULES), Metric::Counter(&FIRINGS), Metric::Histogram(&LATENESS)];

/// Counts a decided firing, which was so late.
pub(crate) fn fired(outcome: FiringOutcome, late: Duration) {
    let outcome = match outcome {
        FiringOutcome::Run => "run",
        FiringOutcome::Refused => "refused",
        FiringOutcome::Skipped => "skipped",
        FiringOutcome::Missed | FiringOutcome::Unspecified => "missed",
    };
    FIRINGS.with(&[outcome]).add(1);
    LATENESS.with(&[]).record(late);
}

/// Counts firings that were missed and not made up for.
pub(crate) fn missed(count: u64) {
    FIRINGS.with(&["missed"]).add(count);
}

/// Sets the number of schedules.
pub(crate) fn count(schedules: usize) {
    SCHEDULES.with(&[]).set(schedules as f64);
}
