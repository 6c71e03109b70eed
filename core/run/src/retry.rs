//! Whether and when a failed call is tried again. Randomness is an argument.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::event::{CallError, ErrorKind};
use crate::tool::Policy;

/// Waits that double from `first` to `longest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
    /// Random extra wait of up to this many percent, so that calls that failed together do not return together.
    pub jitter_percent: u8,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(60), jitter_percent: 25 }
    }
}

impl Backoff {
    /// The wait after the `failures`-th failure (from 1); `jitter` is drawn from 0 to 1.
    #[must_use]
    pub fn wait(&self, failures: u32, jitter: f64) -> Duration {
        let doubled = self.first.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1)));
        self.lengthen(doubled.min(self.longest), jitter)
    }

    fn lengthen(&self, nominal: Duration, jitter: f64) -> Duration {
        nominal.saturating_add(nominal.mul_f64(f64::from(self.jitter_percent) / 100.0 * jitter.clamp(0.0, 1.0)))
    }

    /// The wait after an error, which may require a longer one.
    #[must_use]
    pub fn wait_after(&self, error: &CallError, failures: u32, jitter: f64) -> Duration {
        let own = self.wait(failures, jitter);
        error.retry_after.map_or(own, |asked| own.max(self.lengthen(asked, jitter)))
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
    let again = policy.repeatable && is_retried(policy, error) && used < policy.attempts_max;
    if again { Retry::Again { used } } else { Retry::GiveUp }
}

/// Whether the policy tries such an error again, as long as it has attempts left.
#[must_use]
pub fn is_retried(policy: &Policy, error: &CallError) -> bool {
    let on = policy.retry_on;
    match error.kind {
        ErrorKind::AttemptTimeout | ErrorKind::IdleTimeout => on.timeout,
        ErrorKind::ToolPanicked => on.panic,
        ErrorKind::WorkerLost => on.lost,
        // The same arguments would meet the same schema, and the same size the same limit.
        ErrorKind::UnknownTool
        | ErrorKind::ArgumentsInvalid
        | ErrorKind::ResultTooLarge
        | ErrorKind::OutputTooLarge
        | ErrorKind::OutputIncomplete
        | ErrorKind::Interrupted
        | ErrorKind::NoWorker
        | ErrorKind::Rejected
        | ErrorKind::ModelRetry
        | ErrorKind::NeedsInput
        | ErrorKind::Denied
        | ErrorKind::HookFailed
        | ErrorKind::HookRequired
        | ErrorKind::LimitExceeded
        | ErrorKind::NotPermitted
        | ErrorKind::StreamingUnsupported
        | ErrorKind::ClientFailed => false,
        ErrorKind::ToolFailed | ErrorKind::RateLimited if error.retryable => on.retryable,
        ErrorKind::ToolFailed | ErrorKind::RateLimited => on.other,
    }
}
