//! Takes shards over and releases them. The cost of a takeover depends on the shard's open runs: the last owner's
//! snapshot has its log position and the runs that were open then. Those runs are read, and the shard is followed from
//! that position.

mod read;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use owner::erasure::{Erasures, OwedErasure};
use owner::retention::{FALLS_BEHIND, Moment, Unwritten};
use owner::{Known, Outbox, Phase, Resting, SnapshotSchedule, Takeover};
use proto::convert::snapshot::{Needs, Snapshot};
use run::{Partition, RunId, Shard, TenantId, Timestamp};
use tokio::sync::oneshot;
use tokio::time::Instant;

use self::read::take_over;
use super::log_bytes::LogBytes;
use super::recent::Recent;
use super::shard::{Following, ShardTask};
use super::surroundings::Surroundings;
use super::watcher::{Before, Standing, Watcher};
use super::{OwnerTask, claim, leads};
use crate::metrics::COUNTS;
use crate::nats::journal::{Fence, ReadError};
use crate::nats::notifications::QueuedNotification;
use crate::nats::setup::RETENTION;
use crate::nats::snapshots::{Stored, WriteError};
use crate::shards::{ShardSet, every};

/// The pause before a request that failed at the broker is repeated.
const PAUSE: Duration = Duration::from_millis(500);
/// A takeover that takes longer is logged.
const SLOW: Duration = Duration::from_secs(1);
/// How long a takeover may take before it is reported as an error, and then how often.
const TAKEOVER_LATE: Duration = Duration::from_secs(30);
/// How long a shard is followed after its last watcher has gone, because another may come.
const UNWATCHED_MAX: Duration = Duration::from_secs(30);

/// A shard that became ours, with its state at a log position.
#[derive(Debug)]
pub(super) struct Taken {
    shard: Shard,
    claim: u64,
    /// The shard's entries up to here are included.
    through: u64,
    /// The barrier that was stored at its end.
    tip: u64,
    open: Vec<Known>,
    resting: Resting,
    /// Runs that have ended since the snapshot listed them.
    ended: Vec<Known>,
    /// Runs that the snapshot lists as open and whose entries have left the log; each with its last entry.
    gone: Vec<(RunId, u64)>,
    /// Runs whose opening this release cannot read; each with its last entry.
    unread: Vec<(RunId, u64)>,
    erasures: Vec<OwedErasure>,
    erasures_behind: u64,
    letters: Vec<QueuedNotification>,
    log_bytes: Vec<(TenantId, Vec<(Timestamp, u64)>)>,
    log: u64,
    fence: Fence,
    /// The log position of the snapshot in the bucket, and the snapshot's location.
    written: u64,
    stored: Stored,
    /// What an earlier owner told that the shard needs of the log.
    needs: Option<Needs>,
}

/// How long a shard has been ours without being led, and when that was last reported.
#[derive(Debug, Clone, Copy)]
pub(super) struct TakeoverAge {
    began: Instant,
    reported: Instant,
}

impl TakeoverAge {
    fn begins_now() -> Self {
        let now = Instant::now();
        Self { began: now, reported: now }
    }
}

/// A shard that is to be followed from here for watchers.
#[derive(Debug)]
pub(super) struct Joined {
    shard: Shard,
    position: u64,
}

/// The result of an attempt to write a snapshot.
#[derive(Debug)]
pub(super) struct Written {
    shard: Shard,
    claim: u64,
    through: u64,
    needs: Needs,
    /// Its location in the bucket. If it was not written, the location of the other one, if that is known.
    result: Result<Stored, Option<Stored>>,
}

impl OwnerTask {
    /// Begins takeovers of shards that became ours, and drops shards that are not ours any more.
    pub(super) fn look_at_ownership(&mut self) {
        let owned = *self.io.owned.borrow_and_update();
        let mut fresh = Vec::new();
        for shard in every() {
            let before = claim(&self.owner, shard);
            let claim = owned.claim(shard);
            if before.is_some() && before != claim {
                self.lose(shard);
            }
            match claim {
                Some(claim) if owned.leaving().contains(shard) => {
                    if before != Some(claim) {
                        self.owner.handle_claimed(shard, claim);
                    }
                    self.leave(shard);
                }
                Some(claim) if before != Some(claim) => fresh.push((shard, claim)),
                Some(_) | None => {}
            }
        }
        if fresh.is_empty() {
            self.look_at_takeovers();
            return;
        }
        for (shard, claim) in fresh {
            self.owner.handle_claimed(shard, claim);
            if let Some(slice) = self.slice_mut(shard) {
                slice.following = Following::No;
                slice.takeover = Some(TakeoverAge::begins_now());
            }
            let (journal, snapshots) = (self.io.journals.of_shard(shard), self.io.snapshots.clone());
            self.takeovers.spawn(async move { take_over(&journal, &snapshots, shard, claim).await });
        }
        self.look_at_takeovers();
    }

    /// A shard's open runs were read. Shards that are read within a moment are followed together: one feed costs the
    /// broker less than several. None waits for the others longer than for the next sweep.
    pub(super) fn taken(&mut self, taken: Taken) {
        self.taken.push(taken);
        if self.takeovers.is_empty() {
            self.follow_taken();
        }
    }

    /// Follows the shards whose open runs were read.
    pub(super) fn follow_taken(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        // Positions are those of a partition.
        let (mut groups, mut runs) = (BTreeMap::<Partition, (ShardSet, u64)>::new(), 0);
        for taken in std::mem::take(&mut self.taken) {
            let Taken {
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
            } = taken;
            let follows = self.io.feeds.follows(shard);
            let Some(slice) = self.slices.get_mut(usize::from(shard.0)) else { continue };
            let takeover = Takeover { claim, through, tip, open, resting, ended, unread };
            if !self.owner.handle_taken(shard, takeover, ::nats::now()) {
                continue;
            }
            // Existing watchers may have received less than is known; they skip entries that arrive twice.
            let from = if follows { through.min(slice.seen) } else { through };
            if !follows {
                slice.recent = Recent::default();
            }
            (slice.seen, slice.newest) = (from, tip);
            // What an earlier owner told stays true. If each owner began without it, nothing would leave the log while
            // owners change often.
            let unwritten = needs.as_ref().and_then(|needs| needs.unwritten.clone()).map(Unwritten::of_earlier);
            (slice.unwritten, slice.told) = (unwritten.unwrap_or_default(), needs);
            slice.snapshot =
                super::shard::Snapshot { stored, log, needs_from: 0, schedule: SnapshotSchedule::at(written) };
            slice.fence = fence;
            slice.owed = Erasures::of(erasures, erasures_behind);
            slice.log_bytes = LogBytes::of(log_bytes);
            let has_snapshot = written > 0;
            slice.outbox = if has_snapshot { Outbox::of(letters, written) } else { Outbox::unknown(::nats::now()) };
            slice.unwatched = None;
            slice.stands();
            for (run, last) in gone {
                tracing::warn!(run.id = %run, "forgetting an open run whose entries have left the log");
                self.io.index.erase(run, last);
            }
            runs += self.owner.shard(shard).map_or(0, |shard| shard.open_len());
            let (group, start) = groups.entry(shard.partition()).or_insert((ShardSet::default(), from));
            group.insert(shard);
            *start = (*start).min(from);
        }
        let shards: usize = groups.values().map(|(group, _)| group.len()).sum();
        tracing::info!(shards, runs, "took shards over");
        for (group, start) in groups.into_values() {
            self.io.feeds.follow(group, start);
            for shard in group.iter() {
                self.lead(shard);
            }
        }
    }

    /// Begins to act for a shard that has caught up. Work that was postponed while it had no owner is due now.
    pub(super) fn lead(&mut self, shard: Shard) {
        if !self.owner.begin_to_lead(shard) {
            return;
        }
        let takeover = self.slice_mut(shard).and_then(|slice| slice.takeover.take());
        match takeover.map(|takeover| takeover.began.elapsed()) {
            Some(took) if took >= SLOW => tracing::info!(%shard, ?took, "leads a shard that took long to take over"),
            _ => tracing::debug!(%shard, "leads a shard"),
        }
        self.count_turns(shard);
        self.look_at_takeovers();
        if self.limited.is_on {
            // A slot becomes free only if it was counted before.
            for (id, _) in self.owner.shard(shard).into_iter().flat_map(|shard| shard.awake()) {
                self.see_running(id);
            }
        }
        let world = Surroundings::new(&self.io, self.limited);
        self.owner.check_shard(shard, ::nats::now(), &world);
        self.write_snapshot(shard);
    }

    /// How long each shard that is being taken over has been so.
    pub(super) fn takeover_ages(&self) -> impl Iterator<Item = Duration> {
        let shards = self.slices.iter().zip(self.owner.shards());
        let taking = shards.filter(|(_, state)| state.phase().is_taking_over());
        taking.map(|(slice, _)| slice.takeover.as_ref().map_or(Duration::ZERO, |age| age.began.elapsed()))
    }

    /// Reports takeovers that do not end, and counts for how long the oldest has been going on.
    pub(super) fn report_takeovers(&mut self) {
        let mut oldest = Duration::ZERO;
        for ((slice, state), shard) in self.slices.iter_mut().zip(self.owner.shards()).zip(every()) {
            let Some(takeover) = &mut slice.takeover else { continue };
            let age = takeover.began.elapsed();
            oldest = oldest.max(age);
            if takeover.reported.elapsed() >= TAKEOVER_LATE {
                takeover.reported = Instant::now();
                let (applied, phase) = (state.applied(), state.phase());
                tracing::error!(%shard, ?age, ?phase, applied, "a takeover is late, its runs make no progress");
            }
        }
        COUNTS.takeover_age.set(oldest.as_secs_f64());
    }

    /// Stops acting for a shard immediately, and releases it when its snapshot is written.
    fn leave(&mut self, shard: Shard) {
        let Some(state) = self.owner.shard(shard) else { return };
        let (phase, applied) = (state.phase(), state.applied());
        let Some(slice) = self.slice_mut(shard) else { return };
        slice.takeover = None;
        let is_written = slice.snapshot.schedule.is_current(applied);
        self.owner.handle_leaving(shard);
        self.io.turns.forget_shard(shard);
        self.io.quotas.forget_shard(shard);
        match phase {
            Phase::Leaving { .. } => {}
            // A snapshot that is already being written is recent enough.
            Phase::Leading { .. } if !is_written => self.write_snapshot(shard),
            Phase::Leading { .. } | Phase::NotOwned | Phase::Taking { .. } | Phase::Replaying { .. } => {
                self.let_go(shard)
            }
        }
    }

    fn let_go(&mut self, shard: Shard) {
        // The lease task waits for this message, but not indefinitely.
        if self.io.written.try_send(shard).is_err() {
            tracing::warn!(%shard, "reporting a shard's snapshot to the lease task failed");
        }
    }

    /// Drops a shard that is not ours any more. Its watchers continue.
    fn lose(&mut self, shard: Shard) {
        let follows = self.io.feeds.follows(shard);
        let Some(slice) = self.slices.get_mut(usize::from(shard.0)) else { return };
        self.owner.handle_lost(shard);
        self.io.turns.forget_shard(shard);
        self.io.quotas.forget_shard(shard);
        (slice.expecting, slice.takeover) = (Vec::new(), None);
        slice.log_bytes = LogBytes::default();
        (slice.owed, slice.outbox) = (Erasures::default(), Outbox::default());
        slice.sweep_watchers();
        let watched = !slice.watchers.is_empty() || !slice.waiting.is_empty();
        slice.following = if watched && follows { Following::Yes } else { Following::No };
        if slice.following == Following::Yes {
            slice.stands();
        } else {
            slice.recent = Recent::default();
            self.io.feeds.leave(shard);
        }
        self.drop_strays(shard);
        if watched {
            self.join(shard);
        }
    }

    pub(super) fn watch(&mut self, run: RunId, watcher: Watcher, standing: oneshot::Sender<Standing>) {
        let shard = run.shard();
        let follows = self.io.feeds.follows(shard);
        let leads = leads(&self.owner, shard);
        // A shard that does not exist has no entries, so nothing is missed.
        let Some(slice) = self.slices.get_mut(usize::from(shard.0)) else {
            drop(standing.send(Standing::Following(Before::Nothing)));
            return;
        };
        slice.watchers.entry(run).or_default().push(watcher);
        slice.unwatched = None;
        if follows {
            let known = self.owner.run(run).filter(|_| leads);
            let before = match (slice.recent.of(run), known) {
                (Some(entries), _) => Before::Entries(entries),
                (None, Some(known)) => Before::Through(known.last),
                (None, None) => Before::Nothing,
            };
            // The requester may have gone.
            drop(standing.send(Standing::Following(before)));
        } else {
            slice.waiting.push(standing);
            self.join(shard);
        }
    }

    /// Begins to follow a shard for watchers, from the current end of the log.
    fn join(&mut self, shard: Shard) {
        let is_ours = claim(&self.owner, shard).is_some();
        let Some(slice) = self.slice_mut(shard) else { return };
        if is_ours || slice.following != Following::No {
            return;
        }
        slice.following = Following::Joining;
        let journal = self.io.journals.of_shard(shard);
        self.joins.spawn(async move {
            let log = patiently(shard, || journal.now()).await;
            Joined { shard, position: log.last }
        });
    }

    pub(super) fn joined(&mut self, joined: Joined) {
        let Joined { shard, position } = joined;
        let Some(slice) = self.slice_mut(shard) else { return };
        // If it became ours meanwhile, the takeover answers the waiting watchers.
        if slice.following == Following::Joining {
            (slice.following, slice.seen, slice.recent) = (Following::Yes, position, Recent::default());
            slice.stands();
            self.io.feeds.follow([shard].into_iter().collect(), position);
        }
    }

    /// Stops following shards that are not ours and have had no watchers for a while.
    pub(super) fn leave_unwatched(&mut self) {
        let now = Instant::now();
        for shard in every() {
            let Some(slice) = self.slice_mut(shard) else { continue };
            slice.sweep_watchers();
            if slice.following != Following::Yes || !slice.watchers.is_empty() {
                slice.unwatched = None;
                continue;
            }
            if now.saturating_duration_since(*slice.unwatched.get_or_insert(now)) >= UNWATCHED_MAX {
                (slice.following, slice.recent) = (Following::No, Recent::default());
                self.io.feeds.leave(shard);
            }
        }
    }

    pub(super) fn write_snapshots(&mut self) {
        // The log has dropped everything that is older.
        let oldest = ::nats::now().before(RETENTION);
        for shard in every().filter(|shard| self.may_act(*shard)).collect::<Vec<_>>() {
            self.owner.forget_unread_before(shard, oldest);
            let Some(state) = self.owner.shard(shard) else { continue };
            let (applied, needs_from) = (state.applied(), state.needed_from(::nats::now()));
            if self.io.journals.of_shard(shard).tip_seen() > applied + FALLS_BEHIND {
                self.mark(shard);
            }
            let now = Instant::now().into_std();
            let Some(slice) = self.slice_mut(shard) else { continue };
            if needs_from > slice.snapshot.needs_from {
                // Something was carried: nothing else tells that the log may lose it.
                slice.snapshot.schedule.outdate();
            }
            if slice.snapshot.schedule.is_due(applied, now) {
                self.write_snapshot(shard);
            } else {
                self.tell_unwritten(shard);
            }
        }
    }

    /// Tells that the history needs less of the log, also if nothing happens in a shard any more. The rest stays as it
    /// was told with the snapshot.
    fn tell_unwritten(&mut self, shard: Shard) {
        let Some(history) = &self.io.history else { return };
        let through = history.through(shard);
        let Some(open_from) = self.owner.shard(shard).map(|state| state.needed_from(::nats::now())) else { return };
        let Some(slice) = self.slices.get_mut(usize::from(shard.0)) else { return };
        let Some(told) = &mut slice.told else { return };
        let from = slice.unwritten.tell(Moment { last: slice.newest, open_from }, through);
        if told.unwritten.as_ref().is_some_and(|unwritten| unwritten.from == from) {
            return;
        }
        told.unwritten = Some(slice.unwritten.clone());
        let (needs, snapshots) = (told.clone(), self.io.snapshots.clone());
        self.send(async move {
            if let Err(error) = snapshots.write_needs(shard, needs).await {
                tracing::debug!(%shard, %error, "telling what the history needs of the log failed");
            }
        });
    }

    /// Stores a barrier in a shard without entries, so that its position moves on: what it needs of the log is told
    /// with its snapshots.
    fn mark(&mut self, shard: Shard) {
        let journal = self.io.journals.of_shard(shard);
        self.send(async move {
            if let Err(error) = journal.mark_once(shard).await {
                tracing::debug!(%shard, %error, "storing a barrier for a shard without entries failed");
            }
        });
    }

    fn write_snapshot(&mut self, shard: Shard) {
        let snapshots = self.io.snapshots.clone();
        let Some(state) = self.owner.shard(shard) else { return };
        let Some(slice) = self.slices.get_mut(usize::from(shard.0)) else { return };
        let Some(claim) = state.phase().claim() else { return };
        if !slice.snapshot.schedule.begin() {
            return;
        }
        let (through, before) = (state.applied(), slice.snapshot.stored);
        let open = state.snapshot().collect();
        let letters = slice.outbox.list().map(|letter| (letter.subject.clone(), letter.body.clone())).collect();
        let (log, erasures, erasures_behind) = (slice.snapshot.log, slice.owed.list(), slice.owed.behind());
        let log_bytes = slice.log_bytes.list();
        let (open_from, newest) = (state.needed_from(::nats::now()), slice.newest);
        slice.snapshot.needs_from = open_from;
        let unwritten = self.io.history.as_ref().map(|history| {
            slice.unwritten.tell(Moment { last: newest, open_from }, history.through(shard));
            slice.unwritten.clone()
        });
        let told_from = slice.told.as_ref().map_or(0, |told| told.from);
        let needs = Needs { log, from: open_from.min(needed_of(&slice.owed)).max(told_from), unwritten };
        let snapshot = Snapshot { log, through, open, erasures, erasures_behind, letters, log_bytes };
        self.writes.spawn(async move {
            let result = match snapshots.write(shard, &snapshot, before).await {
                Ok(stored) => {
                    // A takeover reads what is open in this snapshot, and everything behind it.
                    if let Err(error) = snapshots.write_needs(shard, needs.clone()).await {
                        tracing::debug!(%shard, %error, "telling what the shard needs of the log failed");
                    }
                    Ok(stored)
                }
                Err(error) => {
                    tracing::warn!(%shard, %error, "writing a snapshot failed, the previous one stays");
                    match error {
                        // It may be our own snapshot, whose confirmation was lost.
                        WriteError::Conflict => Err(snapshots.found(shard).await),
                        WriteError::Unavailable(_) => Err(None),
                    }
                }
            };
            Written { shard, claim, through, needs, result }
        });
    }

    pub(super) fn snapshot_written(&mut self, written: Written) {
        let Written { shard, claim, through, needs, result } = written;
        if super::claim(&self.owner, shard) != Some(claim) {
            return;
        }
        let Some(slice) = self.slice_mut(shard) else { return };
        if result.is_ok() {
            slice.told = Some(needs);
        }
        let super::shard::Snapshot { stored: location, schedule, .. } = &mut slice.snapshot;
        match result {
            Ok(stored) => {
                *location = stored;
                schedule.handle_written(through, stored.bytes as u64, Instant::now().into_std());
            }
            Err(found) => {
                *location = found.unwrap_or(*location);
                schedule.handle_failed();
            }
        }
        if self.owner.shard(shard).is_some_and(|state| matches!(state.phase(), Phase::Leaving { .. })) {
            self.let_go(shard);
        }
    }
}

/// The first entry that is read again for requests to erase runs that did not fit.
fn needed_of(owed: &Erasures) -> u64 {
    if owed.behind() > 0 { owed.behind() } else { u64::MAX }
}

impl ShardTask {
    /// Reports to waiting watchers that the feed is established.
    fn stands(&mut self) {
        for standing in self.waiting.drain(..) {
            // The requester may have gone.
            drop(standing.send(Standing::Joined));
        }
    }
}

/// Retries until it succeeds, because no owner acts for the shard without it.
async fn patiently<T, F: Future<Output = Result<T, ReadError>>>(shard: Shard, mut ask: impl FnMut() -> F) -> T {
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => tracing::warn!(%shard, %error, "taking a shard over failed, trying again"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}
