//! The pauses between the tries of a request.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long a coordinator may be away before it is given up: a rolling restart takes less.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a reconnection may take before the user is informed: a restart takes less.
const NOTICED: Duration = Duration::from_secs(3);
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(2);

/// Waits between tries, longer each time, for as long as a coordinator may be away.
#[derive(Debug)]
pub(crate) struct Backoff {
    since: Instant,
    wait: Duration,
    noticed: bool,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), wait: RETRY_FIRST, noticed: false }
    }

    pub(crate) fn has_patience(&self) -> bool {
        self.since.elapsed() < PATIENCE
    }

    /// Whether the user should be informed now: once, and not about a mere restart.
    pub(crate) fn is_noticeable(&mut self) -> bool {
        self.since.elapsed() > NOTICED && !std::mem::replace(&mut self.noticed, true)
    }

    pub(crate) async fn wait(&mut self) {
        sleep(self.wait).await;
        self.wait = (self.wait * 2).min(RETRY_LONGEST);
    }
}
