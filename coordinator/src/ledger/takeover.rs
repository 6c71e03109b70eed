//! How shards come to us and leave us. Taking one over costs what is open in it: the last owner wrote down how far it came
//! and which runs were open then; those are read, and the shard is followed from there.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use proto::convert::snapshot::{OwedErasure, Snapshot};
use run::{RunId, Shard, TenantId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Keeper;
use super::erasure::Owed;
use super::log_bytes::LogBytes;
use super::slice::{Open, Phase, Posting, Slice};
use super::standing::Ended;
use super::watcher::{Standing, Watcher};
use crate::known::Known;
use crate::nats::journal::{Extent, Journal, ReadError};
use crate::nats::snapshots::{Snapshots, WriteError};
use crate::shards::{ShardSet, every};
use crate::webhooks::Letter;

/// Runs that are read at once.
const READS_MAX: usize = 32;
/// The pause before what the broker refused is asked again.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a shard is followed after the last who watched it has gone: another may come.
const GUEST: Duration = Duration::from_secs(30);

/// Shards that became ours together, as they stood at some place in the log.
#[derive(Debug)]
pub(super) struct Taken(Vec<TakenShard>);

#[derive(Debug)]
struct TakenShard {
    shard: Shard,
    claim: u64,
    /// The shard is known up to here.
    through: u64,
    /// The mark that was left at its end.
    tip: u64,
    open: Vec<Known>,
    erasures: Vec<OwedErasure>,
    letters: Vec<Letter>,
    log_bytes: Vec<(TenantId, Vec<(u64, u64)>)>,
    log: u64,
    /// What the snapshot in the bucket says, and its revision.
    written: u64,
    revision: u64,
}

/// A shard that is to be followed from here for those who watch.
#[derive(Debug)]
pub(super) struct Joined {
    shard: Shard,
    position: u64,
}

/// The end of an attempt to write a snapshot.
#[derive(Debug)]
pub(super) struct Written {
    shard: Shard,
    claim: u64,
    through: u64,
    /// The new revision; `None` where nothing was written, and the revision is as it was or as it was found.
    result: Result<u64, Option<u64>>,
}

impl Keeper {
    /// Takes up what became ours and drops what is ours no more.
    pub(super) fn look_at_ownership(&mut self) {
        let owned = *self.rim.owned.borrow_and_update();
        let mut fresh = Vec::new();
        for shard in every() {
            let before = self.slice(shard).and_then(|slice| slice.phase.claim());
            let claim = owned.claim(shard);
            if before.is_some() && before != claim {
                self.lose(shard);
            }
            match claim {
                Some(claim) if owned.leaving().contains(shard) => self.leave(shard, claim),
                Some(claim) if before != Some(claim) => fresh.push((shard, claim)),
                Some(_) | None => {}
            }
        }
        if fresh.is_empty() {
            return;
        }
        for (shard, claim) in &fresh {
            if let Some(slice) = self.slice_mut(*shard) {
                slice.phase = Phase::Taking { claim: *claim };
            }
        }
        let (journal, snapshots) = (self.rim.journal.clone(), self.rim.snapshots.clone());
        self.takeovers.spawn(async move {
            let began = Instant::now();
            let taken = patiently(|| take_over(&journal, &snapshots, &fresh)).await;
            let (shards, runs) = (taken.0.len(), taken.0.iter().map(|taken| taken.open.len()).sum::<usize>());
            tracing::info!(shards, runs, took = ?began.elapsed(), "took shards over");
            taken
        });
    }

    /// The open runs were read: follows the shards from there.
    pub(super) fn taken(&mut self, taken: Taken) {
        let (mut group, mut start) = (ShardSet::default(), u64::MAX);
        for taken in taken.0 {
            let TakenShard { shard, claim, through, tip, open, erasures, letters, log_bytes, log, written, revision } =
                taken;
            let follows = self.rim.feeds.follows(shard);
            let Some(slice) = self.slices.get_mut(usize::from(shard.0)) else { continue };
            if slice.phase != (Phase::Taking { claim }) {
                continue;
            }
            // Those who watch already may have seen less than is known; what comes twice they pass over.
            let from = if follows { through.min(slice.seen) } else { through };
            slice.seen = from;
            slice.applied = through;
            slice.phase = Phase::Replaying { claim, tip };
            slice.snapshot = super::slice::Snapshot { revision, through: written, log, ..Default::default() };
            slice.owed = Owed::of(erasures);
            slice.log_bytes = LogBytes::of(log_bytes);
            (slice.letters, slice.posting) = (letters.into(), Posting::Idle);
            slice.runs =
                open.into_iter().map(|known| (known.run.id(), Open { known, timer: None, bytes: 0 })).collect();
            slice.unwatched = None;
            slice.stands();
            group.insert(shard);
            start = start.min(from);
        }
        self.rim.feeds.follow(group, start);
        for shard in group.iter() {
            if self.slice(shard).is_some_and(Slice::has_caught_up) {
                self.lead(shard);
            }
        }
    }

    /// Begins to act for a shard: what was put off while it was nobody's is due at once.
    pub(super) fn lead(&mut self, shard: Shard) {
        let Some(slice) = self.slice_mut(shard) else { return };
        let Phase::Replaying { claim, .. } = slice.phase else { return };
        slice.phase = Phase::Leading { claim };
        let ids: Vec<RunId> = slice.runs.keys().copied().collect();
        tracing::debug!(%shard, runs = ids.len(), "leads a shard");
        if self.limited {
            // No place becomes free that was not counted before.
            for id in &ids {
                self.see_running(*id);
            }
        }
        for id in ids {
            self.look_at(id);
        }
        self.write_snapshot(shard);
    }

    /// Stops acting for a shard at once, and lets it go when it is written down how far we came.
    fn leave(&mut self, shard: Shard, claim: u64) {
        let Some(slice) = self.slice_mut(shard) else { return };
        match slice.phase {
            Phase::Leaving { .. } => {}
            Phase::Leading { .. } => {
                slice.phase = Phase::Leaving { claim };
                let unchanged = slice.applied == slice.snapshot.through && !slice.snapshot.outdated;
                if !slice.snapshot.writing && unchanged {
                    return self.let_go(shard);
                }
                // One that is on its way is new enough.
                self.write_snapshot(shard);
            }
            Phase::Away | Phase::Joining | Phase::Guest | Phase::Taking { .. } | Phase::Replaying { .. } => {
                slice.phase = Phase::Leaving { claim };
                self.let_go(shard);
            }
        }
    }

    fn let_go(&mut self, shard: Shard) {
        // The leases wait for this word, but not for ever.
        if self.rim.written.try_send(shard).is_err() {
            tracing::warn!(%shard, "nobody hears that a shard was written down");
        }
    }

    /// The shard is not ours any more. Who watches goes on watching.
    fn lose(&mut self, shard: Shard) {
        let follows = self.rim.feeds.follows(shard);
        let Some(slice) = self.slices.get_mut(usize::from(shard.0)) else { return };
        for (id, open) in slice.runs.drain() {
            if let Some(timer) = open.timer {
                self.timers.remove(&(timer, id));
            }
        }
        (slice.ended, slice.expecting) = (Ended::default(), Vec::new());
        slice.log_bytes = LogBytes::default();
        (slice.owed, slice.letters, slice.posting) = (Owed::default(), VecDeque::new(), Posting::Idle);
        slice.sweep_watchers();
        let watched = !slice.watchers.is_empty() || !slice.waiting.is_empty();
        slice.phase = match (watched, follows) {
            (true, true) => Phase::Guest,
            (true, false) | (false, _) => Phase::Away,
        };
        if slice.phase == Phase::Guest {
            slice.stands();
        } else {
            self.rim.feeds.leave(shard);
        }
        self.drop_strays(shard);
        if watched {
            self.join(shard);
        }
    }

    // ---- those who watch ----

    pub(super) fn watch(&mut self, run: RunId, watcher: Watcher, standing: oneshot::Sender<Standing>) {
        let shard = run.shard();
        let follows = self.rim.feeds.follows(shard);
        // A shard that there is not has no entries: nothing is missed.
        let Some(slice) = self.slice_mut(shard) else {
            drop(standing.send(Standing::Following { last: None }));
            return;
        };
        slice.watchers.entry(run).or_default().push(watcher);
        slice.unwatched = None;
        if follows {
            let known = slice.runs.get(&run).filter(|_| slice.phase.leads());
            // Whoever asked may have gone.
            drop(standing.send(Standing::Following { last: known.map(|open| open.known.last) }));
        } else {
            slice.waiting.push(standing);
            self.join(shard);
        }
    }

    /// Begins to follow a shard for those who watch, from where the log ends now.
    fn join(&mut self, shard: Shard) {
        let Some(slice) = self.slice_mut(shard) else { return };
        if slice.phase != Phase::Away {
            return;
        }
        slice.phase = Phase::Joining;
        let journal = self.rim.journal.clone();
        self.joins.spawn(async move {
            let extent = patiently(|| journal.extent()).await;
            Joined { shard, position: extent.last }
        });
    }

    pub(super) fn joined(&mut self, joined: Joined) {
        let Joined { shard, position } = joined;
        let Some(slice) = self.slice_mut(shard) else { return };
        // If it became ours meanwhile, the takeover sees to those who wait.
        if slice.phase == Phase::Joining {
            (slice.phase, slice.seen) = (Phase::Guest, position);
            slice.stands();
            self.rim.feeds.follow([shard].into_iter().collect(), position);
        }
    }

    /// Stops following shards that are not ours and that nobody has watched for a while.
    pub(super) fn look_at_guests(&mut self) {
        let now = Instant::now();
        for shard in every() {
            let Some(slice) = self.slice_mut(shard) else { continue };
            slice.sweep_watchers();
            if slice.phase != Phase::Guest || !slice.watchers.is_empty() {
                slice.unwatched = None;
                continue;
            }
            if now.saturating_duration_since(*slice.unwatched.get_or_insert(now)) >= GUEST {
                slice.phase = Phase::Away;
                self.rim.feeds.leave(shard);
            }
        }
    }

    // ---- snapshots ----

    pub(super) fn write_snapshots(&mut self) {
        for shard in every().filter(|shard| self.may_act(*shard)).collect::<Vec<_>>() {
            let is_news = |slice: &Slice| slice.applied != slice.snapshot.through || slice.snapshot.outdated;
            if self.slice(shard).is_some_and(is_news) {
                self.write_snapshot(shard);
            }
        }
    }

    fn write_snapshot(&mut self, shard: Shard) {
        let snapshots = self.rim.snapshots.clone();
        let Some(slice) = self.slice_mut(shard) else { return };
        let Some(claim) = slice.phase.claim().filter(|_| !slice.snapshot.writing) else { return };
        (slice.snapshot.writing, slice.snapshot.outdated) = (true, false);
        let (through, revision) = (slice.applied, slice.snapshot.revision);
        let open = slice.runs.iter().map(|(id, open)| (*id, open.known.last)).collect();
        let letters = slice.letters.iter().map(|letter| (letter.subject.clone(), letter.body.clone())).collect();
        let (log, erasures) = (slice.snapshot.log, slice.owed.list());
        let log_bytes = slice.log_bytes.list();
        let snapshot = Snapshot { log, through, open, erasures, letters, log_bytes };
        self.writes.spawn(async move {
            let result = match snapshots.write(shard, &snapshot, revision).await {
                Ok(revision) => Ok(revision),
                Err(error) => {
                    tracing::warn!(%shard, %error, "cannot write down how far a shard came, the older word stays");
                    match error {
                        // It may be our own, whose confirmation was lost.
                        WriteError::Conflict => Err(snapshots.revision(shard).await),
                        WriteError::TooLarge(_) | WriteError::Unavailable(_) => Err(None),
                    }
                }
            };
            Written { shard, claim, through, result }
        });
    }

    pub(super) fn snapshot_written(&mut self, written: Written) {
        let Written { shard, claim, through, result } = written;
        let Some(slice) = self.slice_mut(shard) else { return };
        if slice.phase.claim() != Some(claim) {
            return;
        }
        slice.snapshot.writing = false;
        match result {
            Ok(revision) => (slice.snapshot.revision, slice.snapshot.through) = (revision, through),
            Err(Some(revision)) => (slice.snapshot.revision, slice.snapshot.outdated) = (revision, true),
            Err(None) => slice.snapshot.outdated = true,
        }
        if let Phase::Leaving { .. } = slice.phase {
            self.let_go(shard);
        }
    }
}

impl Slice {
    /// Tells those who wait that the feed stands.
    fn stands(&mut self) {
        for standing in self.waiting.drain(..) {
            // Whoever asked may have gone.
            drop(standing.send(Standing::Joined));
        }
    }
}

/// Asks until it is answered: without it nobody acts for these shards.
async fn patiently<T, F: Future<Output = Result<T, ReadError>>>(mut ask: impl FnMut() -> F) -> T {
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => tracing::warn!(%error, "cannot take up a shard, trying again"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn take_over(journal: &Journal, snapshots: &Snapshots, shards: &[(Shard, u64)]) -> Result<Taken, ReadError> {
    let log = journal.extent().await?.log;
    let taking = shards.iter().copied().map(|(shard, claim)| take_over_one(journal, snapshots, log, shard, claim));
    let taken: Vec<_> = stream::iter(taking).buffer_unordered(shards.len().max(1)).collect().await;
    taken.into_iter().collect::<Result<_, _>>().map(Taken)
}

/// Nothing here depends on the word of the log's leader, who may have been replaced and not know it yet: the mark is where
/// the shard ends, and the snapshot says where each run's entries do.
async fn take_over_one(
    journal: &Journal,
    snapshots: &Snapshots,
    log: u64,
    shard: Shard,
    claim: u64,
) -> Result<TakenShard, ReadError> {
    let tip = journal.mark(shard).await?;
    let (snapshot, revision) = snapshots.read(shard, Extent { log, last: tip }).await?;
    let snapshot = snapshot.unwrap_or(Snapshot { log, ..Snapshot::default() });
    let written = snapshot.through;
    // A shard in which nothing happened since is known up to the mark.
    let through = if journal.first_of_shard(shard, written, tip).await? == tip { tip } else { written };
    let reads = snapshot.open.into_iter().map(|(id, last)| journal.known_through(id, last));
    let runs: Vec<_> = stream::iter(reads).buffer_unordered(READS_MAX).collect().await;
    let runs = runs.into_iter().collect::<Result<Vec<Known>, _>>()?;
    let open = runs.into_iter().filter(|known| known.run.opened_at().is_some() && !known.run.status().is_final());
    let (open, erasures) = (open.collect(), snapshot.erasures);
    let letters = snapshot.letters.into_iter().map(|(subject, body)| Letter { subject, body }).collect();
    let log_bytes = snapshot.log_bytes;
    Ok(TakenShard { shard, claim, through, tip, open, erasures, letters, log_bytes, log, written, revision })
}
