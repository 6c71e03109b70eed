//! Deletes runs from the log.

use futures::future::try_join_all;
use proto::subject;
use run::{Event, RunId};
use serde::Deserialize;

use super::{Journal, PAGE_BYTES, ReadError, RunPages};

/// A run with more entries is purged with one request. After a purge the broker recounts the pending messages of every
/// consumer of the log, and stores nothing meanwhile. This is slow if consumers lag behind or belong to coordinators
/// that died.
const DELETED_ONE_BY_ONE: u64 = 512;
/// Entries that are deleted concurrently.
const AT_ONCE: usize = 32;

#[derive(Deserialize)]
struct Deleted {
    #[serde(default)]
    success: bool,
}

impl Journal {
    /// Erases the entries of a run up to `through`, and none after that, because the same request may have opened the
    /// run again. The broker forgets them immediately; their bytes leave its files when it next compacts them.
    pub(crate) async fn erase(&self, run: RunId, through: u64) -> Result<(), ReadError> {
        // What is carried of it begins with the opening.
        self.erase_carried(run).await?;
        if let Err(error) = self.delete(run, through).await {
            tracing::debug!(run.id = %run, %error, "purging a run whose entries cannot be deleted one by one");
            self.purge(run, through).await?;
        }
        Ok(())
    }

    /// The opening first: without it, the other entries are no run.
    async fn delete(&self, run: RunId, through: u64) -> Result<(), ReadError> {
        let entries: u64 = self.counts(run).await?.values().sum();
        if entries > DELETED_ONE_BY_ONE {
            return Err(ReadError(format!("the run has {entries} entries")));
        }
        let (mut pages, mut sequences) = (RunPages::new(self.clone(), run, PAGE_BYTES), Vec::new());
        loop {
            let page = pages.next_known().await?;
            sequences.extend(page.sequences());
            if page.last || page.is_cut {
                break;
            }
        }
        if (sequences.len() as u64) < entries {
            return Err(ReadError("a message on its subjects is not an entry".to_owned()));
        }
        sequences.sort_unstable();
        sequences.truncate(sequences.partition_point(|sequence| *sequence <= through));
        let (first, rest) = sequences.split_at(sequences.len().min(1));
        for some in std::iter::once(first).chain(rest.chunks(AT_ONCE)) {
            try_join_all(some.iter().map(|sequence| self.delete_entry(*sequence))).await?;
        }
        Ok(())
    }

    async fn delete_entry(&self, sequence: u64) -> Result<(), ReadError> {
        let request = serde_json::json!({ "seq": sequence, "no_erase": true });
        let reply = self.broker.context.request(format!("STREAM.MSG.DELETE.{}", self.stream), &request).await;
        let Deleted { success } = reply.map_err(|error| ReadError::new(&error))?;
        if success { Ok(()) } else { Err(ReadError(format!("entry {sequence} was not deleted"))) }
    }

    async fn purge(&self, run: RunId, through: u64) -> Result<(), ReadError> {
        let stream =
            self.broker.context.get_stream_no_info(self.stream).await.map_err(|error| ReadError::new(&error))?;
        let purge = stream.purge().filter(subject::of_run(run)).sequence(through + 1).await;
        purge.map(|_| ()).map_err(|error| ReadError::new(&error))
    }

    /// Whether the run of an entry at `sequence` has no opening: then the run was erased, or is older than the log, and
    /// the entry will never be read. A replica that has the entry has all before it.
    pub(crate) async fn is_orphan(&self, run: RunId, sequence: u64) -> Result<bool, ReadError> {
        let page = self.page_towards(&subject::of_run(run), 0, sequence, 1).await?;
        let opens = |event: &Event| matches!(event, Event::RunOpened(_));
        let is_opened = page.entries.iter().any(|entry| entry.events.iter().any(opens))
            // An entry of a newer release may open it.
            || page.unread.iter().any(|(place, _)| place.may_open());
        Ok(!is_opened && self.carried_to(run).await? == 0)
    }
}
