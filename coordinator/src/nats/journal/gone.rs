//! Tells entries that have left the log, by age or by hand, from entries that a replica of the broker does not have yet.

use proto::names;
use proto::subject;
use run::{RunId, Shard};
use tokio::time::Instant;

use super::{Journal, LAG_PAUSE, PAGE_ENTRIES, READ_PATIENCE, ReadError};
use crate::known::Known;

impl Journal {
    /// What is left of a run as it stood at its entry `last`: all of it, or less if entries have left the log. `mark` is an
    /// entry of the run's shard behind `last` that is still in the log.
    ///
    /// # Errors
    /// If the broker does not answer, or no replica returns an entry that is in the log.
    pub(crate) async fn left_of_run(&self, id: RunId, last: u64, mark: u64) -> Result<Known, ReadError> {
        let (mut known, mut after) = (Known::new(id), 0);
        let give_up = Instant::now() + READ_PATIENCE;
        while after < last {
            let page = self.page(&subject::of_run(id), after, PAGE_ENTRIES).await?;
            if page.through > after {
                after = page.through;
                page.apply_through(last, &mut known);
                continue;
            }
            if self.has_left(id.shard(), last, mark).await? {
                break;
            }
            if Instant::now() >= give_up {
                return Err(ReadError(format!("no replica has got as far as entry {last} of run {id}")));
            }
            tokio::time::sleep(LAG_PAUSE).await;
        }
        Ok(known)
    }

    /// Whether the entry at `sequence` has left the log. A replica that returns a later entry of the same shard has all
    /// entries before it, so a replica that lags behind is never believed.
    async fn has_left(&self, shard: Shard, sequence: u64, mark: u64) -> Result<bool, ReadError> {
        Ok(self.first_of_shard(shard, sequence.saturating_sub(1), mark).await? > sequence)
    }

    /// As `has_left`, without a mark: leaves one if the log's leader does not find the entry. For what is rare.
    pub(crate) async fn is_gone(&self, shard: Shard, sequence: u64) -> Result<bool, ReadError> {
        let log =
            self.broker.context.get_stream_no_info(names::STREAM).await.map_err(|error| ReadError::new(&error))?;
        // A leader that finds it is right, whether it was replaced or not. One that does not may have been replaced.
        if log.get_raw_message(sequence).await.is_ok() {
            return Ok(false);
        }
        let mark = self.mark(shard).await?;
        self.has_left(shard, sequence, mark).await
    }
}
