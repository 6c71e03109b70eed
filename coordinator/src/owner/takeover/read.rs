//! Reads a shard that is taken over: its snapshot, the runs that it lists, and those that were carried.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use owner::{Known, Listed, OpenRun, Resting};
use proto::convert::snapshot::{Needs, Snapshot};
use run::{RunId, Shard};
use tokio::time::Instant;

use super::{SLOW, Taken, patiently};
use crate::nats::journal::{Fence, Journal, LogNow, ReadError};
use crate::nats::notifications::QueuedNotification;
use crate::nats::repeated::Pace;
use crate::nats::snapshots::{Snapshots, Stored};

/// The number of takeovers that failed at reading an open run, each after some seconds of trying, after which a shard
/// is read from the log's beginning instead. That takes long, and does not depend on a single run.
const UNREADABLE_MAX: u32 = 5;
/// Runs of a group are read with all that lies between them. So the first entry of each is at most so many entries of
/// the log after that of the one before it, all shards included, and its last entry at most so many after its first. A
/// run that is read alone takes two requests, about the time in which the broker sends a hundred entries.
const GAP_MAX: u64 = 1024;
const SPAN_MAX: u64 = 16 * GAP_MAX;
/// Runs of a group: no fewer, because the broker takes 4.5 ms for each page of a shard in a log of a million runs, and
/// no more, because they are in memory until all are read.
const GROUP_MIN: usize = 16;
const GROUP_MAX: usize = 512;
/// The number of runs of a shard, from which on all that is carried of it is read at once.
const CARRIED_MIN: usize = 32;
/// The most runs read concurrently.
const READS_MAX: usize = 32;

pub(super) async fn take_over(journal: &Journal, snapshots: &Snapshots, shard: Shard, claim: u64) -> Taken {
    // How often reading an open run failed although the broker answered all other requests.
    let unreadable = AtomicU32::new(0);
    patiently(shard, || take_over_once(journal, snapshots, shard, claim, &unreadable)).await
}

/// A shard whose runs no earlier owner carries any more, and what was known of it.
struct Begun {
    fence: Fence,
    /// The barrier: the end of the shard.
    tip: u64,
    log: u64,
    /// Its snapshot, if it has one of this log.
    snapshot: Option<Snapshot>,
    /// Entries after the snapshot have left the log, so it may be an old one: a server of the broker that was replaced
    /// without knowing it yet may have answered. The log keeps what an owner has told that it needs.
    is_overtaken: bool,
    stored: Stored,
    /// What an earlier owner told that the shard needs of the log.
    needs: Option<Needs>,
    /// How long it took to store the fence and the barrier.
    fenced: Duration,
}

async fn begin(journal: &Journal, snapshots: &Snapshots, shard: Shard, claim: u64) -> Result<Begun, ReadError> {
    let began = Instant::now();
    let fence = async {
        // From here on no earlier owner carries runs of the shard.
        let fence = journal.fence(shard, claim).await?;
        Ok((fence, journal.mark(shard, Pace::Soon).await?, began.elapsed()))
    };
    // The needs first: those of a later owner would not be true for an earlier snapshot.
    let told = async { Ok((snapshots.needs(shard).await?, snapshots.read(shard).await?)) };
    let (LogNow { created: log, first, .. }, (fence, tip, fenced), (needs, (snapshot, stored))) =
        tokio::try_join!(journal.now(), fence, told)?;
    let is_of_log = |snapshot: &Snapshot| snapshot.log == log && snapshot.through <= tip;
    if snapshot.as_ref().is_some_and(|snapshot| !is_of_log(snapshot)) {
        tracing::warn!(%shard, "ignoring a snapshot of another log");
    }
    let snapshot = snapshot.filter(is_of_log);
    let is_overtaken = snapshot.as_ref().is_some_and(|snapshot| first > snapshot.through + 1);
    // It was told with a snapshot.
    let needs = needs.filter(|needs| snapshot.is_some() && needs.is_of(log, tip));
    Ok(Begun { fence, tip, log, snapshot, is_overtaken, stored, needs, fenced })
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
    let began = Instant::now();
    let Begun { fence, tip, log, snapshot, is_overtaken, stored, needs, fenced } =
        begin(journal, snapshots, shard, claim).await?;
    // Without a snapshot the shard is read from the log's beginning, and what is carried before that.
    let knows_all = snapshot.is_some() && !is_overtaken;
    let mut carried = if knows_all { Vec::new() } else { journal.carried_runs(shard).await? };
    let snapshot = snapshot.unwrap_or(Snapshot { log, ..Snapshot::default() });
    let written = snapshot.through;
    let (erasures, erasures_behind) = (snapshot.erasures, snapshot.erasures_behind);
    let letters = snapshot.letters.into_iter().map(|(subject, body)| QueuedNotification { subject, body }).collect();
    let mut log_bytes = snapshot.log_bytes;
    // An old snapshot may know of less than is carried, and the log may not have what is between.
    let among: HashSet<RunId> = carried.iter().copied().collect();
    let lasts: HashMap<RunId, u64> = snapshot.open.iter().map(|listed| (listed.run, listed.last)).collect();
    let listed = snapshot.open.into_iter().filter(|listed| !among.contains(&listed.run)).collect();
    let mut runs = ReadRuns::default();
    let through = if unreadable.load(Ordering::Relaxed) < UNREADABLE_MAX {
        let read = runs.read(journal, shard, listed, tip);
        let (first, read) = futures::join!(journal.first_of_shard(shard, written, tip), read);
        let first = first?;
        read.inspect_err(|_| {
            unreadable.fetch_add(1, Ordering::Relaxed);
        })?;
        // A shard without entries since the snapshot is known up to the barrier.
        if first == tip { tip } else { written }
    } else {
        tracing::error!(
            %shard,
            "the log's replicas disagree about the entries of an open run: reading the shard from the \
             log's beginning, which may take minutes. `nats stream info ty-log` shows whether a replica lags"
        );
        // All bytes are counted again.
        log_bytes = Vec::new();
        if carried.is_empty() {
            carried = journal.carried_runs(shard).await?;
        }
        0
    };
    runs.read_carried(journal, carried, &lasts, (fence, tip)).await?;
    runs.forget_gone(journal).await;
    runs.report(shard, began.elapsed(), fenced);
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
        needs,
    })
}

/// Listed runs that are read together, those of each group in the order of their first entries, and the rest.
fn in_groups(listed: Vec<Listed>) -> (Vec<Vec<Listed>>, Vec<Listed>) {
    let is_short = |listed: &Listed| listed.first > 0 && listed.last.saturating_sub(listed.first) <= SPAN_MAX;
    let (mut near, mut rest): (Vec<_>, Vec<_>) = listed.into_iter().partition(is_short);
    near.sort_unstable_by_key(|listed| listed.first);
    let mut groups = Vec::new();
    let is_near = |one: &Listed, next: &Listed| next.first - one.first <= GAP_MAX;
    for group in near.chunk_by(is_near).flat_map(|near| near.chunks(GROUP_MAX)) {
        if group.len() >= GROUP_MIN {
            groups.push(group.to_vec());
        } else {
            rest.extend(group);
        }
    }
    (groups, rest)
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
    /// Reads the runs of a snapshot: together where that takes fewer requests, and the rest one by one.
    async fn read(&mut self, journal: &Journal, shard: Shard, listed: Vec<Listed>, tip: u64) -> Result<(), ReadError> {
        let (groups, mut rest) = in_groups(listed);
        let is_carried = |listed: &Listed| listed.first == 0;
        let has_many_carried = rest.iter().filter(|listed| is_carried(listed)).count() >= CARRIED_MIN;
        // A shard with few runs does not wait for those with many.
        let has_many = !groups.is_empty() || has_many_carried;
        let turn = if has_many { Some(journal.turn_to_read_many().await) } else { None };
        for group in groups {
            let read = journal.together(shard, &group).await?;
            let mut left: HashMap<RunId, Listed> = group.into_iter().map(|listed| (listed.run, listed)).collect();
            for known in read {
                left.remove(&known.run.id());
                self.take(known);
            }
            rest.extend(left.into_values());
        }
        if has_many_carried {
            let mut carried: HashMap<RunId, Listed> =
                rest.iter().filter(|listed| is_carried(listed)).map(|listed| (listed.run, *listed)).collect();
            journal.carried_together(shard, &mut carried, |known| self.take(known)).await?;
            rest.retain(|listed| !is_carried(listed) || carried.contains_key(&listed.run));
        }
        drop(turn);
        let reads = rest
            .into_iter()
            .map(|Listed { run, last, .. }| async move { Ok((last, journal.left_of_run(run, last, tip).await?)) });
        let mut reads = stream::iter(reads).buffer_unordered(READS_MAX);
        while let Some(read) = reads.next().await {
            let (last, known): (u64, Known) = read?;
            let run = known.run.id();
            if known.may_be_opened() {
                self.unread.push((run, last));
            } else if known.run.opened_at().is_none() || known.last < last {
                // What is carried may be older than entries that left the log. Calls that ended after that would be
                // executed again.
                self.gone.push((run, last));
            } else {
                self.take(known);
            }
        }
        Ok(())
    }

    /// Logs a takeover that took long.
    fn report(&self, shard: Shard, took: Duration, fenced: Duration) {
        if took >= SLOW {
            let (awake, resting) = (self.open.len(), self.resting.len());
            tracing::info!(%shard, ?took, ?fenced, awake, resting, "reading a shard that is taken over took long");
        }
    }

    /// Reads carried runs. `lasts`: the last entries of those that a snapshot lists.
    async fn read_carried(
        &mut self,
        journal: &Journal,
        carried: Vec<RunId>,
        lasts: &HashMap<RunId, u64>,
        (fence, tip): (Fence, u64),
    ) -> Result<(), ReadError> {
        let reads = carried.into_iter().map(|id| journal.carried_through(id, fence, tip));
        let mut reads = stream::iter(reads).buffer_unordered(READS_MAX);
        while let Some(read) = reads.next().await {
            let known = read?;
            let run = known.run.id();
            match lasts.get(&run) {
                Some(last) if known.last < *last => self.gone.push((run, *last)),
                _ if known.run.opened_at().is_some() => self.take(known),
                _ => {}
            }
        }
        Ok(())
    }

    /// Forgets what is carried of runs that are gone: the next owner would take it for all of them.
    async fn forget_gone(&self, journal: &Journal) {
        let gone: Vec<RunId> = self.gone.iter().map(|(run, _)| *run).collect();
        let forgotten = gone.into_iter().map(|run| async move { (run, journal.erase_carried(run).await) });
        let mut forgotten = stream::iter(forgotten).buffer_unordered(READS_MAX);
        while let Some((run, done)) = forgotten.next().await {
            if let Err(error) = done {
                tracing::warn!(run.id = %run, %error, "forgetting what is carried of a run that is gone failed");
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nats::journal::tests::carried::{add, drop_before, gone};
    use crate::nats::journal::tests::{journal, snapshots};

    #[tokio::test]
    async fn all_of_a_run_that_was_carried_after_an_old_snapshot_is_taken_over() {
        let (_server, journal) = journal().await;
        let snapshots = snapshots(&journal);
        let (run, places, mark) = gone(&journal).await;
        let log = journal.now().await.expect("the broker is there").created;
        // As if a server answered that has not heard of a newer one: from before the run was opened, and from before
        // its last entries.
        let unlisted = Snapshot { log, through: mark, ..Snapshot::default() };
        let begun = Listed { run, first: places[0], last: places[0] };
        let listed = Snapshot { log, through: places[0], open: vec![begun], ..Snapshot::default() };
        let mut stored = Stored::default();
        for (claim, old) in [(2, unlisted), (3, listed)] {
            stored = snapshots.write(run.shard(), &old, stored).await.expect("it is stored");
            let taken = take_over(&journal, &snapshots, run.shard(), claim).await;
            let awake = taken.open.iter().find(|known| known.run.id() == run).cloned();
            let known = awake.or_else(|| taken.resting.run(run)).expect("it is open");
            assert_eq!((known.first, known.last, known.carried), (places[0], places[2], places[2]));
        }
    }

    #[tokio::test]
    async fn a_run_whose_entries_left_the_log_before_they_were_carried_is_not_taken_over_as_it_was_before_them() {
        let (_server, journal) = journal().await;
        let snapshots = snapshots(&journal);
        let (run, mut places, _) = gone(&journal).await;
        let log = journal.now().await.expect("the broker is there").created;
        add(&journal, run, &mut places, 1).await;
        let lost = places[3];
        let listed = Listed { run, first: places[0], last: lost };
        let snapshot = Snapshot { log, through: lost, open: vec![listed], ..Snapshot::default() };
        let mut stored = Stored::default();
        // The second time, entries after the snapshot have left the log too.
        for claim in [2, 3] {
            let mark = journal.mark(run.shard(), Pace::Soon).await.expect("it is stored");
            drop_before(&journal, mark).await;
            stored = snapshots.write(run.shard(), &snapshot, stored).await.expect("it is stored");
            let taken = take_over(&journal, &snapshots, run.shard(), claim).await;
            assert_eq!(taken.gone, [(run, lost)]);
            assert!(taken.open.is_empty() && taken.resting.run(run).is_none());
        }
    }

    fn listed(first: u64, last: u64) -> Listed {
        Listed { run: RunId::new(Shard(0), uuid::Uuid::now_v7()), first, last }
    }

    #[test]
    fn runs_close_together_are_a_group_and_the_others_are_read_alone() {
        let near: Vec<Listed> = (0..600).map(|number| listed(5_000 + 1_000 * number, 6_000 + 1_000 * number)).collect();
        let far = [listed(700_000, 700_000), listed(0, 700_001), listed(10_000, 10_001 + SPAN_MAX), listed(1, 1)];
        let (groups, rest) = in_groups(near.iter().rev().chain(&far).copied().collect());
        assert_eq!(groups, [near[..GROUP_MAX].to_vec(), near[GROUP_MAX..].to_vec()]);
        let mut rest: Vec<u64> = rest.iter().map(|listed| listed.last).collect();
        rest.sort_unstable();
        assert_eq!(rest, [1, 10_001 + SPAN_MAX, 700_000, 700_001]);
    }
}
