//! Actions of the owner's driver, as data.

use bytes::Bytes;
use run::{
    AttemptId, CallError, CallIndex, CallState, DeadlineKind, Effect, Event, Partition, PoolId, Route, Run, RunId,
};

use crate::SubjectKind;
use crate::known::Known;
use crate::lost::{no_worker_event, without_worker};
use crate::parent::PARENT_ENDED;
use crate::world::Workers;

/// Something that the driver should do.
#[derive(Debug, Clone)]
pub enum Action {
    /// Append an event, then report the result with [`crate::Owner::handle_effect_done`].
    Append(Box<Append>),
    /// Tell the pool's workers to stop an attempt, then report with [`crate::Owner::handle_effect_done`].
    Stop { run: RunId, attempt: AttemptId, pool: PoolId },
    /// Tell the pool's workers to stop an attempt that started too late to count. Nothing is to be reported.
    StopLate { run: RunId, attempt: AttemptId, pool: PoolId },
    /// Hand a lost worker's job back to its queue. If there is no room to send this, report it with
    /// [`crate::Owner::handle_not_handed_back`].
    HandBack { run: RunId, attempt: AttemptId, job: JobLease },
    /// End a lost worker's call that is not tried again: read the call's last output, ask [`crate::Owner::verdict`] the
    /// question [`crate::Question::after_a_loss`], and append the end right behind that output.
    EndLost { run: RunId, call: CallIndex, pool: PoolId },
    /// Ask how far these queues were given out, then report with [`crate::Owner::handle_queues`].
    AskQueues(Vec<Queue>),
    /// Take a job back that was given to a worker which stored no start.
    TakeBack { run: RunId, call: CallIndex, pool: PoolId, job: u64, was_paused: bool },
    /// Count the calls that run, because a limit was set, then call [`crate::Owner::check_run`].
    CountSlots { run: RunId },
}

/// The queue of a pool in a partition.
pub type Queue = (PoolId, Partition);

/// An event to append for an effect.
#[derive(Debug, Clone)]
pub struct Append {
    pub run: RunId,
    pub effect: Effect,
    pub event: Event,
    /// The sequence of the last entry on the event's subject. If it is another one, nothing must be stored.
    pub expected: u64,
    /// The job to hand back once the event is stored. Few effects have one.
    pub hand_back: Option<Box<JobLease>>,
}

/// A job that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobLease {
    pub pool: PoolId,
    /// The address to which the job's acknowledgement would be sent.
    pub lease: Bytes,
}

/// The append or message that performs an effect. `None` if the effect no longer applies.
pub(crate) fn action(
    known: &Known,
    effect: Effect,
    workers: &impl Workers,
    denial: Option<CallError>,
) -> Option<Action> {
    if let Effect::Stop { attempt } = effect {
        let Route::Pool { pool, .. } = &known.run.call(attempt.call)?.spec().route else { return None };
        return Some(Action::Stop { run: known.run.id(), attempt, pool: pool.clone() });
    }
    append(known, effect, workers, denial).map(|append| Action::Append(Box::new(append)))
}

/// The append that performs an effect.
pub(crate) fn append(
    known: &Known,
    effect: Effect,
    workers: &impl Workers,
    denial: Option<CallError>,
) -> Option<Append> {
    let run = &known.run;
    let event = match (no_worker_event(run, effect, workers), denial, effect) {
        (Some(failed), _, _) => failed,
        (None, Some(error), Effect::Dispatch { call }) => Event::CallFailed { call, error },
        (None, _, Effect::Dispatch { call }) => {
            let Route::Pool { pool, .. } = &run.call(call)?.spec().route else { return None };
            Event::CallDispatched { call, pool: pool.clone() }
        }
        // A worker has come, or the effect is no append.
        (None, _, Effect::Refuse { .. } | Effect::Stop { .. }) => return None,
        (None, _, Effect::Decide { call }) => run.decide_by_default(call)?,
        (None, _, Effect::EndDelay { call }) => Event::CallDelayEnded { call },
        (None, _, Effect::Cancel { call }) => Event::CallCancelled { call },
        (None, _, Effect::Expire { call, deadline }) => Event::CallExpired { call, deadline },
        (None, _, Effect::Close) => Event::RunClosed,
        (None, _, Effect::CancelRun) => Event::RunCancelRequested { reason: PARENT_ENDED.to_owned() },
        (None, _, Effect::ExpireRun) => Event::RunExpired { without_worker: without_worker(run, workers) },
    };
    let expected = known.revision(&SubjectKind::of(std::slice::from_ref(&event))?);
    let hand_back = silent(run, &event).map(Box::new);
    Some(Append { run: run.id(), effect, event, expected, hand_back })
}

/// The job of an attempt that is given up because its worker is silent: another worker should get it.
fn silent(run: &Run, event: &Event) -> Option<JobLease> {
    let Event::CallExpired { call, deadline: DeadlineKind::Attempt(_) | DeadlineKind::Idle(_) } = event else {
        return None;
    };
    let call = run.call(*call)?;
    let Route::Pool { pool, .. } = &call.spec().route else { return None };
    match call.state() {
        CallState::Running(running) => {
            running.worker.as_ref().map(|(_, lease)| JobLease { pool: pool.clone(), lease: lease.clone() })
        }
        CallState::Accepted
        | CallState::WaitingForClient
        | CallState::AwaitingApproval
        | CallState::Delayed
        | CallState::Queued { .. }
        | CallState::Ended(_) => None,
    }
}
