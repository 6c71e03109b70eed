//! Reads and writes the records of pools for the workers that execute their calls. The owner knows the tenant of the
//! call, and whether the attempt is still the newest one.

use std::time::Duration;

use futures::StreamExt as _;
use proto::convert::record::{RecordReply, RecordRequest};
use run::{CallState, PoolId, Route, Run};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::OwnerHandle;
use crate::nats::records::{Records, RecordsAsked, Space};
use crate::shards::Owned;

/// The most requests performed concurrently. A worker that waits longer repeats its request.
const AT_ONCE: usize = 16;
/// Pause before subscribing again after an error of the broker.
const RETRY: Duration = Duration::from_secs(1);

/// Serves the records of pools to the workers that execute their calls, until `stop`.
pub(crate) async fn serve(
    records: Records,
    owner: OwnerHandle,
    owned: watch::Receiver<Owned>,
    stop: CancellationToken,
) {
    let (records, owner, owned) = (&records, &owner, &owned);
    while !stop.is_cancelled() {
        match records.subscribe().await {
            Ok(asked) => {
                let asked = asked.take_until(stop.cancelled());
                let answer = |asked: RecordsAsked| async move {
                    // The borrow must not be held across the request.
                    let is_ours = owned.borrow().holds(asked.shard);
                    if is_ours {
                        let reply = perform(owner, records, asked.pool.clone(), asked.wanted.clone()).await;
                        asked.answer(reply).await;
                    }
                };
                asked.for_each_concurrent(AT_ONCE, answer).await;
            }
            Err(error) => tracing::warn!(%error, "subscribing to requests for records failed, trying again"),
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

async fn perform(owner: &OwnerHandle, records: &Records, pool: PoolId, wanted: RecordRequest) -> RecordReply {
    let Ok(Some(known)) = owner.state(wanted.run).await else { return RecordReply::AskAgain };
    match judge(&known.run, &pool, &wanted) {
        Judged::Later => RecordReply::AskAgain,
        Judged::Refuse(reason) => RecordReply::Refused(reason.to_owned()),
        Judged::Perform => {
            let space = Space { pool, tenant: known.run.tenant().cloned() };
            records.perform(&space, wanted).await
        }
    }
}

/// The decision about a request.
#[derive(Debug, PartialEq, Eq)]
enum Judged {
    Perform,
    Refuse(&'static str),
    /// The log has not been read far enough yet.
    Later,
}

/// An attempt that was replaced is refused. The check does not exclude that it is replaced at this moment, therefore
/// every write also names the revision that it replaces.
fn judge(run: &Run, pool: &PoolId, wanted: &RecordRequest) -> Judged {
    let call = run.call(wanted.call);
    let call = call.filter(|call| matches!(&call.spec().route, Route::Pool { pool: own, .. } if own == pool));
    let Some(call) = call else { return Judged::Refuse("the call is not one of the pool's") };
    match call.state() {
        CallState::Running(running) if running.attempt.number > wanted.attempt => {
            Judged::Refuse("a newer attempt executes the call")
        }
        CallState::Queued { .. } if call.newest_attempt().is_some_and(|newest| newest >= wanted.attempt) => {
            Judged::Refuse("the attempt has ended, and the call is queued again")
        }
        CallState::Queued { .. } | CallState::Running(_) => Judged::Perform,
        CallState::Accepted => Judged::Later,
        CallState::AwaitingApproval | CallState::Delayed | CallState::WaitingForClient => {
            Judged::Refuse("the call is not executed")
        }
        CallState::Ended(_) => Judged::Refuse("the call has ended"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto::convert::record::RecordOperation;
    use run::{
        AttemptId, AttemptNumber, AttemptOutcome, CallIndex, CallSpec, Effects, Entry, Event, Nonce, Policy, RunOpened,
        Timestamp,
    };

    use super::*;
    use crate::owner::scripted;

    fn opened(events: &[Event]) -> Run {
        let pool = "main".parse().expect("a pool");
        let route = Route::Pool { pool, policy: Policy::of(Effects::default()), version: None };
        let spec = CallSpec { route, ..scripted::call("a") };
        let opened = RunOpened { deadline: Timestamp(u64::MAX), calls: vec![Arc::new(spec)], ..RunOpened::default() };
        let events = std::iter::once(Event::RunOpened(opened)).chain(events.iter().cloned()).collect();
        let mut run = Run::new("run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().expect("an id"));
        run.apply(&Entry { sequence: 1, at: Timestamp(1), not_after: None, hooked: false, events }, &mut Vec::new());
        run
    }

    fn wanted(run: &Run, attempt: u32) -> RecordRequest {
        let operation = RecordOperation::Get("a".parse().expect("a key"));
        RecordRequest { run: run.id(), call: CallIndex(0), attempt: AttemptNumber(attempt), operation }
    }

    #[test]
    fn records_are_for_the_newest_attempt_of_a_call_of_the_pool() {
        let (call, main): (_, PoolId) = (CallIndex(0), "main".parse().expect("a pool"));
        let dispatched = Event::CallDispatched { call, pool: main.clone() };
        let queued = opened(std::slice::from_ref(&dispatched));
        assert_eq!(judge(&queued, &main, &wanted(&queued, 1)), Judged::Perform);
        assert_eq!(judge(&opened(&[]), &main, &wanted(&queued, 1)), Judged::Later);
        let other = "other".parse().expect("a pool");
        assert!(matches!(judge(&queued, &other, &wanted(&queued, 1)), Judged::Refuse(_)));
        let attempt = AttemptId { call, number: AttemptNumber(2), nonce: Nonce(7) };
        let worker = "worker-2".parse().expect("an id");
        let (lease, from) = (bytes::Bytes::new(), run::ChunkIndex(0));
        let started = Event::AttemptStarted { attempt, pool: main.clone(), worker, lease, from };
        let running = opened(&[dispatched.clone(), started.clone()]);
        assert_eq!(judge(&running, &main, &wanted(&running, 2)), Judged::Perform);
        assert!(matches!(judge(&running, &main, &wanted(&running, 1)), Judged::Refuse(_)), "a zombie");
        let returned =
            Event::AttemptEnded { attempt, pool: main.clone(), chunks: 0, outcome: AttemptOutcome::Returned };
        let again = opened(&[dispatched.clone(), started, returned]);
        assert!(matches!(judge(&again, &main, &wanted(&again, 2)), Judged::Refuse(_)), "it gave the call back");
        assert_eq!(judge(&again, &main, &wanted(&again, 3)), Judged::Perform);
        let cancel = Event::CallCancelRequested { call, reason: String::new() };
        let ended = opened(&[dispatched, cancel]);
        assert!(matches!(judge(&ended, &main, &wanted(&ended, 1)), Judged::Refuse(_)), "the call has ended");
    }
}
