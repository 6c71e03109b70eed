//! The reserved room of a full log: streaming calls and client calls can end in it, at any coordinator.

use std::time::Duration;

use async_nats::jetstream::{self, stream::Stream};
use harness::{Client, Fixture, PATIENCE, Run, Yard, call, client_answer, reason};
use proto::v1::{self, CallState, FloorPolicy, RunStatus, run_event::Event};
use tonic::{Code, Status};

use crate::{FIXTURE, check, count, counted, question};

/// Small enough to fill in seconds; the part that is kept for what was accepted must still outlast the second that it
/// takes a coordinator to see that it is needed.
const LOG_BYTES: u64 = 4 * 1024 * 1024;
/// Echoed, so that it is stored twice.
const LARGE: usize = 100 * 1024;
const SMALL: usize = 1024;
/// Far more runs than fit.
const RUNS_MAX: usize = 10_000;

async fn yard() -> Yard {
    Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_LOG_MAX_BYTES", LOG_BYTES.to_string())).await
}

async fn log(yard: &Yard) -> Stream {
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    jetstream::new(nats).get_stream("ty-log").await.expect("the log is there")
}

async fn bytes(log: &Stream) -> u64 {
    log.get_info().await.expect("the log is there").state.bytes
}

/// A run of one call that gives back as much as it is given.
async fn echo(client: &Client, bytes: usize) -> Result<Run, Status> {
    let calls = vec![call("echo", "echo", serde_json::json!({ "text": "x".repeat(bytes) }))];
    let request = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
    let created = client.runs.clone().create_run(request).await?.into_inner();
    let id = created.run.expect("the response has the run").run_id;
    Ok(Run { client: client.clone(), id })
}

/// Runs one call after the other until new work is refused. Gives those that were accepted; all of them ended well.
async fn fill(yard: &Yard, log: &Stream) -> Vec<Run> {
    let mut accepted = Vec::new();
    for _ in 0..RUNS_MAX {
        // Large ones save time if there is room for many.
        let size = if bytes(log).await < LOG_BYTES / 2 { LARGE } else { SMALL };
        match echo(&yard.client, size).await {
            Ok(run) => {
                let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
                assert_eq!(check::outcomes(&events)["echo"].state(), CallState::Completed);
                accepted.push(run);
            }
            Err(refusal) => {
                assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal}");
                assert_eq!(reason(&refusal), "LOG_FULL", "{refusal}");
                return accepted;
            }
        }
    }
    panic!("{} bytes are in a log of {LOG_BYTES} and nothing was refused", bytes(log).await);
}

/// Removes what ended long ago, as age would a day later: the same messages leave the stream from its beginning.
async fn age(log: &Stream, runs: &[Run]) {
    for run in runs {
        log.purge().filter(format!("ty.run.*.{}.>", run.id)).await.expect("the broker is there");
    }
}

async fn wait_for_room(client: &Client) -> Run {
    let accepted = async {
        loop {
            match echo(client, SMALL).await {
                Ok(run) => return run,
                Err(refusal) => assert_eq!(reason(&refusal), "LOG_FULL", "{refusal}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, accepted).await.expect("there is room, so new work is accepted")
}

#[tokio::test]
async fn what_speaks_and_what_waits_for_its_client_ends_in_a_full_log() {
    let yard = yard().await;
    let _worker = yard.worker().await;
    let log = log(&yard).await;
    // One speaks all the time, one waits for the client.
    let mut speaking = yard.client.execute(vec![count("a", 600, 50)]).await;
    speaking.until(|event| matches!(event, Event::CallOutput(_))).await;
    let waiting = yard.client.create(vec![question("ask")]).await;

    let ended = fill(&yard, &log).await;
    let filled = bytes(&log).await;
    assert!(filled < LOG_BYTES, "the rest is for what was accepted: {filled} of {LOG_BYTES}");

    let run = speaking.run(&yard.client);
    let answered = waiting.submit(vec![client_answer("ask", "the left one")]).await.expect("its run was accepted");
    assert_eq!(answered.status(), RunStatus::Completed);
    let events = waiting.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["ask"]), "the left one");
    let events = speaking.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["a"], counted("a", 600));
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await, "a late reader sees the same");
    let still = echo(&yard.client, SMALL).await.expect_err("nothing has left the log");
    assert_eq!(reason(&still), "LOG_FULL");

    let (old, young) = ended.split_at(ended.len() / 2);
    age(&log, old).await;
    let fresh = wait_for_room(&yard.client).await;
    let events = fresh.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::outcomes(&events)["echo"].state(), CallState::Completed);
    // Entries that were not old enough to leave can still be read.
    for run in young.iter().take(3) {
        check::whole(&run.watch(FloorPolicy::Arrival).await.to_end().await, true);
    }
}

#[tokio::test]
async fn a_coordinator_that_starts_on_a_full_log_refuses_too_and_recovers() {
    let mut yard = yard().await;
    let _worker = yard.worker().await;
    let log = log(&yard).await;
    let ended = fill(&yard, &log).await;
    yard.coordinator.kill().await;
    let address = yard.coordinator.address();
    yard.coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
    let client = Client::connect(address).await;
    client.wait_for_tool("echo").await;
    let refused = echo(&client, SMALL).await.expect_err("the log is as full as before");
    assert_eq!(reason(&refused), "LOG_FULL");
    age(&log, &ended).await;
    let fresh = wait_for_room(&client).await;
    check::whole(&fresh.watch(FloorPolicy::Arrival).await.to_end().await, true);
}
