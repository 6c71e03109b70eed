//! Random histories: a plan of calls and a list of steps, played out as a log by workers that lag, crash, repeat
//! themselves and publish when nobody wants to hear them, and by owners that do what is outstanding late, twice or
//! never.
//!
//! Every list of steps is a history: a step picks from what is there, and does nothing where nothing is. So a failing
//! case shrinks to few steps.

mod garbage;
mod plan;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use toolyard_run::{
    Answer, AskedBy, AttemptId, AttemptNumber, AttemptOutcome, Call, CallError, CallIndex, CallSpec, CallState,
    ChunkIndex, Command, Content, Effect, Entry, ErrorKind, Event, HookAnswer, NewQuestion, Nonce, Opening, PoolId,
    Route, Run, StopStage, Timestamp, Verdict, WorkerId, limit, no_worker,
};

pub(crate) use garbage::garbage;
use plan::{Ask, End, Forgery, Pick, Plan, Step, Work, plan};
pub(crate) use plan::{ask, pick};

use crate::reader::log::attempt_of;
use crate::story::{
    START, cancel_requested, chunk, ended_as, error, output_as, pool, run_id, started_as, started_from, text,
};

/// The history of a run, as in its log.
#[derive(Clone)]
pub(crate) struct History {
    pub(crate) log: Vec<Entry>,
    /// When the log ends: not before its last entry.
    pub(crate) now: Timestamp,
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.log {
            write!(f, "\n  {} @{}", entry.sequence, entry.at.0)?;
            for event in &entry.events {
                write!(f, " {event:?}")?;
            }
        }
        write!(f, "\n  now {}", self.now.0)
    }
}

/// An entry of one event.
pub(crate) fn entry(sequence: u64, at: Timestamp, event: Event) -> Entry {
    Entry { sequence, at, not_after: None, hooked: false, events: vec![event] }
}

/// Histories of runs as they may come about. They need not have ended.
pub(crate) fn histories() -> impl Strategy<Value = History> {
    plan().prop_map(|plan| World::play(&plan))
}

/// Histories of runs that have ended, with no help but the owner's.
pub(crate) fn whole_histories() -> impl Strategy<Value = History> {
    histories().prop_map(|history| history.left_alone().expect("a run ends by itself"))
}

impl History {
    pub(crate) fn fold(&self) -> Run {
        fold(&self.log)
    }

    /// The first part of the history, at least its first entry.
    pub(crate) fn cut(&self, at: Pick) -> Self {
        let length = self.log.len().min(1 + at.among(self.log.len()));
        let log = self.log[..length].to_vec();
        let now = log.last().map_or(START, |last| last.at);
        Self { log, now }
    }

    /// Nobody does anything from here on, except that the owner does what is outstanding, now and at each deadline.
    /// Says how the run did not end where it does not.
    pub(crate) fn left_alone(mut self) -> Result<Self, String> {
        let mut run = self.fold();
        let rounds_max = 2 + 4 * run.calls().len();
        for _ in 0..rounds_max {
            let events: Vec<Event> =
                run.outstanding(self.now).into_iter().filter_map(|effect| performed(&run, effect)).collect();
            for event in events {
                self.store(vec![event]);
                run.apply(self.log.last().expect("just stored"), &mut Vec::new());
            }
            match run.next_deadline() {
                None => return Ok(self),
                Some(next) => self.now = self.now.max(next),
            }
        }
        Err(format!("after {rounds_max} rounds the run waits for {:?}: {:#?}", run.next_deadline(), run.calls()))
    }

    pub(crate) fn store(&mut self, events: Vec<Event>) {
        let sequence = self.log.last().map_or(1, |last| last.sequence.saturating_add(10));
        self.log.push(Entry { sequence, at: self.now, not_after: None, hooked: false, events });
    }
}

pub(crate) fn fold(log: &[Entry]) -> Run {
    let mut run = Run::new(run_id());
    for entry in log {
        run.apply(entry, &mut Vec::new());
    }
    run
}

/// The event that an effect appends; none for one that only sends word to a pool.
pub(crate) fn performed(run: &Run, effect: Effect) -> Option<Event> {
    match effect {
        Effect::Dispatch { call } => match &run.call(call)?.spec().route {
            Route::Pool { pool, .. } => Some(Event::CallDispatched { call, pool: pool.clone() }),
            Route::Client | Route::Refused(_) | Route::Answered(_) => None,
        },
        Effect::Stop { .. } | Effect::Refuse { .. } | Effect::CancelRun => None,
        Effect::Decide { call } => run.decide_by_default(call),
        Effect::EndDelay { call } => Some(Event::CallDelayEnded { call }),
        Effect::Cancel { call } => Some(Event::CallCancelled { call }),
        Effect::Expire { call, deadline } => Some(Event::CallExpired { call, deadline }),
        Effect::Close => Some(Event::RunClosed),
        Effect::ExpireRun => Some(Event::RunExpired { without_worker: Vec::new() }),
    }
}

/// Old executions have little left to say.
fn recent(executions: &mut [Execution]) -> &mut [Execution] {
    let older = executions.len().saturating_sub(4);
    &mut executions[older..]
}

fn running(call: &Call) -> Option<AttemptId> {
    match call.state() {
        CallState::Running(running) => Some(running.attempt),
        CallState::Accepted
        | CallState::AwaitingApproval
        | CallState::Delayed
        | CallState::WaitingForClient
        | CallState::Queued { .. }
        | CallState::Ended(_) => None,
    }
}

struct World {
    history: History,
    run: Run,
    /// How often each call's job was delivered, as the broker counts.
    deliveries: Vec<u32>,
    executions: Vec<Execution>,
    /// Appended by somebody, but not stored yet.
    in_flight: Vec<Event>,
    /// Further calls that somebody may append.
    spare: Vec<Arc<CallSpec>>,
}

/// A worker that executes a call. It does not know whether its attempt counts.
struct Execution {
    attempt: AttemptId,
    pool: PoolId,
    /// The chunk with which it began, and the one with which it would go on.
    from: u32,
    chunks: u32,
    published: Vec<Event>,
    to_publish: Vec<Event>,
    /// Published when all else is stored.
    end: Option<Event>,
    start_comes_first: bool,
}

impl World {
    fn play(plan: &Plan) -> History {
        let history = History { log: Vec::new(), now: START };
        let mut world = Self {
            history,
            run: Run::new(run_id()),
            deliveries: Vec::new(),
            executions: Vec::new(),
            in_flight: Vec::new(),
            spare: plan.spare.clone(),
        };
        let opening = Opening {
            calls: plan.calls.clone(),
            deadline: START.after(plan.life),
            open: plan.open,
            fail_fast: plan.fail_fast,
            rules: plan.rules.clone(),
            ..Opening::default()
        };
        world.store(Run::open(opening, START).expect("the plan is within the limits"));
        for step in &plan.steps {
            world.step(step);
        }
        world.history
    }

    fn store(&mut self, events: Vec<Event>) {
        self.history.store(events);
        self.run.apply(self.history.log.last().expect("just stored"), &mut Vec::new());
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Wait(time) => self.history.now = self.history.now.after(*time),
            Step::Deliver { call, lag, reset, work } => self.deliver(*call, *lag, *reset, work),
            Step::Publish { by, order, together } => self.publish(*by, *order, *together),
            Step::PublishAgain { by, chunks } => self.publish_again(*by, chunks.clone()),
            Step::Crash { worker } => {
                if let Some(execution) = worker.of_mut(&mut self.executions) {
                    execution.to_publish.clear();
                    execution.end = None;
                }
            }
            Step::Tend => {
                for effect in self.run.outstanding(self.history.now) {
                    self.act(effect, 1, false);
                }
            }
            Step::Act { effect, times, late } => {
                let effects = self.run.outstanding(self.history.now);
                if let Some(effect) = effect.of(&effects) {
                    self.act(*effect, *times, *late);
                }
            }
            Step::Land { which } => {
                if !self.in_flight.is_empty() {
                    let event = self.in_flight.remove(which.among(self.in_flight.len()));
                    self.store(vec![event]);
                }
            }
            Step::Stopping { by, asked, stage } => self.stopping(*by, *asked, *stage),
            Step::NobodyLives { call } => {
                let Some(call) = call.of(self.run.calls()) else { return };
                let Route::Pool { pool, .. } = &call.spec().route else { return };
                let event = Event::CallFailed { call: call.index(), error: no_worker(&call.spec().tool, pool, &[]) };
                self.store(vec![event]);
            }
            Step::Question { by, number, lag, answered } => self.question((*by, *number), *lag, *answered),
            Step::Ask(ask, times) => self.ask(ask, *times),
            Step::Forge(forgery) => self.forge(forgery),
        }
    }

    /// A worker is handed a job, learns from an owner (who may lag behind the log) what to do, and does it.
    fn deliver(&mut self, call: Pick, lag: usize, reset: bool, work: &Work) {
        let Some(call) = call.of(self.run.calls()).map(|call| call.index()) else { return };
        self.deliveries.resize(self.run.calls().len(), 0);
        let is_queued = |entry: &Entry| {
            entry
                .events
                .iter()
                .any(|event| matches!(event, Event::CallDispatched { call: queued, .. } if *queued == call))
        };
        if !self.history.log.iter().any(is_queued) {
            return;
        }
        let delivered = &mut self.deliveries[call.as_usize()];
        *delivered = if reset { 1 } else { *delivered + 1 };
        let delivered = *delivered;
        let (seen, unseen) = self.history.log.split_at(self.history.log.len().saturating_sub(lag));
        let now = self.history.now;
        let verdict = match lag {
            0 => self.run.call(call).map(|call| call.verdict(delivered, now)),
            _ => fold(seen).call(call).map(|call| call.verdict(delivered, now)),
        };
        let spec = Arc::clone(self.run.call(call).expect("picked from the run").spec());
        let Route::Pool { pool, policy, .. } = &spec.route else { return };
        // What is stored behind the last output that the owner saw is not stored where there is more.
        let says_of = |event: &Event| attempt_of(event).is_some_and(|attempt| attempt.call == call);
        let is_behind = unseen.iter().flat_map(|entry| &entry.events).any(says_of);
        match verdict {
            Some(Verdict::Go { number, from, .. }) if from.0 == 0 || !is_behind => {
                let nonce = Nonce(self.executions.len() as u64);
                let attempt = AttemptId { call, number, nonce };
                let mut execution = Execution::of(attempt, pool, work, (from, !policy.repeatable));
                if from.0 > 0 {
                    let start = execution.to_publish.remove(0);
                    execution.published.push(start.clone());
                    self.store(vec![start]);
                }
                self.executions.push(execution);
            }
            Some(Verdict::End { attempt, outcome }) if !is_behind => {
                self.store(vec![ended_as(attempt, pool.as_str(), 0, outcome)]);
            }
            Some(Verdict::Go { .. } | Verdict::End { .. } | Verdict::Drop | Verdict::Leave) | None => {}
        }
    }

    /// Stores the next messages of a worker in one entry, in an order that its connection chose.
    fn publish(&mut self, by: Pick, order: Pick, together: usize) {
        let Some(execution) = by.of_mut(recent(&mut self.executions)) else { return };
        let mut events = Vec::new();
        for _ in 0..=together {
            let first_only = execution.start_comes_first && execution.published.is_empty();
            if execution.to_publish.is_empty() {
                events.extend(execution.end.take());
            } else {
                let next = if first_only { 0 } else { order.among(execution.to_publish.len()) };
                let event = execution.to_publish.remove(next);
                execution.published.push(event.clone());
                events.push(event);
            }
        }
        if !events.is_empty() {
            self.store(events);
        }
    }

    /// A publisher that was not told that its message was stored sends it again, perhaps with its neighbours.
    fn publish_again(&mut self, by: Pick, chunks: Range<u32>) {
        let Some(execution) = by.of(&self.executions) else { return };
        if execution.published.is_empty() {
            return;
        }
        let place = |chunk: u32| chunk.saturating_add(execution.from).min(execution.chunks);
        let chunks = place(chunks.start)..place(chunks.end);
        let again = output_as(execution.attempt, execution.pool.as_str(), chunks);
        self.store(vec![again]);
    }

    fn act(&mut self, effect: Effect, times: usize, late: bool) {
        if let Effect::Stop { attempt } = effect {
            for execution in self.executions.iter_mut().filter(|execution| execution.attempt == attempt) {
                execution.stop();
            }
        }
        let Some(event) = performed(&self.run, effect) else { return };
        for _ in 0..times {
            if late {
                self.in_flight.push(event.clone());
            } else {
                self.store(vec![event.clone()]);
            }
        }
    }

    fn stopping(&mut self, by: Pick, asked: bool, stage: StopStage) {
        let running: Vec<AttemptId> = self.run.calls().iter().filter_map(running).collect();
        let anybody: Vec<AttemptId> = self.executions.iter().map(|execution| execution.attempt).collect();
        let Some(attempt) = by.of(&running).or_else(|| by.of(&anybody)).copied() else { return };
        let Some(Route::Pool { pool, .. }) = self.run.call(attempt.call).map(|call| call.spec().route.clone()) else {
            return;
        };
        if asked {
            self.store(vec![cancel_requested(attempt.call.0)]);
        }
        self.store(vec![Event::AttemptStopping { attempt, pool, stage }]);
    }

    fn question(&mut self, (by, number): (Pick, u16), lag: usize, answered: bool) {
        let Some(Execution { attempt, pool, .. }) = by.of_mut(recent(&mut self.executions)) else { return };
        let asked_by = AskedBy { attempt: *attempt, number };
        let question = NewQuestion { asked_by, arguments: Bytes::from_static(b"{}"), timeout: None };
        let (pool, now) = (pool.clone(), self.history.now);
        let seen = &self.history.log[..self.history.log.len().saturating_sub(lag)];
        let owner = fold(seen);
        // A question that another one on the run's subject overtook is not stored.
        if owner.revision() == self.run.revision()
            && let Ok(Some(event)) = owner.ask(&pool, &question, now)
        {
            self.store(vec![event]);
            let question = self.run.calls().last().map_or(CallIndex(0), Call::index);
            if answered {
                self.store(vec![Event::ClientAnswered { call: question, answer: Ok(text("yes")) }]);
            }
        }
    }

    /// Asks something of the run. What follows is stored at once, and perhaps again later: somebody asked the same.
    fn ask(&mut self, ask: &Ask, times: usize) {
        let Some(command) = ask.command(&self.run, &self.spare) else { return };
        let appends = matches!(command, Command::AppendCalls { .. });
        let Ok(events) = self.run.decide(command, self.history.now) else { return };
        for event in events {
            // A second append of the same calls would not be stored: it expects to be the first.
            if times > 1 && !appends {
                self.in_flight.push(event.clone());
            }
            self.store(vec![event]);
        }
    }

    fn forge(&mut self, forgery: &Forgery) {
        let known = |by: Pick| by.of(&self.executions).filter(|execution| !execution.published.is_empty());
        let nobody =
            |call, number| AttemptId { call: CallIndex(call), number: AttemptNumber(number), nonce: Nonce(666) };
        let done = || AttemptOutcome::Completed(text("forged").into());
        let events = match *forgery {
            Forgery::OtherPool { call, number } => {
                let (attempt, other) = (nobody(call, number), "omega");
                vec![started_as(attempt, other), output_as(attempt, other, 0..2), ended_as(attempt, other, 2, done())]
            }
            Forgery::UnknownCall { number } => {
                let attempt = nobody(1000, number);
                let call = attempt.call;
                vec![
                    output_as(attempt, "alpha", 0..2),
                    ended_as(attempt, "alpha", 2, done()),
                    Event::CallDispatched { call, pool: pool("alpha") },
                    Event::CallCancelled { call },
                    Event::ClientAnswered { call, answer: Ok(text("forged")) },
                ]
            }
            Forgery::HugeChunk { by, beyond, count } => {
                let Some(Execution { attempt, pool, .. }) = known(by) else { return };
                let first = ChunkIndex(limit::CHUNKS_PER_ATTEMPT_MAX.saturating_add(beyond));
                let chunks = (0..count).map(|index| chunk(*attempt, index)).collect();
                vec![Event::Output { attempt: *attempt, pool: pool.clone(), first, chunks }]
            }
        };
        self.store(events);
    }
}

impl Execution {
    fn of(attempt: AttemptId, pool: &PoolId, work: &Work, (from, start_comes_first): (ChunkIndex, bool)) -> Self {
        let mut to_publish = vec![started_from(attempt, pool.as_str(), from.0)];
        let mut chunks = from.0;
        for size in &work.sizes {
            to_publish.push(output_as(attempt, pool.as_str(), chunks..chunks + size));
            chunks += size;
        }
        let failed = |kind| AttemptOutcome::Failed(error(kind));
        let (claimed, outcome) = match work.end {
            End::Silence => (0, None),
            End::Completed => (chunks, Some(AttemptOutcome::Completed(text("done").into()))),
            End::Incomplete => (chunks + 1, Some(AttemptOutcome::Completed(text("done").into()))),
            End::Failed => (chunks, Some(failed(ErrorKind::ToolFailed))),
            End::FailedForNow => (chunks, Some(AttemptOutcome::Failed(error(ErrorKind::AttemptTimeout).retryable()))),
            End::Returned => (chunks, Some(AttemptOutcome::Returned)),
        };
        let end = outcome.map(|outcome| ended_as(attempt, pool.as_str(), claimed, outcome));
        let from = from.0;
        Self { attempt, pool: pool.clone(), from, chunks, published: Vec::new(), to_publish, end, start_comes_first }
    }

    /// The worker received a stop request, and stops.
    fn stop(&mut self) {
        self.to_publish.clear();
        self.end = Some(ended_as(self.attempt, self.pool.as_str(), self.chunks, AttemptOutcome::Cancelled));
    }
}
