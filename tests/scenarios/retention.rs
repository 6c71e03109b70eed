//! Runs that have ended leave the log when it fills up, and open runs stay.

use std::time::Duration;

use async_nats::jetstream::stream::State;
use futures::StreamExt as _;
use harness::{Client, Fixture, Run, Yard, call, client_answer, reason};
use proto::v1::{self, CallState, FloorPolicy};
use serde_json::json;
use tonic::Status;

use crate::objects::{BYTES, broker, lies, object};
use crate::{FIXTURE, check, question};

/// Messages that the log may hold. A call takes two, and a run with a request id one more.
const MESSAGES: u64 = 8000;
/// A tenth of them.
const KEPT: u64 = 800;
/// Entries stay for half a minute, and a coordinator looks every 5 s.
const PATIENCE: Duration = Duration::from_secs(120);

fn request(id: &str) -> v1::CreateRunRequest {
    let (calls, request_id) = (vec![call("c", "echo", json!({ "text": id }))], id.to_owned());
    v1::CreateRunRequest { calls, request_id, ..v1::CreateRunRequest::default() }
}

async fn create(client: &Client, request: v1::CreateRunRequest) -> Result<Run, Status> {
    let created = client.runs.clone().create_run(request).await?.into_inner();
    Ok(Run { client: client.clone(), id: created.run.expect("the response has the run").run_id })
}

/// Makes this many calls, each a run of its own, and waits until they have ended.
async fn fill(client: &Client, calls: usize) {
    let run = |_| async {
        let events = client.execute(vec![call("c", "echo", json!({ "text": "x" }))]).await.to_end().await;
        check::whole(&events, true);
    };
    futures::stream::iter(0..calls).for_each_concurrent(32, run).await;
}

async fn log(yard: &Yard) -> State {
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    let stream = async_nats::jetstream::new(nats).get_stream(proto::names::STREAM).await;
    stream.expect("the log is there").cached_info().state.clone()
}

/// Waits until the log begins with this entry or a later one.
async fn until_first(yard: &Yard, from: u64) -> State {
    let begun = tokio::time::Instant::now();
    loop {
        let log = log(yard).await;
        if log.first_sequence >= from {
            return log;
        }
        assert!(begun.elapsed() < PATIENCE, "the log begins with {} of {}", log.first_sequence, log.last_sequence);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn get(client: &Client, run: &str) -> Result<v1::Run, Status> {
    let request = v1::GetRunRequest { run_id: run.to_owned() };
    Ok(client.runs.clone().get_run(request).await?.into_inner().run.expect("the response has the run"))
}

#[tokio::test]
async fn what_has_ended_leaves_a_log_that_fills_up_and_what_is_open_stays_and_nothing_is_executed_twice() {
    let fixture = Fixture::new(FIXTURE).with("TOOLYARD_LOG_MAX_MESSAGES", MESSAGES).with("TOOLYARD_TAIL_PERCENT", 10);
    let mut yard = Yard::start_with(fixture).await;
    let _worker = yard.worker().await;
    // It owns half of the shards, in which nothing happens.
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    let old = create(&yard.client, request("order 7")).await.expect("accepted");
    check::whole(&old.watch(FloorPolicy::Arrival).await.to_end().await, true);
    let (large, _) = object(&yard.client, BYTES).await;
    fill(&yard.client, 1000).await;
    let begins = log(&yard).await.last_sequence;
    let open = yard.client.create(vec![question("ask")]).await;
    let opened = log(&yard).await.last_sequence;
    fill(&yard.client, 1000).await;

    // Everything before the open run leaves, and nothing of it.
    let before = begins - 600;
    let state = until_first(&yard, before).await;
    assert!(state.first_sequence <= opened, "{state:?}");
    for id in [&old.id, &large.id, &format!("{}0", &old.id[..old.id.len() - 1])] {
        let gone = get(&yard.client, id).await.expect_err("it left the log");
        assert_eq!(reason(&gone), "EVENTS_EXPIRED", "{gone:?}");
    }
    let again = create(&yard.client, request("order 7")).await.map(|run| run.id).expect_err("it was executed");
    assert_eq!(reason(&again), "EVENTS_EXPIRED", "{again:?}");
    assert!(again.message().contains(&old.id), "{again:?}");

    // Its objects are kept for longer, until an operator erases it by its id.
    let objects = broker(yard.broker.url()).await;
    assert!(lies(&objects).await > 0);
    let erase = v1::EraseRunsRequest { run_id: large.id.clone(), ..v1::EraseRunsRequest::default() };
    let erased = yard.client.runs.clone().erase_runs(erase.clone()).await.expect("it may").into_inner();
    assert_eq!((erased.requested, lies(&objects).await), (1, 0), "{erased:?}");
    let again = yard.client.runs.clone().erase_runs(erase).await.expect("it may").into_inner();
    assert_eq!(again.matched, 0, "nothing is left: {again:?}");

    // Another coordinator takes over what is left, and the run goes on.
    yard.coordinator.kill().await;
    let client = Client::connect(second.address()).await;
    client.wait_for_tool("echo").await;
    assert_eq!(get(&client, &open.id).await.expect("it is open").status(), v1::RunStatus::RequiresAction);
    let open = open.through(&client);
    open.submit(vec![client_answer("ask", "the left one")]).await.expect("it waits");
    let events = open.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::outcomes(&events)["ask"].state(), CallState::Completed);

    // Then it leaves as well, as soon as there are others.
    fill(&client, 1000).await;
    let state = until_first(&yard, opened + 1).await;
    let begun = tokio::time::Instant::now();
    while log(&yard).await.messages > KEPT + 600 {
        assert!(begun.elapsed() < PATIENCE, "{state:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    fill(&client, 10).await;
}
