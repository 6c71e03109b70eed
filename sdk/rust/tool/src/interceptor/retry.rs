//! Retries at once in the same worker, for failures that usually pass within milliseconds: another attempt by the log's
//! policy takes a second at least.

use std::time::Duration;

use run::{Backoff, CallError};
use tokio::time::Instant;

use super::{Call, Interceptor, Next};
use crate::error::ToolError;
use crate::output::Output;

/// Runs a call again that failed with a retryable error ([`ToolError::retryable`], [`ToolError::rate_limited`]), if its
/// tool is safe to repeat.
///
/// Retries happen at exactly one layer: if all tries fail, the error is final. Two kinds of failures are left unchanged
/// to the log's retry policy: those of a try that sent output, which only the log can withdraw, and those whose wait
/// would be longer than `longest` or than the remaining time of the attempt.
#[derive(Debug)]
pub struct Retry {
    tries: u32,
    backoff: Backoff,
}

impl Retry {
    /// At most so many tries in all, and pauses between them from `first`, doubling up to `longest`, with up to 25 %
    /// more at random.
    #[must_use]
    pub fn new(tries: u32, first: Duration, longest: Duration) -> Self {
        Self { tries, backoff: Backoff { first, longest, ..Backoff::default() } }
    }
}

impl Interceptor for Retry {
    async fn call(&self, call: Call<'_>, next: Next<'_>) -> Result<Output, ToolError> {
        if !call.manifest().policy.repeatable {
            return next.run(call).await;
        }
        let said = call.said();
        let mut failures = 0;
        loop {
            let ToolError(error) = match next.run(call.clone()).await {
                Ok(output) => return Ok(output),
                Err(error) => error,
            };
            failures += 1;
            if !error.retryable || call.said() > said {
                return Err(ToolError(error));
            }
            if failures >= self.tries {
                let message = format!("{} (tried {failures} times)", error.message);
                return Err(ToolError(CallError {
                    violations: error.violations,
                    ..CallError::new(error.kind, message)
                }));
            }
            let is_patient = error.retry_after.is_none_or(|asked| asked <= self.backoff.longest);
            let wait = self.backoff.wait_after(&error, failures, rand::random());
            let until = Instant::now().checked_add(wait).filter(|until| *until < call.context().deadline());
            let Some(until) = until.filter(|_| is_patient) else { return Err(ToolError(error)) };
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = call.context().cancelled() => return Err(ToolError(error)),
            }
        }
    }
}
