//! The owner of shards: decides the next actions for their open runs.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use run::{AttemptId, Call, CallState, Effect, Entry, Event, Fact, PoolId, Route, RunId, Shard, Timestamp, Verdict};

use crate::SubjectKind;
use crate::action::{Action, JobLease, Queue, action};
use crate::asking::{Asking, UserQuestion, asking};
use crate::known::Known;
use crate::lost::{forsaken, lost_attempt, stranded};
use crate::parent::is_orphan;
use crate::shard::{CarriedTo, HalfCarried, OpenRun, Phase, ShardState, Takeover};
use crate::unclaimed::Unclaimed;
use crate::unread::{Noted, Unread};
use crate::verdict::{Question, REDELIVERED, verdict};
use crate::world::{Slot, Workers as _, World};

/// How long an effect has to show in the log before it is performed again.
const EFFECT_REPEAT: Duration = Duration::from_secs(1);
/// How long the next worker has to store its start before a lost worker's job is handed back again: the next one may be
/// lost too.
const HAND_BACK_REPEAT: Duration = Duration::from_secs(10);
/// Effects in flight at once.
const EFFECTS_MAX: usize = 256;

/// The owner of shards, without IO. It applies the entries that the log brings, in their order, and nothing else: an
/// append counts when the log brings it back. Each input may add actions, which [`Self::poll_action`] returns.
#[derive(Debug, Clone)]
pub struct Owner {
    shards: Vec<ShardState>,
    /// When to check which run again; each open run is here at most once.
    timers: BTreeSet<(Timestamp, RunId)>,
    in_flight: BTreeSet<(RunId, Effect)>,
    /// Runs with effects for which there was no room in flight.
    deferred: BTreeSet<RunId>,
    /// When jobs of lost workers were handed back.
    handed_back: BTreeMap<(RunId, AttemptId), Timestamp>,
    unclaimed: Unclaimed,
    actions: VecDeque<Action>,
}

/// The result of applying an entry.
#[derive(Debug)]
pub enum Applied<'a> {
    /// The shard's runs are not folded now, or the entry was applied before.
    Ignored,
    /// It belongs to a run whose opening this release cannot read.
    Unread,
    /// It belongs to no open run, so it comes too late to matter.
    Closed,
    /// It was applied to this run.
    Open(&'a mut OpenRun),
}

impl Owner {
    /// An owner that owns none of so many shards yet.
    #[must_use]
    pub fn new(shards: usize) -> Self {
        Self {
            shards: (0..shards).map(|_| ShardState::default()).collect(),
            timers: BTreeSet::new(),
            in_flight: BTreeSet::new(),
            deferred: BTreeSet::new(),
            handed_back: BTreeMap::new(),
            unclaimed: Unclaimed::default(),
            actions: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`Self::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// One shard; `None` for a number that is out of range, which a run's id may hold.
    #[must_use]
    pub fn shard(&self, shard: Shard) -> Option<&ShardState> {
        self.shards.get(usize::from(shard.0))
    }

    /// All shards, in the order of their numbers.
    #[must_use]
    pub fn shards(&self) -> &[ShardState] {
        &self.shards
    }

    /// An open run.
    #[must_use]
    pub fn run(&self, id: RunId) -> Option<Cow<'_, Known>> {
        self.shard(id.shard())?.run(id)
    }

    /// Whether the owner acts for the shard now.
    pub fn may_act(&self, shard: Shard, world: &impl World) -> bool {
        self.shard(shard).is_some_and(|state| state.phase.leads()) && world.holds(shard)
    }

    // Ownership.

    /// The shard became ours: its open runs are to be read, see [`Self::handle_taken`].
    pub fn handle_claimed(&mut self, shard: Shard, claim: u64) {
        if let Some(state) = self.shards.get_mut(usize::from(shard.0)) {
            state.phase = Phase::Taking { claim };
        }
    }

    /// The open runs of a claimed shard were read. Returns `false` if the shard was lost or claimed again meanwhile.
    pub fn handle_taken(&mut self, shard: Shard, taken: Takeover, now: Timestamp) -> bool {
        let Takeover { claim, through, tip, open, resting, ended, unread } = taken;
        let Some(state) = self.shards.get_mut(usize::from(shard.0)) else { return false };
        if state.phase != (Phase::Taking { claim }) {
            return false;
        }
        state.phase = Phase::Replaying { claim, tip };
        state.applied = through;
        state.runs = open.into_iter().map(|known| (known.run.id(), OpenRun::new(known, now))).collect();
        let timers = resting.heads().filter_map(|(id, head)| Some((head.timer?, id)));
        self.timers.extend(timers);
        state.resting = resting;
        let half_carried = |known: Known| Some((known.run.id(), HalfCarried::of(&OpenRun::new(known, now), now)?));
        state.half_carried = ended.into_iter().filter_map(half_carried).collect();
        state.unread = Unread::of(unread, now);
        true
    }

    /// The shard's log was read up to a position.
    pub fn handle_position(&mut self, shard: Shard, position: u64) {
        if let Some(state) = self.shards.get_mut(usize::from(shard.0)) {
            state.come_to(position);
        }
    }

    /// Begins to act for a shard that has caught up; call [`Self::check_shard`] then. Returns whether it has.
    pub fn begin_to_lead(&mut self, shard: Shard) -> bool {
        let Some(state) = self.shards.get_mut(usize::from(shard.0)).filter(|state| state.has_caught_up()) else {
            return false;
        };
        if let Phase::Replaying { claim, .. } = state.phase {
            state.phase = Phase::Leading { claim };
        }
        true
    }

    /// Stops acting for a shard at once; it stays ours until it is lost.
    pub fn handle_leaving(&mut self, shard: Shard) {
        if let Some(state) = self.shards.get_mut(usize::from(shard.0))
            && let Some(claim) = state.phase.claim()
        {
            state.phase = Phase::Leaving { claim };
        }
    }

    /// The shard is ours no more.
    pub fn handle_lost(&mut self, shard: Shard) {
        let Some(state) = self.shards.get_mut(usize::from(shard.0)) else { return };
        let state = std::mem::take(state);
        let timers = state.runs.iter().map(|(id, open)| (*id, open.timer));
        for (id, timer) in timers.chain(state.resting.heads().map(|(id, head)| (id, head.timer))) {
            if let Some(timer) = timer {
                self.timers.remove(&(timer, id));
            }
        }
    }

    // The log.

    /// Applies an entry, which must come in the order of the log. The facts that its run accepted from it are added to
    /// `heard`. If other facts than output were accepted, call [`Self::check_run`] afterwards, or [`Self::close`] if
    /// the run has ended.
    pub fn handle_entry(
        &mut self,
        id: RunId,
        entry: &Entry,
        heard: &mut Vec<Fact>,
        now: Timestamp,
        world: &impl World,
    ) -> Applied<'_> {
        let Some(state) = self.shards.get_mut(usize::from(id.shard().0)) else { return Applied::Ignored };
        if !state.phase.folds() || entry.sequence <= state.applied {
            return Applied::Ignored;
        }
        state.applied = entry.sequence;
        let leads = state.phase.leads();
        let opens = entry.events.iter().any(|event| matches!(event, Event::RunOpened(_)));
        state.awaken(id);
        if opens {
            state.runs.entry(id).or_insert_with(|| OpenRun::new(Known::new(id), now));
            state.unread.remove(id);
        }
        let Some(open) = state.runs.get_mut(&id) else {
            if state.unread.goes_on(id, entry.sequence, now) {
                return Applied::Unread;
            }
            state.ended.forget(id);
            self.actions.extend(late_start(None, id, entry).filter(|_| leads && world.holds(id.shard())));
            return Applied::Closed;
        };
        if entry.sequence <= open.known.last {
            // It was read before the feed brought it.
            return Applied::Ignored;
        }
        open.known.apply(entry, heard);
        let late = late_start(Some(&open.known), id, entry);
        self.actions.extend(late.filter(|_| leads && world.holds(id.shard())));
        Applied::Open(open)
    }

    /// Takes an entry that this release cannot read. `has_ended` says whether the driver knows that its run has ended.
    pub fn handle_unreadable(
        &mut self,
        (id, place): (RunId, SubjectKind),
        sequence: u64,
        now: Timestamp,
        has_ended: impl FnOnce() -> bool,
    ) -> Noted {
        let Some(state) = self.shards.get_mut(usize::from(id.shard().0)) else { return Noted::Ignored };
        if !state.phase.folds() || sequence <= state.applied {
            return Noted::Ignored;
        }
        state.applied = sequence;
        if let Some(open) = state.awaken(id) {
            open.known.pass_over(place, sequence);
            return Noted::Kept;
        }
        if state.ended.find(id).is_some() || has_ended() {
            return Noted::Stray;
        }
        state.unread.take(id, &place, sequence, now)
    }

    /// Removes a run that is open no more: it has ended, or its entries have left the log.
    pub fn close(&mut self, id: RunId, now: Timestamp) -> Option<OpenRun> {
        let state = self.shards.get_mut(usize::from(id.shard().0))?;
        state.awaken(id);
        let open = state.runs.remove(&id)?;
        state.half_carried.extend(HalfCarried::of(&open, now).map(|half| (id, half)));
        if let Some(timer) = open.timer {
            self.timers.remove(&(timer, id));
        }
        Some(open)
    }

    /// Keeps a run that has just ended for a while.
    pub fn keep_ended(&mut self, known: Known) {
        if let Some(state) = self.shards.get_mut(usize::from(known.run.id().shard().0)) {
            state.ended.keep(known);
        }
    }

    /// Forgets a run that has ended.
    pub fn forget_ended(&mut self, id: RunId) {
        if let Some(state) = self.shards.get_mut(usize::from(id.shard().0)) {
            state.ended.forget(id);
        }
    }

    /// This much of an open run is carried.
    pub fn handle_carried(&mut self, id: RunId, to: CarriedTo, now: Timestamp) {
        if let Some(state) = self.shards.get_mut(usize::from(id.shard().0)) {
            state.handle_carried(id, to, now);
        }
    }

    /// All of a run that has ended was carried, or it was erased.
    pub fn handle_carried_whole(&mut self, id: RunId) {
        if let Some(state) = self.shards.get_mut(usize::from(id.shard().0)) {
            state.half_carried.remove(&id);
        }
    }

    /// Forgets unreadable runs of a shard whose last entry was seen before a moment, because the log has dropped it.
    pub fn forget_unread_before(&mut self, shard: Shard, oldest: Timestamp) {
        if let Some(state) = self.shards.get_mut(usize::from(shard.0)) {
            state.unread.forget_before(oldest);
        }
    }

    // Effects.

    /// Checks the runs whose timers are due.
    pub fn handle_timeout(&mut self, now: Timestamp, world: &impl World) {
        while let Some((at, id)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            let state = self.shards.get_mut(usize::from(id.shard().0));
            if let Some(open) = state.and_then(|state| state.awaken(id)) {
                open.timer = None;
            }
            self.check_run(id, now, world);
        }
    }

    /// Checks all open runs of a shard that are not at rest.
    pub fn check_shard(&mut self, shard: Shard, now: Timestamp, world: &impl World) {
        let Some(state) = self.shard(shard) else { return };
        for id in state.runs.keys().copied().collect::<Vec<_>>() {
            self.check_run(id, now, world);
        }
    }

    /// Performs the outstanding effects of a run, and sets its timer.
    pub fn check_run(&mut self, id: RunId, now: Timestamp, world: &impl World) {
        let Some(state) = self.shards.get_mut(usize::from(id.shard().0)).filter(|state| state.phase.leads()) else {
            return;
        };
        let Some(open) = state.awaken(id) else { return };
        let run = &open.known.run;
        let mut effects = run.outstanding(now);
        let may_act = !effects.is_empty() && world.holds(id.shard());
        if may_act {
            let mut is_counted = true;
            effects.retain(|effect| match effect {
                Effect::Dispatch { call } => run.call(*call).is_some_and(|call| match world.take_slot(run, call) {
                    Slot::Free => true,
                    Slot::Full => false,
                    Slot::Uncounted => {
                        is_counted = false;
                        false
                    }
                }),
                _ => true,
            });
            if !is_counted {
                self.actions.push_back(Action::CountSlots { run: id });
                return;
            }
        }
        let deadline = run.next_deadline();
        let next = if effects.is_empty() {
            deadline
        } else {
            let repeat = now.after(EFFECT_REPEAT);
            Some(deadline.filter(|deadline| *deadline > now).map_or(repeat, |deadline| deadline.min(repeat)))
        };
        if open.timer != next {
            if let Some(old) = open.timer.take() {
                self.timers.remove(&(old, id));
            }
            open.timer = next;
            self.timers.extend(next.map(|at| (at, id)));
        }
        if !may_act {
            return;
        }
        for effect in effects {
            if self.in_flight.len() >= EFFECTS_MAX {
                self.deferred.insert(id);
                return;
            }
            self.perform(id, effect, world);
        }
    }

    fn perform(&mut self, id: RunId, effect: Effect, world: &impl World) {
        if self.in_flight.contains(&(id, effect)) {
            return;
        }
        let Some(known) = self.shards.get(usize::from(id.shard().0)).and_then(|state| state.run(id)) else { return };
        let mut denial = None;
        if let Effect::Dispatch { call } = effect
            && let Some(call) = known.run.call(call)
        {
            // The run's timer checks it again until the tool is resumed.
            if world.is_tool_paused(call.spec()) {
                return;
            }
            denial = world.denial(&known.run, call);
        }
        if let Some(action) = action(&known, effect, world.workers(), denial) {
            self.in_flight.insert((id, effect));
            self.actions.push_back(action);
        }
    }

    /// An append or a stop was performed, or failed: then the run's timer repeats it.
    pub fn handle_effect_done(&mut self, id: RunId, effect: Effect, now: Timestamp, world: &impl World) {
        self.in_flight.remove(&(id, effect));
        while self.in_flight.len() < EFFECTS_MAX
            && let Some(id) = self.deferred.pop_first()
        {
            self.check_run(id, now, world);
        }
    }

    // Workers.

    /// The verdict on a job of the pool. `None` while the shard's log was not read up to `needed`, the call's last
    /// output, or the shard is not ours.
    pub fn verdict(
        &self,
        question: &Question,
        pool: &PoolId,
        needed: u64,
        now: Timestamp,
        world: &impl World,
    ) -> Option<Verdict> {
        let shard = question.run.shard();
        let state = self.shard(shard).filter(|_| self.may_act(shard, world))?;
        if state.applied < needed.max(question.sequence) {
            return None;
        }
        verdict(state, question, pool, world.workers(), now)
    }

    /// What to do about a question that a tool of the pool asks its client; `None` if the shard is not ours.
    pub fn asking(&self, asks: &UserQuestion, pool: &PoolId, now: Timestamp, world: &impl World) -> Option<Asking> {
        let shard = asks.run.shard();
        let state = self.shard(shard).filter(|_| self.may_act(shard, world))?;
        Some(asking(state, asks, pool, now))
    }

    /// Packs a run if it is at rest, and returns whether it is. An entry, its timer or a check unpacks it.
    pub fn let_rest(&mut self, id: RunId, now: Timestamp) -> bool {
        let state = self.shards.get_mut(usize::from(id.shard().0)).filter(|state| state.phase.leads());
        state.is_some_and(|state| state.pack(id, now))
    }

    /// Checks a run that is not at rest, once a second: whether the call that made it has ended, and of its own calls
    /// whether their worker is lost, their pool has none, or their job is held by a worker that stored no start.
    pub fn check_workers(&mut self, id: RunId, now: Timestamp, world: &impl World) {
        let Some(state) = self.shards.get(usize::from(id.shard().0)).filter(|state| state.phase.leads()) else {
            return;
        };
        let Some(run) = state.runs.get(&id).map(|open| &open.known.run) else { return };
        let workers = world.workers();
        let (mut effects, mut lost) = (Vec::new(), Vec::new());
        effects.extend(is_orphan(state, run).then_some(Effect::CancelRun));
        if workers.are_known() {
            effects.extend(stranded(run, workers, now));
        }
        for call in run.calls() {
            if workers.are_known() {
                effects.extend(forsaken(call, workers, now));
                lost.extend(lost_attempt(call, workers, now));
            }
            self.unclaimed.note(run, call, now, world);
        }
        if effects.is_empty() && lost.is_empty() || !world.holds(id.shard()) {
            return;
        }
        for effect in effects {
            if self.in_flight.len() < EFFECTS_MAX {
                self.perform(id, effect, world);
            }
        }
        for attempt in lost {
            let before = self.handed_back.get(&(id, attempt));
            if before.is_none_or(|at| now.since(*at) >= HAND_BACK_REPEAT) {
                self.hand_back(id, attempt, now);
            }
        }
    }

    fn hand_back(&mut self, id: RunId, attempt: AttemptId, now: Timestamp) {
        let Some(known) = self.run(id) else { return };
        let Some(call) = known.run.call(attempt.call) else { return };
        let (CallState::Running(running), Route::Pool { pool, .. }) = (call.state(), &call.spec().route) else {
            return;
        };
        let Some((_, lease)) = &running.worker else { return };
        let job = JobLease { pool: pool.clone(), lease: lease.clone() };
        if matches!(call.verdict(REDELIVERED, now), Verdict::End { .. }) {
            // As a worker would that is given the job, because there may be none.
            self.actions.push_back(Action::EndLost { run: id, call: attempt.call, pool: job.pool.clone() });
        }
        self.actions.push_back(Action::HandBack { run: id, attempt, job });
        self.handed_back.insert((id, attempt), now);
    }

    /// A job could not be handed back, so the next check tries again.
    pub fn handle_not_handed_back(&mut self, id: RunId, attempt: AttemptId) {
        self.handed_back.remove(&(id, attempt));
    }

    /// All open runs were given to [`Self::check_workers`], which took so long.
    pub fn handle_all_checked(&mut self, took: Duration) {
        let shards = &self.shards;
        self.handed_back.retain(|(id, _), _| {
            shards.get(usize::from(id.shard().0)).is_some_and(|state| state.runs.contains_key(id))
        });
        let queues = self.unclaimed.round_is_over(took);
        if !queues.is_empty() {
            self.actions.push_back(Action::AskQueues(queues));
        }
    }

    /// The queues have answered: the last job of each that was given to a worker. Those that gave no answer are left
    /// out.
    pub fn handle_queues(&mut self, given: &BTreeMap<Queue, u64>, now: Timestamp, world: &impl World) {
        let shards = &self.shards;
        let state = |id: RunId| shards.get(usize::from(id.shard().0));
        let newest = |id: RunId, call| {
            let known = state(id)?.run(id)?;
            Call::unclaimed(known.run.call(call)?).map(|(job, _)| job)
        };
        let may_act = |id: RunId| state(id).is_some_and(|state| state.phase.leads()) && world.holds(id.shard());
        let back = self.unclaimed.take_back(given, now, newest, may_act);
        self.actions.extend(back.into_iter().map(|back| Action::TakeBack {
            run: back.run,
            call: back.call,
            pool: back.pool,
            job: back.job,
            was_paused: back.was_paused,
        }));
    }
}

/// A call may be cancelled just as a worker takes it up. That attempt does not count, so it is told to stop.
fn late_start(known: Option<&Known>, id: RunId, entry: &Entry) -> Option<Action> {
    let (attempt, pool) = entry.events.iter().find_map(|event| match event {
        Event::AttemptStarted { attempt, pool, .. } => Some((*attempt, pool)),
        _ => None,
    })?;
    let ends = entry.events.iter().any(|event| matches!(event, Event::AttemptEnded { .. }));
    let call = known.and_then(|known| known.run.call(attempt.call));
    let is_late = !ends && call.is_none_or(|call| call.outcome().is_some());
    is_late.then(|| Action::StopLate { run: id, attempt, pool: pool.clone() })
}
