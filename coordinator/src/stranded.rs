//! Calls that wait for a worker that does not live: in the queue of a pool without one, or for the word of one that is lost.

use proto::names::WORKER_LOST;
use run::{Call, CallError, CallIndex, CallState, DeadlineKind, Effect, Event, Route, Run, Timestamp, WithoutWorker};

use crate::registry::Registry;

/// The calls of a run that shall not wait for a worker, and have had none for as long as it takes to be sure.
pub(crate) fn stranded(run: &Run, registry: &Registry, now: Timestamp) -> Vec<CallIndex> {
    let gives_up = |call: &&Call| {
        let is_sure = now.since(call.accepted_at()) >= WORKER_LOST;
        is_sure && call.spec().without_worker == WithoutWorker::Fail && no_worker(run, call, registry).is_some()
    };
    run.calls().iter().filter(gives_up).map(Call::index).collect()
}

/// A call has ended, and the worker that would report that its tool is gone is lost: then the tool is taken to be gone.
pub(crate) fn forsaken(call: &Call, registry: &Registry, now: Timestamp) -> Option<Effect> {
    let running = call.unsettled()?;
    let (worker, _) = running.worker.as_ref()?;
    let Route::Pool { pool, .. } = &call.spec().route else { return None };
    let is_lost = !registry.is_alive(pool, worker) && now.since(running.since) >= WORKER_LOST;
    let deadline = DeadlineKind::Attempt(running.attempt.number);
    is_lost.then_some(Effect::Expire { call: call.index(), deadline })
}

/// What to append where a call is refused for want of a worker, or expires for it: then the reason is the want.
pub(crate) fn refusal(run: &Run, effect: Effect, registry: &Registry) -> Option<Event> {
    let (Effect::Refuse { call } | Effect::Expire { call, deadline: DeadlineKind::Call | DeadlineKind::Queue }) =
        effect
    else {
        return None;
    };
    let error = no_worker(run, run.call(call)?, registry)?;
    Some(Event::CallFailed { call, error })
}

/// The calls of a run that wait for a worker while none of those that live may run them.
pub(crate) fn without_worker(run: &Run, registry: &Registry) -> Vec<CallIndex> {
    run.calls().iter().filter(|call| no_worker(run, call, registry).is_some()).map(Call::index).collect()
}

fn no_worker(run: &Run, call: &Call, registry: &Registry) -> Option<CallError> {
    let is_queued = matches!(call.state(), CallState::Accepted | CallState::Queued { .. });
    match &call.spec().route {
        Route::Pool { pool, .. } if is_queued && registry.settled => {
            let is_stranded = registry.takers(call.spec(), run.tenant()) == 0;
            is_stranded.then(|| run::no_worker(&call.spec().tool, pool))
        }
        Route::Pool { .. } | Route::Client | Route::Refused(_) => None,
    }
}
