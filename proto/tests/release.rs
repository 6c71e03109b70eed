//! Messages of earlier releases are still read with the same meaning. They are stored as bytes in `tests/release`, one
//! per line.
//!
//! An existing line is never changed. A new kind of message gets a new line; the test prints it.

use std::collections::{BTreeMap, HashSet};
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use run::{
    AfterPartialOutput, Approval, AskedBy, AttemptId, AttemptNumber, AttemptOutcome, Backoff, CallError, CallIndex,
    CallSpec, Chunk, ChunkIndex, Citation, CitedText, Completion, Concurrency, Content, DeadlineKind, Decider,
    Decision, DefaultDecision, Effects, EraseRequest, Erasure, ErrorKind, Event, Fields, File, Manifest, NewQuestion,
    Nonce, Object, Origin, Permission, Policy, PoolId, Progress, Requester, ResultUse, RetryOn, Role, Roles, Route,
    Rules, RunId, RunOpened, Shard, StopStage, Timestamp, Verdict, Violation, WithoutWorker,
};
use toolyard_proto::convert::log::{Dispatch, decode, decode_job, encode};
use toolyard_proto::convert::object::{ChunkReply, ChunkRequest, Upload};
use toolyard_proto::convert::snapshot::{Listed, OwedErasure, Snapshot};
use toolyard_proto::convert::worker::{
    self, Answer, Heartbeat, Question, Stop, Unanswered, UserAnswer, UserQuestion, UserReply, WorkerRequest,
    decode_question, decode_request, encode_question, encode_user_question,
};
use toolyard_proto::subject::{Subject, SubjectKind};

const RELEASES: [(&str, &str); 1] = [("0.1.0", include_str!("release/0.1.0.txt"))];

fn run_id() -> RunId {
    "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().expect("an id")
}

fn pool() -> PoolId {
    "shell".parse().expect("a pool")
}

fn attempt() -> AttemptId {
    AttemptId { call: CallIndex(1), number: AttemptNumber(2), nonce: Nonce(0x0123_4567_89ab_cdef) }
}

fn policy() -> Policy {
    Policy {
        repeatable: true,
        attempts_max: 4,
        attempt_timeout: Duration::from_secs(90),
        idle_timeout: Some(Duration::from_secs(15)),
        backoff: Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(8), jitter_percent: 20 },
        retry_on: RetryOn { retryable: true, timeout: false, panic: true, lost: true, other: false },
        after_partial_output: AfterPartialOutput::Continue,
    }
}

fn spec() -> CallSpec {
    CallSpec {
        id: "call_1".parse().expect("an id"),
        tool: "bash".parse().expect("a tool"),
        arguments: Bytes::from_static(br#"{"command":"ls"}"#),
        metadata: [("user".to_owned(), "ada".to_owned())].into(),
        route: Route::Pool { pool: pool(), policy: policy(), version: None },
        not_before: None,
        deadline: Timestamp(1_763_000_000_000),
        queue_deadline: Some(Timestamp(1_762_999_000_000)),
        without_worker: WithoutWorker::Fail,
        concurrency: Concurrency::Exclusive,
        approval: Some(Approval { deadline: Timestamp(1_762_998_000_000), default: DefaultDecision::Approve }),
        result_use: ResultUse { is_final: true, return_direct: true, hidden: false },
        context: Fields::default(),
        files: Vec::new(),
        asked_by: None,
        required_hooks: Vec::new(),
        priority: None,
    }
}

fn fields(key: &str, json: &str) -> Fields {
    [(key.to_owned(), json.to_owned())].into_iter().collect()
}

fn error() -> CallError {
    let violations = vec![Violation { path: "/command".to_owned(), message: "is missing".to_owned() }];
    CallError {
        violations,
        ..CallError::new(ErrorKind::RateLimited, "too many").retryable_after(Duration::from_secs(9))
    }
}

fn contents() -> Vec<Content> {
    let data = Content::Data { media_type: "image/png".to_owned(), data: Bytes::from_static(&[1, 2, 3]) };
    vec![Content::Text("text".to_owned()), Content::Json("{\"n\":1.50}".to_owned()), data]
}

fn object() -> Content {
    Content::Object(Box::new(Object {
        id: format!("{}.1.shell.0123456789abcdef", run_id()).parse().expect("an id"),
        media_type: "image/png".to_owned(),
        size: 1 << 30,
        sha256: [7; 32],
        preview: "[the result was cut here]".to_owned(),
    }))
}

fn cited() -> Content {
    let page = Citation::url("https://owls.example", "Owls").at(1..4);
    Content::Cited(Box::new(CitedText { text: "owls".to_owned(), citations: vec![page, Citation::file("f1", "")] }))
}

fn dispatch() -> Dispatch {
    Dispatch { spec: Arc::new(spec()), requester: requester(), is_stored: true }
}

fn requester() -> Requester {
    Requester {
        tenant: Some("acme".parse().expect("a tenant")),
        caller: Some("shop/ada".parse().expect("a caller")),
        roles: Roles::from_iter([Role::Submit, Role::Admin]),
    }
}

fn opened() -> RunOpened {
    let client = CallSpec { route: Route::Client, approval: None, ..spec() };
    let refused = CallSpec { route: Route::Refused(error()), queue_deadline: None, ..spec() };
    RunOpened {
        deadline: Timestamp(1_763_000_001_000),
        calls: [spec(), client, refused].map(Arc::new).to_vec(),
        open: true,
        fail_fast: true,
        client_only: true,
        tenant: Some("acme".parse().expect("a tenant")),
        caller: Some("shop/ada".parse().expect("a caller")),
        roles: Roles::default(),
        tools: vec!["bash".parse().expect("a tool")],
        rules: Rules {
            confirm: Some(false),
            running_max: Some(3),
            calls_max: Some(7),
            fails_with_call: true,
            ..Rules::default()
        },
        context: Fields::default(),
        erasure: None,
        parent: None,
    }
}

fn chunks() -> Vec<Chunk> {
    let progress = Progress { done: 0.5, total: Some(2.0), message: "half".to_owned() };
    let said = |content| Chunk::Content { channel: "stderr".to_owned(), content };
    contents().into_iter().map(said).chain([Chunk::Progress(progress)]).collect()
}

/// Entries about delayed calls, by name.
fn delays() -> Vec<(&'static str, Vec<Event>)> {
    let delayed = CallSpec { not_before: Some(Timestamp(1_762_997_000_000)), ..spec() };
    let opening = RunOpened { calls: vec![Arc::new(delayed.clone())], ..opened() };
    vec![
        ("run opened with a delayed call", vec![Event::RunOpened(opening)]),
        ("delayed call appended", vec![Event::CallsAppended { calls: vec![Arc::new(delayed)] }]),
        ("delay of a call ended", vec![Event::CallDelayEnded { call: CallIndex(1) }]),
    ]
}

/// An entry about a call that requires hooks, and its name.
fn with_hooks() -> (&'static str, Vec<Event>) {
    let spec = CallSpec { required_hooks: vec!["redact".to_owned(), "scan".to_owned()], ..spec() };
    ("calls with required hooks appended", vec![Event::CallsAppended { calls: vec![Arc::new(spec)] }])
}

/// The end of an attempt with a text that has sources, and its name.
fn with_citations() -> (&'static str, Vec<Event>) {
    let outcome = AttemptOutcome::Completed(vec![cited()].into());
    let ended = Event::AttemptEnded { attempt: attempt(), pool: pool(), chunks: 7, outcome };
    ("attempt completed with citations", vec![ended])
}

/// Entries of the log that name who asked, by name.
fn entries_with_requesters() -> [(&'static str, Vec<Event>); 2] {
    let opened = RunOpened { roles: requester().roles, ..opened() };
    let dispatched = Event::CallDispatched { call: CallIndex(1), pool: pool() };
    [
        ("run opened by a caller with roles", vec![Event::RunOpened(opened)]),
        ("call dispatched for its requester", vec![dispatched]),
    ]
}

/// Entries of the log, by name.
fn entries() -> Vec<(&'static str, Vec<Event>)> {
    let (call, pool) = (CallIndex(1), pool());
    let approved = Decision::Approved { arguments: Some(Bytes::from_static(b"{}")) };
    let rejected = Decision::Rejected { reason: "no".to_owned() };
    let alone =
        RunOpened { deadline: Timestamp(1_763_000_001_000), calls: vec![Arc::new(spec())], ..RunOpened::default() };
    let with_context = CallSpec { context: fields("user", r#"{"id": 1.50}"#), ..spec() };
    let given = RunOpened { calls: vec![Arc::new(with_context)], context: fields("region", "\"eu\""), ..opened() };
    let with_state = Completion { result: contents(), extra_state: fields("cart", "[7]") };
    let erasure = Some(Erasure { after: Duration::from_secs(60), request: Some([7; 32]) });
    let file = File { name: "data.csv".to_owned(), object: upload().object };
    let with_files = CallSpec { files: vec![file], ..spec() };
    let started = Event::AttemptStarted {
        attempt: attempt(),
        pool: pool.clone(),
        worker: "worker-1".parse().expect("an id"),
        lease: Bytes::from_static(b"$JS.ACK.lease"),
        from: ChunkIndex(3),
    };
    let stopping = |stage| Event::AttemptStopping { attempt: attempt(), pool: pool.clone(), stage };
    let ended = |outcome| Event::AttemptEnded { attempt: attempt(), pool: pool.clone(), chunks: 7, outcome };
    let expired = |deadline| vec![Event::CallExpired { call, deadline }];
    let entries = vec![
        ("run opened", vec![Event::RunOpened(opened())]),
        ("run opened to be erased", vec![Event::RunOpened(RunOpened { erasure, ..RunOpened::default() })]),
        (
            "run opened with its job",
            vec![Event::RunOpened(alone), Event::CallDispatched { call: CallIndex(0), pool: pool.clone() }],
        ),
        ("calls appended", vec![Event::CallsAppended { calls: vec![Arc::new(spec())] }]),
        ("run opened with a context", vec![Event::RunOpened(given)]),
        ("calls with files appended", vec![Event::CallsAppended { calls: vec![Arc::new(with_files)] }]),
        ("question asked", vec![Event::CallsAppended { calls: vec![Arc::new(asked())] }]),
        ("run closed", vec![Event::RunClosed]),
        ("run cancel requested", vec![Event::RunCancelRequested { reason: "enough".to_owned() }]),
        ("run erase requested", vec![Event::RunEraseRequested(erase_request())]),
        ("run expired", vec![Event::RunExpired { without_worker: Vec::new() }]),
        ("run expired without workers", vec![Event::RunExpired { without_worker: vec![call] }]),
        ("call dispatched", vec![Event::CallDispatched { call, pool: pool.clone() }]),
        ("call cancel requested", vec![Event::CallCancelRequested { call, reason: "enough".to_owned() }]),
        ("call cancelled", vec![Event::CallCancelled { call }]),
        ("call expired", expired(DeadlineKind::Call)),
        ("call expired in the queue", expired(DeadlineKind::Queue)),
        ("call expired at its client", expired(DeadlineKind::Client)),
        ("attempt expired", expired(DeadlineKind::Attempt(AttemptNumber(2)))),
        ("attempt fell silent", expired(DeadlineKind::Idle(AttemptNumber(2)))),
        ("call failed", vec![Event::CallFailed { call, error: error() }]),
        ("call redriven", vec![Event::CallRedriven { call, into: run_id() }]),
        ("call dropped", vec![Event::CallDropped { call }]),
        ("call approved", vec![Event::CallDecided { call, decision: approved, by: Decider::Person }]),
        ("call rejected", vec![Event::CallDecided { call, decision: rejected, by: Decider::Default }]),
        ("client answered", vec![Event::ClientAnswered { call, answer: Ok(contents()) }]),
        ("client failed", vec![Event::ClientAnswered { call, answer: Err(error()) }]),
        ("attempt started", vec![started]),
        ("stop delivered", vec![stopping(StopStage::Delivered)]),
        ("stop acknowledged", vec![stopping(StopStage::Acknowledged)]),
        (
            "output",
            vec![Event::Output { attempt: attempt(), pool: pool.clone(), first: ChunkIndex(3), chunks: chunks() }],
        ),
        ("attempt completed", vec![ended(AttemptOutcome::Completed(contents().into()))]),
        ("attempt completed with an object", vec![ended(AttemptOutcome::Completed(vec![object()].into()))]),
        ("attempt completed with state", vec![ended(AttemptOutcome::Completed(with_state))]),
        ("attempt failed", vec![ended(AttemptOutcome::Failed(error()))]),
        ("attempt cancelled", vec![ended(AttemptOutcome::Cancelled)]),
        ("attempt returned", vec![ended(AttemptOutcome::Returned)]),
        ("attempt overran its call", vec![ended(AttemptOutcome::Expired)]),
    ];
    [entries, delays(), vec![with_hooks(), with_citations()]].concat()
}

fn manifest() -> Manifest {
    Manifest {
        name: "bash".parse().expect("a tool"),
        description: "Run a command".to_owned(),
        input_schema: r#"{"type":"object"}"#.to_owned(),
        output_schema: String::new(),
        effects: Effects {
            read_only: false,
            idempotent: true,
            destructive: true,
            open_world: true,
            uses_machine: false,
        },
        policy: policy(),
        definition_only: false,
        streaming: true,
        category: "shell".to_owned(),
        permission: Permission::External,
        side_effect_scope: "workspace".to_owned(),
        requires_confirmation: true,
        tags: vec!["safe".to_owned()],
        result_use: ResultUse { is_final: true, return_direct: true, hidden: true },
        concurrency: Concurrency::Exclusive,
        version: Some("1.4".parse().expect("a version")),
        aliases: Vec::new(),
        max_concurrent: Some(2),
        running_max: None,
        exclusive_when: r#"{"required":["alone"]}"#.to_owned(),
        parallel_when: String::new(),
        context_keys: Vec::new(),
        origin: Origin::BuiltIn,
        title: String::new(),
    }
}

fn heartbeat() -> Heartbeat {
    let worker = "worker-1".parse().expect("an id");
    let tools = "0123456789abcdef".parse().expect("an id");
    Heartbeat {
        worker,
        slots: 16,
        running: 3,
        leaving: true,
        pulling: true,
        tools,
        draining: false,
        release: String::new(),
        sandbox: None,
        hooks: Vec::new(),
    }
}

fn question() -> Question {
    Question {
        run: run_id(),
        call: CallIndex(1),
        delivered: 2,
        sequence: 345,
        attempt: Some(attempt()),
        executed: false,
    }
}

fn answers() -> [(&'static str, Option<Answer>); 5] {
    let go = Verdict::Go { number: AttemptNumber(3), used: 1, from: ChunkIndex(4) };
    let end = Verdict::End { attempt: attempt(), outcome: AttemptOutcome::Failed(error()) };
    let answer = |verdict, last_output| Some(Answer { verdict, last_output, has_taker: false });
    [
        ("answer: go ahead", answer(go, 99)),
        ("answer: end", answer(end, 98)),
        ("answer: drop", answer(Verdict::Drop, 0)),
        ("answer: leave", answer(Verdict::Leave, 0)),
        ("answer: ask again", None),
    ]
}

/// A question of a running call, as it is appended.
fn asked() -> CallSpec {
    let asked_by = Some(AskedBy { attempt: attempt(), number: 3 });
    CallSpec { asked_by, route: Route::Client, approval: None, ..spec() }
}

fn user_question() -> UserQuestion {
    let question = NewQuestion {
        asked_by: AskedBy { attempt: attempt(), number: 3 },
        arguments: Bytes::from_static(br#"{"message":"Which?"}"#),
        timeout: Some(Duration::from_secs(60)),
    };
    UserQuestion { run: run_id(), sequence: 12_345, question }
}

/// How a question to the client may stand, by name.
fn user_answers() -> Vec<(&'static str, UserAnswer)> {
    let cancelled = Unanswered::Cancelled { reason: "enough".to_owned() };
    vec![
        ("question is open", UserAnswer::Open),
        ("question is answered", UserAnswer::Answered(Ok(contents()))),
        ("question failed", UserAnswer::Answered(Err(error()))),
        ("question expired", UserAnswer::Unanswered(Unanswered::Expired)),
        ("question cancelled", UserAnswer::Unanswered(cancelled)),
        ("question refused", UserAnswer::Refused("no".to_owned())),
    ]
}

fn upload() -> Upload {
    let Content::Object(object) = object() else { unreachable!("it is one") };
    let id = "upl_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().expect("an id");
    let object = Object { id, preview: String::new(), ..*object };
    Upload { object, tenant: opened().tenant, caller: opened().caller }
}

fn wanted_chunk() -> ChunkRequest {
    ChunkRequest { run: run_id(), call: CallIndex(1), object: upload().object.id, chunk: 7 }
}

fn snapshot() -> Snapshot {
    let (log, through) = (1_763_000_000_000_000_000, 12_345);
    let open = vec![Listed { run: run_id(), first: 0, last: 12_001 }];
    Snapshot { log, through, open, ..Snapshot::default() }
}

fn snapshot_with_letters() -> Snapshot {
    let letter = ("ty.notice.0f.agents.run.12300".to_owned(), Bytes::from_static(b"{}"));
    Snapshot { letters: vec![letter], ..snapshot() }
}

fn erase_request() -> EraseRequest {
    EraseRequest {
        reason: "enough".to_owned(),
        tenant: Some("team-1".parse().expect("a tenant")),
        bytes: 1_234,
        not_before: Timestamp(1_763_000_000_000),
        request: Some([7; 32]),
        continuations: 2,
    }
}

fn snapshot_with_owed_bytes() -> Snapshot {
    let mut snapshot = snapshot_with_erasures();
    for owed in &mut snapshot.erasures {
        owed.bytes = Some(("team-1".parse().expect("a tenant"), 1_234));
    }
    Snapshot { erasures_behind: 12_100, ..snapshot }
}

fn snapshot_with_erasures() -> Snapshot {
    let (run, due, through) = (run_id(), Timestamp(1_763_000_000_000), 12_300);
    let owed =
        OwedErasure { run, due, through, request: Some([7; 32]), continuations: 2, bytes: None, is_never_past: false };
    Snapshot { erasures: vec![owed], ..snapshot() }
}

/// Every kind of message, as this release encodes it.
fn all() -> BTreeMap<&'static str, Bytes> {
    let log = entries()
        .into_iter()
        .chain(entries_with_requesters())
        .map(|(name, events)| (name, encode(&events, Some(&dispatch()))));
    let others = [
        ("advertisement", worker::encode_advertisement([manifest()].iter()).1),
        ("heartbeat", heartbeat().encode()),
        ("question", encode_question(&question())),
        ("question to the client", encode_user_question(&user_question())),
        ("stop", Stop::Attempt(run_id(), attempt()).encode()),
        ("stop of a worker", Stop::Worker("worker-1".parse().expect("an id")).encode()),
        ("upload", upload().encode()),
        ("wanted chunk", wanted_chunk().encode()),
        ("given chunk", ChunkReply::Data(Bytes::from_static(b"data")).encode()),
        ("refused chunk", ChunkReply::Refused("no".to_owned()).encode()),
        ("snapshot", snapshot().encode()),
        ("snapshot with erasures", snapshot_with_erasures().encode()),
        ("snapshot with owed bytes", snapshot_with_owed_bytes().encode()),
        ("snapshot with letters", snapshot_with_letters().encode()),
    ];
    let answers = answers().into_iter().map(|(name, answer)| (name, worker::encode_answer(answer.as_ref())));
    let stands = user_answers().into_iter();
    let stands = stands.map(|(name, answer)| (name, worker::encode_user_answer(Some(&answer))));
    log.chain(others).chain(answers).chain(stands).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn released(text: &'static str) -> BTreeMap<&'static str, Bytes> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("digits");
    let lines = text.lines().map(|line| line.split_once(" = ").expect("a name and its bytes"));
    lines.map(|(name, digits)| (name, digits.as_bytes().chunks(2).map(byte).collect())).collect()
}

#[test]
fn entries_of_earlier_releases_mean_what_they_meant() {
    for (release, text) in RELEASES {
        let written = released(text);
        for (name, events) in entries().into_iter().chain(entries_with_requesters()) {
            let Some(bytes) = written.get(name) else { continue };
            let place = SubjectKind::of(&events).expect("it has events");
            let subject = Subject { run: run_id(), place };
            let entry = decode(&subject, bytes.clone(), 1, Timestamp(2)).expect(name);
            assert_eq!(entry.events, events, "{name} of {release}");
            if let SubjectKind::Job { .. } = &subject.place {
                let job = decode_job(&subject, bytes.clone(), Timestamp(u64::MAX)).expect(name);
                let job = job.expect("a job without a moment");
                assert_eq!(*job.spec, spec(), "{name} of {release}");
                // A release that does not say whether the run is stored means that it is.
                let is_erased = |event: &Event| matches!(event, Event::RunOpened(opened) if opened.erasure.is_some());
                assert_eq!(job.is_stored, !events.iter().any(is_erased), "{name} of {release}");
                let asked = match name {
                    // The first coordinators did not send it.
                    "call dispatched" => None,
                    "call dispatched for its requester" => Some(requester()),
                    _ => Some(Requester::default()),
                };
                assert_eq!(job.requester, asked, "{name} of {release}");
            }
        }
    }
}

#[test]
fn words_of_earlier_releases_mean_what_they_meant() {
    for (release, text) in RELEASES {
        let mut written = released(text);
        let mut take = |name: &str| written.remove(name).unwrap_or_else(|| panic!("{name} is missing in {release}"));
        assert_eq!(Heartbeat::decode(take("heartbeat")).expect("one"), heartbeat(), "{release}");
        assert_eq!(decode_question(take("question")).expect("one"), question(), "{release}");
        assert_eq!(Stop::decode(take("stop")).expect("one"), Stop::Attempt(run_id(), attempt()), "{release}");
        let worker = Stop::Worker("worker-1".parse().expect("an id"));
        assert_eq!(Stop::decode(take("stop of a worker")).expect("one"), worker, "{release}");
        assert_eq!(Upload::decode(take("upload")).expect("one"), upload(), "{release}");
        assert_eq!(ChunkRequest::decode(take("wanted chunk")).expect("one"), wanted_chunk(), "{release}");
        let given = (["given chunk", "refused chunk"]).map(|name| ChunkReply::decode(take(name)).expect(name));
        let expected = [ChunkReply::Data(Bytes::from_static(b"data")), ChunkReply::Refused("no".to_owned())];
        assert_eq!(given, expected, "{release}");
        assert_eq!(Snapshot::decode(take("snapshot"), Shard(15)).expect("one"), snapshot(), "{release}");
        let owed = Snapshot::decode(take("snapshot with erasures"), Shard(15)).expect("one");
        assert_eq!(owed, snapshot_with_erasures(), "{release}");
        let owed = Snapshot::decode(take("snapshot with owed bytes"), Shard(15)).expect("one");
        assert_eq!(owed, snapshot_with_owed_bytes(), "{release}");
        let owed = Snapshot::decode(take("snapshot with letters"), Shard(15)).expect("one");
        assert_eq!(owed, snapshot_with_letters(), "{release}");
        for (name, answer) in answers() {
            assert_eq!(worker::decode_answer(take(name), attempt().call).expect(name), answer, "{name} of {release}");
        }
        let asks = WorkerRequest::Ask(user_question());
        assert_eq!(decode_request(take("question to the client")).expect("one"), asks, "{release}");
        for (name, answer) in user_answers() {
            let stands = worker::decode_user_answer(take(name)).expect(name);
            assert_eq!(stands, UserReply::Known(answer), "{name} of {release}");
        }
        let tools = worker::decode_advertisement(take("advertisement")).expect("one");
        let read = tools.into_iter().map(|tool| tool.expect("a usable tool").manifest);
        assert_eq!(read.collect::<Vec<_>>(), [manifest()], "{release}");
    }
}

#[test]
fn every_kind_of_message_has_its_bytes_on_record() {
    let kinds: HashSet<_> = entries().iter().flat_map(|(_, events)| events.iter().map(discriminant)).collect();
    assert_eq!(kinds.len(), 20, "a new kind of event needs a sample here");
    let known: HashSet<&str> = RELEASES.iter().flat_map(|(_, text)| released(text).into_keys()).collect();
    let missing = all().into_iter().filter(|(name, _)| !known.contains(name));
    let missing: Vec<String> = missing.map(|(name, bytes)| format!("{name} = {}", hex(&bytes))).collect();
    assert!(missing.is_empty(), "add to the file of this release:\n{}", missing.join("\n"));
}
