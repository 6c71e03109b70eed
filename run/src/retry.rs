//! Whether and when a failed call is tried again. Randomness is an argument.

use std::time::Duration;

use crate::event::CallError;
use crate::tool::Policy;

/// Waits that double from `first` to `longest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(60) }
    }
}

impl Backoff {
    /// By how much a wait may be longer than its nominal length, so that calls that failed together do not return together.
    pub const JITTER: f64 = 0.25;

    /// The wait after the `failures`-th failure (from 1); `jitter` is drawn from 0 to 1.
    #[must_use]
    pub fn wait(&self, failures: u32, jitter: f64) -> Duration {
        let doubled = self.first.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1)));
        let nominal = doubled.min(self.longest);
        nominal.saturating_add(nominal.mul_f64(Self::JITTER * jitter.clamp(0.0, 1.0)))
    }
}

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    Again { used: u32 },
    GiveUp,
}

/// The one rule of retrying, used by the fold and, for the delay, by the worker: `used` counts the failed attempt too.
/// What is not repeatable is not tried again, however many attempts its policy allows: its effect may have happened.
#[must_use]
pub fn after_failure(policy: &Policy, used: u32, error: &CallError) -> Retry {
    let again = policy.repeatable && error.retryable && used < policy.attempts_max;
    if again { Retry::Again { used } } else { Retry::GiveUp }
}
