//! A worker that is killed loses nothing, doubles nothing, and repeats nothing that must not be repeated.

use std::time::Duration;

use harness::{Yard, call};
use nats::access::Party;
use proto::convert::worker::{Question, decode_answer, encode_question};
use proto::v1::{self, CallErrorKind, FloorPolicy, run_event::Event};
use run::{CallIndex, PoolId, RunId, Verdict};
use serde_json::json;

use crate::{FIXTURE, check, count, counted};

fn is_output(event: &Event) -> bool {
    matches!(event, Event::CallOutput(_))
}

#[tokio::test]
async fn a_worker_killed_in_mid_stream_leads_to_a_second_attempt_without_doubled_output() {
    let yard = Yard::start(FIXTURE).await;
    let mut first = yard.worker().await;
    let mut stream = yard.client.execute(vec![count("c", 30, 60)]).await;
    stream.until(is_output).await;
    first.kill().await;
    let _second = yard.worker().await;
    let run = stream.run(&yard.client);
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], counted("c", 30));
    let attempts: Vec<u32> = check::kinds(&events)
        .into_iter()
        .filter_map(|kind| match kind {
            Event::AttemptStarted(started) => Some(started.attempt),
            _ => None,
        })
        .collect();
    assert_eq!(attempts, [1, 2]);
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await);
}

#[tokio::test]
async fn a_call_that_is_not_repeated_ends_with_its_worker_though_no_other_worker_lives() {
    let yard = Yard::start(FIXTURE).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    let mut only = yard.worker().await;
    let arguments = json!({ "path": path, "line": "once", "then_wait_ms": 600_000 });
    let mut stream = yard.client.execute(vec![call("w", "writes", arguments.clone())]).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    only.kill().await;
    let lost = std::time::Instant::now();
    let events = stream.to_end().await;
    eprintln!("interrupted {:?} after its worker was killed", lost.elapsed());
    check::whole(&events, true);
    let error = check::outcomes(&events)["w"].error.clone().expect("a failure has an error");
    assert_eq!(error.kind(), CallErrorKind::Interrupted);
    // Nothing is left of it that a worker that comes later would execute.
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let _next = yard.worker().await;
    let after = yard.client.execute(vec![count("c", 3, 1)]).await.to_end().await;
    assert_eq!(check::said(&after)["c"], counted("c", 3));
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), written);
}

#[tokio::test]
async fn a_tool_that_is_not_safe_to_repeat_is_not_started_twice_and_its_caller_is_told() {
    let yard = Yard::start(FIXTURE).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    let mut first = yard.worker().await;
    let arguments = json!({ "path": path, "line": "once", "then_wait_ms": 600_000 });
    let mut stream = yard.client.execute(vec![call("w", "writes", arguments)]).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    let written = async {
        while std::fs::read_to_string(&path).unwrap_or_default().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, written).await.expect("the tool writes");
    first.kill().await;
    let _second = yard.worker().await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    let error = check::outcomes(&events)["w"].error.clone().expect("a failure has an error");
    assert_eq!(error.kind(), CallErrorKind::Interrupted);
    assert!(error.message.contains("may have happened"), "{}", error.message);
    assert_eq!(std::fs::read_to_string(&path).expect("the file is there"), "once\n");
}

#[tokio::test]
async fn jobs_that_a_worker_was_given_as_it_stood_still_go_to_another_long_before_their_lease_runs_out() {
    let yard = Yard::start(FIXTURE).await;
    let frozen = yard.worker().await;
    frozen.pause();
    let timeout = Some(proto::convert::duration(proto::names::JOB_LEASE - Duration::from_secs(5)));
    let says = |id: &str| v1::NewCall { timeout, ..call(id, "echo", json!({ "text": id })) };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    let writes = json!({ "path": path, "line": "once", "then_wait_ms": 4_000 });
    let beside = v1::NewCall { concurrency: v1::ToolConcurrency::Parallel.into(), ..call("w", "writes", writes) };
    // The broker does not know yet that the worker is gone.
    let mut stream = yard.client.execute(vec![says("a"), says("b"), beside]).await;
    stream.until(|event| matches!(event, Event::RunOpened(_))).await;
    let _other = yard.worker().await;
    // It wakes up while the other executes the job that both were given.
    stream.until(|event| matches!(event, Event::AttemptStarted(started) if started.call_id == "w")).await;
    frozen.resume();
    let run = stream.run(&yard.client);
    let events = stream.to_end().await;
    check::whole(&events, true);
    let ended: Vec<_> = check::outcomes(&events).values().map(v1::CallOutcome::state).collect();
    assert_eq!(ended, [v1::CallState::Completed; 3], "none waited for its deadline");
    assert_eq!(std::fs::read_to_string(&path).expect("the file is there"), "once\n");
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await);
}

#[tokio::test]
async fn a_worker_that_was_passed_over_leaves_the_job_to_the_one_that_lives_and_has_it() {
    let yard = Yard::start(FIXTURE).await;
    let mut first = yard.worker().await;
    let mut stream = yard.client.execute(vec![count("c", 400, 50)]).await;
    stream.until(is_output).await;
    first.kill().await;
    let mut second = yard.worker().await;
    stream.until(|event| matches!(event, Event::AttemptStarted(started) if started.attempt == 2)).await;
    let run: RunId = stream.run(&yard.client).id.parse().expect("an id");
    let pool: PoolId = "main".parse().expect("a pool");
    let options = async_nats::ConnectOptions::new().custom_inbox_prefix(Party::Pool(pool.clone()).inbox());
    let asker = options.connect(yard.broker.url()).await.expect("the broker is there");
    // As a worker that was given the job before the second one, and wakes up now.
    let ask = async |delivered, executed| {
        let question = Question { run, call: CallIndex(0), delivered, sequence: 1, attempt: None, executed };
        let answered = async {
            loop {
                let asked = asker.request(proto::names::question(&pool, run.shard()), encode_question(&question)).await;
                let answer = asked.expect("an owner answers").payload;
                if let Some(answer) = decode_answer(answer, question.call).expect("an answer") {
                    return answer.verdict;
                }
            }
        };
        tokio::time::timeout(harness::PATIENCE, answered).await.expect("the owner knows")
    };
    assert_eq!(ask(1, false).await, Verdict::Leave);
    assert_eq!(ask(3, false).await, Verdict::Leave, "a job that was handed back by mistake costs nobody their attempt");
    assert_eq!(ask(1, true).await, Verdict::Leave, "the job's acknowledgement is the other's");
    second.kill().await;
    let lost = async { while ask(1, false).await == Verdict::Leave {} };
    tokio::time::timeout(harness::PATIENCE, lost).await.expect("who is lost has the job no more");
}

#[tokio::test]
async fn output_of_a_pool_that_a_call_was_not_routed_to_is_not_heard() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let mut stream = yard.client.execute(vec![count("c", 10, 50)]).await;
    stream.until(is_output).await;
    let run = stream.run(&yard.client);
    let forged = forged_output(&run.id);
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    let context = async_nats::jetstream::new(nats);
    let shard = &run.id[4..6];
    for (subject, payload) in [
        (format!("ty.run.{shard}.{}.0.out.other", run.id), forged.clone()),
        (format!("ty.run.{shard}.{}.7.out.main", run.id), forged.clone()),
        (format!("ty.run.{shard}.{}.0.ctl", run.id), forged.clone()),
        (format!("ty.run.{shard}.{}.0.out.main", run.id), "not an entry".into()),
    ] {
        context.publish(subject, payload).await.expect("it is sent").await.expect("the broker stores anything");
    }
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], counted("c", 10));
}

#[tokio::test]
async fn garbage_among_the_entries_of_a_run_stops_no_reader() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![crate::question("ask")]).await;
    let context =
        async_nats::jetstream::new(async_nats::connect(yard.broker.url()).await.expect("the broker is there"));
    // More than a page of the log.
    for _ in 0..600 {
        let subject = format!("ty.run.{}.{}.0.out.main", &run.id[4..6], run.id);
        let sent = context.publish(subject, "garbage".into()).await.expect("it is sent");
        sent.await.expect("the broker stores anything");
    }
    let mut stream = run.watch(FloorPolicy::Arrival).await;
    stream.until(|event| matches!(event, Event::CallWaiting(_))).await;
    run.submit(vec![harness::client_answer("ask", "still here")]).await.expect("the call waits");
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(run.get().await.status(), v1::RunStatus::Completed);
}

#[tokio::test]
async fn entries_that_a_newer_coordinator_wrote_stop_no_command_and_no_deadline() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let other = yard.fixture.coordinator(&yard.broker.url()).await;
    let other = harness::Client::connect(other.address()).await;
    other.wait_for_tool("echo").await;
    let timeout = Some(proto::convert::duration(Duration::from_secs(3)));
    let overdue = v1::NewCall { timeout, ..crate::question("overdue") };
    let request = v1::CreateRunRequest {
        calls: vec![crate::question("ask"), crate::question("goes"), overdue],
        keep_open: true,
        ..v1::CreateRunRequest::default()
    };
    let created = yard.client.runs.clone().create_run(request).await.expect("the run is accepted").into_inner();
    let run = harness::Run { client: yard.client.clone(), id: created.run.expect("the response has the run").run_id };
    let context =
        async_nats::jetstream::new(async_nats::connect(yard.broker.url()).await.expect("the broker is there"));
    for place in ["0.ctl", "1.ctl", "2.ctl", "_.run"] {
        let subject = format!("ty.run.{}.{}.{place}", &run.id[4..6], run.id);
        let sent = context.publish(subject, "from the future".into()).await.expect("it is sent");
        sent.await.expect("the broker stores anything");
    }
    // One command as its owner decides it, one as another coordinator does.
    run.submit(vec![harness::client_answer("ask", "all the same")]).await.expect("the call waits");
    let close = v1::CloseRunRequest { run_id: run.id.clone() };
    other.runs.clone().close_run(close).await.expect("an open run can be closed");
    let cancel = v1::CancelCallRequest { run_id: run.id.clone(), call_id: "goes".to_owned(), reason: String::new() };
    other.runs.clone().cancel_call(cancel).await.expect("a call can be cancelled");
    let events = run.through(&other).watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::text(&check::outcomes(&events)["ask"]), "all the same");
    assert_eq!(check::outcomes(&events)["overdue"].state(), v1::CallState::Expired);
}

/// An entry in which an attempt sends output and completes.
fn forged_output(run: &str) -> bytes::Bytes {
    use proto::wire::v1 as wire;
    let content = v1::Content::from(v1::content::Body::Text(format!("forged for {run}")));
    let chunk = wire::Chunk { channel: String::new(), piece: Some(wire::chunk::Piece::Content(content.clone())) };
    let output = wire::event::Kind::Output(wire::Output { first: 0, chunks: vec![chunk] });
    let ended = wire::event::Kind::AttemptEnded(wire::AttemptEnded {
        chunks: 1,
        outcome: wire::AttemptOutcome::Completed.into(),
        extra_state: String::new(),
        result: vec![content],
        error: None,
    });
    let events = [output, ended].map(|kind| wire::Event { kind: Some(kind) });
    let attempt = Some(wire::Attempt { number: 99, nonce: 1 });
    let entry = wire::Entry { version: 1, attempt, events: events.into(), ..wire::Entry::default() };
    prost::Message::encode_to_vec(&entry).into()
}
