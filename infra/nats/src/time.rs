//! A common clock: this machine's clock, corrected by the last known time of the broker. Times that processes compare
//! (deadlines, the age of a job) therefore do not depend on how well the clocks of their machines agree. Their
//! precision is limited by the agreement of the clocks of the broker's nodes, and by half a round trip to the broker.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

/// The first reading of the machine's clock in this process. Time is counted from there, so later changes of that clock
/// have no effect.
static FIRST_LOOK: LazyLock<(Instant, i64)> = LazyLock::new(|| (Instant::now(), machine()));
/// Added to the counted time, in milliseconds.
static OFFSET: AtomicI64 = AtomicI64::new(0);
/// Added to the time of the machine's clock, in milliseconds; 0 unless [`skew`] was called.
static SKEW: AtomicI64 = AtomicI64::new(0);

/// The broker's time as far as it is known. Before the first answer of the broker, the time of this machine.
#[must_use]
pub fn now() -> run::Timestamp {
    run::Timestamp(u64::try_from(at(Instant::now())).unwrap_or(0))
}

/// Sets the clock so that it read `time` at `moment`. `time` is in milliseconds since the Unix epoch.
pub fn set(moment: Instant, time: i64) {
    OFFSET.store(time.saturating_sub(counted(moment)), Ordering::Relaxed);
}

/// Shifts the clock of this machine by some milliseconds for this process. For tests of skewed clocks; call it before
/// the first reading of the time.
pub fn skew(milliseconds: i64) {
    SKEW.store(milliseconds, Ordering::Relaxed);
}

/// How far the clock of this machine is ahead of the broker's, in milliseconds; negative if it is behind.
#[must_use]
pub fn ahead() -> i64 {
    machine().saturating_sub(at(Instant::now()))
}

fn at(moment: Instant) -> i64 {
    counted(moment).saturating_add(OFFSET.load(Ordering::Relaxed))
}

/// The machine's time at `moment`, without changes of its clock since the first reading.
fn counted(moment: Instant) -> i64 {
    let (first, time) = *FIRST_LOOK;
    let between = |later: Instant, earlier| i64::try_from(later.saturating_duration_since(earlier).as_millis());
    time.saturating_add(between(moment, first).unwrap_or(i64::MAX)).saturating_sub(between(first, moment).unwrap_or(0))
}

/// The time of the machine's clock. This is the only place that reads it.
fn machine() -> i64 {
    #[allow(clippy::disallowed_types, reason = "the one place")]
    let elapsed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX).saturating_add(SKEW.load(Ordering::Relaxed))
}
