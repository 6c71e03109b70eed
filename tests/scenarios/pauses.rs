//! What an operator paused stands still, says so, and goes on when it is resumed, whoever is restarted meanwhile.

use std::time::Duration;

use harness::{Client, Run, Yard, call, reason};
use proto::v1::pause_request::What;
use proto::v1::run_event::Event;
use proto::v1::{self, CallState, FloorPolicy, resume_request};
use serde_json::json;

use crate::check::{kinds, outcomes};
use crate::{FIXTURE, count};

async fn pause(client: &Client, what: What) {
    let request = v1::PauseRequest { what: Some(what), reason: "they asked us to".to_owned() };
    client.fleet.clone().pause(request).await.expect("it can be paused");
    let paused = async {
        while list(client).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, paused).await.expect("it is known");
}

async fn resume(client: &Client, what: resume_request::What) {
    let request = v1::ResumeRequest { what: Some(what) };
    client.fleet.clone().resume(request).await.expect("it can be resumed");
}

async fn list(client: &Client) -> Vec<v1::Pause> {
    client.fleet.clone().list_pauses(v1::ListPausesRequest {}).await.expect("it lists").into_inner().pauses
}

async fn tool(client: &Client, name: &str) -> v1::Tool {
    let request = v1::GetToolRequest { name: name.to_owned() };
    client.tools.clone().get_tool(request).await.expect("it is known").into_inner().tool.expect("a tool")
}

async fn why(run: &Run, call: &str) -> String {
    let request = v1::ExplainCallRequest { run_id: run.id.clone(), call_id: call.to_owned() };
    run.client.runs.clone().explain_call(request).await.expect("it is there").into_inner().why
}

#[tokio::test]
async fn calls_of_a_paused_tool_wait_while_others_run_and_outlive_their_coordinator() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    pause(&yard.client, What::Tool("echo".to_owned())).await;
    assert!(tool(&yard.client, "echo").await.paused);
    assert!(!tool(&yard.client, "count").await.paused);
    let echo = || call("held", "echo", json!({ "text": "at last" }));
    let alone = yard.client.create(vec![echo()]).await;
    let among = yard.client.create(vec![echo(), count("free", 2, 1)]).await;
    let mut stream = among.watch(FloorPolicy::Interleaved).await;
    stream.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "free")).await;
    for run in [&alone, &among] {
        let why = why(run, "held").await;
        assert!(why.contains("tool echo is paused") && why.contains("they asked us to"), "{why}");
    }

    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(next.address()).await;
    assert_eq!(list(&client).await.len(), 1, "whoever starts knows it");
    yard.coordinator.kill().await;
    let (alone, among) = (alone.through(&client), among.through(&client));
    // Longer than the other takes to be taken for dead.
    let mut stream = alone.watch(FloorPolicy::Arrival).await;
    let early = tokio::time::timeout(Duration::from_secs(9), stream.until(|e| matches!(e, Event::AttemptStarted(_))));
    assert!(early.await.is_err(), "nothing is handed out");
    resume(&client, resume_request::What::Tool("echo".to_owned())).await;
    for run in [alone, among] {
        let ended = outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
        assert_eq!(ended["held"].state(), CallState::Completed);
    }
    assert!(list(&client).await.is_empty());
}

#[tokio::test]
async fn a_paused_pool_hands_out_nothing_also_what_was_in_its_queue() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(1).await;
    let busy = yard.client.create(vec![call("busy", "sleep", json!({ "ms": 2000, "text": "done" }))]).await;
    busy.watch(FloorPolicy::Interleaved).await.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    let queued = yard.client.create(vec![call("queued", "echo", json!({ "text": "later" }))]).await;
    pause(&yard.client, What::Pool("main".to_owned())).await;
    let new = yard.client.create(vec![call("new", "echo", json!({ "text": "later" }))]).await;
    // A coordinator that starts makes sure of the queue, and leaves it as it is.
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(second.address()).await;
    client.wait_for_tool("echo").await;
    let ended = outcomes(&busy.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(ended["busy"].state(), CallState::Completed, "what runs goes on");
    let mut stream = new.watch(FloorPolicy::Arrival).await;
    // Longer than a job that nobody takes up is left where it is, and than requests for jobs are waited for.
    let early = tokio::time::timeout(Duration::from_secs(10), stream.until(|e| matches!(e, Event::AttemptStarted(_))));
    assert!(early.await.is_err(), "nothing is handed out");
    for (run, id) in [(&queued, "queued"), (&new, "new")] {
        let why = why(run, id).await;
        assert!(why.contains("pool main is paused"), "{why}");
    }
    let pools = tool(&client, "echo").await.pools;
    assert!(pools.iter().all(|pool| pool.paused && pool.pulling_workers == 1), "its worker is well: {pools:?}");
    resume(&client, resume_request::What::Pool("main".to_owned())).await;
    for (run, id) in [(queued, "queued"), (new, "new")] {
        let ended = outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
        assert_eq!(ended[id].state(), CallState::Completed);
    }
}

#[tokio::test]
async fn a_call_that_is_held_expires_by_its_deadline() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    pause(&yard.client, What::Tool("echo".to_owned())).await;
    let held = v1::NewCall {
        timeout: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
        ..call("held", "echo", json!({ "text": "too late" }))
    };
    let events = yard.client.execute(vec![held]).await.to_end().await;
    assert_eq!(outcomes(&events)["held"].state(), CallState::Expired);
    assert!(!kinds(&events).into_iter().any(|event| matches!(event, Event::AttemptStarted(_))));
}

#[tokio::test]
async fn what_nobody_advertises_is_not_paused_and_what_is_not_paused_is_resumed_without_harm() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    for (what, expected) in [
        (Some(What::Tool("ehco".to_owned())), "TOOL_NOT_FOUND"),
        (Some(What::Pool("mian".to_owned())), "POOL_NOT_FOUND"),
        (Some(What::Pool("no name".to_owned())), "MALFORMED"),
        (None, "MALFORMED"),
    ] {
        let request = v1::PauseRequest { what: what.clone(), reason: String::new() };
        let refused = yard.client.fleet.clone().pause(request).await.expect_err("it is refused");
        assert_eq!(reason(&refused), expected, "{what:?}: {refused}");
    }
    let long = v1::PauseRequest { what: Some(What::Tool("echo".to_owned())), reason: "x".repeat(1025) };
    let refused = yard.client.fleet.clone().pause(long).await.expect_err("it is refused");
    assert_eq!(reason(&refused), "MALFORMED");
    assert!(list(&yard.client).await.is_empty());
    resume(&yard.client, resume_request::What::Tool("echo".to_owned())).await;
    resume(&yard.client, resume_request::What::Pool("main".to_owned())).await;
    resume(&yard.client, resume_request::What::Pool("mian".to_owned())).await;
}
