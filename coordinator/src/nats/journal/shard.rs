//! Reads a shard from one position on, run by run: for the history, which needs each run that has ended.

use std::collections::BTreeMap;

use owner::Known;
use proto::convert::history::HistoryMessage;
use proto::subject::{self, Subject};
use run::{RunId, Shard, Timestamp};
use tokio::time::Instant;

use super::{Decoded, Journal, LAG_PAUSE, READ_PATIENCE, ReadError, Stored};

/// Messages and bytes that are read in one go. The bytes are in memory for each shard of a coordinator.
const MESSAGES_MAX: usize = 1024;
const BYTES_MAX: usize = 4 * 1024 * 1024;

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
        let (filter, give_up) = (subject::of_shard(shard), Instant::now() + READ_PATIENCE);
        while part.through == after && after < needed {
            let read = || self.read_once(&filter, after, (MESSAGES_MAX, BYTES_MAX));
            for message in self.patiently("retrying to read a shard of the log", read).await?.messages {
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
                if Instant::now() >= give_up {
                    return Err(ReadError(format!("no replica has got as far as entry {needed}")));
                }
                tokio::time::sleep(LAG_PAUSE).await;
            }
        }
        Ok(part)
    }
}
