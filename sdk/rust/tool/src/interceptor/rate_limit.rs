//! Lets through only so many calls in a time: a bucket of tokens, kept as the time at which it will be full again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{Call, Interceptor, Next};
use crate::error::ToolError;
use crate::output::Output;

/// The longest time over which calls are counted: a worker does not live much longer, and begins with a full bucket.
const PER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Limits the calls of this worker per time, with a token bucket. A call that comes too soon fails with
/// [`ToolError::rate_limited`], so that a call of a tool that is safe to repeat comes again in time without holding a
/// slot. For other tools it can wait here instead.
#[derive(Debug)]
pub struct RateLimit {
    /// One token comes in this time.
    interval: Duration,
    /// The bucket fills in this time.
    per: Duration,
    patience: Duration,
    /// When the bucket will be full.
    full_at: Mutex<Option<Instant>>,
}

impl RateLimit {
    /// `calls` at once, at least one, and a further one every `per / calls`; `per` is at most a day.
    #[must_use]
    pub fn new(calls: u32, per: Duration) -> Self {
        let per = per.min(PER_MAX);
        Self { interval: per / calls.max(1), per, patience: Duration::ZERO, full_at: Mutex::new(None) }
    }

    /// Lets a call wait here for up to so long before it is refused; it holds its slot meanwhile. None unless set.
    #[must_use]
    pub fn patience(mut self, longest: Duration) -> Self {
        self.patience = longest;
        self
    }

    /// Takes a token, or reserves one that will be there in time, and returns when. A refused call takes none.
    fn take(&self, now: Instant, patience: Duration) -> Result<Instant, Duration> {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let next_full = full_at.map_or(now, |at| at.max(now)) + self.interval;
        let turn = next_full.checked_sub(self.per).map_or(now, |at| at.max(now));
        let wait = turn - now;
        if wait > patience {
            return Err(wait);
        }
        *full_at = Some(next_full);
        Ok(turn)
    }

    /// A call that was stopped before its turn leaves its token to those that come after it.
    fn give_back(&self) {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        *full_at = full_at.and_then(|at| at.checked_sub(self.interval));
    }
}

/// A token that was reserved. It is given back if the call is stopped, or dropped, before its turn.
struct Reserved<'a>(Option<&'a RateLimit>);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(limit) = self.0 {
            limit.give_back();
        }
    }
}

impl Interceptor for RateLimit {
    async fn call(&self, call: Call<'_>, next: Next<'_>) -> Result<Output, ToolError> {
        let now = Instant::now();
        let rest = call.context().deadline().saturating_duration_since(now);
        let turn = self.take(now, self.patience.min(rest)).map_err(|wait| {
            let message = format!("{} has had enough calls for now, try again in {wait:.1?}", call.tool());
            ToolError::rate_limited(message, wait)
        })?;
        if turn > now {
            let mut reserved = Reserved(Some(self));
            tokio::select! {
                () = tokio::time::sleep_until(turn) => reserved.0 = None,
                () = call.context().cancelled() => return Err(ToolError::new("the call was stopped before its turn")),
            }
        }
        next.run(call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_bucket_gives_its_tokens_at_once_and_then_one_after_another() {
        let (limit, now) = (RateLimit::new(3, Duration::from_secs(3)), Instant::now());
        let (second, none) = (Duration::from_secs(1), Duration::ZERO);
        for _ in 0..3 {
            assert_eq!(limit.take(now, none), Ok(now));
        }
        assert_eq!(limit.take(now, none), Err(second));
        assert_eq!(limit.take(now, none), Err(second), "what is refused takes nothing");
        assert_eq!(limit.take(now, second), Ok(now + second));
        assert_eq!(limit.take(now, second), Err(2 * second));
        let later = now + 60 * second;
        for _ in 0..3 {
            assert_eq!(limit.take(later, none), Ok(later), "it holds no more than three, however long it fills");
        }
        assert_eq!(limit.take(later, none), Err(second));
    }
}
