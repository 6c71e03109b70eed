//! The files that a pool's workers may read: those of calls that the pool is executing or is to execute.

use std::time::Duration;

use ::objects::Objects;
use futures::StreamExt as _;
use proto::convert::object::{ChunkReply, ChunkRequest};
use proto::object::chunks;
use run::{CallState, PoolId, Route, Run};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::OwnerHandle;
use crate::nats::files::{FileRequest, FileRequests};
use crate::shards::Owned;

/// The most chunks read concurrently, because each takes memory. A worker that waits longer repeats its request.
const AT_ONCE: usize = 16;
/// Pause before subscribing again after an error of the broker.
const RETRY: Duration = Duration::from_secs(1);

/// Serves the chunks of files to the workers that execute their calls, until `stop`.
pub(crate) async fn serve(
    requests: FileRequests,
    objects: Objects,
    ledger: OwnerHandle,
    owned: watch::Receiver<Owned>,
    stop: CancellationToken,
) {
    let (objects, ledger, owned) = (&objects, &ledger, &owned);
    while !stop.is_cancelled() {
        match requests.subscribe().await {
            Ok(requests) => {
                let requests = requests.take_until(stop.cancelled());
                let answer = |request: FileRequest| async move {
                    // The borrow must not be held across the read.
                    let is_ours = owned.borrow().holds(request.shard);
                    if is_ours {
                        let chunk = read(ledger, objects, &request.pool, &request.wanted).await;
                        request.answer(chunk).await;
                    }
                };
                requests.for_each_concurrent(AT_ONCE, answer).await;
            }
            Err(error) => tracing::warn!(%error, "subscribing to requests for files failed, trying again"),
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

async fn read(ledger: &OwnerHandle, objects: &Objects, pool: &PoolId, wanted: &ChunkRequest) -> ChunkReply {
    let Ok(Some(known)) = ledger.state(wanted.run).await else { return ChunkReply::AskAgain };
    match judge(&known.run, pool, wanted) {
        Judged::Later => return ChunkReply::AskAgain,
        Judged::Refuse(reason) => return ChunkReply::Refused(reason.to_owned()),
        Judged::Give => {}
    }
    match objects.chunk(&wanted.object, wanted.chunk).await {
        Ok(Some(data)) => ChunkReply::Data(data),
        Ok(None) => ChunkReply::Refused("the object is no longer stored".to_owned()),
        Err(error) => {
            tracing::warn!(%error, "reading a chunk of a file failed");
            ChunkReply::AskAgain
        }
    }
}

/// The decision about a request for a chunk.
#[derive(Debug, PartialEq, Eq)]
enum Judged {
    Give,
    Refuse(&'static str),
    /// The log has not been read far enough yet.
    Later,
}

fn judge(run: &Run, pool: &PoolId, wanted: &ChunkRequest) -> Judged {
    let call = run.call(wanted.call);
    let call = call.filter(|call| matches!(&call.spec().route, Route::Pool { pool: own, .. } if own == pool));
    let Some(call) = call else { return Judged::Refuse("the call is not one of the pool's") };
    let file = call.spec().files.iter().find(|file| file.object.id == wanted.object);
    if file.is_none_or(|file| wanted.chunk >= chunks(file.object.size)) {
        return Judged::Refuse("the call has no such file");
    }
    match call.state() {
        CallState::Queued { .. } | CallState::Running(_) => Judged::Give,
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

    use run::{CallIndex, CallSpec, Effects, Entry, Event, File, Object, Policy, RunOpened, Timestamp};

    use super::*;
    use crate::owner::scripted;

    fn file() -> File {
        let id = "upl_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().expect("an id");
        let object = Object { id, media_type: String::new(), size: 10, sha256: [0; 32], preview: String::new() };
        File { name: "f".to_owned(), object }
    }

    fn opened(events: &[Event]) -> Run {
        let pool = "main".parse().expect("a pool");
        let route = Route::Pool { pool, policy: Policy::of(Effects::default()), version: None };
        let spec = CallSpec { route, files: vec![file()], ..scripted::call("a") };
        let opened = RunOpened { deadline: Timestamp(u64::MAX), calls: vec![Arc::new(spec)], ..RunOpened::default() };
        let events = std::iter::once(Event::RunOpened(opened)).chain(events.iter().cloned()).collect();
        let mut run = Run::new("run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().expect("an id"));
        run.apply(&Entry { sequence: 1, at: Timestamp(1), not_after: None, hooked: false, events }, &mut Vec::new());
        run
    }

    #[test]
    fn a_file_is_given_to_the_calls_pool_while_the_call_may_run() {
        let call = CallIndex(0);
        let main: PoolId = "main".parse().expect("a pool");
        let dispatched = Event::CallDispatched { call, pool: main.clone() };
        let queued = opened(std::slice::from_ref(&dispatched));
        let wanted = ChunkRequest { run: queued.id(), call, object: file().object.id, chunk: 0 };
        assert_eq!(judge(&queued, &main, &wanted), Judged::Give);
        assert_eq!(judge(&opened(&[]), &main, &wanted), Judged::Later);
        let cancel = Event::CallCancelRequested { call, reason: String::new() };
        let refused = |run: &Run, pool: &str, wanted: &ChunkRequest| {
            matches!(judge(run, &pool.parse().expect("a pool"), wanted), Judged::Refuse(_))
        };
        assert!(refused(&opened(&[dispatched, cancel]), "main", &wanted), "the call has ended");
        assert!(refused(&queued, "other", &wanted));
        assert!(refused(&queued, "main", &ChunkRequest { chunk: 1, ..wanted.clone() }), "it has one chunk");
        assert!(refused(&queued, "main", &ChunkRequest { call: CallIndex(1), ..wanted.clone() }));
        let other = "upl_01980f3c2a5b7c3e8d4f5a6b7c8d9e10".parse().expect("an id");
        assert!(refused(&queued, "main", &ChunkRequest { object: other, ..wanted }));
    }
}
