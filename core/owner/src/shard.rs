//! One shard as its owner has it: the phase of its ownership, how far its log was applied, and its open runs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use run::{RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ended::Ended;
use crate::known::Known;
use crate::resting::Resting;
use crate::retention::{SETTLED_AFTER, UNCARRIED_AGE};
use crate::unread::Unread;

/// The state of the shard's ownership. `claim` distinguishes two periods in which it was ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// The shard is not ours.
    #[default]
    NotOwned,
    /// Ours; its open runs are being read.
    Taking { claim: u64 },
    /// Ours; entries up to `tip`, the end of the shard's log when it became ours, are not all applied.
    Replaying { claim: u64, tip: u64 },
    /// Ours, and we act for it.
    Leading { claim: u64 },
    /// We have stopped acting for it, and give it back once its snapshot is written.
    Leaving { claim: u64 },
}

impl Phase {
    /// Whether entries are applied.
    #[must_use]
    pub fn folds(self) -> bool {
        matches!(self, Self::Replaying { .. } | Self::Leading { .. })
    }

    /// Whether the owner may act, if its lease holds.
    #[must_use]
    pub fn leads(self) -> bool {
        matches!(self, Self::Leading { .. })
    }

    /// Whether the shard is ours and its runs are not all known yet.
    #[must_use]
    pub fn is_taking_over(self) -> bool {
        matches!(self, Self::Taking { .. } | Self::Replaying { .. })
    }

    /// The claim under which the shard is ours.
    #[must_use]
    pub fn claim(self) -> Option<u64> {
        match self {
            Self::Taking { claim }
            | Self::Replaying { claim, .. }
            | Self::Leading { claim }
            | Self::Leaving { claim } => Some(claim),
            Self::NotOwned => None,
        }
    }
}

/// The open runs that were read when a shard became ours.
#[derive(Debug, Clone, Default)]
pub struct Takeover {
    pub claim: u64,
    /// The shard is known up to this entry.
    pub through: u64,
    /// The end of the shard's log when it became ours.
    pub tip: u64,
    pub open: Vec<Known>,
    /// Open runs that are at rest.
    pub resting: Resting,
    /// Runs that ended and whose beginning may be carried.
    pub ended: Vec<Known>,
    /// Runs whose opening this release cannot read, each with its last entry.
    pub unread: Vec<(RunId, u64)>,
}

/// A run that a snapshot lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    pub run: RunId,
    /// Its first entry, if none of it is carried beside the log as far as the owner knows; otherwise 0. Also 0 if the
    /// owner could not read its opening or an entry of a call.
    pub first: u64,
    /// Its last entry.
    pub last: u64,
}

/// An open run that is not packed.
#[derive(Debug, Clone)]
pub struct OpenRun {
    pub known: Known,
    /// When the run is checked again.
    pub(crate) timer: Option<Timestamp>,
    /// Bytes of its entries in the log, as far as they were counted.
    pub stored_bytes: u64,
    /// What of it does not count as carried yet.
    pub(crate) carried: Option<Carried>,
    /// The run was at rest, with so many calls that had not ended, and the driver was not told that it is no more.
    pub woken: Option<u32>,
}

/// What is carried of an open run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CarriedTo {
    /// The last entry that is carried; 0 if none is.
    pub through: u64,
    /// The entries up to this one were carried [`crate::retention::SETTLED_BEFORE`] ago; 0 if none were.
    pub settled: u64,
}

/// What was carried last counts after a while only: a server of the broker that was replaced may not know it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Carried {
    /// The first entry of the run that does not count as carried until then.
    uncarried_from: u64,
    at: Timestamp,
}

/// The entries of an open run, as far as they are carried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) carried: u64,
    pub(crate) unsettled: Option<Carried>,
}

impl Span {
    /// The same of a run that was read at this time.
    fn read(known: &Known, now: Timestamp) -> Self {
        let nothing = Self { first: known.first, last: known.last, carried: 0, unsettled: None };
        nothing.handle_carried(CarriedTo { through: known.carried, settled: known.settled }, now)
    }

    /// What does not count yet.
    fn unsettled(&self, now: Timestamp) -> Option<Carried> {
        self.unsettled.filter(|carried| now.since(carried.at) < SETTLED_AFTER)
    }

    /// What follows what is carried, whether there is anything or not.
    fn after(&self, carried: u64) -> u64 {
        if carried == 0 { self.first } else { carried + 1 }
    }

    /// The first entry of the run that does not count as carried; `u64::MAX` if there is none.
    pub(crate) fn uncarried_from(&self, now: Timestamp) -> u64 {
        let is_all = self.carried > 0 && self.last <= self.carried;
        let settled = if is_all { u64::MAX } else { self.after(self.carried) };
        self.unsettled(now).map_or(settled, |carried| carried.uncarried_from)
    }

    /// Whether more may be carried. What was carried last must count before more is: otherwise a run with steady
    /// entries would keep the log.
    fn is_settled(&self, now: Timestamp) -> bool {
        self.unsettled(now).is_none()
    }

    /// This much of the run is carried now. What counted before counts on.
    #[must_use]
    pub(crate) fn handle_carried(self, to: CarriedTo, now: Timestamp) -> Self {
        let carried = self.carried.max(to.through);
        let pending = self.unsettled(now);
        let at = pending.filter(|_| carried == self.carried).map_or(now, |pending| pending.at);
        let counted = pending.map_or_else(|| self.after(self.carried), |pending| pending.uncarried_from);
        let uncarried_from = counted.max(self.after(to.settled));
        let is_pending = carried > 0 && uncarried_from <= carried;
        Self { carried, unsettled: is_pending.then_some(Carried { uncarried_from, at }), ..self }
    }
}

impl OpenRun {
    /// A run as it was read at this time.
    #[must_use]
    pub fn new(known: Known, now: Timestamp) -> Self {
        let carried = Span::read(&known, now).unsettled;
        Self { known, timer: None, stored_bytes: 0, carried, woken: None }
    }

    fn span(&self) -> Span {
        let Known { first, last, carried, .. } = self.known;
        Span { first, last, carried, unsettled: self.carried }
    }

    /// The first entry of the log that the run needs: the first one that does not count as carried, or that is the job
    /// of a call which a worker executes or will execute.
    fn needed_from(&self, now: Timestamp) -> u64 {
        self.known.first_job().min(self.span().uncarried_from(now))
    }
}

/// A run that ended and whose beginning may be carried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HalfCarried {
    last: u64,
    needed_from: u64,
}

impl HalfCarried {
    /// `None` for a run that is open, or that nobody has begun to carry because it was young when it ended.
    pub(crate) fn of(open: &OpenRun, now: Timestamp) -> Option<Self> {
        let known = &open.known;
        let ended_at = known.run.status().is_final().then_some(known.run.ended_at()).flatten()?;
        let is_old = ended_at.since(known.run.id().created_at()) >= UNCARRIED_AGE;
        is_old.then(|| Self { last: known.last, needed_from: open.span().uncarried_from(now) })
    }
}

/// One shard.
#[derive(Debug, Clone, Default)]
pub struct ShardState {
    pub(crate) phase: Phase,
    pub(crate) applied: u64,
    /// The open runs that are not at rest, or were not when they were last looked at.
    pub(crate) runs: BTreeMap<RunId, OpenRun>,
    pub(crate) resting: Resting,
    /// Runs that ended and whose beginning may be carried: with that alone, they would look open.
    pub(crate) half_carried: BTreeMap<RunId, HalfCarried>,
    pub(crate) ended: Ended,
    pub(crate) unread: Unread,
}

impl ShardState {
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Every entry up to this one was applied.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Whether everything is applied that was in the log when the shard became ours.
    #[must_use]
    pub fn has_caught_up(&self) -> bool {
        matches!(self.phase, Phase::Replaying { tip, .. } if self.applied >= tip)
    }

    /// The open runs that are not at rest; none while the shard is not ours.
    pub fn awake(&self) -> impl ExactSizeIterator<Item = (RunId, &OpenRun)> {
        self.runs.iter().map(|(id, open)| (*id, open))
    }

    /// The open runs that are at rest.
    #[must_use]
    pub fn resting(&self) -> &Resting {
        &self.resting
    }

    /// The number of open runs.
    #[must_use]
    pub fn open_len(&self) -> usize {
        self.runs.len() + self.resting.len()
    }

    #[must_use]
    pub fn is_open(&self, id: RunId) -> bool {
        self.runs.contains_key(&id) || self.resting.contains(id)
    }

    /// An open run.
    #[must_use]
    pub fn run(&self, id: RunId) -> Option<Cow<'_, Known>> {
        match self.runs.get(&id) {
            Some(open) => Some(Cow::Borrowed(&open.known)),
            None => self.resting.run(id).map(Cow::Owned),
        }
    }

    /// A run that is open or has just ended.
    #[must_use]
    pub fn recent_run(&self, id: RunId) -> Option<Cow<'_, Known>> {
        self.run(id).or_else(|| self.ended.find(id).map(Cow::Borrowed))
    }

    /// An open run, unpacked if it was at rest.
    pub(crate) fn awaken(&mut self, id: RunId) -> Option<&mut OpenRun> {
        // Most entries are of runs that are awake, and there may be a million others.
        if !self.runs.contains_key(&id)
            && let Some(open) = self.resting.wake(id)
        {
            self.runs.insert(id, open);
        }
        self.runs.get_mut(&id)
    }

    /// Packs a run if it is at rest, and its timer is that of its next deadline. Returns whether it is packed.
    pub(crate) fn pack(&mut self, id: RunId, now: Timestamp) -> bool {
        let is_set = |open: &&OpenRun| open.timer.is_some() && open.timer == open.known.run.next_deadline();
        if self.runs.get(&id).filter(is_set).is_some_and(|open| self.resting.take(open, now)) {
            self.runs.remove(&id);
        }
        self.resting.contains(id)
    }

    /// Whether this release cannot read the run's opening.
    #[must_use]
    pub fn is_unread(&self, id: RunId) -> bool {
        self.unread.contains(id)
    }

    /// The content of a snapshot: the runs that the next owner must read. Ended runs are left out, and entries behind
    /// [`Self::applied`] follow from the log.
    pub fn snapshot(&self) -> impl Iterator<Item = Listed> {
        let awake = self.runs.iter().map(|(run, OpenRun { known, .. })| {
            let first = if known.carried == 0 && known.is_all_read() { known.first } else { 0 };
            Listed { run: *run, first, last: known.last }
        });
        let resting =
            self.resting.heads().map(|(run, head)| Listed { run, first: head.first_in_log(), last: head.last });
        let ended = self.half_carried.iter().map(|(id, run)| (*id, run.last));
        let others = ended.chain(self.unread.list()).map(|(run, last)| Listed { run, first: 0, last });
        awake.chain(resting).chain(others)
    }

    /// The runs whose entries are to be carried, so that the log need not keep entries before `before`, the ones that
    /// keep most of it first. Those before it must be older than [`SETTLED_AFTER`].
    #[must_use]
    pub fn to_carry(&self, before: u64, now: Timestamp) -> Vec<RunId> {
        let awake = self.runs.iter().map(|(id, open)| (open.span(), *id));
        let open = awake.chain(self.resting.heads().map(|(id, head)| (head.span(), id)));
        let open = open.filter(|(span, _)| span.is_settled(now)).map(|(span, id)| (span.uncarried_from(now), id));
        let mut runs: Vec<(u64, RunId)> = open.filter(|(from, _)| *from < before).collect();
        runs.sort_unstable();
        runs.into_iter().map(|(_, id)| id).collect()
    }

    /// The runs that ended and are to be carried whole if their beginning is.
    pub fn half_carried(&self) -> impl Iterator<Item = RunId> {
        self.half_carried.keys().copied()
    }

    /// The last entry of a run of [`Self::half_carried`].
    #[must_use]
    pub fn half_carried_last(&self, id: RunId) -> Option<u64> {
        self.half_carried.get(&id).map(|run| run.last)
    }

    /// The first entry of the log that the shard's runs need: those of open runs are read at a takeover. 0 if that is
    /// not known.
    #[must_use]
    pub fn needed_from(&self, now: Timestamp) -> u64 {
        if !self.unread.is_empty() {
            return 0;
        }
        let awake = self.runs.values().map(|open| open.needed_from(now));
        let open = awake.chain(self.resting.heads().map(|(_, head)| head.needed_from(now)));
        let ended = self.half_carried.values().map(|run| run.needed_from);
        open.chain(ended).min().unwrap_or(u64::MAX).min(self.applied + 1)
    }

    /// This much of an open run is carried.
    pub(crate) fn handle_carried(&mut self, id: RunId, to: CarriedTo, now: Timestamp) {
        let Some(open) = self.runs.get_mut(&id) else { return self.resting.handle_carried(id, to, now) };
        let span = open.span().handle_carried(to, now);
        (open.known.carried, open.carried) = (span.carried, span.unsettled);
    }

    pub(crate) fn come_to(&mut self, position: u64) {
        if self.phase.folds() {
            self.applied = self.applied.max(position);
        }
    }
}
