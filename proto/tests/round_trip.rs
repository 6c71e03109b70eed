//! Messages decode to the values that were encoded, and foreign bytes are rejected without a panic.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use run::{
    AfterPartialOutput, Approval, AskedBy, AttemptId, AttemptNumber, AttemptOutcome, Backoff, CallError, CallIndex,
    CallSpec, Chunk, ChunkIndex, Citation, CitedText, Concurrency, Content, DeadlineKind, Decider, Decision,
    DefaultDecision, ErrorKind, Event, File, HookAnswer, Nonce, Object, ObjectId, ParentCall, Policy, PoolId, Priority,
    Progress, Requester, RetryOn, Role, Roles, Route, RunId, RunOpened, Shard, StopStage, Timestamp, Verdict,
    Violation, WithoutWorker,
};
use toolyard_proto::convert::log::{self, Dispatch};
use toolyard_proto::convert::worker::{
    Answer, Heartbeat, Question, Stop, Unanswered, UserAnswer, UserQuestion, UserReply, WorkerRequest, WorkerSandbox,
    decode_advertisement, decode_answer, decode_question, decode_request, decode_user_answer, encode_answer,
    encode_question, encode_user_answer, encode_user_question,
};
use toolyard_proto::subject::{Subject, SubjectKind};

const RUN: &str = "run_0b_0193a5a0000070008000000000000000";

fn run_id() -> RunId {
    RUN.parse().expect("a run id")
}

fn pool() -> PoolId {
    "main".parse().expect("a pool")
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        ".*".prop_map(Content::Text),
        Just(Content::Json(r#"{"price":1.50}"#.to_owned())),
        (".*", prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(media_type, data)| Content::Data { media_type, data: data.into() }),
        object().prop_map(|object| Content::Object(Box::new(object))),
        cited().prop_map(|cited| Content::Cited(Box::new(cited))),
    ]
}

fn cited() -> impl Strategy<Value = CitedText> {
    let citation =
        (".*", ".*", any::<bool>(), any::<(u32, u32)>()).prop_map(|(source, title, is_page, (start, end))| {
            let citation = if is_page { Citation::url(source, title) } else { Citation::file(source, title) };
            citation.at(start..end)
        });
    (".*", prop::collection::vec(citation, 1..4)).prop_map(|(text, citations)| CitedText { text, citations })
}

fn object() -> impl Strategy<Value = Object> {
    let id = prop_oneof![
        (any::<u16>(), any::<u64>()).prop_map(|(call, nonce)| {
            ObjectId::Result { run: run_id(), call: CallIndex(call), pool: pool(), nonce: Nonce(nonce) }
        }),
        Just(RUN[7..].parse().map(ObjectId::Upload).expect("a uuid")),
    ];
    (id, ".*", any::<u64>(), any::<[u8; 32]>(), ".*").prop_map(|(id, media_type, size, sha256, preview)| Object {
        id,
        media_type,
        size,
        sha256,
        preview,
    })
}

fn contents() -> impl Strategy<Value = Vec<Content>> {
    prop::collection::vec(content(), 0..4)
}

fn error() -> impl Strategy<Value = CallError> {
    let kind = prop::sample::select(vec![
        ErrorKind::UnknownTool,
        ErrorKind::ArgumentsInvalid,
        ErrorKind::ToolFailed,
        ErrorKind::ToolPanicked,
        ErrorKind::AttemptTimeout,
        ErrorKind::Interrupted,
        ErrorKind::WorkerLost,
        ErrorKind::ResultTooLarge,
        ErrorKind::OutputTooLarge,
        ErrorKind::OutputIncomplete,
        ErrorKind::ClientFailed,
        ErrorKind::NoWorker,
        ErrorKind::StreamingUnsupported,
        ErrorKind::IdleTimeout,
        ErrorKind::Rejected,
        ErrorKind::ModelRetry,
        ErrorKind::NeedsInput,
        ErrorKind::RateLimited,
        ErrorKind::Denied,
        ErrorKind::HookFailed,
        ErrorKind::LimitExceeded,
        ErrorKind::NotPermitted,
    ]);
    let violation = (".*", ".*").prop_map(|(path, message)| Violation { path, message });
    let retry_after = prop::option::of((0..3_600_000u64).prop_map(Duration::from_millis));
    (kind, ".*", any::<bool>(), retry_after, prop::collection::vec(violation, 0..3)).prop_map(
        |(kind, message, retryable, retry_after, violations)| CallError {
            retryable,
            retry_after,
            violations,
            ..CallError::new(kind, message)
        },
    )
}

fn policy() -> impl Strategy<Value = Policy> {
    let ms = || (0..100_000u64).prop_map(Duration::from_millis);
    let backoff = (ms(), ms(), any::<u8>());
    let backoff = backoff.prop_map(|(first, longest, jitter_percent)| Backoff { first, longest, jitter_percent });
    let retry_on = any::<[bool; 5]>();
    let retry_on = retry_on.prop_map(|[retryable, timeout, panic, lost, other]| RetryOn {
        retryable,
        timeout,
        panic,
        lost,
        other,
    });
    let after = prop_oneof![
        Just(AfterPartialOutput::Restart),
        Just(AfterPartialOutput::Continue),
        Just(AfterPartialOutput::Buffer)
    ];
    (any::<bool>(), 1..9u32, ms(), prop::option::of(ms()), backoff, retry_on, after).prop_map(
        |(repeatable, attempts_max, attempt_timeout, idle_timeout, backoff, retry_on, after_partial_output)| Policy {
            repeatable,
            attempts_max,
            attempt_timeout,
            idle_timeout,
            backoff,
            retry_on,
            after_partial_output,
        },
    )
}

fn concurrency() -> impl Strategy<Value = Concurrency> {
    prop_oneof![Just(Concurrency::Parallel), Just(Concurrency::Exclusive)]
}

fn approval() -> impl Strategy<Value = Approval> {
    let default = prop_oneof![Just(DefaultDecision::Reject), Just(DefaultDecision::Approve)];
    (any::<u64>(), default).prop_map(|(deadline, default)| Approval { deadline: Timestamp(deadline), default })
}

fn decision() -> impl Strategy<Value = Decision> {
    prop_oneof![
        prop::option::of(".*")
            .prop_map(|arguments| Decision::Approved { arguments: arguments.map(|text: String| text.into()) }),
        ".*".prop_map(|reason| Decision::Rejected { reason }),
    ]
}

fn fields() -> impl Strategy<Value = run::Fields> {
    let json = prop_oneof![Just("1.50"), Just("{\"a\": [null]}"), Just("\"x\\n\"")].prop_map(str::to_owned);
    prop::collection::btree_map(".*", json, 0..3).prop_map(|fields| fields.into_iter().collect())
}

fn spec() -> impl Strategy<Value = Arc<CallSpec>> {
    let route = prop_oneof![
        (policy(), prop::option::of("[0-9]{1,9}(\\.[0-9]{1,9}){0,3}")).prop_map(|(policy, version)| {
            let version = version.map(|text| text.parse().expect("a version"));
            Route::Pool { pool: pool(), policy, version }
        }),
        Just(Route::Client),
        error().prop_map(Route::Refused),
        ("[a-z]{1,64}", contents()).prop_map(|(hook, result)| Route::Answered(HookAnswer { hook, result })),
    ];
    let metadata = prop::collection::btree_map(".*", ".*", 0..3);
    let files = prop::collection::vec((".*", object()).prop_map(|(name, object)| File { name, object }), 0..3);
    let asked_by = (attempt(), any::<u16>()).prop_map(|(attempt, number)| AskedBy { attempt, number });
    let given = (fields(), files, prop::option::of(asked_by));
    let times = (prop::option::of(1..u64::MAX), prop::option::of(1..u64::MAX));
    let queue = (times, any::<bool>(), concurrency(), prop::option::of(approval()), given);
    ("[a-z ]{1,20}", "[a-z_.]{1,20}", ".*", metadata, route, any::<u64>(), queue).prop_map(
        |(id, tool, arguments, metadata, route, deadline, (times, fails, concurrency, approval, given))| {
            let ((queue_deadline, not_before), (context, files, asked_by)) = (times, given);
            Arc::new(CallSpec {
                id: id.parse().expect("a call id"),
                tool: tool.parse().expect("a tool name"),
                arguments: arguments.into(),
                metadata,
                route,
                not_before: not_before.map(Timestamp),
                deadline: Timestamp(deadline),
                queue_deadline: queue_deadline.map(Timestamp),
                without_worker: if fails { WithoutWorker::Fail } else { WithoutWorker::Wait },
                result_use: run::ResultUse { is_final: fails, return_direct: !fails, hidden: fails },
                concurrency,
                approval,
                context,
                required_hooks: if fails { vec![id.clone()] } else { Vec::new() },
                priority: [None, Some(Priority::Low), Some(Priority::Normal), Some(Priority::High)][id.len() % 4],
                files,
                asked_by,
            })
        },
    )
}

fn chunk() -> impl Strategy<Value = Chunk> {
    let progress = (0.0..1e9f64, prop::option::of(0.0..1e9f64), ".*");
    prop_oneof![
        (".*", content()).prop_map(|(channel, content)| Chunk::Content { channel, content }),
        progress.prop_map(|(done, total, message)| Chunk::Progress(Progress { done, total, message })),
    ]
}

fn outcome() -> impl Strategy<Value = AttemptOutcome> {
    prop_oneof![
        (contents(), fields())
            .prop_map(|(result, extra_state)| { AttemptOutcome::Completed(run::Completion { result, extra_state }) }),
        error().prop_map(AttemptOutcome::Failed),
        Just(AttemptOutcome::Cancelled),
        Just(AttemptOutcome::Expired),
        Just(AttemptOutcome::Returned),
    ]
}

fn attempt() -> impl Strategy<Value = AttemptId> {
    (0..128u16, 1..u32::MAX, any::<u64>()).prop_map(|(call, number, nonce)| AttemptId {
        call: CallIndex(call),
        number: AttemptNumber(number),
        nonce: Nonce(nonce),
    })
}

fn rules([is_named, fail_fast, open, client_only]: [bool; 4]) -> run::Rules {
    let of_tool = ("bash".parse().expect("a tool"), open.then_some(2));
    run::Rules {
        confirm: is_named.then_some(fail_fast),
        running_max: open.then_some(3),
        calls_max: client_only.then_some(7),
        fails_with_call: fail_fast,
        calls_max_of_tool: open.then_some(40),
        calls_max_of: is_named.then(|| Arc::new([of_tool].into())),
        output_bytes_max: std::num::NonZeroU64::new(if fail_fast { 1_000_000 } else { 0 }),
        client_tools: is_named.then(|| Arc::new(["bash".parse().expect("a name")].into())),
        priority: if client_only { Priority::Low } else { Priority::default() },
    }
}

fn by_coordinators() -> impl Strategy<Value = Vec<Event>> {
    let specs = || prop::collection::vec(spec(), 0..4);
    let call = CallIndex(3);
    let deadline = prop_oneof![
        Just(DeadlineKind::Call),
        (1..9u32).prop_map(|number| DeadlineKind::Attempt(AttemptNumber(number))),
        (1..9u32).prop_map(|number| DeadlineKind::Idle(AttemptNumber(number))),
        Just(DeadlineKind::Queue),
        Just(DeadlineKind::Client),
        Just(DeadlineKind::Run),
    ];
    let answer = prop_oneof![contents().prop_map(Ok), error().prop_map(Err)];
    prop_oneof![
        (any::<u64>(), specs(), any::<[bool; 4]>(), fields()).prop_map(
            |(deadline, calls, [open, fail_fast, client_only, is_named], context)| vec![Event::RunOpened(RunOpened {
                deadline: Timestamp(deadline),
                calls,
                open,
                fail_fast,
                client_only,
                tenant: is_named.then(|| "team-1".parse().expect("a tenant")),
                rules: rules([is_named, fail_fast, open, client_only]),
                erasure: fail_fast.then(|| run::Erasure {
                    after: Duration::from_millis(deadline % 100_000 + 1),
                    request: is_named.then_some([7; 32]),
                }),
                roles: if open { Roles::from_iter([Role::Submit, Role::Read]) } else { Roles::default() },
                caller: is_named.then(|| "shop/ada@example.com".parse().expect("a caller")),
                tools: if is_named { vec!["tool.1".parse().expect("a tool name")] } else { Vec::new() },
                parent: open.then(|| {
                    let run = "run_03_0193a7b4c2d07e3f8a1b2c3d4e5f6071".parse().expect("a run id");
                    Box::new(ParentCall { run, call: "above".parse().expect("a call id") })
                }),
                context,
            })]
        ),
        (any::<u64>(), spec()).prop_map(|(deadline, call)| vec![
            Event::RunOpened(RunOpened { deadline: Timestamp(deadline), calls: vec![call], ..RunOpened::default() }),
            Event::CallDispatched { call: CallIndex(0), pool: pool() },
        ]),
        specs().prop_map(|calls| vec![Event::CallsAppended { calls }]),
        Just(vec![Event::RunClosed]),
        ".*".prop_map(|reason| vec![Event::RunCancelRequested { reason }]),
        (".*", any::<(u64, u64, u32, bool)>()).prop_map(|(reason, (bytes, not_before, continuations, is_named))| {
            let tenant = is_named.then(|| "team-1".parse().expect("a tenant"));
            let (not_before, request) = (Timestamp(not_before), is_named.then_some([7; 32]));
            let asked = run::EraseRequest { reason, tenant, bytes, not_before, request, continuations };
            vec![Event::RunEraseRequested(asked)]
        }),
        prop::collection::vec(any::<u16>().prop_map(CallIndex), 0..4)
            .prop_map(|without_worker| vec![Event::RunExpired { without_worker }]),
        ".*".prop_map(move |reason| vec![Event::CallCancelRequested { call, reason }]),
        Just(vec![Event::CallCancelled { call }]),
        Just(vec![Event::CallDropped { call }]),
        Just(vec![Event::CallDelayEnded { call }]),
        Just(vec![Event::CallRedriven { call, into: run_id() }]),
        error().prop_map(move |error| vec![Event::CallFailed { call, error }]),
        deadline.prop_map(move |deadline| vec![Event::CallExpired { call, deadline }]),
        (decision(), any::<bool>()).prop_map(move |(decision, person)| {
            let by = if person { Decider::Person } else { Decider::Default };
            vec![Event::CallDecided { call, decision, by }]
        }),
        answer.prop_map(move |answer| vec![Event::ClientAnswered { call, answer }]),
    ]
}

fn requester() -> impl Strategy<Value = Requester> {
    (any::<bool>(), any::<bool>(), prop::sample::subsequence(Role::ALL.to_vec(), 0..=5)).prop_map(
        |(has_tenant, has_caller, roles)| Requester {
            tenant: has_tenant.then(|| "team-1".parse().expect("a tenant")),
            caller: has_caller.then(|| "shop/ada@example.com".parse().expect("a caller")),
            roles: roles.into_iter().collect(),
        },
    )
}

fn by_workers() -> impl Strategy<Value = Vec<Event>> {
    let lease = prop::collection::vec(any::<u8>(), 0..60);
    let stage = prop_oneof![Just(StopStage::Delivered), Just(StopStage::Acknowledged)];
    (attempt(), lease, any::<u32>(), prop::collection::vec(chunk(), 0..5), outcome(), stage).prop_map(
        |(attempt, lease, first, chunks, outcome, stage)| {
            let worker = "worker-1".parse().expect("a worker id");
            vec![
                Event::AttemptStarted { attempt, pool: pool(), worker, lease: lease.into(), from: ChunkIndex(first) },
                Event::AttemptStopping { attempt, pool: pool(), stage },
                Event::Output { attempt, pool: pool(), first: ChunkIndex(first), chunks },
                Event::AttemptEnded { attempt, pool: pool(), chunks: first, outcome },
            ]
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn an_entry_comes_back_as_it_was_stored(
        events in prop_oneof![by_coordinators(), by_workers()], sequence: u64, at: u64, not_after in proptest::option::of(1..u64::MAX),
    ) {
        let not_after = not_after.map(Timestamp);
        let place = SubjectKind::of(&events).expect("events have a place");
        let subject = Subject { run: run_id(), place };
        let subject: Subject = subject.to_string().parse().expect("a subject of the log");
        let payload = log::encode_as(7, not_after, &events, None);
        let entry = log::decode(&subject, payload, sequence, Timestamp(at)).expect("an entry");
        prop_assert_eq!((entry.sequence, entry.at, entry.not_after), (sequence, Timestamp(at), not_after));
        prop_assert_eq!(entry.events.capacity(), events.len(), "entries are kept, and have no spare room");
        prop_assert_eq!(entry.events, events);
    }

    #[test]
    fn a_job_holds_its_call_and_who_asked_whether_it_opens_the_run_or_not(
        spec in spec(), requester in requester(), opens: bool, is_stored: bool,
    ) {
        let dispatched = Event::CallDispatched { call: CallIndex(0), pool: pool() };
        let erasure = (!is_stored).then_some(run::Erasure { after: Duration::from_secs(60), request: None });
        let Requester { tenant, caller, roles } = requester.clone();
        let calls = vec![Arc::clone(&spec)];
        let opened = RunOpened { deadline: Timestamp(9), calls, tenant, caller, roles, erasure, ..RunOpened::default() };
        let opened = Event::RunOpened(opened);
        let job = Dispatch { spec: Arc::clone(&spec), requester: requester.clone(), is_stored };
        let (events, job) = if opens { (vec![opened, dispatched], None) } else { (vec![dispatched], Some(&job)) };
        let subject = Subject { run: run_id(), place: SubjectKind::of(&events).expect("a place") };
        let Route::Pool { pool: routed, .. } = &spec.route else {
            prop_assert!(log::decode_job(&subject, log::encode(&events, job), Timestamp(1)).is_err());
            return Ok(());
        };
        prop_assert_eq!(routed, &pool());
        let decoded = log::decode_job(&subject, log::encode(&events, job), Timestamp(1)).expect("a job").expect("in time");
        // The run may last longer than a call may run.
        let day = Timestamp(1).after(Duration::from_secs(24 * 3600));
        let deadline = spec.deadline.min(day);
        prop_assert_eq!((&*decoded.spec, decoded.is_stored), (&CallSpec { deadline, ..(*spec).clone() }, is_stored));
        prop_assert_eq!(decoded.requester, Some(requester));
        prop_assert_eq!((decoded.run, decoded.call, decoded.pool), (run_id(), CallIndex(0), pool()));
        // A job that was stored too late must not be executed.
        let until = |at: u64| log::decode_job(&subject, log::encode_as(7, Some(Timestamp(9)), &events, job), Timestamp(at));
        prop_assert!(until(9).expect("a job").is_some() && until(10).expect("a job").is_none());
    }

    #[test]
    fn an_entry_stops_nobody(events in prop_oneof![by_coordinators(), by_workers()], spec in spec()) {
        // A client that may pull a pool's jobs can have the broker deliver them to any subject that is read.
        let job = Dispatch { spec, requester: Requester::default(), is_stored: true };
        let stop = Stop::decode(log::encode(&events, Some(&job)));
        prop_assert!(stop.is_err());
    }

    #[test]
    fn events_are_not_taken_from_a_subject_where_they_do_not_belong(events in by_coordinators(), call in 0..9u16) {
        // A worker can only write to its pool's output.
        let place = SubjectKind::Output { call: CallIndex(call), pool: pool() };
        let subject = Subject { run: run_id(), place };
        prop_assert!(log::decode(&subject, log::encode(&events, None), 1, Timestamp(1)).is_err());
    }

    #[test]
    fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), text in ".*") {
        let payload = Bytes::from(bytes);
        for place in [SubjectKind::Run, SubjectKind::Output { call: CallIndex(0), pool: pool() }] {
            let subject = Subject { run: run_id(), place };
            // Most random bytes are no message. A message is not an entry of a known version with its events on their
            // subject.
            let decoded = log::decode(&subject, payload.clone(), 1, Timestamp(1));
            prop_assert!(decoded.is_err() || decoded.is_ok_and(|entry| entry.events.is_empty()));
        }
        prop_assert!(text.parse::<Subject>().is_err());
        drop((Heartbeat::decode(payload.clone()), decode_question(payload.clone()), Stop::decode(payload.clone())));
        drop((decode_advertisement(payload.clone()), decode_answer(payload, CallIndex(0))));
    }

    #[test]
    fn what_owners_and_workers_say_comes_back(
        attempt in attempt(), outcome in outcome(), used: u32, delivered: u32, sequence: u64, last_output: u64,
        executed: bool,
    ) {
        let (run, call, attempt) = (run_id(), attempt.call, attempt);
        let question = Question { run, call, delivered, sequence, attempt: Some(attempt), executed };
        prop_assert_eq!(decode_question(encode_question(&question)).expect("a question"), question);
        prop_assert_eq!(decode_request(encode_question(&question)).expect("a question"), WorkerRequest::Job(question));
        let worker = Stop::Worker("worker-1".parse().expect("a worker id"));
        for stop in [Stop::Attempt(run_id(), attempt), worker, Stop::Storing(false), Stop::Storing(true)] {
            prop_assert_eq!(Stop::decode(stop.encode()).expect("a stop"), stop);
        }
        let verdict = Verdict::Go { number: attempt.number, used, from: ChunkIndex(used) };
        let go = Answer { verdict, last_output, has_taker: executed };
        prop_assert_eq!(decode_answer(encode_answer(Some(&go)), attempt.call).expect("an answer"), Some(go));
        if !matches!(outcome, AttemptOutcome::Completed(_)) {
            let end = Answer { verdict: Verdict::End { attempt, outcome }, last_output, has_taker: false };
            prop_assert_eq!(decode_answer(encode_answer(Some(&end)), attempt.call).expect("an answer"), Some(end));
        }
        let leave = Answer { verdict: Verdict::Leave, last_output: 0, has_taker: false };
        prop_assert_eq!(decode_answer(encode_answer(Some(&leave)), attempt.call).expect("an answer"), Some(leave));
        prop_assert_eq!(decode_answer(encode_answer(None), attempt.call).expect("an answer"), None);
        let worker = "worker-1".parse().expect("a worker id");
        let tools = "0123abcd".parse().expect("a tool set");
        let heartbeat = Heartbeat { tools, worker, slots: used, running: delivered, leaving: used % 2 == 0, pulling: used % 3 == 0, draining: used % 5 == 0, release: format!("0.{used}.0-rc.1"), sandbox: (used % 2 == 0).then(|| WorkerSandbox { level: "confined".to_owned(), workspace: "tenant".to_owned(), network: used % 3 == 0 }), hooks: vec!["redacts".to_owned(); usize::from(used % 7 == 0)] };
        prop_assert_eq!(Heartbeat::decode(heartbeat.encode()).expect("a heartbeat"), heartbeat);
    }

    #[test]
    fn a_subject_comes_back(shard: u8, call in 0..128u16) {
        let id = format!("run_{}_{}", Shard(shard), &RUN[7..]).parse().expect("a run id");
        let call = CallIndex(call);
        let places = [SubjectKind::Run, SubjectKind::Job { call, pool: pool() }, SubjectKind::Output { call, pool: pool() }, SubjectKind::Control { call }];
        for place in places {
            let subject = Subject { run: id, place };
            prop_assert_eq!(subject.to_string().parse::<Subject>().expect("a subject"), subject);
        }
    }
}

/// A release before these promises refuses version 2, and would break them.
#[test]
fn only_an_entry_that_opens_a_run_of_which_older_releases_break_a_promise_has_version_2() {
    use prost::Message as _;
    let spec = |not_before, required_hooks: &[&str]| {
        let (id, tool) = ("a".parse().expect("a call id"), "tool".parse().expect("a tool"));
        let spec = CallSpec::new(id, tool, "{}", Route::Client, Timestamp(9));
        let required_hooks = required_hooks.iter().map(|hook| (*hook).to_owned()).collect();
        vec![Arc::new(CallSpec { not_before, required_hooks, ..spec })]
    };
    let version = |event| {
        let bytes = log::encode(&[event], None);
        toolyard_proto::wire::v1::Entry::decode(bytes).expect("an entry").version
    };
    let opened = |calls| RunOpened { calls, ..RunOpened::default() };
    let promises = [spec(Some(Timestamp(8)), &[]), spec(None, &["redact"])];
    assert_eq!(version(Event::RunOpened(opened(spec(None, &[])))), 1);
    let limited = run::Rules { output_bytes_max: std::num::NonZeroU64::new(9), ..run::Rules::default() };
    assert_eq!(version(Event::RunOpened(RunOpened { rules: limited, ..opened(spec(None, &[])) })), 2);
    let left =
        run::Rules { client_tools: Some(Arc::new(["bash".parse().expect("a name")].into())), ..run::Rules::default() };
    assert_eq!(version(Event::RunOpened(RunOpened { rules: left, ..opened(spec(None, &[])) })), 2);
    for calls in promises {
        assert_eq!(version(Event::RunOpened(opened(calls.clone()))), 2);
        assert_eq!(version(Event::CallsAppended { calls }), 1);
    }
}

#[test]
fn an_entry_of_another_version_is_refused() {
    use prost::Message as _;
    let entry = toolyard_proto::wire::v1::Entry { version: 3, ..Default::default() };
    let subject = Subject { run: run_id(), place: SubjectKind::Run };
    let error = log::decode(&subject, entry.encode_to_vec().into(), 1, Timestamp(1)).expect_err("another version");
    assert!(error.to_string().contains("version 3"), "{error}");
}

#[test]
fn what_is_said_about_a_question_to_the_client_survives_the_wire() {
    let attempt = AttemptId { call: CallIndex(3), number: AttemptNumber(2), nonce: Nonce(7) };
    let question = run::NewQuestion {
        asked_by: AskedBy { attempt, number: 4 },
        arguments: Bytes::from_static(b"{}"),
        timeout: Some(Duration::from_millis(1500)),
    };
    let asks = UserQuestion { run: run_id(), sequence: 12, question };
    let encoded = encode_user_question(&asks);
    assert_eq!(decode_request(encoded.clone()).expect("a request"), WorkerRequest::Ask(asks));
    // An owner of the release before questions reads a question about the attempt that counts.
    let old = decode_question(encoded).expect("a question about a job");
    assert_eq!((old.attempt, old.executed), (Some(attempt), false));
    let answers = [
        UserAnswer::Open,
        UserAnswer::Answered(Ok(vec![Content::Json("{}".to_owned())])),
        UserAnswer::Answered(Err(CallError::new(run::ErrorKind::ClientFailed, "gone"))),
        UserAnswer::Unanswered(Unanswered::Expired),
        UserAnswer::Unanswered(Unanswered::Cancelled { reason: "enough".to_owned() }),
        UserAnswer::Refused("too many".to_owned()),
    ];
    for answer in answers {
        let reply = decode_user_answer(encode_user_answer(Some(&answer))).expect("a reply");
        assert_eq!(reply, UserReply::Known(answer));
    }
    assert_eq!(decode_user_answer(encode_user_answer(None)).expect("a reply"), UserReply::AskAgain);
    let leave = Answer { verdict: Verdict::Leave, last_output: 0, has_taker: false };
    assert_eq!(decode_user_answer(encode_answer(Some(&leave))).expect("a reply"), UserReply::OwnerTooOld);
}
