//! A full log refuses new runs, lets accepted ones end, and accepts runs again when there is room.

use std::time::Duration;

use async_nats::jetstream::stream::Config;
use harness::{Fixture, PATIENCE, Run, Yard, call, client_answer, reason};
use nats::Credentials;
use proto::v1::{self, CallState, FloorPolicy};
use serde_json::json;
use tonic::{Code, Status};

use crate::{FIXTURE, check, question};

const LOG_BYTES: u64 = 8 << 20;
/// So large that some dozens of calls fill the log. Their results are as large, and need room too.
const TEXT_BYTES: usize = 100 << 10;
/// More calls than the log has room for.
const CALLS_MAX: usize = 200;
/// How often a coordinator looks how full the log is, and a little more.
const LOOK: Duration = Duration::from_millis(1100);

/// A burst of large calls with small results: there must be room for their ends, although the coordinator had no time
/// to measure the log.
#[tokio::test]
async fn a_burst_does_not_take_the_room_in_which_it_has_to_end() {
    let yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_LOG_MAX_BYTES", LOG_BYTES)).await;
    let worker = yard.worker().await;
    worker.pause();
    let arguments = json!({ "text": "c", "ballast": "x".repeat(TEXT_BYTES) });
    let mut accepted = Vec::new();
    let refusal = loop {
        assert!(accepted.len() < CALLS_MAX, "a log of {LOG_BYTES} bytes takes this much");
        match create_call(&yard, arguments.clone()).await {
            Ok(run) => accepted.push(run),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(reason(&refusal), "LOG_FULL", "{refusal:?}");
    let taken = log(&yard).await.cached_info().state.bytes;
    assert!(taken < LOG_BYTES / 100 * 90, "{taken} of {LOG_BYTES} bytes are taken");
    worker.resume();
    for run in &accepted {
        ends_completed(run).await;
    }
}

async fn create(yard: &Yard, text: &str) -> Result<Run, Status> {
    create_call(yard, json!({ "text": text })).await
}

async fn create_call(yard: &Yard, arguments: serde_json::Value) -> Result<Run, Status> {
    let calls = vec![call("c", "echo", arguments)];
    let request = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
    let created = yard.client.runs.clone().create_run(request).await?.into_inner();
    Ok(Run { client: yard.client.clone(), id: created.run.expect("the response has the run").run_id })
}

async fn log(yard: &Yard) -> async_nats::jetstream::stream::Stream {
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    let stream = async_nats::jetstream::new(nats).get_stream(proto::names::STREAM).await;
    stream.expect("the log is there")
}

async fn ends_completed(run: &Run) {
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::outcomes(&events)["c"].state(), CallState::Completed, "{}", run.id);
}

#[tokio::test]
async fn a_full_log_refuses_new_work_ends_what_it_accepted_and_takes_work_again() {
    let yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_LOG_MAX_BYTES", LOG_BYTES)).await;
    let _worker = yard.worker().await;
    let text = "x".repeat(TEXT_BYTES);
    let mut accepted = Vec::new();
    let refusal = loop {
        assert!(accepted.len() < CALLS_MAX, "a log of {LOG_BYTES} bytes takes this much");
        match create(&yard, &text).await {
            Ok(run) => accepted.push(run),
            Err(refusal) => break refusal,
        }
        // Not so fast that the log is full before a coordinator has looked.
        if accepted.len() % 10 == 0 {
            tokio::time::sleep(LOOK).await;
        }
    };
    assert_eq!((refusal.code(), reason(&refusal).as_str()), (Code::ResourceExhausted, "LOG_FULL"), "{refusal:?}");
    for run in &accepted {
        ends_completed(run).await;
    }

    // Small work is refused as well: the room that is left is not for it.
    let refusal = create(&yard, "small").await.expect_err("there is no room for new work");
    assert_eq!(reason(&refusal), "LOG_FULL", "{refusal:?}");
    let log = log(&yard).await;
    let (taken, of) = (log.cached_info().state.bytes, LOG_BYTES);
    assert!(taken >= of / 100 * 85 && taken < of, "{taken} of {of} bytes are taken");

    // The oldest runs age out.
    let (old, kept) = accepted.split_at(accepted.len() / 2);
    for run in old {
        let subjects = format!("ty.run.{}.{}.>", &run.id[4..6], run.id);
        log.purge().filter(subjects).await.expect("it may be purged");
    }
    let accepted_again = async {
        loop {
            match create(&yard, "room again").await {
                Ok(run) => return run,
                Err(refusal) => assert_eq!(reason(&refusal), "LOG_FULL", "{refusal:?}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let run = tokio::time::timeout(PATIENCE, accepted_again).await.expect("work is taken again");
    ends_completed(&run).await;
    for run in kept {
        ends_completed(run).await;
    }
}

/// Small calls fill the messages that the log may hold long before its bytes: each costs the broker memory.
#[tokio::test]
async fn a_log_refuses_new_work_by_its_messages_ends_what_it_accepted_and_takes_work_again_with_a_larger_bound() {
    const MESSAGES: u64 = 200;
    let yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_LOG_MAX_MESSAGES", MESSAGES)).await;
    let worker = yard.worker().await;
    worker.pause();
    // Their jobs are not executed yet, so each has still to end in the log.
    let mut waiting = Vec::new();
    for _ in 0..10 {
        waiting.push(create(&yard, "waits").await.expect("there is room"));
    }
    let open = yard.client.create(vec![question("c")]).await;
    worker.resume();
    let mut accepted = Vec::new();
    let refusal = loop {
        assert!((accepted.len() as u64) < MESSAGES, "a log of {MESSAGES} messages takes this much");
        match create(&yard, "small").await {
            Ok(run) => accepted.push(run),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!((refusal.code(), reason(&refusal).as_str()), (Code::ResourceExhausted, "LOG_FULL"), "{refusal:?}");
    assert!(refusal.message().contains("200 messages") && refusal.message().contains("--messages"), "{refusal:?}");

    open.submit(vec![client_answer("c", "the left one")]).await.expect("its run was accepted");
    for run in waiting.iter().chain(&accepted).chain([&open]) {
        ends_completed(run).await;
    }
    let log = log(&yard).await;
    let state = &log.cached_info().state;
    assert!(state.messages <= MESSAGES && state.first_sequence == 1, "nothing was discarded: {state:?}");

    // As `toolyard log resize --messages` does it.
    let config = Config { max_messages: 1000, ..log.cached_info().config.clone() };
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    async_nats::jetstream::new(nats).update_stream(config).await.expect("the bound may be changed");
    let again = async {
        while let Err(refusal) = create(&yard, "room again").await {
            assert_eq!(reason(&refusal), "LOG_FULL", "{refusal:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("work is taken again");
}

/// A log that an older release made has no bound of messages.
#[tokio::test]
async fn a_log_without_a_bound_of_messages_goes_on_and_doctor_says_how_to_bound_it() {
    let mut yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_LOG_MAX_BYTES", LOG_BYTES)).await;
    let _worker = yard.worker().await;
    let unbounded = Config { max_messages: -1, ..log(&yard).await.cached_info().config.clone() };
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    async_nats::jetstream::new(nats).update_stream(unbounded).await.expect("it may be changed");
    yard.coordinator.kill().await;
    let address = yard.coordinator.address();
    yard.coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
    yard.client.wait_for_tool("echo").await;
    ends_completed(&create(&yard, "as before").await.expect("it takes work")).await;

    let found = memory(&yard).await;
    assert_eq!(found.level, coordinator::Level::Warn, "{found:?}");
    assert!(found.advice.contains("`toolyard log resize --messages 16384`"), "{found:?}");
    let operator = coordinator::Operator::connect(&yard.broker.url(), &Credentials::default()).await;
    let changed = operator.expect("it is let in").bound_messages(16_384).await.expect("it may be changed");
    assert_eq!(changed.iter().map(|changed| changed.after).collect::<Vec<_>>(), [16_384]);
    let found = memory(&yard).await;
    assert_eq!(found.level, coordinator::Level::Ok, "{found:?}");
    ends_completed(&create(&yard, "as before").await.expect("it takes work")).await;
}

/// The findings of doctor about the broker's memory.
async fn memory(yard: &Yard) -> coordinator::Finding {
    let findings = coordinator::examine(&yard.broker.url(), &Credentials::default(), None).await;
    findings.into_iter().find(|finding| finding.what == "memory").expect("it examines the memory")
}
