//! Distinguishes entries that have left the log, by age or by hand, from entries that a replica of the broker does not
//! have yet.

use run::{RunId, Shard};

use super::{Journal, PAGE_BYTES, Pace, ReadError, RunPages};
use owner::Known;

impl Journal {
    /// What is left of a run's entries up to `last`: all of them, or fewer if entries have left the log. `mark` is an
    /// entry of the run's shard after `last` that is still in the log. The run is read subject by subject. The subjects
    /// come from the log's leader, which may have been replaced. That costs time only: reading ends at `last`, and the
    /// subjects and counts of a leader that has `last` include all entries before it.
    ///
    /// # Errors
    /// If the broker does not answer, or no replica returns an entry that is in the log.
    pub(crate) async fn left_of_run(&self, id: RunId, last: u64, mark: u64) -> Result<Known, ReadError> {
        let (mut known, mut pages) = (Known::new(id), RunPages::new(self.clone(), id, PAGE_BYTES));
        // A leader that was replaced may return an older first entry; then more is asked for than needed.
        if last < self.first() && self.carried_to(id).await? == 0 {
            return Ok(known);
        }
        while pages.through() < last {
            let page = pages.next_or_gone(last, Some(mark)).await?;
            if page.is_cut {
                return Ok(Known::new(id));
            }
            if page.through == 0 {
                break;
            }
            page.apply_through(last, &mut known);
        }
        Ok(known)
    }

    /// Whether the entry at `sequence` has left the log. A replica that returns a later entry of the same shard has all
    /// entries before it, so a lagging replica is never trusted.
    pub(super) async fn has_left(&self, shard: Shard, sequence: u64, mark: u64) -> Result<bool, ReadError> {
        Ok(self.first_of_shard(shard, sequence.saturating_sub(1), mark).await? > sequence)
    }

    /// As `has_left`, without a barrier: stores one if the log's leader does not find the entry. Use it only for rare
    /// cases.
    pub(crate) async fn is_gone(&self, shard: Shard, sequence: u64) -> Result<bool, ReadError> {
        let log = self.broker.context.get_stream_no_info(self.stream).await.map_err(|error| ReadError::new(&error))?;
        // A leader that finds it is right, whether it was replaced or not. One that does not may have been replaced.
        if log.get_raw_message(sequence).await.is_ok() {
            return Ok(false);
        }
        let mark = self.mark(shard, Pace::Later).await?;
        self.has_left(shard, sequence, mark).await
    }
}
