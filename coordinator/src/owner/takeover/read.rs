//! Reads a shard that is taken over: its snapshot, the runs that it lists, and those that were carried.

use std::sync::atomic::{AtomicU32, Ordering};

use futures::StreamExt as _;
use futures::stream;
use owner::{Known, OpenRun, Resting};
use proto::convert::snapshot::Snapshot;
use run::{RunId, Shard};

use super::{Taken, patiently};
use crate::nats::journal::{Fence, Journal, LogNow, ReadError};
use crate::nats::notifications::QueuedNotification;
use crate::nats::snapshots::Snapshots;

/// The number of takeovers that failed at reading an open run, each after some seconds of trying, after which a shard
/// is read from the log's beginning instead. That takes long, and does not depend on a single run.
const UNREADABLE_MAX: u32 = 5;
/// The most runs read concurrently.
const READS_MAX: usize = 32;

pub(super) async fn take_over(journal: &Journal, snapshots: &Snapshots, shard: Shard, claim: u64) -> Taken {
    // How often reading an open run failed although the broker answered all other requests.
    let unreadable = AtomicU32::new(0);
    patiently(shard, || take_over_once(journal, snapshots, shard, claim, &unreadable)).await
}

/// Nothing here depends on the log's leader, which may have been replaced without knowing it yet. The barrier is the
/// end of the shard, and the snapshot has the last entry of each run.
async fn take_over_once(
    journal: &Journal,
    snapshots: &Snapshots,
    shard: Shard,
    claim: u64,
    unreadable: &AtomicU32,
) -> Result<Taken, ReadError> {
    let LogNow { created: log, .. } = journal.now().await?;
    // From here on no earlier owner carries runs of the shard.
    let fence = journal.fence(shard, claim).await?;
    let tip = journal.mark(shard).await?;
    let (snapshot, stored) = snapshots.read(shard, log, tip).await?;
    // Without a snapshot the shard is read from the log's beginning, and what is carried before that.
    let carried = if snapshot.is_some() { Vec::new() } else { journal.carried_runs(shard).await? };
    let snapshot = snapshot.unwrap_or(Snapshot { log, ..Snapshot::default() });
    let written = snapshot.through;
    // A shard without entries since the snapshot is known up to the barrier.
    let mut through = if journal.first_of_shard(shard, written, tip).await? == tip { tip } else { written };
    let (erasures, erasures_behind) = (snapshot.erasures, snapshot.erasures_behind);
    let letters = snapshot.letters.into_iter().map(|(subject, body)| QueuedNotification { subject, body }).collect();
    let mut log_bytes = snapshot.log_bytes;
    let mut runs = ReadRuns::default();
    if unreadable.load(Ordering::Relaxed) < UNREADABLE_MAX {
        runs.read(journal, snapshot.open, tip).await.inspect_err(|_| {
            unreadable.fetch_add(1, Ordering::Relaxed);
        })?;
    } else {
        tracing::error!(
            %shard,
            "the log's replicas disagree about the entries of an open run: reading the shard from the \
             log's beginning, which may take minutes. `nats stream info ty-log` shows whether a replica lags"
        );
        // All bytes are counted again.
        (through, log_bytes) = (0, Vec::new());
        runs.read_carried(journal, journal.carried_runs(shard).await?, (fence, tip)).await?;
    }
    runs.read_carried(journal, carried, (fence, tip)).await?;
    let ReadRuns { open, resting, ended, gone, unread } = runs;
    Ok(Taken {
        shard,
        claim,
        through,
        tip,
        open,
        resting,
        ended,
        gone,
        unread,
        erasures,
        erasures_behind,
        letters,
        log_bytes,
        log,
        fence,
        written,
        stored,
    })
}

/// The runs of a shard that were read at a takeover.
#[derive(Debug, Default)]
struct ReadRuns {
    open: Vec<Known>,
    resting: Resting,
    ended: Vec<Known>,
    gone: Vec<(RunId, u64)>,
    unread: Vec<(RunId, u64)>,
}

impl ReadRuns {
    /// Reads the runs of a snapshot, each with its last entry.
    async fn read(&mut self, journal: &Journal, listed: Vec<(RunId, u64)>, tip: u64) -> Result<(), ReadError> {
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
    async fn read_carried(
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
