//! Stories of an owner: a log that is written by hand, a world that the story changes, and the actions that follow.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use run::{
    AskedBy, AttemptId, AttemptNumber, Call, CallError, CallIndex, CallSpec, ChunkIndex, Concurrency, DeadlineKind,
    Effect, Effects, Entry, ErrorKind, Event, Fields, NewQuestion, Nonce, Partition, Policy, PoolId, ResultUse, Route,
    Run, RunId, RunOpened, Shard, TenantId, Timestamp, Verdict, WithoutWorker, WorkerId,
};

use crate::*;

mod parent;
mod resting;
mod shards;
mod workers;

const START: Timestamp = Timestamp(1_700_000_000_000);
const CALL: CallIndex = CallIndex(0);
const SHARD: Shard = Shard(0);

pub(crate) fn run_id(number: u8) -> RunId {
    format!("run_00_0193a7b4c2d07e3f8a1b2c3d4e5f60{number:02x}").parse().expect("a run id")
}

/// This much is carried since just now.
fn carried(through: u64) -> CarriedTo {
    CarriedTo { through, settled: 0 }
}

fn pool() -> PoolId {
    "alpha".parse().expect("a pool")
}

fn worker(name: &str) -> WorkerId {
    name.parse().expect("a worker id")
}

fn spec(name: &str) -> CallSpec {
    let policy = Policy::of(Effects { idempotent: true, ..Effects::default() });
    CallSpec {
        id: name.parse().expect("a call id"),
        tool: "tool".parse().expect("a tool"),
        arguments: Bytes::from_static(b"{}"),
        metadata: BTreeMap::new(),
        route: Route::Pool { pool: pool(), policy, version: None },
        not_before: None,
        deadline: START.after(Duration::from_secs(600)),
        queue_deadline: None,
        without_worker: WithoutWorker::Wait,
        concurrency: Concurrency::Parallel,
        approval: None,
        result_use: ResultUse::default(),
        context: Fields::default(),
        files: Vec::new(),
        asked_by: None,
        required_hooks: Vec::new(),
        priority: None,
    }
}

/// A tool that must not be called twice.
fn once(name: &str) -> CallSpec {
    let policy = Policy::of(Effects { destructive: true, ..Effects::default() });
    CallSpec { route: Route::Pool { pool: pool(), policy, version: None }, ..spec(name) }
}

fn opening(calls: Vec<CallSpec>) -> Event {
    let calls = calls.into_iter().map(Arc::new).collect();
    Event::RunOpened(RunOpened { deadline: START.after(Duration::from_secs(3600)), calls, ..RunOpened::default() })
}

/// A run with so many calls that was opened.
pub(crate) fn opened(id: RunId, calls: usize) -> Known {
    let calls = (0..calls).map(|number| spec(&format!("call-{number}"))).collect();
    let mut known = Known::new(id);
    let entry = Entry { sequence: 1, at: START, not_after: None, hooked: false, events: vec![opening(calls)] };
    known.apply(&entry, &mut Vec::new());
    known
}

/// The world beside the log.
struct TestWorld {
    alive: RefCell<BTreeSet<WorkerId>>,
    known: Cell<bool>,
    holds: Cell<bool>,
    tool_is_paused: Cell<bool>,
    slots: Cell<Option<u32>>,
    denied: Cell<bool>,
}

impl Workers for TestWorld {
    fn are_known(&self) -> bool {
        self.known.get()
    }

    fn is_alive(&self, _: &PoolId, worker: &WorkerId) -> bool {
        self.alive.borrow().contains(worker)
    }

    fn takers(&self, _: &CallSpec, _: Option<&TenantId>) -> usize {
        self.alive.borrow().len()
    }

    fn keeps_unstarted(&self, _: &CallSpec, _: Option<&TenantId>) -> bool {
        false
    }
}

impl World for TestWorld {
    type Workers = Self;

    fn workers(&self) -> &Self {
        self
    }

    fn holds(&self, _: Shard) -> bool {
        self.holds.get()
    }

    fn take_slot(&self, _: &Run, _: &Call) -> Slot {
        match self.slots.get() {
            None => Slot::Free,
            Some(0) => Slot::Full,
            Some(left) => {
                self.slots.set(Some(left - 1));
                Slot::Free
            }
        }
    }

    fn denial(&self, _: &Run, _: &Call) -> Option<CallError> {
        self.denied.get().then(|| CallError::new(ErrorKind::NotPermitted, "not any more"))
    }

    fn is_tool_paused(&self, _: &CallSpec) -> bool {
        self.tool_is_paused.get()
    }

    fn is_pool_paused(&self, _: &PoolId) -> bool {
        false
    }
}

/// An owner that leads a shard, its log and its clock.
struct Story {
    owner: Owner,
    world: TestWorld,
    now: Timestamp,
    sequence: u64,
}

impl Story {
    /// An owner that leads an empty shard, in a world with one worker.
    fn begin() -> Self {
        let mut story = Self::without_shard();
        story.owner.handle_claimed(SHARD, 1);
        let taken = Takeover { claim: 1, ..Takeover::default() };
        assert!(story.owner.handle_taken(SHARD, taken, START) && story.owner.begin_to_lead(SHARD));
        story
    }

    fn without_shard() -> Self {
        let world = TestWorld {
            alive: RefCell::new([worker("w1")].into_iter().collect()),
            known: Cell::new(true),
            holds: Cell::new(true),
            tool_is_paused: Cell::new(false),
            slots: Cell::new(None),
            denied: Cell::new(false),
        };
        Self { owner: Owner::new(1), world, now: START, sequence: 0 }
    }

    /// The log brings an entry; the owner performs its actions.
    fn log(&mut self, run: RunId, events: Vec<Event>) -> Vec<Action> {
        self.sequence += 1;
        let entry = Entry { sequence: self.sequence, at: self.now, not_after: None, hooked: false, events };
        self.owner.handle_entry(run, &entry, &mut Vec::new(), self.now, &self.world);
        if self.owner.run(run).is_some_and(|known| known.run.status().is_final()) {
            let closed = self.owner.close(run, self.now).expect("it was open");
            self.owner.keep_ended(closed.known);
        }
        self.owner.check_run(run, self.now, &self.world);
        self.actions()
    }

    /// So much time passes, and timers that are due fire.
    fn wait(&mut self, seconds: u64) -> Vec<Action> {
        self.now = self.now.after(Duration::from_secs(seconds));
        self.owner.handle_timeout(self.now, &self.world);
        self.actions()
    }

    /// All calls of all runs are checked, as once a second.
    fn check_workers(&mut self) -> Vec<Action> {
        let ids: Vec<RunId> = self.owner.shards().iter().flat_map(ShardState::awake).map(|(id, _)| id).collect();
        for id in ids {
            self.owner.check_workers(id, self.now, &self.world);
            self.owner.let_rest(id, self.now);
        }
        self.owner.handle_all_checked(Duration::ZERO);
        self.actions()
    }

    /// The queue of the pool was given out up to a job.
    fn queue_was_given(&mut self, through: u64) -> Vec<Action> {
        self.owner.handle_queues(&[((pool(), Partition::FIRST), through)].into_iter().collect(), self.now, &self.world);
        self.actions()
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.owner.poll_action()).collect()
    }

    /// Everything that is in flight has ended.
    fn done(&mut self, actions: &[Action]) {
        for action in actions {
            if let Action::Append(append) = action {
                self.owner.handle_effect_done(append.run, append.effect, self.now, &self.world);
            }
        }
    }

    /// A run of one call whose job is in the log. Returns the job's sequence.
    fn queued(&mut self, run: RunId, call: CallSpec) -> u64 {
        self.log(run, vec![opening(vec![call]), Event::CallDispatched { call: CALL, pool: pool() }]);
        self.sequence
    }

    /// A run of one call that runs on the worker w1.
    fn running(&mut self, run: RunId, call: CallSpec) {
        self.queued(run, call);
        self.log(run, vec![started(1, "w1")]);
    }
}

fn attempt(number: u32) -> AttemptId {
    AttemptId { call: CALL, number: AttemptNumber(number), nonce: Nonce(u64::from(number)) }
}

fn started(number: u32, by: &str) -> Event {
    let lease = Bytes::from_static(b"lease");
    Event::AttemptStarted { attempt: attempt(number), pool: pool(), worker: worker(by), lease, from: ChunkIndex(0) }
}

/// The events that are to be appended.
fn appended(actions: &[Action]) -> Vec<&Event> {
    let event = |action: &'_ Action| matches!(action, Action::Append(_));
    let appends = actions.iter().filter(|action| event(action));
    appends.filter_map(|action| if let Action::Append(append) = action { Some(&append.event) } else { None }).collect()
}

#[test]
fn a_job_is_appended_once_and_again_only_after_a_second() {
    let mut story = Story::begin();
    let run = run_id(1);
    let actions = story.log(run, vec![opening(vec![spec("a"), spec("b")])]);
    let dispatched = |call: u16| Event::CallDispatched { call: CallIndex(call), pool: pool() };
    assert_eq!(appended(&actions), [&dispatched(0), &dispatched(1)]);
    assert!(story.wait(1).is_empty(), "they are in flight");
    story.done(&actions);
    assert_eq!(appended(&story.wait(1)).len(), 2, "the log has not shown them");
    story.log(run, vec![dispatched(0)]);
    story.log(run, vec![dispatched(1)]);
    let next = story.owner.poll_timeout();
    assert_eq!(next, Some(START.after(Duration::from_secs(600))), "nothing is left but the calls' deadline");
}

#[test]
fn no_more_than_256_effects_are_in_flight_and_the_rest_follows() {
    let mut story = Story::begin();
    let (first, second, third) = (run_id(1), run_id(2), run_id(3));
    let calls = || (0..100).map(|number| spec(&format!("call-{number}"))).collect::<Vec<_>>();
    let mut actions = story.log(first, vec![opening(calls())]);
    actions.extend(story.log(second, vec![opening(calls())]));
    actions.extend(story.log(third, vec![opening(calls())]));
    assert_eq!(actions.len(), 256);
    let dispatched =
        |call: usize| Event::CallDispatched { call: CallIndex(u16::try_from(call).unwrap()), pool: pool() };
    for call in 0..100 {
        story.log(first, vec![dispatched(call)]);
    }
    story.done(&actions[..100]);
    assert_eq!(story.actions().len(), 44);
}

#[test]
fn a_call_whose_deadline_has_passed_is_ended_behind_its_last_entry() {
    let mut story = Story::begin();
    story.queued(run_id(1), spec("a"));
    let actions = story.wait(600);
    let [Action::Append(append)] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(append.event, Event::CallExpired { call: CALL, deadline: DeadlineKind::Call });
    assert_eq!(append.expected, 0, "nothing was stored about the call but its job");
}

#[test]
fn an_owner_whose_lease_has_run_out_does_nothing() {
    let mut story = Story::begin();
    story.world.holds.set(false);
    assert!(story.log(run_id(1), vec![opening(vec![spec("a"), spec("b")])]).is_empty());
    assert!(story.check_workers().is_empty());
    story.world.holds.set(true);
    assert_eq!(story.wait(1).len(), 2, "its timers go on");
}

#[test]
fn a_call_of_a_paused_tool_is_dispatched_when_the_tool_is_resumed() {
    let mut story = Story::begin();
    story.world.tool_is_paused.set(true);
    assert!(story.log(run_id(1), vec![opening(vec![spec("a"), spec("b")])]).is_empty());
    assert!(story.wait(1).is_empty());
    story.world.tool_is_paused.set(false);
    assert_eq!(story.wait(1).len(), 2);
}

#[test]
fn a_call_without_a_free_slot_waits_until_its_run_is_checked_again() {
    let mut story = Story::begin();
    story.world.slots.set(Some(1));
    let run = run_id(1);
    assert_eq!(story.log(run, vec![opening(vec![spec("a"), spec("b")])]).len(), 1);
    story.world.slots.set(Some(0));
    story.log(run, vec![Event::CallDispatched { call: CALL, pool: pool() }]);
    assert!(story.wait(5).is_empty(), "no timer repeats it");
    story.world.slots.set(Some(1));
    story.owner.check_run(run, story.now, &story.world);
    assert_eq!(story.actions().len(), 1);
}

#[test]
fn a_call_that_its_caller_may_not_make_any_more_fails() {
    let mut story = Story::begin();
    story.world.denied.set(true);
    let actions = story.log(run_id(1), vec![opening(vec![spec("a"), spec("b")])]);
    assert!(matches!(appended(&actions)[..], [Event::CallFailed { .. }, Event::CallFailed { .. }]), "{actions:?}");
}

#[test]
fn an_attempt_that_starts_after_its_call_was_cancelled_is_told_to_stop() {
    let mut story = Story::begin();
    let run = run_id(1);
    story.queued(run, spec("a"));
    story.log(run, vec![Event::CallCancelRequested { call: CALL, reason: String::new() }]);
    let actions = story.log(run, vec![started(1, "w1")]);
    assert!(matches!(actions[..], [Action::StopLate { .. }]), "{actions:?}");
    // An attempt whose end is stored with its start has stopped already.
    let outcome = run::AttemptOutcome::Cancelled;
    let ended = Event::AttemptEnded { attempt: attempt(2), pool: pool(), chunks: 0, outcome };
    assert!(story.log(run, vec![started(2, "w1"), ended]).is_empty());
}

#[test]
fn what_is_overdue_in_a_run_of_a_dead_owner_is_ended_half_a_second_later() {
    let mut known = opened(run_id(1), 1);
    let dispatched = Event::CallDispatched { call: CALL, pool: pool() };
    known.apply(
        &Entry { sequence: 2, at: START, not_after: None, hooked: false, events: vec![dispatched] },
        &mut Vec::new(),
    );
    let world = Story::begin().world;
    let deadline = START.after(Duration::from_secs(600));
    assert!(overdue_ends(&known, &world, deadline).is_empty(), "its owner has its time");
    let ends = overdue_ends(&known, &world, deadline.after(OVERDUE));
    assert_eq!(
        ends.iter().map(|end| end.effect).collect::<Vec<_>>(),
        [Effect::Expire { call: CALL, deadline: DeadlineKind::Call }]
    );
}

#[test]
fn the_question_of_a_call_that_is_being_cancelled_stays_open_until_its_worker_stops_it() {
    let mut story = Story::begin();
    let run = run_id(1);
    story.running(run, spec("a"));
    let stopped = Some(Asking::Reply(UserAnswer::Open));
    let asks = |story: &Story, number: u16| {
        let asked_by = AskedBy { attempt: attempt(1), number };
        let question = NewQuestion { asked_by, arguments: Bytes::from_static(b"{}"), timeout: None };
        let asks = UserQuestion { run, sequence: story.sequence, question };
        story.owner.asking(&asks, &pool(), story.now, &story.world)
    };
    let Some(Asking::Append { event, .. }) = asks(&story, 1) else { panic!("it may ask") };
    story.log(run, vec![event]);
    assert_eq!(asks(&story, 1), stopped, "nobody answered yet");
    story.log(run, vec![Event::CallCancelRequested { call: CALL, reason: "enough".to_owned() }]);
    let known = &story.owner.run(run).expect("it is open").run;
    assert!(known.open_questions(CALL).next().is_none(), "the question has ended");
    assert_eq!(asks(&story, 1), stopped, "the tool is stopped, and does not fail for want of an answer");
    assert_eq!(asks(&story, 2), stopped, "nor is another question refused meanwhile");
}
