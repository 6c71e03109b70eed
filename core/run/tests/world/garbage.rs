//! Histories that no honest party would write: any event, anywhere, of anything.

use super::plan::{approval, decision, mode, stage};
use super::*;
use toolyard_run::{Concurrency, DeadlineKind, Decider, Effects, Policy, RunOpened};

/// Entries in any order, with sequences and times that may run backwards. Few names and numbers, so that they meet.
pub(crate) fn garbage() -> impl Strategy<Value = History> {
    let sequence = prop_oneof![4 => 0..100u64, 1 => Just(u64::MAX)];
    let entry = (sequence, time(), prop::option::weighted(0.2, time()), prop::collection::vec(event(), 0..5));
    let entry =
        entry.prop_map(|(sequence, at, not_after, events)| Entry { sequence, at, not_after, hooked: false, events });
    let opening = opened(prop::collection::vec(call(), 0..5));
    let opening = (opening, prop::option::weighted(0.2, time()));
    let opening = opening.prop_map(|(opened, not_after)| Entry {
        sequence: 1,
        at: START,
        not_after,
        hooked: false,
        events: vec![opened],
    });
    let whole = (prop::option::weighted(0.9, opening), prop::collection::vec(entry, 0..40), time());
    whole.prop_map(|(opening, entries, now)| History { log: opening.into_iter().chain(entries).collect(), now })
}

fn opened(calls: impl Strategy<Value = Vec<Arc<CallSpec>>>) -> impl Strategy<Value = Event> {
    (time(), calls, any::<bool>(), prop::bool::weighted(0.3)).prop_map(|(deadline, calls, open, fail_fast)| {
        Event::RunOpened(RunOpened { deadline, calls, open, fail_fast, ..RunOpened::default() })
    })
}

fn time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        8 => (0..2000u64).prop_map(|seconds| START.after(Duration::from_secs(seconds))),
        1 => Just(Timestamp(0)),
        1 => Just(Timestamp(u64::MAX)),
    ]
}

fn number() -> impl Strategy<Value = u32> + Clone {
    prop_oneof![12 => 0..5u32, 1 => Just(u32::MAX - 1), 1 => Just(u32::MAX)]
}

fn index() -> impl Strategy<Value = CallIndex> {
    prop_oneof![12 => 0..6u16, 1 => Just(u16::MAX)].prop_map(CallIndex)
}

fn some_pool() -> impl Strategy<Value = PoolId> {
    prop_oneof![4 => Just("alpha"), 1 => Just("beta")].prop_map(pool)
}

fn attempt() -> impl Strategy<Value = AttemptId> {
    (index(), number(), 0..2u64).prop_map(|(call, number, nonce)| AttemptId {
        call,
        number: AttemptNumber(number),
        nonce: Nonce(nonce),
    })
}

fn call() -> impl Strategy<Value = Arc<CallSpec>> {
    let timeout = prop_oneof![4 => (0..100u64).prop_map(Duration::from_secs), 1 => Just(Duration::MAX)];
    let idle = prop::option::of((0..100u64).prop_map(Duration::from_secs));
    let pooled = (some_pool(), any::<bool>(), number(), timeout, idle, mode());
    let pooled =
        pooled.prop_map(|(pool, repeatable, attempts_max, attempt_timeout, idle_timeout, after_partial_output)| {
            let policy = Policy {
                repeatable,
                attempts_max,
                attempt_timeout,
                idle_timeout,
                after_partial_output,
                ..Policy::of(Effects::default())
            };
            Route::Pool { pool, policy, version: None }
        });
    let route = prop_oneof![
        5 => pooled,
        2 => Just(Route::Client),
        1 => Just(Route::Refused(error(ErrorKind::UnknownTool))),
        1 => Just(Route::Answered(HookAnswer { hook: "cache".to_owned(), result: text("kept") })),
    ];
    let concurrency = prop_oneof![Just(Concurrency::Parallel), Just(Concurrency::Exclusive)];
    let approval = prop::option::weighted(0.2, approval());
    let asked_by = prop::option::weighted(0.2, (attempt(), 0..3u16));
    let times = (time(), prop::option::of(time()), prop::option::weighted(0.3, time()));
    (0..4u8, route, times, concurrency, (approval, asked_by)).prop_map(
        |(name, route, (deadline, queue_deadline, not_before), concurrency, (approval, asked_by))| {
            let asked_by = asked_by.filter(|_| route == Route::Client);
            let asked_by = asked_by.map(|(attempt, number)| AskedBy { attempt, number });
            let spec = crate::story::spec(&name.to_string(), route);
            Arc::new(CallSpec { deadline, queue_deadline, not_before, concurrency, approval, asked_by, ..spec })
        },
    )
}

fn outcome() -> impl Strategy<Value = AttemptOutcome> {
    prop_oneof![
        Just(AttemptOutcome::Completed(text("done").into())),
        Just(AttemptOutcome::Failed(error(ErrorKind::ToolFailed))),
        Just(AttemptOutcome::Failed(error(ErrorKind::ToolFailed).retryable())),
        Just(AttemptOutcome::Cancelled),
        Just(AttemptOutcome::Expired),
        Just(AttemptOutcome::Returned),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let reason = || "of two\nlines".to_owned();
    let calls = || prop::collection::vec(call(), 0..4);
    let deadline = prop_oneof![
        Just(DeadlineKind::Call),
        number().prop_map(|number| DeadlineKind::Attempt(AttemptNumber(number))),
        number().prop_map(|number| DeadlineKind::Idle(AttemptNumber(number))),
        Just(DeadlineKind::Queue),
        Just(DeadlineKind::Client),
        Just(DeadlineKind::Run)
    ];
    let answer = prop_oneof![Just(Ok(text("yes"))), Just(Err(error(ErrorKind::ClientFailed)))];
    let worker: WorkerId = "worker-1".parse().expect("a worker id");
    let last = limit::CHUNKS_PER_ATTEMPT_MAX;
    let first = prop_oneof![8 => 0..6u32, 1 => last - 2..last + 2, 1 => Just(u32::MAX)];
    let output = (attempt(), some_pool(), first, 0..4u32).prop_map(|(attempt, pool, first, count)| Event::Output {
        attempt,
        pool,
        first: ChunkIndex(first),
        chunks: (0..count).map(|index| chunk(attempt, index)).collect(),
    });
    let started = (attempt(), some_pool(), 0..5u32).prop_map(move |(attempt, pool, from)| Event::AttemptStarted {
        attempt,
        pool,
        worker: worker.clone(),
        lease: Bytes::new(),
        from: ChunkIndex(from),
    });
    let ended = (attempt(), some_pool(), number(), outcome());
    let ended =
        ended.prop_map(|(attempt, pool, chunks, outcome)| Event::AttemptEnded { attempt, pool, chunks, outcome });
    prop_oneof![
        2 => opened(calls()),
        2 => calls().prop_map(|calls| Event::CallsAppended { calls }),
        1 => Just(Event::RunClosed),
        1 => Just(Event::RunCancelRequested { reason: reason() }),
        1 => Just(crate::story::run_erase_requested()),
        1 => Just(Event::RunExpired { without_worker: Vec::new() }),
        12 => (index(), some_pool()).prop_map(|(call, pool)| Event::CallDispatched { call, pool }),
        2 => index().prop_map(move |call| Event::CallCancelRequested { call, reason: reason() }),
        2 => index().prop_map(|call| Event::CallCancelled { call }),
        3 => index().prop_map(|call| Event::CallDelayEnded { call }),
        2 => (index(), deadline).prop_map(|(call, deadline)| Event::CallExpired { call, deadline }),
        2 => (index(), answer).prop_map(|(call, answer)| Event::ClientAnswered { call, answer }),
        3 => (index(), decision())
            .prop_map(|(call, decision)| Event::CallDecided { call, decision, by: Decider::Person }),
        1 => index().prop_map(|call| Event::CallFailed { call, error: error(ErrorKind::NoWorker) }),
        1 => index().prop_map(|call| Event::CallRedriven { call, into: run_id() }),
        1 => index().prop_map(|call| Event::CallDropped { call }),
        3 => (attempt(), some_pool(), stage())
            .prop_map(|(attempt, pool, stage)| Event::AttemptStopping { attempt, pool, stage }),
        10 => started,
        24 => output,
        16 => ended,
    ]
}
