//! Reads a shard from one position on, run by run: for the history, which needs each run that has ended.

use std::collections::BTreeMap;
use std::time::Duration;

use owner::Known;
use proto::convert::history::HistoryMessage;
use proto::subject::{self, Subject};
use run::{RunId, Shard, Timestamp};
use tokio::time::Instant;

use super::pages::Batch;
use super::{Decoded, EVERYTHING, Journal, LAG_PAUSE, Pace, READ_PATIENCE, ReadError, Stored};

/// Messages and bytes of a shard that are read in one go.
const MESSAGES_MAX: usize = 1024;
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// The same of a partition, whose other shards are among them.
const TOGETHER_MESSAGES_MAX: usize = 16 * MESSAGES_MAX;
const TOGETHER_BYTES_MAX: usize = 16 * 1024 * 1024;
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
            match message.decode() {
                Decoded::Entry(_, entry) => known.apply(&entry, &mut Vec::new()),
                // It is read again, as other readers do.
                Decoded::Unread(_) | Decoded::Stray => return None,
            }
        }
        let last_at = stored.last()?.at;
        Some(Whole { known, messages: stored.iter().map(|message| message.of_history(id)).collect(), last_at })
    }
}

/// What is wanted of a shard: the messages after `after` and up to `needed`, an entry of the shard that was in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) shard: Shard,
    pub(crate) after: u64,
    pub(crate) needed: u64,
}

impl Journal {
    /// The messages of a shard that are wanted, as many as are read in one go.
    ///
    /// # Errors
    /// The broker does not answer, or no replica has what is needed.
    pub(crate) async fn of_shard(&self, wanted: Wanted) -> Result<OfShard, ReadError> {
        let mut parts = self.of_shards(&[wanted]).await?;
        Ok(parts.pop().unwrap_or_default())
    }

    /// As [`Self::of_shard`] for several shards, whose parts are in the order in which they are wanted. Everything from
    /// the first position on is read, once. So the shard that is furthest behind goes on, and others may not.
    pub(crate) async fn of_shards(&self, wanted: &[Wanted]) -> Result<Vec<OfShard>, ReadError> {
        let after = wanted.iter().map(|wanted| wanted.after).min().unwrap_or(0);
        let Some(last) = wanted.iter().max_by_key(|wanted| wanted.needed) else { return Ok(Vec::new()) };
        let (needed, (filter, messages_max, bytes_max)) = (last.needed, request(wanted));
        let (began, mut is_marked, mut through) = (Instant::now(), false, after);
        let mut runs: BTreeMap<Shard, BTreeMap<RunId, Vec<Stored>>> = BTreeMap::new();
        let spans: BTreeMap<Shard, _> =
            wanted.iter().map(|wanted| (wanted.shard, wanted.after + 1..=wanted.needed)).collect();
        while through == after && after < needed {
            let count = usize::try_from(needed - after).unwrap_or(usize::MAX).min(messages_max);
            for message in self.read(&filter, after, (count, bytes_max)).await?.messages {
                if message.sequence > needed {
                    through = needed;
                    break;
                }
                through = message.sequence;
                let Ok(Subject { run, .. }) = message.subject.parse() else { continue };
                if spans.get(&run.shard()).is_some_and(|span| span.contains(&through)) {
                    runs.entry(run.shard()).or_default().entry(run).or_default().push(message);
                }
            }
            if through == after {
                if began.elapsed() >= READ_PATIENCE {
                    return Err(ReadError(format!("no replica has got as far as entry {needed}")));
                }
                // All that follows may have been erased. Something behind it shows that, in a shard that nobody uses.
                if !is_marked && began.elapsed() >= LAGS_FOR {
                    self.mark(last.shard, Pace::Later).await?;
                    is_marked = true;
                }
                tokio::time::sleep(LAG_PAUSE).await;
            }
        }
        let part = |wanted: &Wanted| OfShard {
            runs: runs.remove(&wanted.shard).unwrap_or_default(),
            through: through.clamp(wanted.after, wanted.needed.max(wanted.after)),
        };
        Ok(wanted.iter().map(part).collect())
    }
}

/// The filter of a read, and how many messages and bytes are read. If several shards are wanted everything is read, and
/// the rest is passed over: a message costs the broker 3 us then, and with the filter of a shard 12 us in a log of
/// 300,000 messages and 20 us in one of a million.
fn request(wanted: &[Wanted]) -> (String, usize, usize) {
    match wanted {
        [one] => (subject::of_shard(one.shard), MESSAGES_MAX, BYTES_MAX),
        _ => (EVERYTHING.to_owned(), TOGETHER_MESSAGES_MAX, TOGETHER_BYTES_MAX),
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
        let wanted = |after| Wanted { shard: Shard(0), after, needed: last };
        let before = journal.of_shard(wanted(0)).await.expect("it can be read");
        assert_eq!((before.through, before.ids().len()), (first, 1));
        let rest = journal.of_shard(wanted(first)).await.expect("it can be read");
        assert_eq!((rest.through, rest.ids().len()), (last, 0));
    }

    #[tokio::test]
    async fn several_shards_are_read_together_each_from_its_position_to_what_its_reader_needs() {
        let (_server, journal) = journal().await;
        let mut stored = Vec::new();
        for shard in [0, 1, 2, 0, 1, 2] {
            let run = RunId::new(Shard(shard), uuid::Uuid::now_v7());
            stored.push((run, journal.append(run, &[Event::RunClosed], None, NOTHING).await.expect("stored")));
        }
        let at = |index: usize| stored[index].1;
        let wanted = [
            Wanted { shard: Shard(0), after: 0, needed: at(3) },
            // What comes later is not known to end runs, and what came before is written.
            Wanted { shard: Shard(1), after: at(1), needed: at(1) },
            Wanted { shard: Shard(2), after: at(2), needed: at(5) },
            // Nothing of it follows.
            Wanted { shard: Shard(3), after: at(2), needed: at(2) },
        ];
        let parts = journal.of_shards(&wanted).await.expect("they can be read");
        let read: Vec<(u64, Vec<RunId>)> = parts.iter().map(|part| (part.through, part.ids())).collect();
        let run = |index: usize| stored[index].0;
        let mut first = vec![run(0), run(3)];
        first.sort();
        assert_eq!(read, [(at(3), first), (at(1), vec![]), (at(5), vec![run(5)]), (at(2), vec![])]);
    }
}
