//! Rows about coordinators.

use std::time::{Duration, Instant};

use harness::{Client, Coordinator, Keys, Shards, Yard, call, check};
use proto::v1::run_event::Event;
use proto::v1::{CallState, FloorPolicy};
use serde_json::json;

use crate::load::Load;
use crate::report::Seen;
use crate::rest::{fixture, guarded_broker};

async fn two() -> (Yard, Coordinator, [Client; 2], Shards) {
    let yard = Yard::start_with(fixture()).await;
    let other = yard.fixture.coordinator(&yard.broker.url()).await;
    let clients = [yard.client.clone(), Client::connect(other.address()).await];
    let shards = Shards::at(&yard.broker.url()).await;
    shards.until(&[8, 8]).await;
    (yard, other, clients, shards)
}

pub(crate) async fn one_dies() -> Seen {
    let (mut yard, _other, clients, shards) = two().await;
    let _worker = yard.worker().await;
    clients[1].wait_for_tool("echo").await;
    let mut load = Load::begin(&clients);
    load.goes_on(20).await;
    yard.coordinator.kill().await;
    let taken_over = shards.until(&[16]).await;
    load.goes_on(20).await;
    let (runs, longest) = load.end().await;
    let (gone, slowest) = (taken_over.as_secs_f64(), longest.as_secs_f64());
    let runs = format!("{runs} runs of 3 calls, all completed, the longest in {slowest:.1} s");
    Seen::new(longest.max(taken_over), format!("{runs}; its shards were taken over after {gone:.1} s"))
}

pub(crate) async fn all_die() -> Seen {
    let (mut yard, mut other, _clients, _) = two().await;
    let _worker = yard.worker().await;
    yard.client.wait_for_tool("count").await;
    let slow = call("c", "count", json!({ "label": "c", "pieces": 60, "every_ms": 50 }));
    let mut stream = yard.client.execute(vec![slow]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let run = stream.run(&yard.client);
    yard.coordinator.kill().await;
    other.kill().await;
    // The call goes on while no coordinator decides anything.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let began = Instant::now();
    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(next.address()).await;
    let events = run.through(&client).watch(FloorPolicy::Arrival).await.to_end().await;
    let took = began.elapsed();
    check::whole(&events, true);
    let attempts = check::kinds(&events).iter().filter(|event| matches!(event, Event::AttemptStarted(_))).count();
    assert_eq!((check::outcomes(&events)["c"].state(), attempts), (CallState::Completed, 1));
    Seen::new(took, "the call completed in its first attempt; all of it was read after a start 4 s later")
}

pub(crate) async fn are_restarted() -> Seen {
    let (mut yard, mut other, clients, shards) = two().await;
    let _worker = yard.worker().await;
    clients[1].wait_for_tool("echo").await;
    let mut load = Load::begin(&clients);
    for coordinator in [&mut yard.coordinator, &mut other] {
        load.goes_on(20).await;
        let address = coordinator.address();
        coordinator.terminate().await;
        shards.until(&[16]).await;
        *coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
        shards.until(&[8, 8]).await;
    }
    load.goes_on(20).await;
    let (runs, longest) = load.end().await;
    Seen::new(longest, format!("{runs} runs of 3 calls, all completed"))
}

pub(crate) async fn is_not_let_in() -> Seen {
    let (keys, stranger) = (Keys::new(&["main"]), Keys::new(&["main"]));
    let broker = guarded_broker(&keys).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("log");
    let (program, url) = (stranger.coordinators(&fixture()).logging_to(&log), broker.url());
    let began = Instant::now();
    let ended = tokio::spawn(async move { program.coordinator(&url).await }).await;
    let took = began.elapsed();
    assert!(ended.is_err(), "it does not get ready");
    let said = std::fs::read_to_string(&log).expect("it has a log");
    assert!(said.contains("does not let us in"), "{said}");
    Seen::new(took, "the process ended with `does not let us in`")
}
