//! Calls that wait for a worker that is not alive: calls in the queue of a pool without workers, and attempts of lost
//! workers.

use run::{
    AttemptId, Call, CallError, CallIndex, CallState, DeadlineKind, Effect, Event, Route, Run, Timestamp, WithoutWorker,
};

use crate::world::{WORKER_LOST, Workers};

/// Queued calls that should fail without a worker, and have had none for long enough to be sure.
pub(crate) fn stranded(run: &Run, workers: &impl Workers, now: Timestamp) -> impl Iterator<Item = Effect> {
    let gives_up = move |call: &&Call| {
        let is_sure = now.since(call.accepted_at()) >= WORKER_LOST;
        is_sure && call.spec().without_worker == WithoutWorker::Fail && no_worker(run, call, workers).is_some()
    };
    run.calls().iter().filter(gives_up).map(|call| Effect::Refuse { call: call.index() })
}

/// For a call that has ended while its tool may still run: if the worker that would report the tool's end is lost, the
/// tool is taken to be gone.
pub(crate) fn forsaken(call: &Call, workers: &impl Workers, now: Timestamp) -> Option<Effect> {
    let running = call.unsettled()?;
    let (worker, _) = running.worker.as_ref()?;
    let Route::Pool { pool, .. } = &call.spec().route else { return None };
    let is_lost = !workers.is_alive(pool, worker) && now.since(running.since) >= WORKER_LOST;
    let deadline = DeadlineKind::Attempt(running.attempt.number);
    is_lost.then_some(Effect::Expire { call: call.index(), deadline })
}

/// The attempt of a call that runs on a lost worker.
pub(crate) fn lost_attempt(call: &Call, workers: &impl Workers, now: Timestamp) -> Option<AttemptId> {
    let CallState::Running(running) = call.state() else { return None };
    let (Some((worker, _)), Route::Pool { pool, .. }) = (&running.worker, &call.spec().route) else { return None };
    let is_lost = now.since(running.since) >= WORKER_LOST && !workers.is_alive(pool, worker);
    is_lost.then_some(running.attempt)
}

/// The event that replaces an expiry or refusal if the reason is that no worker takes the call.
pub(crate) fn no_worker_event(run: &Run, effect: Effect, workers: &impl Workers) -> Option<Event> {
    let (Effect::Refuse { call } | Effect::Expire { call, deadline: DeadlineKind::Call | DeadlineKind::Queue }) =
        effect
    else {
        return None;
    };
    let error = no_worker(run, run.call(call)?, workers)?;
    Some(Event::CallFailed { call, error })
}

/// The calls of a run that wait for a worker while no living worker takes them.
pub(crate) fn without_worker(run: &Run, workers: &impl Workers) -> Vec<CallIndex> {
    run.calls().iter().filter(|call| no_worker(run, call, workers).is_some()).map(Call::index).collect()
}

fn no_worker(run: &Run, call: &Call, workers: &impl Workers) -> Option<CallError> {
    let is_queued = matches!(call.state(), CallState::Accepted | CallState::Queued { .. });
    match &call.spec().route {
        Route::Pool { pool, .. } if is_queued && workers.are_known() => {
            let is_stranded = workers.takers(call.spec(), run.tenant()) == 0;
            is_stranded.then(|| run::no_worker(&call.spec().tool, pool, &call.spec().required_hooks))
        }
        Route::Pool { .. } | Route::Client | Route::Refused(_) | Route::Answered(_) => None,
    }
}
