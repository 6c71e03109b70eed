//! What a reader must read from the log before it uses the feed, and when it doubts the feed.

use std::time::Duration;

use tokio::time::Instant;

/// The pauses before the log's leader is queried again for the run's last entry. A leader that was replaced may not
/// know it for some seconds.
pub(super) const ASK_AGAIN: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(15)];
/// The pause before it is queried although the feed is trusted, at first and at most; each is twice as long as the one
/// before. The feed of an overloaded coordinator may be so late that the end of a run is erased, or leaves the log,
/// before it comes.
pub(super) const DOUBT: Duration = Duration::from_secs(60);
pub(super) const DOUBT_LONGEST: Duration = Duration::from_secs(8 * 60);

/// The entries between the last one and the feed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Behind {
    /// None: the feed continues after the last entry.
    Nothing,
    /// There are none according to the log's leader, which may have been replaced without knowing it. So the feed's
    /// first entry is looked up in the log, and until it arrives the leader is queried again and again.
    Presumably { asked: usize, again: Instant },
    /// None, if the feed was established when it was requested: the run was not opened yet.
    Unopened,
    /// Not known yet.
    Unknown,
    /// The feed is established; the query of the log's leader, number `asked`, is still to be sent.
    Unasked { asked: usize },
    /// Entries up to this one; and no more, or no more according to the leader.
    Entries { through: u64, then: Then },
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Then {
    Nothing,
    Presumably { asked: usize },
}

/// The state after query number `asked` of the log's leader.
pub(super) fn presumably(asked: usize) -> Behind {
    let doubled = || DOUBT.saturating_mul(1 << asked.saturating_sub(ASK_AGAIN.len()).min(8)).min(DOUBT_LONGEST);
    let pause = ASK_AGAIN.get(asked).copied().unwrap_or_else(doubled);
    Behind::Presumably { asked: asked + 1, again: Instant::now() + pause }
}
