//! Workers that are not killed: they shut down, are blocked by their tools, or are custom programs.

use std::time::Duration;

use futures::StreamExt as _;
use harness::{Fixture, Yard, call};
use proto::v1::run_event::Event;
use serde_json::json;

use crate::{FIXTURE, check, count, counted};

fn attempts(events: &[proto::v1::RunEvent]) -> Vec<u32> {
    let started = check::kinds(events).into_iter().filter_map(|kind| match kind {
        Event::AttemptStarted(started) => Some(started.attempt),
        _ => None,
    });
    started.collect()
}

#[tokio::test]
async fn an_idle_worker_says_at_most_once_that_no_jobs_reach_it() {
    let yard = Yard::start(FIXTURE).await;
    let listener = async_nats::connect(yard.broker.url()).await.expect("the broker lets everybody in");
    let mut heartbeats = listener.subscribe("ty.alive.main").await.expect("it can be asked for");
    listener.flush().await.expect("the broker answers");
    let _worker = yard.fixture.worker(&yard.broker.url(), "main", 4).await;
    let mut pulling = Vec::new();
    while pulling.last() != Some(&true) {
        let heartbeat = heartbeats.next().await.expect("it lives");
        pulling.push(proto::convert::worker::Heartbeat::decode(heartbeat.payload).expect("it is ours").pulling);
    }
    assert!(pulling.len() <= 2, "{pulling:?}");
}

#[tokio::test]
async fn a_worker_that_is_told_to_stop_lets_its_calls_end() {
    let yard = Yard::start(FIXTURE).await;
    let mut worker = yard.worker().await;
    let mut stream = yard.client.execute(vec![count("c", 20, 50)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    worker.terminate().await;
    let events = stream.to_end().await;
    assert_eq!(check::said(&events)["c"], counted("c", 20));
    assert_eq!(attempts(&events), [1]);
}

#[tokio::test]
async fn a_shutdown_that_cannot_wait_gives_back_what_may_be_repeated_and_nothing_else() {
    let yard = Yard::start(FIXTURE).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    let mut first = yard.fixture.worker_with_drain(&yard.broker.url(), "main", 16, 1).await;
    yard.client.wait_for_tool("echo").await;
    let arguments = json!({ "path": path, "line": "once", "then_wait_ms": 600_000 });
    let mut stream = yard.client.execute(vec![count("c", 60, 100), call("w", "writes", arguments)]).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(started) if started.call_id == "w")).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    first.terminate().await;
    let _second = yard.worker().await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], counted("c", 60));
    let error = check::outcomes(&events)["w"].error.clone().expect("a failure has an error");
    assert_eq!(error.kind(), proto::v1::CallErrorKind::Interrupted);
    assert_eq!(std::fs::read_to_string(&path).expect("it was written"), "once\n");
}

#[tokio::test]
async fn a_rolling_restart_of_coordinator_and_worker_fails_no_call() {
    let mut yard = Yard::start(FIXTURE).await;
    let mut first = yard.worker().await;
    let run = yard.client.create((0..10).map(|index| count(&format!("c{index}"), 10, 100)).collect()).await;
    let _second = yard.fixture.worker(&yard.broker.url(), "main", 16).await;
    first.terminate().await;
    yard.coordinator.terminate().await;
    let address = yard.coordinator.address();
    yard.coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
    let client = harness::Client::connect(address).await;
    let events = run.through(&client).watch(proto::v1::FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    for (id, said) in check::said(&events) {
        assert_eq!(said, counted(&id, 10));
    }
    assert_eq!(check::outcomes(&events).len(), 10);
}

#[tokio::test]
async fn a_call_that_runs_for_three_leases_of_its_job_is_executed_once() {
    let yard = Yard::start(FIXTURE).await;
    let _workers = [yard.worker().await, yard.worker().await];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    // The broker gives a job to another worker after 30 s without a word.
    let arguments = json!({ "path": path, "line": "once", "then_wait_ms": 92_000 });
    let mut stream = yard.client.execute(vec![call("long", "notes", arguments)]).await;
    let read = async { while stream.next().await.expect("the stream does not break") {} };
    tokio::time::timeout(Duration::from_secs(150), read).await.expect("the call ends");
    check::whole(&stream.seen, true);
    assert_eq!(attempts(&stream.seen), [1]);
    assert_eq!(check::text(&check::outcomes(&stream.seen)["long"]), "Done");
    assert_eq!(std::fs::read_to_string(&path).expect("it was written"), "once\n");
}

#[tokio::test]
async fn a_tool_that_blocks_every_thread_does_not_lose_its_lease() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    // As many as block every thread that tools run on, for longer than a lease.
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let longer_than_a_lease = json!({ "ms": 34_000 });
    let calls = (0..threads).map(|index| call(&format!("c{index}"), "stubborn", longer_than_a_lease.clone()));
    let events = yard.client.execute(calls.collect()).await.to_end().await;
    check::whole(&events, true);
    assert!(attempts(&events).iter().all(|attempt| *attempt == 1), "no job was handed to another attempt");
    assert!(check::outcomes(&events).values().all(|outcome| check::text(outcome) == "Done"));
}

#[tokio::test]
async fn the_example_of_a_tool_of_ones_own_can_be_called() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = Fixture::program(&Fixture::example("greet"), &yard.broker.url()).await;
    tokio::time::timeout(Duration::from_secs(10), yard.client.wait_for_tool("greet")).await.expect("it is advertised");
    let events = yard.client.execute(vec![call("g", "greet", json!({ "name": "Ada" }))]).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["g"]), "Hello, Ada!");
}
