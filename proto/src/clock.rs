//! One clock for everybody: this machine's, corrected by what the broker's was last seen to say. Moments that processes
//! compare (deadlines, the age of a job) do not depend on how well their machines' clocks agree. They are as exact as
//! the clocks of the broker's nodes agree with each other, and half a round trip to the broker.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

/// This process's first look at the clock of its machine. Time is counted from there, so that somebody who sets that
/// clock meanwhile moves nothing.
static FIRST_LOOK: LazyLock<(Instant, i64)> = LazyLock::new(|| (Instant::now(), machine()));
/// What is added to the time that is counted, in milliseconds.
static OFFSET: AtomicI64 = AtomicI64::new(0);
/// What is added to the machine's clock, in milliseconds.
static SKEW: AtomicI64 = AtomicI64::new(0);

/// The broker's time, as well as it is known; before it was asked for, the time of this machine.
#[must_use]
pub fn now() -> run::Timestamp {
    run::Timestamp(u64::try_from(at(Instant::now())).unwrap_or(0))
}

/// Sets the clock, so that from now on it said `time` at `moment`. Both in milliseconds since the Unix epoch.
pub fn set(moment: Instant, time: i64) {
    OFFSET.store(time.saturating_sub(counted(moment)), Ordering::Relaxed);
}

/// Makes this process believe that the clock of its machine is off by some milliseconds. For tests of skewed clocks, to
/// be called before anything asks for the time.
pub fn skew(milliseconds: i64) {
    SKEW.store(milliseconds, Ordering::Relaxed);
}

/// By how many milliseconds the clock of this machine is ahead of the broker's; negative when it is behind.
#[must_use]
pub fn ahead() -> i64 {
    machine().saturating_sub(at(Instant::now()))
}

fn at(moment: Instant) -> i64 {
    counted(moment).saturating_add(OFFSET.load(Ordering::Relaxed))
}

/// The machine's time at `moment`, had nobody set its clock since the first look.
fn counted(moment: Instant) -> i64 {
    let (first, time) = *FIRST_LOOK;
    let between = |later: Instant, earlier| i64::try_from(later.saturating_duration_since(earlier).as_millis());
    time.saturating_add(between(moment, first).unwrap_or(i64::MAX)).saturating_sub(between(first, moment).unwrap_or(0))
}

/// What the clock of this machine says. The only place that reads it.
fn machine() -> i64 {
    #[allow(clippy::disallowed_types, reason = "the one place")]
    let elapsed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX).saturating_add(SKEW.load(Ordering::Relaxed))
}
