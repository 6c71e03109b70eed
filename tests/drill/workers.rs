//! Rows about workers.

use std::time::{Duration, Instant};

use harness::{Keys, PATIENCE, Stream, Worker, Yard, call, check};
use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy};
use serde_json::json;

use crate::load::Load;
use crate::report::Seen;
use crate::rest::{fixture, guarded_broker};

/// Which of two workers runs the first call of a stream.
async fn running(stream: &mut Stream, workers: &[Worker; 2]) -> usize {
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let started = check::kinds(&stream.seen).into_iter().find_map(|event| match event {
        Event::AttemptStarted(started) => Some(started.worker_id.clone()),
        _ => None,
    });
    let started = started.expect("an attempt has started");
    workers.iter().position(|worker| worker.id() == started).expect("it is one of ours")
}

fn count(pieces: u32) -> v1::NewCall {
    call("c", "count", json!({ "label": "c", "pieces": pieces, "every_ms": 50 }))
}

fn counted(pieces: u32) -> String {
    (0..pieces).map(|piece| format!("c-{piece} ")).collect()
}

/// A stream in mid-output, and which of its two workers runs it.
async fn two() -> (Yard, [Worker; 2], Stream, usize) {
    let yard = Yard::start_with(fixture()).await;
    let workers = [yard.worker().await, yard.worker().await];
    let mut stream = yard.client.execute(vec![count(100)]).await;
    let busy = running(&mut stream, &workers).await;
    (yard, workers, stream, busy)
}

/// The rest of the stream, in which a second attempt starts; how long after `began`.
async fn begun_again(mut stream: Stream, began: Instant) -> (Duration, Vec<v1::RunEvent>) {
    stream.until(|event| matches!(event, Event::AttemptStarted(started) if started.attempt == 2)).await;
    let took = began.elapsed();
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::outcomes(&events)["c"].state(), CallState::Completed);
    assert_eq!(check::said(&events)["c"], counted(100), "nothing is doubled and nothing is missing");
    (took, events)
}

pub(crate) async fn one_dies() -> Seen {
    let (_yard, mut workers, stream, busy) = two().await;
    workers[busy].kill().await;
    let (took, _) = begun_again(stream, Instant::now()).await;
    Seen::new(took, "attempt 2 began at the other worker, the call completed, its output is whole")
}

pub(crate) async fn one_stalls() -> Seen {
    let (yard, workers, stream, busy) = two().await;
    let run = stream.run(&yard.client);
    workers[busy].pause();
    let (took, events) = begun_again(stream, Instant::now()).await;
    workers[busy].resume();
    // Another call of it shows that it is back, and has said what it had to say.
    let again = yard.client.execute((0..40).map(|n| call(&n.to_string(), "echo", json!({ "text": "x" }))).collect());
    check::whole(&again.await.to_end().await, true);
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await, "a late reader sees the same");
    Seen::new(took, "attempt 2 began at the other worker; a reader after the first one's return sees the same")
}

pub(crate) async fn one_dies_with_an_effect() -> Seen {
    let yard = Yard::start_with(fixture()).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    let mut only = yard.worker().await;
    yard.client.wait_for_tool("writes").await;
    let arguments = json!({ "path": path, "line": "once", "then_wait_ms": 600_000 });
    let mut stream = yard.client.execute(vec![call("w", "writes", arguments)]).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    let written = async {
        while std::fs::read_to_string(&path).unwrap_or_default().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, written).await.expect("the tool writes");
    only.kill().await;
    let began = Instant::now();
    let events = stream.to_end().await;
    let took = began.elapsed();
    let error = check::outcomes(&events)["w"].error.clone().expect("a failure has an error");
    assert_eq!(error.kind(), CallErrorKind::Interrupted, "{error:?}");
    let _next = yard.worker().await;
    let after = yard.client.execute(vec![call("e", "echo", json!({ "text": "x" }))]).await.to_end().await;
    assert_eq!(check::outcomes(&after)["e"].state(), CallState::Completed);
    assert_eq!(std::fs::read_to_string(&path).expect("it was written").lines().count(), 1);
    Seen::new(took, "`INTERRUPTED`; its line was written once, also after another worker had come")
}

pub(crate) async fn none_is_left() -> Seen {
    let yard = Yard::start_with(fixture()).await;
    let mut only = yard.worker().await;
    yard.client.wait_for_tool("echo").await;
    only.kill().await;
    let began = Instant::now();
    let hurried = v1::NewCall {
        without_worker: v1::WithoutWorker::Fail.into(),
        ..call("hurried", "echo", json!({ "text": "x" }))
    };
    let events = yard.client.execute(vec![hurried]).await.to_end().await;
    let took = began.elapsed();
    let error = check::outcomes(&events)["hurried"].error.clone().expect("a failure has an error");
    assert_eq!(error.kind(), CallErrorKind::NoWorker, "{error:?}");
    let waits = yard.client.create(vec![call("waits", "echo", json!({ "text": "x" }))]).await;
    let _next = yard.worker().await;
    let events = waits.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::outcomes(&events)["waits"].state(), CallState::Completed);
    Seen::new(took, "a call made right after the kill ended with `NO_WORKER`; another waited and completed")
}

pub(crate) async fn has_the_wrong_key() -> Seen {
    let keys = Keys::new(&["main", "other"]);
    let broker = guarded_broker(&keys).await;
    let _coordinator = keys.coordinators(&fixture()).coordinator(&broker.url()).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("log");
    let began = Instant::now();
    let workers = keys.workers(&fixture(), "other").logging_to(&log);
    let url = broker.url();
    // No job reaches it.
    let started = tokio::spawn(async move { workers.worker(&url, "main", 4).await });
    let said = async {
        while !std::fs::read_to_string(&log).is_ok_and(|log| log.contains("Permissions Violation for Publish")) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let said = tokio::time::timeout(Duration::from_secs(30), said).await;
    assert!(said.is_ok(), "its log: {}", std::fs::read_to_string(&log).unwrap_or_default());
    let took = began.elapsed();
    started.abort();
    Seen::new(took, "log: `the broker refused something; are permissions missing? … Permissions Violation for Publish`")
}

pub(crate) async fn is_drained() -> Seen {
    let yard = Yard::start_with(fixture()).await;
    let (mut leaves, _stays) = (yard.worker().await, yard.worker().await);
    yard.client.wait_for_tool("echo").await;
    let mut load = Load::begin(std::slice::from_ref(&yard.client));
    load.goes_on(20).await;
    let began = Instant::now();
    let request = v1::DrainWorkerRequest { worker_id: leaves.id().to_owned() };
    yard.client.fleet.clone().drain_worker(request).await.expect("it drains");
    leaves.ended().await;
    let took = began.elapsed();
    load.goes_on(20).await;
    let (runs, longest) = load.end().await;
    Seen::new(
        took,
        format!("ended with 0; {runs} runs of 3 calls, all completed, the longest in {:.2} s", longest.as_secs_f64()),
    )
}
