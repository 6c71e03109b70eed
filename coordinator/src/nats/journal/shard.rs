//! Reads a shard from one position on, run by run: for the history, which needs each run that has ended.

use std::collections::BTreeMap;
use std::time::Duration;

use owner::Known;
use proto::convert::history::HistoryMessage;
use proto::subject::{self, Subject};
use run::{RunId, Shard, Timestamp};
use tokio::time::Instant;

use super::pages::Batch;
use super::{Decoded, Journal, LAG_PAUSE, Pace, READ_PATIENCE, ReadError, Stored};

/// Messages and bytes that are read in one go. The bytes are in memory for each shard of a coordinator.
const MESSAGES_MAX: usize = 1024;
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long replicas may lag until a barrier is stored, to find out whether they do.
const LAGS_FOR: Duration = Duration::from_secs(2);

/// The messages of a part of a shard, by run.
#[derive(Debug, Default)]
pub(crate) struct OfShard {
    runs: BTreeMap<RunId, Vec<Stored>>,
    /// The part ends with this entry.
    pub(crate) through: u64,
}

/// A run whose messages are all known, in the order of the log.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) known: Known,
    pub(crate) messages: Vec<HistoryMessage>,
    /// When its last message was stored.
    pub(crate) last_at: Timestamp,
}

impl OfShard {
    pub(crate) fn ids(&self) -> Vec<RunId> {
        self.runs.keys().copied().collect()
    }

    /// Applies the messages of a run up to its entry `last`.
    pub(super) fn apply_to(&mut self, id: RunId, last: u64, known: &mut Known) {
        let messages = self.runs.remove(&id).unwrap_or_default();
        Batch { messages, last: false }.page(known.last).apply_through(last, known);
    }

    /// The run, if the part has all of its messages up to the end of the part: it begins with the opening.
    pub(crate) fn take(&mut self, id: RunId) -> Option<Whole> {
        let stored = self.runs.remove(&id)?;
        if !stored.first()?.opens() {
            return None;
        }
        let mut known = Known::new(id);
        for message in &stored {
            match &message.what {
                Decoded::Entry(_, entry) => known.apply(entry, &mut Vec::new()),
                // It is read again, as other readers do.
                Decoded::Unread(_) | Decoded::Stray => return None,
            }
        }
        let last_at = stored.last()?.at;
        Some(Whole { known, messages: stored.iter().map(|message| message.of_history(id)).collect(), last_at })
    }
}

impl Journal {
    /// The messages of a shard after `after` and up to `needed`, as many as are read in one go. `needed` is an entry of
    /// the shard that was in the log.
    ///
    /// # Errors
    /// The broker does not answer, or no replica has `needed`.
    pub(crate) async fn of_shard(&self, shard: Shard, after: u64, needed: u64) -> Result<OfShard, ReadError> {
        let mut part = OfShard { through: after, ..OfShard::default() };
        let (filter, began, mut is_marked) = (subject::of_shard(shard), Instant::now(), false);
        while part.through == after && after < needed {
            let wanted = usize::try_from(needed - after).unwrap_or(usize::MAX).min(MESSAGES_MAX);
            for message in self.read(&filter, after, (wanted, BYTES_MAX)).await?.messages {
                if message.sequence > needed {
                    part.through = needed;
                    break;
                }
                part.through = message.sequence;
                if let Ok(Subject { run, .. }) = message.subject.parse() {
                    part.runs.entry(run).or_default().push(message);
                }
            }
            if part.through == after {
                if began.elapsed() >= READ_PATIENCE {
                    return Err(ReadError(format!("no replica has got as far as entry {needed}")));
                }
                // All that follows may have been erased. Something behind it shows that, in a shard that nobody uses.
                if !is_marked && began.elapsed() >= LAGS_FOR {
                    self.mark(shard, Pace::Later).await?;
                    is_marked = true;
                }
                tokio::time::sleep(LAG_PAUSE).await;
            }
        }
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use run::Event;

    use super::super::NOTHING;
    use super::super::tests::{fresh, journal};
    use super::*;

    #[tokio::test]
    async fn a_shard_whose_last_entries_were_erased_is_read_to_its_end() {
        let (_server, journal) = journal().await;
        let first = journal.append(fresh(), &[Event::RunClosed], None, NOTHING).await.expect("stored");
        let last = journal.append(fresh(), &[Event::RunClosed], None, NOTHING).await.expect("stored");
        let stream = journal.broker.context.get_stream(journal.stream).await.expect("the log is there");
        stream.delete_message(last).await.expect("it is there");
        let before = journal.of_shard(Shard(0), 0, last).await.expect("it can be read");
        assert_eq!((before.through, before.ids().len()), (first, 1));
        let rest = journal.of_shard(Shard(0), first, last).await.expect("it can be read");
        assert_eq!((rest.through, rest.ids().len()), (last, 0));
    }
}
