//! Requests that reach the log after their caller got an error: they are never executed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use async_nats::jetstream;
use async_nats::jetstream::message::PublishMessage;
use harness::{Callers, Client, Fixture, Guarded, PATIENCE, Run, Shards, Stream, Yard, call, reason};
use hyper_util::rt::TokioExecutor;
use prost::Message as _;
use proto::v1::{self, CallState, FloorPolicy, RunStatus, run_event::Event};
use proto::wire::v1 as wire;
use run::RunId;
use serde_json::json;
use tonic_types::StatusExt as _;

use crate::{FIXTURE, check};

/// A call that leaves a line in a file. `writes` is not safe to repeat, `notes` is.
fn writes(id: &str, tool: &str, path: &Path, line: &str) -> v1::NewCall {
    call(id, tool, json!({ "path": path, "line": line, "then_wait_ms": 0 }))
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// The log, and entries that a coordinator would store there.
struct Log(jetstream::Context);

impl Log {
    async fn of(yard: &Yard) -> Self {
        Self(jetstream::new(async_nats::connect(yard.broker.url()).await.expect("the broker listens")))
    }

    /// The entry that opened a run of a single call.
    async fn opening(&self, run: &str) -> (String, wire::Entry) {
        let stream = self.0.get_stream("ty-log").await.expect("the log is there");
        let subject = format!("ty.run.*.{run}.0.job.main");
        let message = stream.get_last_raw_message_by_subject(&subject).await.expect("it was opened");
        (message.subject.to_string(), wire::Entry::decode(message.payload).expect("an entry"))
    }

    async fn store(&self, subject: String, entry: &wire::Entry) {
        let message = PublishMessage::build().payload(entry.encode_to_vec().into()).expected_last_subject_sequence(0);
        let sent = self.0.send_publish(subject, message).await.expect("it is sent");
        sent.await.expect("nothing is on its subject");
    }
}

/// Another run of the same shard.
fn another(run: &str) -> String {
    let run: RunId = run.parse().expect("a run id");
    RunId::new(run.shard(), uuid::Uuid::now_v7()).to_string()
}

/// The run's id, and all its output.
async fn executed(mut stream: Stream, yard: &Yard) -> (String, Vec<v1::RunEvent>) {
    stream.until(|event| matches!(event, Event::RunOpened(_))).await;
    (stream.run(&yard.client).id, stream.to_end().await)
}

/// Jobs queued before it are dropped before this one is executed.
async fn is_idle(yard: &Yard) {
    let events = yard.client.execute(vec![call("after", "echo", json!({ "text": "after" }))]).await.to_end().await;
    check::whole(&events, true);
}

#[tokio::test]
async fn a_run_that_is_opened_too_late_ends_as_it_begins_and_is_not_executed() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(1).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = Log::of(&yard).await;
    for tool in ["writes", "notes"] {
        let path: PathBuf = folder.path().join(tool);
        let (asked, events) = executed(yard.client.execute(vec![writes("w", tool, &path, "done")]).await, &yard).await;
        check::whole(&events, true);
        let (subject, opening) = log.opening(&asked).await;
        assert!(opening.not_after_ms > 0, "it says until when it counts");
        for (late, status) in [(true, RunStatus::Expired), (false, RunStatus::Completed)] {
            let run = another(&asked);
            // The clock of this process counts from its start, so it may differ from the broker's by some milliseconds.
            let ms = if late { -1000 } else { 15_000 };
            let not_after_ms = ::nats::now().0.checked_add_signed(ms).expect("a time");
            log.store(subject.replace(&asked, &run), &wire::Entry { not_after_ms, ..opening.clone() }).await;
            let run = Run { client: yard.client.clone(), id: run };
            let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
            check::whole(&events, true);
            assert_eq!(run.get().await.status(), status, "{tool}, late: {late}");
            is_idle(&yard).await;
            let executed = if late { 1 } else { 2 };
            assert_eq!(lines(&path).len(), executed, "{tool}, late: {late}");
            if late {
                assert_eq!(check::outcomes(&events)["w"].state(), CallState::Expired);
            }
        }
    }
}

#[tokio::test]
async fn a_copy_of_an_opening_that_comes_after_the_erasure_executes_nothing_and_is_erased_too() {
    let yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_ERASE_AFTER", 1)).await;
    let _worker = yard.worker_with_slots(1).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    let log = Log::of(&yard).await;
    let request = v1::CreateRunRequest {
        calls: vec![writes("w", "writes", &path, "done")],
        store: Some(false),
        ..v1::CreateRunRequest::default()
    };
    let stream = yard.client.execute_request(request).await.expect("accepted");
    let (run, _) = executed(stream, &yard).await;
    let (subject, opening) = log.opening(&run).await;
    let shards = Shards::at(&yard.broker.url()).await;
    let entries = format!("ty.run.*.{run}.>");
    let until_erased = async || {
        let give_up = Instant::now() + PATIENCE;
        while shards.entries(&entries).await > 0 {
            assert!(Instant::now() < give_up, "it is never erased");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    until_erased().await;
    assert!(::nats::now().0 > opening.not_after_ms, "it is not erased while a copy of its opening would count");
    // As a coordinator's connection would bring it that was away meanwhile.
    log.store(subject, &opening).await;
    is_idle(&yard).await;
    assert_eq!(lines(&path), ["done"]);
    until_erased().await;
    is_idle(&yard).await;
    assert_eq!(lines(&path), ["done"]);
}

#[tokio::test]
async fn what_is_asked_for_while_the_broker_stands_still_is_not_executed_when_it_goes_on() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(4).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    let http = yard.http();
    let open = v1::CreateRunRequest { keep_open: true, ..v1::CreateRunRequest::default() };
    let open = yard.client.runs.clone().create_run(open).await.expect("accepted").into_inner().run.expect("a run");
    yard.broker.pause();

    let calls = |line: &str| vec![writes(line, "writes", &path, line)];
    let executes = ["one", "two", "three"].map(|line| {
        let request = v1::CreateRunRequest { calls: calls(line), ..v1::CreateRunRequest::default() };
        yard.client.execute_request(request)
    });
    let (mut runs, mut more) = (yard.client.runs.clone(), yard.client.runs.clone());
    let created = runs.create_run(v1::CreateRunRequest { calls: calls("four"), ..v1::CreateRunRequest::default() });
    let run_id = open.run_id.clone();
    let appended =
        more.append_calls(v1::AppendCallsRequest { run_id, calls: calls("five"), ..v1::AppendCallsRequest::default() });
    let arguments = json!({ "path": path, "line": "six", "then_wait_ms": 0 }).to_string();
    let body = json!({ "calls": [{ "tool": "writes", "arguments": arguments }] });
    let (executed, created, appended, posted) =
        tokio::join!(futures::future::join_all(executes), created, appended, http.post("/v1/runs", &body));
    let mut refused: Vec<_> = executed.into_iter().map(|executed| executed.expect_err("it is refused")).collect();
    refused.push(created.expect_err("it is refused"));
    let appended = appended.expect_err("it is refused");
    yard.broker.resume();

    assert_eq!(posted.problem(), (504, "UNCONFIRMED".to_owned()));
    for status in refused {
        assert_eq!((status.code(), reason(&status).as_str()), (tonic::Code::DeadlineExceeded, "UNCONFIRMED"));
        let info = status.get_details_error_info().expect("it has details");
        let run = Run { client: yard.client.clone(), id: info.metadata["run_id"].clone() };
        never_runs(&run).await;
    }
    assert_eq!(reason(&appended), "UNCONFIRMED");
    let info = appended.get_details_error_info().expect("it has details");
    assert_eq!(info.metadata["run_id"], open.run_id);
    let confirmed = yard.client.execute(calls("confirmed")).await.to_end().await;
    check::whole(&confirmed, true);
    assert_eq!(lines(&path), ["confirmed"]);
    // The run itself goes on, behind the late entries.
    let run = Run { client: yard.client.clone(), id: open.run_id };
    assert!(run.get().await.calls.is_empty());
    let request = v1::AppendCallsRequest { run_id: run.id.clone(), calls: calls("again"), ..Default::default() };
    yard.client.runs.clone().append_calls(request).await.expect("it is open");
    run.cancel("enough").await;
    assert_eq!(check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await).len(), 1);
}

#[tokio::test]
async fn a_stream_that_fails_before_its_first_event_names_its_run() {
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let text = "[[callers]]\nname = \"acme\"\ntenant = \"acme\"\nroles = [\"submit\", \"read\"]\n\
                tools = [{ names = [\"*\"] }]\nkeys = [\"{acme}\"]\n";
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(text)).await;
    let logged = yard.fixture.with("TOOLYARD_LOG", "info").logging_to(log.path()).coordinator(&yard.broker.url()).await;
    let client = Client::connect(logged.address()).await.with_key(&yard.callers.key("acme"));
    client.wait_for_tool("writes").await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    let run = |line: &str| v1::CreateRunRequest {
        calls: vec![writes(line, "writes", &path, line)],
        ..v1::CreateRunRequest::default()
    };
    yard.broker.pause();
    // One client stops waiting, one hangs up, and one asks for many runs.
    let mut overdue = tonic::Request::new(run("overdue").into());
    overdue.metadata_mut().insert("grpc-timeout", "1S".parse().expect("it is ASCII"));
    let key = format!("Bearer {}", yard.callers.key("acme"));
    overdue.metadata_mut().insert("authorization", key.parse().expect("it is ASCII"));
    // Not through a channel of tonic, whose own timer would answer first.
    let connections = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let origin = format!("http://{}", logged.address()).parse().expect("an address is an origin");
    let mut runs = v1::run_service_client::RunServiceClient::with_origin(connections, origin);
    let overdue = async { (runs.execute_run(overdue).await.expect_err("it is overdue"), Instant::now()) };
    let gone = tokio::time::timeout(Duration::from_secs(1), client.execute_request(run("gone")));
    let many = async {
        let request = v1::ExecuteRunsRequest { tag: 7, run: Some(run("many").into()) };
        let mut runs = client.runs.clone();
        let mut pieces = runs.execute_runs(futures::stream::iter([request])).await.expect("it begins").into_inner();
        loop {
            let message = pieces.message().await.expect("it goes on").expect("an answer");
            if let Some(refusal) = message.pieces.into_iter().find_map(|piece| piece.refusal) {
                break refusal;
            }
        }
    };
    let ((overdue, asked), gone, many) = tokio::join!(overdue, gone, many);
    // Its caller was answered before it was known whether its run would count. No more than a second is lost on the
    // way.
    tokio::time::sleep_until((asked + run::STORED_WITHIN + Duration::from_secs(1)).into()).await;
    yard.broker.resume();

    assert!(gone.is_err(), "it was answered: {:?}", gone.map(|answer| answer.map(drop)));
    assert_eq!(many.reason, "UNCONFIRMED");
    assert_eq!(reason(&overdue), "DEADLINE_EXCEEDED");
    let overdue = overdue.get_details_error_info().expect("it has details").metadata["run_id"].clone();
    for id in [many.run_id, overdue.clone()] {
        never_runs(&Run { client: client.clone(), id }).await;
    }
    // The audit has a line for each, also for clients that did not wait.
    let give_up = Instant::now() + PATIENCE;
    let audit: Vec<String> = loop {
        let log = std::fs::read_to_string(log.path()).expect("the log is there");
        let audit = log.lines().filter(|line| line.contains("ExecuteRun") && line.contains("decision"));
        let audit: Vec<_> = audit.map(str::to_owned).collect();
        if audit.len() >= 3 || Instant::now() > give_up {
            break audit;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let left: Vec<_> = audit.iter().filter(|line| line.contains("CLIENT_GONE") && line.contains("unknown")).collect();
    assert_eq!((audit.len(), left.len()), (3, 2), "{audit:#?}");
    assert!(left.iter().any(|line| line.contains(&overdue)), "{left:#?}");
    assert!(left.iter().all(|line| line.contains("run_")), "{left:#?}");
}

/// The run is not there, or ended before it began. Its caller may ask as soon as the broker answers.
async fn never_runs(run: &Run) {
    let mut runs = run.client.runs.clone();
    let give_up = Instant::now() + PATIENCE;
    loop {
        let request = v1::GetRunRequest { run_id: run.id.clone() };
        match runs.get_run(request).await.map(|got| got.into_inner().run.expect("a run")) {
            Ok(got) => return assert_eq!(got.status(), RunStatus::Expired, "{got:?}"),
            Err(status) if reason(&status) == "RUN_NOT_FOUND" => return,
            Err(status) => assert!(Instant::now() < give_up, "{status:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
