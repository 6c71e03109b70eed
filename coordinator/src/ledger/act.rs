//! What the owner of a shard does for its runs: effects, derived from state and repeated until the log shows them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proto::history;
use proto::names::WORKER_LOST;
use proto::subject::Place;
use run::{
    AttemptId, CallError, CallState, DeadlineKind, Effect, Event, PoolId, Route, Run, RunId, Timestamp, Verdict,
};
use tokio::time::Instant;

use super::answer::AGAIN;
use super::{Keeper, places};
use crate::audit;
use crate::callers::Callers;
use crate::gate;
use crate::known::Known;
use crate::metrics;
use crate::nats::journal::{AppendError, Journal, NOTHING};
use crate::registry::Registry;
use crate::stranded;

/// How long an effect has to show in the log before it is performed again.
const EFFECT_REPEAT: Duration = Duration::from_secs(1);
/// How long the next worker has to store its start before a lost one's job is handed back again: the next may be lost too.
const HAND_BACK_REPEAT: Duration = Duration::from_secs(10);
/// Effects under way at once.
const EFFECTS_MAX: usize = 256;
/// Words to workers under way at once; they wait only while the connection is stuck.
const WORDS_MAX: usize = 1024;

impl Keeper {
    /// Does what is outstanding for a run, and sets its timer.
    pub(super) fn look_at(&mut self, id: RunId) {
        // What runs is not known before all that is ours is read.
        let knows_all = self.limited && !self.is_taking_over();
        let Some(slice) = self.slices.get_mut(usize::from(id.shard().0)) else { return };
        let gives_places = self.limited && slice.phase.leads() && self.rim.owned.borrow().holds(id.shard());
        let Some(open) = slice.runs.get_mut(&id) else { return };
        let now = proto::now();
        let mut effects = open.known.run.outstanding(now);
        if !self.limited && places::are_wanted(&effects, &self.rim) {
            self.count_running();
            return self.look_at(id);
        }
        if gives_places {
            places::leave(&mut effects, &open.known.run, &self.rim, knows_all);
        }
        let deadline = open.known.run.next_deadline();
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
        if effects.is_empty() || !self.may_act(id.shard()) {
            return;
        }
        for effect in effects {
            if self.under_way.len() >= EFFECTS_MAX {
                self.crowded_out.insert(id);
                return;
            }
            self.perform(id, effect);
        }
    }

    pub(super) fn look_at_due_runs(&mut self) {
        let now = proto::now();
        while let Some((at, id)) = self.timers.first().copied() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            let slice = self.slices.get_mut(usize::from(id.shard().0));
            if let Some(open) = slice.and_then(|slice| slice.runs.get_mut(&id)) {
                open.timer = None;
            }
            self.look_at(id);
        }
    }

    fn perform(&mut self, id: RunId, effect: Effect) {
        let registry = Arc::clone(&self.rim.registry.borrow());
        if self.is_held(id, effect, &registry) {
            return;
        }
        let Some(act) = self.open(id).and_then(|open| act(&open.known, effect, &registry, &self.rim.callers)) else {
            return;
        };
        if !self.under_way.insert((id, effect)) {
            return;
        }
        let (journal, signals) = (self.rim.journal.clone(), self.rim.signals.clone());
        let decided = match effect {
            Effect::Decide { call } => self.open(id).map(|open| (Arc::clone(&open.known.run), call)),
            _ => None,
        };
        self.effects.spawn(async move {
            let result = match act {
                Act::Stop { pool, attempt } => {
                    signals.stop(&pool, id, attempt).await;
                    Ok(())
                }
                Act::Append { event, job, expected, hand_back } => {
                    let appended = append(&journal, id, event, job.as_deref(), expected).await;
                    if let (Ok(_), Some(job)) = (&appended, hand_back) {
                        signals.hand_back(&job.0, &job.1).await;
                    }
                    if let (Ok(_), Some((run, call))) = (&appended, decided) {
                        gate::note_default(&run, call);
                    }
                    appended.map(|_| ())
                }
            };
            (id, effect, result)
        });
    }

    /// A call of a paused tool: it is looked at again until somebody resumes it.
    fn is_held(&self, id: RunId, effect: Effect, registry: &Registry) -> bool {
        let Effect::Dispatch { call } = effect else { return false };
        let call = self.open(id).and_then(|open| open.known.run.call(call));
        call.is_some_and(|call| self.rim.paused.borrow().holds(registry.real_name(&call.spec().tool)))
    }

    pub(super) fn effect_done(&mut self, (id, effect, result): EffectDone) {
        self.under_way.remove(&(id, effect));
        match result {
            // The log has a later entry than the one expected; the feed will bring it.
            Ok(()) | Err(EffectError::Append(AppendError::Conflict)) => {}
            Err(EffectError::Append(error)) => {
                tracing::warn!(run.id = %id, ?effect, %error, "an effect is put off");
            }
            Err(EffectError::Gone) => self.forget_gone(id),
        }
        while self.under_way.len() < EFFECTS_MAX
            && let Some(id) = self.crowded_out.pop_first()
        {
            self.look_at(id);
        }
    }

    /// Forgets which jobs of runs were handed back that are open no more.
    pub(super) fn sweep_handed_back(&mut self) {
        let slices = &self.slices;
        self.handed_back.retain(|(id, _), _| {
            slices.get(usize::from(id.shard().0)).is_some_and(|slice| slice.runs.contains_key(id))
        });
    }

    /// Ends the calls that nobody will run, and hands back the jobs of workers that are lost.
    pub(super) fn see_to(&mut self, Lost { forsaken, attempts }: Lost, now: Timestamp) {
        for (id, effect) in forsaken {
            if self.may_act(id.shard()) && self.under_way.len() < EFFECTS_MAX {
                self.perform(id, effect);
            }
        }
        for (id, attempt) in attempts {
            let handed_back = self.handed_back.get(&(id, attempt));
            let is_due = handed_back.is_none_or(|at| at.elapsed() >= HAND_BACK_REPEAT);
            if is_due && self.may_act(id.shard()) {
                self.hand_back(id, attempt, now);
            }
        }
    }

    fn hand_back(&mut self, id: RunId, attempt: AttemptId, now: Timestamp) {
        let Some(call) = self.open(id).and_then(|open| open.known.run.call(attempt.call)) else { return };
        let (CallState::Running(running), Route::Pool { pool, .. }) = (call.state(), &call.spec().route) else {
            return;
        };
        let Some((worker, lease)) = &running.worker else { return };
        tracing::warn!(run.id = %id, call.id = %call.spec().id, worker.id = %worker, "handing back a lost worker's call");
        let ends = matches!(call.verdict(AGAIN, now), Verdict::End { .. });
        let (signals, lease, pool) = (self.rim.signals.clone(), lease.clone(), pool.clone());
        if ends {
            self.end_lost(id, attempt.call, pool.clone());
        }
        let of = pool.clone();
        if self.say(async move { signals.hand_back(&of, &lease).await }) {
            self.handed_back.insert((id, attempt), Instant::now());
            metrics::handed_back(&pool);
        }
    }

    /// Says something to workers, unless too much is being said.
    pub(super) fn say(&mut self, word: impl Future<Output = ()> + Send + 'static) -> bool {
        let room = self.words.len() < WORDS_MAX;
        if room {
            self.words.spawn(word);
        }
        room
    }
}

/// Calls and attempts without a living worker: calls to be ended, and attempts whose jobs are to be handed back.
#[derive(Debug, Default)]
pub(super) struct Lost {
    forsaken: Vec<(RunId, Effect)>,
    attempts: Vec<(RunId, AttemptId)>,
}

impl Lost {
    pub(super) fn note(&mut self, run: &Run, registry: &Registry, now: Timestamp) {
        if !registry.settled {
            return;
        }
        let id = run.id();
        let stranded = stranded::stranded(run, registry, now).into_iter();
        self.forsaken.extend(stranded.map(|call| (id, Effect::Refuse { call })));
        for call in run.calls() {
            self.forsaken.extend(stranded::forsaken(call, registry, now).map(|effect| (id, effect)));
            let CallState::Running(running) = call.state() else { continue };
            let (Some((worker, _)), Route::Pool { pool, .. }) = (&running.worker, &call.spec().route) else { continue };
            if now.since(running.since) >= WORKER_LOST && !registry.is_alive(pool, worker) {
                self.attempts.push((id, running.attempt));
            }
        }
    }
}

/// An effect that was performed, or not.
pub(super) type EffectDone = (RunId, Effect, Result<(), EffectError>);

/// Why an effect was not performed.
#[derive(Debug)]
pub(super) enum EffectError {
    Append(AppendError),
    /// The entry that it must follow has left the log, so it can never be appended.
    Gone,
}

/// Appends an event of an effect. A conflict is looked into: it is rare, and it never ends if the expected entry is gone.
async fn append(
    journal: &Journal,
    id: RunId,
    event: Event,
    job: Option<&run::CallSpec>,
    expected: u64,
) -> Result<u64, EffectError> {
    match journal.append(id, &[event], job, expected).await {
        Ok(sequence) => Ok(sequence),
        Err(AppendError::Conflict) if expected > NOTHING => match journal.is_gone(id.shard(), expected).await {
            Ok(true) => Err(EffectError::Gone),
            Ok(false) => Err(EffectError::Append(AppendError::Conflict)),
            Err(error) => Err(EffectError::Append(AppendError::Unavailable(error.to_string()))),
        },
        Err(error) => Err(EffectError::Append(error)),
    }
}

pub(super) enum Act {
    Stop { pool: PoolId, attempt: AttemptId },
    Append { event: Event, job: Option<Arc<run::CallSpec>>, expected: u64, hand_back: Option<HandBack> },
}

/// Where the acknowledgement of a job would go.
pub(super) type Lease = Bytes;

/// A job that is to be handed back, and the pool whose it is. Few effects have one.
type HandBack = Box<(PoolId, Lease)>;

/// An effect as something to do.
pub(super) fn act(known: &Known, effect: Effect, registry: &Registry, callers: &Callers) -> Option<Act> {
    let run = &known.run;
    let mut job = None;
    let refusal = stranded::refusal(run, effect, registry);
    let denied = denied(run, effect, registry, callers);
    let event = match effect {
        Effect::Expire { .. } | Effect::Refuse { .. } if refusal.is_some() => refusal?,
        Effect::Refuse { .. } => return None,
        Effect::Dispatch { call } if denied.is_some() => Event::CallFailed { call, error: denied? },
        Effect::Dispatch { call } => {
            let known = run.call(call)?;
            let Route::Pool { pool, .. } = &known.spec().route else { return None };
            job = Some(history::job(run, known));
            Event::CallDispatched { call, pool: pool.clone() }
        }
        Effect::Stop { attempt } => {
            let Route::Pool { pool, .. } = &run.call(attempt.call)?.spec().route else { return None };
            return Some(Act::Stop { pool: pool.clone(), attempt });
        }
        Effect::Decide { call } => run.decide_by_default(call)?,
        Effect::Cancel { call } => Event::CallCancelled { call },
        Effect::Expire { call, deadline } => Event::CallExpired { call, deadline },
        Effect::Close => Event::RunClosed,
        Effect::ExpireRun => Event::RunExpired { without_worker: stranded::without_worker(run, registry) },
    };
    let place = Place::of(std::slice::from_ref(&event))?;
    let hand_back = silent(run, &event);
    Some(Act::Append { event, job, expected: known.revision(&place), hand_back })
}

/// What its caller may do may have changed since a call was accepted.
fn denied(run: &Run, effect: Effect, registry: &Registry, callers: &Callers) -> Option<CallError> {
    let Effect::Dispatch { call } = effect else { return None };
    let spec = run.call(call)?.spec();
    let listed = registry.catalog_of(run.tenant()).find(&spec.tool);
    let entry = match &spec.route {
        Route::Pool { pool, .. } => listed.map(|entry| entry.of(pool)),
        Route::Client | Route::Refused(_) => listed,
    };
    let closed = || match &spec.route {
        Route::Pool { pool, .. } => registry.views.keeps_from(pool, &spec.tool, run.tenant()),
        Route::Client | Route::Refused(_) => None,
    };
    let error = callers.keeps_from(run, &spec.tool, entry).or_else(closed)?;
    audit::call_refused(run, spec);
    Some(error)
}

/// The job of an attempt that is given up because its worker is silent: another worker shall have it.
fn silent(run: &Run, event: &Event) -> Option<HandBack> {
    let Event::CallExpired { call, deadline: DeadlineKind::Attempt(_) | DeadlineKind::Idle(_) } = event else {
        return None;
    };
    let call = run.call(*call)?;
    let Route::Pool { pool, .. } = &call.spec().route else { return None };
    match call.state() {
        CallState::Running(running) => {
            running.worker.as_ref().map(|(_, lease)| Box::new((pool.clone(), lease.clone())))
        }
        CallState::Accepted
        | CallState::WaitingForClient
        | CallState::AwaitingApproval
        | CallState::Queued { .. }
        | CallState::Ended(_) => None,
    }
}
