//! Which files of which calls a pool's workers may read: those of calls that the pool is to execute, while it does.

use proto::convert::object::WantedChunk;
use proto::object::chunks;
use run::{CallState, PoolId, Route, Run};

/// What is done about a chunk that is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    Give,
    Refuse(&'static str),
    /// The log was not read so far yet.
    Later,
}

pub(crate) fn judge(run: &Run, pool: &PoolId, wanted: &WantedChunk) -> Judged {
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
        CallState::AwaitingApproval | CallState::WaitingForClient => Judged::Refuse("the call is not executed"),
        CallState::Ended(_) => Judged::Refuse("the call has ended"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use run::{CallIndex, CallSpec, Effects, Entry, Event, File, Object, Policy, RunOpened, Timestamp};

    use super::*;
    use crate::ledger::by_hand;

    fn file() -> File {
        let id = "upl_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().expect("an id");
        let object = Object { id, media_type: String::new(), size: 10, sha256: [0; 32], preview: String::new() };
        File { name: "f".to_owned(), object }
    }

    fn opened(events: &[Event]) -> Run {
        let pool = "main".parse().expect("a pool");
        let route = Route::Pool { pool, policy: Policy::of(Effects::default()), version: None };
        let spec = CallSpec { route, files: vec![file()], ..by_hand::call("a") };
        let opened = RunOpened { deadline: Timestamp(u64::MAX), calls: vec![Arc::new(spec)], ..RunOpened::default() };
        let events = std::iter::once(Event::RunOpened(opened)).chain(events.iter().cloned()).collect();
        let mut run = Run::new("run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().expect("an id"));
        run.apply(&Entry { sequence: 1, at: Timestamp(1), not_after: None, events }, &mut Vec::new());
        run
    }

    #[test]
    fn a_file_is_given_to_the_calls_pool_while_the_call_may_run() {
        let call = CallIndex(0);
        let main: PoolId = "main".parse().expect("a pool");
        let dispatched = Event::CallDispatched { call, pool: main.clone() };
        let queued = opened(std::slice::from_ref(&dispatched));
        let wanted = WantedChunk { run: queued.id(), call, object: file().object.id, chunk: 0 };
        assert_eq!(judge(&queued, &main, &wanted), Judged::Give);
        assert_eq!(judge(&opened(&[]), &main, &wanted), Judged::Later);
        let cancel = Event::CallCancelRequested { call, reason: String::new() };
        let refused = |run: &Run, pool: &str, wanted: &WantedChunk| {
            matches!(judge(run, &pool.parse().expect("a pool"), wanted), Judged::Refuse(_))
        };
        assert!(refused(&opened(&[dispatched, cancel]), "main", &wanted), "the call has ended");
        assert!(refused(&queued, "other", &wanted));
        assert!(refused(&queued, "main", &WantedChunk { chunk: 1, ..wanted.clone() }), "it has one chunk");
        assert!(refused(&queued, "main", &WantedChunk { call: CallIndex(1), ..wanted.clone() }));
        let other = "upl_01980f3c2a5b7c3e8d4f5a6b7c8d9e10".parse().expect("an id");
        assert!(refused(&queued, "main", &WantedChunk { object: other, ..wanted }));
    }
}
