//! A link that withholds bytes without breaking: calls go on when it heals or when it is cut, and lose and double
//! nothing.

use std::time::Duration;

use harness::{Client, Direction, Fixture, Proxy, call};
use proto::v1::{CallState, FloorPolicy, run_event::Event};
use serde_json::json;

use crate::{FIXTURE, check, count, counted};

/// Longer than a worker may be silent, and shorter than the broker's patience with its client.
const HELD: Duration = Duration::from_secs(8);

/// How long bytes take over the loopback, with much to spare, and less than a job counts as fresh.
const ARRIVED: Duration = Duration::from_millis(200);

/// Longer than a worker tries to store an entry.
const GIVEN_UP: Duration = Duration::from_secs(25);

async fn broker() -> local::Broker {
    local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts")
}

/// A run is executed while a link is held. It ends with all output of its calls, and the same for the next reader.
async fn goes_on(client: &Client, proxy: &Proxy, direction: Direction, cut: bool) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    let writes = call("w", "writes", json!({ "path": path, "line": "once", "then_wait_ms": 2_000 }));
    let mut stream = client.execute(vec![count("a", 30, 50), writes]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let run = stream.run(client);
    proxy.hold(direction);
    tokio::time::sleep(HELD).await;
    if cut {
        proxy.cut()
    } else {
        proxy.heal()
    }
    // The coordinator's stream may end with its link; then it is read on.
    drop(stream);
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["a"], counted("a", 30));
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await);
    let effects = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(effects, "once\n", "the call acted once");
}

#[tokio::test]
async fn calls_go_on_after_the_link_of_their_worker_withheld_what_it_published() {
    let broker = broker().await;
    let fixture = Fixture::new(FIXTURE);
    let coordinator = fixture.coordinator(&broker.url()).await;
    let client = Client::connect(coordinator.address()).await;
    let proxy = Proxy::to_broker(&broker.url()).await.expect("a port is free");
    let _worker = fixture.worker(&proxy.nats_url(), "main", 16).await;
    client.wait_for_tool("echo").await;
    goes_on(&client, &proxy, Direction::ToServer, false).await;
    goes_on(&client, &proxy, Direction::Both, true).await;
}

#[tokio::test]
async fn a_start_that_is_stored_after_the_worker_gave_it_up_is_taken_back_and_the_call_is_executed_once() {
    let broker = broker().await;
    let fixture = Fixture::new(FIXTURE);
    let coordinator = fixture.coordinator(&broker.url()).await;
    let client = Client::connect(coordinator.address()).await;
    let proxy = Proxy::to_broker(&broker.url()).await.expect("a port is free");
    let worker = fixture.worker(&proxy.nats_url(), "main", 1).await;
    client.wait_for_tool("writes").await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    // The job reaches the worker's machine while the worker stands still, and nothing after it does.
    proxy.hold(Direction::ToClient);
    let writes = call("w", "writes", json!({ "path": path, "line": "once", "then_wait_ms": 0 }));
    let mut stream = client.execute(vec![writes]).await;
    stream.until(|event| matches!(event, Event::RunOpened(_))).await;
    tokio::time::sleep(ARRIVED).await;
    worker.pause();
    proxy.heal();
    tokio::time::sleep(ARRIVED).await;
    proxy.hold(Direction::Both);
    worker.resume();
    // The start is on its way for longer than the worker tries to store it, and comes late.
    tokio::time::sleep(GIVEN_UP).await;
    assert!(!path.exists(), "the tool was called");
    proxy.heal();
    let events = stream.to_end().await;
    check::whole(&events, true);
    let outcome = &check::outcomes(&events)["w"];
    assert_eq!(outcome.state(), CallState::Completed, "{outcome:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), "once\n");
}

#[tokio::test]
async fn calls_go_on_after_the_link_of_their_coordinator_withheld_what_the_broker_sent() {
    let broker = broker().await;
    let fixture = Fixture::new(FIXTURE);
    let proxy = Proxy::to_broker(&broker.url()).await.expect("a port is free");
    let coordinator = fixture.coordinator(&proxy.nats_url()).await;
    let client = Client::connect(coordinator.address()).await;
    let _worker = fixture.worker(&broker.url(), "main", 16).await;
    client.wait_for_tool("echo").await;
    goes_on(&client, &proxy, Direction::ToClient, false).await;
    goes_on(&client, &proxy, Direction::Both, true).await;
}
