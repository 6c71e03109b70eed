//! What the owner of a shard does beside its open runs: it writes the shard's snapshot, erases ended runs, and queues
//! notifications. The decisions are those of `core/owner`; the drivers follow `takeover.rs`, `erasure.rs` and
//! `notifications.rs` of `coordinator/src/owner`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use owner::erasure::{Erasures, Left, OwedErasure};
use owner::{Known, Outbox, ShardState, SnapshotSchedule};
use run::{Entry, Event, Fact, Run, RunId, RunStatus, Shard, Timestamp};

use crate::net::{Flaw, Message, Net, Node, Stored, instant};

/// How long the broker's answer is awaited.
const PATIENCE: Duration = Duration::from_secs(1);
/// Runs that are erased at once, and runs with late entries that are looked at in one go: fewer than the product's, so
/// that some wait.
const ERASED_AT_ONCE: usize = 2;
const STRAYS_AT_ONCE: usize = 2;

/// A snapshot of a shard.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) through: u64,
    /// The open runs, each with its last entry.
    pub(crate) open: Vec<(RunId, u64)>,
    erasures: Vec<OwedErasure>,
    notifications: Vec<Notification>,
}

/// A run has another status since this entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Notification {
    pub(crate) run: RunId,
    pub(crate) sequence: u64,
    pub(crate) status: RunStatus,
}

#[derive(Default)]
pub(crate) struct ShardWork {
    schedule: SnapshotSchedule,
    /// The revision of the snapshot in the bucket.
    revision: u64,
    writing: Option<Writing>,
    owed: Erasures,
    /// Runs that are being erased, by the token of the request.
    erasing: BTreeMap<u64, (OwedErasure, Timestamp)>,
    /// Runs that are not open, each with its last late entry.
    strays: BTreeMap<RunId, u64>,
    outbox: Outbox<Notification>,
    posting: Option<(u64, Timestamp)>,
}

/// A snapshot on its way.
struct Writing {
    token: u64,
    claim: u64,
    through: u64,
    since: Timestamp,
}

impl ShardWork {
    /// The shard became ours. What is being erased goes on.
    pub(crate) fn take_over(&mut self, revision: u64, snapshot: &Snapshot) {
        *self = Self {
            schedule: SnapshotSchedule::at(snapshot.through),
            revision,
            owed: Erasures::of(snapshot.erasures.clone(), 0),
            outbox: Outbox::of(snapshot.notifications.clone(), snapshot.through),
            erasing: std::mem::take(&mut self.erasing),
            ..Self::default()
        };
    }

    pub(crate) fn lose(&mut self) {
        *self = Self { erasing: std::mem::take(&mut self.erasing), ..Self::default() };
    }

    // The log.

    /// An entry was applied to an open run.
    pub(crate) fn note(&mut self, run: &Run, entry: &Entry, heard: &[Fact]) {
        if self.outbox.lacks(entry) {
            let notification = |status| Notification { run: run.id(), sequence: entry.sequence, status };
            self.outbox.add(owner::notified(run, heard).map(notification).collect());
        }
    }

    pub(crate) fn note_ended(&mut self, known: &Known) {
        self.owed.take(known, 1);
    }

    /// An entry of a run that is not open.
    pub(crate) fn note_late(&mut self, run: RunId, entry: &Entry) {
        if !self.owed.take_request(run, entry) && !self.owed.take_late(run, entry.sequence) {
            self.strays.insert(run, entry.sequence);
        }
    }

    // Snapshots.

    pub(crate) fn is_current(&self, applied: u64) -> bool {
        self.schedule.is_current(applied)
    }

    pub(crate) fn is_due(&self, applied: u64, now: Timestamp) -> bool {
        self.schedule.is_due(applied, instant(now))
    }

    pub(crate) fn write(&mut self, shard: Shard, state: &ShardState, net: &mut Net<'_>) {
        let Some(claim) = state.phase().claim() else { return };
        if !self.schedule.begin() {
            return;
        }
        let (token, through) = (net.token(), state.applied());
        let (mut erasures, mut notifications) = (self.owed.list(), self.outbox.list().copied().collect());
        match net.flaw {
            Flaw::ForgottenErasures => erasures = Vec::new(),
            Flaw::ForgottenNotifications => notifications = Vec::new(),
            _ => {}
        }
        // Nothing is carried here, so runs that have ended are not read again, and may be erased.
        let open = state.snapshot().filter(|listed| state.half_carried_last(listed.run).is_none());
        let open = open.map(|listed| (listed.run, listed.last)).collect();
        let snapshot = Arc::new(Snapshot { through, open, erasures, notifications });
        let revision = (net.flaw != Flaw::UnfencedSnapshot).then_some(self.revision);
        net.send(Node::Broker, Message::WriteSnapshot { token, shard, snapshot, revision });
        self.writing = Some(Writing { token, claim, through, since: net.now });
    }

    /// The bucket answered: the new revision, or the one that it has. Returns whether the answer was awaited.
    pub(crate) fn written(
        &mut self,
        token: u64,
        result: Result<u64, u64>,
        claim: Option<u64>,
        net: &mut Net<'_>,
    ) -> bool {
        let Some(writing) = self.writing.take_if(|writing| writing.token == token) else { return false };
        if claim != Some(writing.claim) {
            return false;
        }
        match result {
            Ok(revision) => {
                net.promises.note("snapshot");
                self.revision = revision;
                self.schedule.handle_written(writing.through, 1, instant(net.now));
            }
            Err(found) => {
                net.promises.note("snapshot refused");
                self.revision = found;
                self.schedule.handle_failed();
            }
        }
        true
    }

    // Erasing, and what is late.

    /// What is repeated from time to time, and waited for no longer. Returns whether a snapshot was given up.
    pub(crate) fn wake(&mut self, may_act: bool, net: &mut Net<'_>) -> bool {
        let is_late = |since: Timestamp| net.now.since(since) >= PATIENCE;
        let is_given_up = self.writing.take_if(|writing| is_late(writing.since)).is_some();
        if is_given_up {
            self.schedule.handle_failed();
        }
        if self.posting.take_if(|(_, since)| is_late(*since)).is_some() {
            self.outbox.handle_posted(0, false);
        }
        let owed = &mut self.owed;
        self.erasing.retain(|_, (erasure, since)| {
            if is_late(*since) {
                owed.handle_erased(erasure.run, erasure.through, Err(Left::All));
            }
            !is_late(*since)
        });
        if may_act {
            self.erase(net);
            self.look_at_strays(net);
            self.outbox.retry();
            self.post(net);
        }
        is_given_up
    }

    fn erase(&mut self, net: &mut Net<'_>) {
        let forgotten: Vec<RunId> = self.owed.left_in_index().filter(|_| net.chance.percent(50)).collect();
        for run in forgotten {
            self.owed.handle_forgotten(run);
            self.schedule.outdate();
        }
        if !self.erasing.is_empty() {
            return;
        }
        let written = if net.flaw == Flaw::HastyErasure { u64::MAX } else { self.schedule.through() };
        for owed in self.owed.begin(Left::All, net.now, written, ERASED_AT_ONCE) {
            let token = net.token();
            net.send(Node::Broker, Message::Purge { token, run: owed.run, through: owed.through });
            self.erasing.insert(token, (owed, net.now));
        }
        for owed in self.owed.begin(Left::Objects, net.now, written, ERASED_AT_ONCE) {
            self.erased(owed, net);
        }
    }

    pub(crate) fn purged(&mut self, token: u64, net: &mut Net<'_>) {
        if let Some((owed, _)) = self.erasing.remove(&token) {
            self.erased(owed, net);
        }
    }

    /// The log has nothing of the run any more. The store of objects may be away.
    fn erased(&mut self, owed: OwedErasure, net: &mut Net<'_>) {
        let result = if net.rough && net.chance.percent(20) { Err(Left::Objects) } else { Ok(()) };
        self.owed.handle_erased(owed.run, owed.through, result);
    }

    fn look_at_strays(&mut self, net: &mut Net<'_>) {
        for _ in 0..STRAYS_AT_ONCE {
            let Some((run, sequence)) = self.strays.pop_first() else { return };
            if is_orphan(net.log, run, sequence) {
                let token = net.token();
                net.promises.note("orphan");
                net.send(Node::Broker, Message::Purge { token, run, through: sequence });
            }
        }
    }

    // Notifications.

    pub(crate) fn post(&mut self, net: &mut Net<'_>) {
        if let Some(notifications) = self.outbox.begin() {
            let token = net.token();
            net.send(Node::Broker, Message::Notify { token, notifications });
            self.posting = Some((token, net.now));
        }
    }

    pub(crate) fn posted(&mut self, token: u64, count: usize, is_accepting: bool, net: &mut Net<'_>) {
        if self.posting.take_if(|(own, _)| *own == token).is_some() {
            self.outbox.handle_posted(count, is_accepting);
            if count > 0 {
                self.schedule.outdate();
            }
            if is_accepting {
                self.post(net);
            }
        }
    }
}

/// Whether the run of an entry has no opening before it.
pub(crate) fn is_orphan(log: &[Stored], run: RunId, sequence: u64) -> bool {
    let opens = |event: &Event| matches!(event, Event::RunOpened(_));
    let entries = log.iter().filter(|stored| stored.run == run && !stored.is_erased);
    let mut before = entries.take_while(|stored| stored.entry.sequence <= sequence);
    !before.any(|stored| stored.entry.events.iter().any(opens))
}
