//! Reads the runs of a shard that is taken over: those of its snapshot, and those that were carried.

use futures::StreamExt as _;
use futures::stream;
use owner::{Known, OpenRun, Resting};
use run::RunId;

use crate::nats::journal::{Fence, Journal, ReadError};

/// The most runs read concurrently.
const READS_MAX: usize = 32;

/// The runs of a shard that were read at a takeover.
#[derive(Debug, Default)]
pub(super) struct ReadRuns {
    pub(super) open: Vec<Known>,
    pub(super) resting: Resting,
    pub(super) ended: Vec<Known>,
    pub(super) gone: Vec<(RunId, u64)>,
    pub(super) unread: Vec<(RunId, u64)>,
}

impl ReadRuns {
    /// Reads the runs of a snapshot, each with its last entry.
    pub(super) async fn read(
        &mut self,
        journal: &Journal,
        listed: Vec<(RunId, u64)>,
        tip: u64,
    ) -> Result<(), ReadError> {
        let reads =
            listed.into_iter().map(|(id, last)| async move { Ok((last, journal.left_of_run(id, last, tip).await?)) });
        let mut reads = stream::iter(reads).buffer_unordered(READS_MAX);
        while let Some(read) = reads.next().await {
            let (last, known): (u64, Known) = read?;
            let run = known.run.id();
            if known.may_be_opened() {
                self.unread.push((run, last));
            } else if known.run.opened_at().is_none() {
                self.gone.push((run, last));
            } else {
                self.take(known);
            }
        }
        Ok(())
    }

    /// Reads carried runs.
    pub(super) async fn read_carried(
        &mut self,
        journal: &Journal,
        carried: Vec<RunId>,
        (fence, tip): (Fence, u64),
    ) -> Result<(), ReadError> {
        let reads = carried.into_iter().map(|id| journal.carried_through(id, fence, tip));
        let mut reads = stream::iter(reads).buffer_unordered(READS_MAX);
        while let Some(read) = reads.next().await {
            let known = read?;
            if known.run.opened_at().is_some() {
                self.take(known);
            }
        }
        Ok(())
    }

    fn take(&mut self, known: Known) {
        let now = ::nats::now();
        if known.run.status().is_final() {
            self.ended.push(known);
        } else if !self.resting.take(&OpenRun::new(known.clone(), now), now) {
            self.open.push(known);
        }
    }
}
