//! When a schedule fires, and which of its firings are due: pure functions of the schedule and the time.
//!
//! A schedule has *times* ([`Timing`]). Each time is a *firing*, which is due a little later if the schedule has jitter
//! ([`Plan::due_at`]). [`Plan::decide`] says what to do with the firings that are due and not decided yet. Whether a
//! firing creates its run twice is not decided here: its request id follows from its time.

mod plan;
mod timing;

pub use plan::{Decision, Due, LATE_MAX, MADE_UP_MAX, MissedPolicy, ON_TIME, Plan, Progress};
pub use timing::{CRON_BYTES_MAX, INTERVAL_MAX, INTERVAL_MIN, ONCE_AHEAD_MAX, Timing, TimingError};

use std::time::Duration;

/// The longest jitter: longer delays are better expressed by the times.
pub const JITTER_MAX: Duration = Duration::from_secs(3600);
