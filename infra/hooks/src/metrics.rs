//! Metrics of hooks. A process counts the hooks that it calls itself.

use std::time::Duration;

use telemetry::metrics::{Counter, Family, Histogram, Metric};

use crate::contract::HookPoint;

static DECISIONS: Family<Counter> = Family::new(
    "toolyard_hooks_total",
    "Requests to hooks, by the decision: allow, deny, modify, leave_to_client, answer, modify_result, notified, or \
    failed if there was no valid answer.",
    &["hook", "moment", "decision"],
)
.exported_as("toolyard.hooks", "{request}");
static SECONDS: Family<Histogram> = Family::new(
    "toolyard_hook_seconds",
    "Time from a request to a hook until its answer, or until it failed.",
    &["hook", "moment"],
)
.exported_as("toolyard.hook.duration", "s");

/// The metrics of a process that calls hooks.
pub const METRICS: [Metric; 2] = [Metric::Counter(&DECISIONS), Metric::Histogram(&SECONDS)];

pub(crate) fn decided(hook: &str, point: HookPoint, decision: &'static str) {
    DECISIONS.with(&[hook, point.name(), decision]).add(1);
}

pub(crate) fn took(hook: &str, point: HookPoint, took: Duration) {
    SECONDS.with(&[hook, point.name()]).record(took);
}
