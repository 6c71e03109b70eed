//! Removes the beginning of a partition of the log: runs that have ended and are old, or for which there is no room.
//! One coordinator does it, the owner of the partition's first shard; the owners of all its shards tell what they need,
//! and carry runs that would keep much of the log. `owner::retention` decides.

use std::time::Duration;

use owner::retention::{Aged, CARRIED_AFTER, CUTS_APART, FALLS_BEHIND, Kept, Leaving, LogState, SETTLED_AFTER, Tail};
use proto::convert::snapshot::Needs;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::journal::{Journal, LogNow, ReadError};
use super::snapshots::Snapshots;
use crate::metrics::COUNTS;
use crate::shards::Owned;

/// How often it looks. A log that fills up in less than a minute needs more room, not more looks.
const LOOK: Duration = Duration::from_secs(5);
pub(crate) struct Retention {
    pub(crate) journal: Journal,
    pub(crate) snapshots: Snapshots,
    pub(crate) owned: watch::Receiver<Owned>,
    pub(crate) tail: Tail,
    /// Whether runs that have ended wait for the history.
    pub(crate) has_history: bool,
}

/// What was seen and done so far.
#[derive(Default)]
struct Past {
    has_begun: bool,
    aged: Aged,
    cut_at: Option<Instant>,
}

impl Retention {
    pub(crate) async fn keep(self, stop: CancellationToken) {
        let mut past = Past::default();
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = look.tick() => {}
                () = stop.cancelled() => return,
            }
            // Cut off, it is harmless: the broker removes the entries, or does not.
            let removed = tokio::select! {
                removed = self.look(&mut past) => removed,
                () = stop.cancelled() => return,
            };
            if let Err(error) = removed {
                tracing::warn!(%error, "removing old entries from the log failed, trying again");
            }
        }
    }

    async fn look(&self, past: &mut Past) -> Result<(), ReadError> {
        let log = self.journal.now().await?;
        if self.journal.partition().shards().next().is_some_and(|first| self.owned.borrow().holds(first)) {
            if !past.has_begun {
                self.journal.begin_cuts(&log).await?;
                past.has_begun = true;
            }
            self.count_aged(&log, &mut past.aged).await?;
            self.remove(&log, past).await?;
        }
        let carries_by = Tail { age: Some(self.tail.age.unwrap_or(CARRIED_AFTER).min(CARRIED_AFTER)), ..self.tail };
        let leaves_before = match self.state(&carries_by, &log).await? {
            Some(state) => carries_by.leaving(&state, Kept::NOTHING, CUTS_APART).map_or(0, |leaving| leaving.from),
            None => 0,
        };
        self.journal.set_leaves_before(leaves_before);
        Ok(())
    }

    /// Counts what the broker removed because of its age before the history had it.
    async fn count_aged(&self, log: &LogNow, aged: &mut Aged) -> Result<(), ReadError> {
        if self.has_history && aged.is_moved(log.first) {
            let kept = self.kept(log).await?;
            // A shard without new entries tells a position that may be so far behind the log.
            let unwritten_from = kept.unwritten_from.saturating_add(FALLS_BEHIND);
            count_unwritten(aged.handle_look(log.first, unwritten_from));
        }
        Ok(())
    }

    async fn remove(&self, log: &LogNow, past: &mut Past) -> Result<(), ReadError> {
        let Some(state) = self.state(&self.tail, log).await? else { return Ok(()) };
        let rested = past.cut_at.map_or(CUTS_APART, |cut_at| cut_at.elapsed());
        if let Some(Leaving { from, unwritten }) = self.tail.leaving(&state, self.kept(log).await?, rested) {
            self.journal.drop_before(from, log).await?;
            tracing::debug!(first = log.first, from, last = log.last, "removed the oldest entries of the log");
            past.aged.handle_removed(from);
            past.cut_at = Some(Instant::now());
            count_unwritten(unwritten);
        }
        Ok(())
    }

    /// The log as the decision needs it; `None` if nothing is to leave it.
    async fn state(&self, tail: &Tail, log: &LogNow) -> Result<Option<LogState>, ReadError> {
        let now = ::nats::now();
        let is_old = tail.age.is_some_and(|age| now.since(log.first_at) > age);
        if !is_old && !tail.is_exceeded(log.bytes, log.messages) {
            return Ok(None);
        }
        Ok(Some(LogState {
            first: log.first,
            last: log.last,
            young_from: match tail.age {
                Some(age) => self.journal.first_since(now.before(age), log).await?,
                None => 0,
            },
            settling_from: self.journal.first_since(now.before(SETTLED_AFTER), log).await?,
            bytes: log.bytes,
            messages: log.messages,
        }))
    }

    /// The first entries that the shards need; 0 if one has not told.
    async fn kept(&self, log: &LogNow) -> Result<Kept, ReadError> {
        let shards = self.journal.partition().shards();
        let needs = futures::future::try_join_all(shards.map(|shard| self.snapshots.needs(shard))).await?;
        // Read after the needs: otherwise what was told meanwhile would seem to be behind the end of the log.
        let last = self.journal.now().await?.last;
        let is_of_log = |needs: &Needs| needs.is_of(log.created, last);
        let needs: Vec<Option<Needs>> = needs.into_iter().map(|needs| needs.filter(is_of_log)).collect();
        let first = |of: fn(&Needs) -> u64| needs.iter().map(|needs| needs.as_ref().map_or(0, of)).min().unwrap_or(0);
        let needed_from = first(|needs| needs.from);
        let unwritten_from = |needs: &Needs| needs.unwritten.as_ref().map_or(0, |unwritten| unwritten.from);
        let unwritten_from = if self.has_history { first(unwritten_from) } else { u64::MAX };
        Ok(Kept { needed_from, unwritten_from })
    }
}

fn count_unwritten(entries: u64) {
    if entries > 0 {
        COUNTS.history_unwritten.add(entries);
        let what = "entries left the log that the history may not have: it was full, or they had waited for 25 h";
        tracing::error!(entries, "{what}. Check the history store");
    }
}

#[cfg(test)]
mod tests {
    use owner::retention::{Moment, Unwritten};
    use run::{Event, RunId, Shard};

    use super::super::journal::NOTHING;
    use super::super::journal::tests::{journal, snapshots};
    use super::*;

    #[tokio::test]
    async fn what_shards_tell_while_the_log_grows_counts() {
        let (_server, journal) = journal().await;
        let (snapshots, owned) = (snapshots(&journal), watch::channel(Owned::nothing()).1);
        let log = journal.now().await.expect("the broker is there");
        let run = RunId::new(Shard(0), uuid::Uuid::now_v7());
        let last = journal.append(run, &[Event::RunClosed], None, NOTHING).await.expect("stored");
        let waiting = vec![Moment { last, open_from: last + 1 }];
        let unwritten = Some(Unwritten { from: last, through: last, waiting });
        for shard in journal.partition().shards() {
            let needs = Needs { log: log.created, from: last + 1, unwritten: unwritten.clone() };
            snapshots.write_needs(shard, needs).await.expect("stored");
        }
        let retention = Retention { journal, snapshots, owned, tail: Tail::default(), has_history: true };
        let kept = retention.kept(&log).await.expect("the broker is there");
        assert_eq!(kept, Kept { needed_from: last + 1, unwritten_from: last });
    }
}
