//! Every deadline ends its calls: in the queue, in silence, at the client, and without a worker.

use std::time::{Duration, Instant};

use harness::{PATIENCE, Yard, call};
use proto::v1::{self, CallErrorKind, CallState, RunStatus, WithoutWorker, run_event::Event};
use serde_json::json;

use crate::{FIXTURE, check, count, question};

fn seconds(seconds: u64) -> Option<prost_types::Duration> {
    Some(proto::convert::duration(Duration::from_secs(seconds)))
}

#[tokio::test]
async fn a_call_that_no_worker_takes_up_in_time_expires_and_never_starts_late() {
    let yard = Yard::start(FIXTURE).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    let _worker = yard.worker_with_slots(1).await;
    let mut busy = yard.client.execute(vec![count("busy", 25, 100)]).await;
    busy.until(|event| matches!(event, Event::CallOutput(_))).await;
    let write = call("late", "writes", json!({ "path": path, "line": "late", "then_wait_ms": 0 }));
    let events = yard.client.execute(vec![v1::NewCall { queue_timeout: seconds(1), ..write }]).await.to_end().await;
    let outcome = &check::outcomes(&events)["late"];
    assert_eq!(outcome.state(), CallState::Expired);
    assert!(outcome.reason.contains("queue"), "{}", outcome.reason);
    check::whole(&busy.to_end().await, true);
    // The worker has met and dropped the job before it comes to this one.
    yard.client.execute(vec![call("after", "echo", json!({ "text": "after" }))]).await.to_end().await;
    assert!(!path.exists(), "the expired call was executed");
}

#[tokio::test]
async fn a_tool_that_falls_silent_is_ended_and_the_next_speaks() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let events = yard.client.execute(vec![call("s", "silent", json!({})), count("c", 3, 300)]).await.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    let error = outcomes["s"].error.clone().expect("it failed");
    assert_eq!(error.kind(), CallErrorKind::IdleTimeout, "{error:?}");
    assert_eq!(outcomes["c"].state(), CallState::Completed);
}

#[tokio::test]
async fn a_question_that_nobody_answers_expires_as_the_clients() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let events = yard.client.execute(vec![v1::NewCall { timeout: seconds(1), ..question("q") }]).await.to_end().await;
    let outcome = &check::outcomes(&events)["q"];
    assert_eq!(outcome.state(), CallState::Expired);
    assert!(outcome.reason.contains("client"), "{}", outcome.reason);
}

#[tokio::test]
async fn a_call_without_a_worker_fails_at_its_deadline_and_names_tool_and_pool() {
    let yard = Yard::start(FIXTURE).await;
    let mut worker = yard.worker().await;
    worker.terminate().await;
    // Long enough for the coordinator to be sure that no worker is there.
    let waits = v1::NewCall { timeout: seconds(9), ..count("waits", 1, 0) };
    let events = yard.client.execute(vec![waits]).await.to_end().await;
    let error = check::outcomes(&events)["waits"].error.clone().expect("it failed");
    assert_eq!(error.kind(), CallErrorKind::NoWorker, "{error:?}");
    assert!(error.message.contains("count") && error.message.contains("main"), "{}", error.message);
}

#[tokio::test]
async fn a_call_without_a_worker_fails_for_that_reason_at_its_runs_deadline_too() {
    let yard = Yard::start(FIXTURE).await;
    let mut worker = yard.worker().await;
    worker.terminate().await;
    let request = v1::CreateRunRequest {
        timeout: seconds(9),
        calls: vec![count("waits", 1, 0), question("open")],
        ..v1::CreateRunRequest::default()
    };
    let stream = yard.client.execute_request(request).await.expect("the run is accepted");
    let events = stream.to_end().await;
    let outcomes = check::outcomes(&events);
    let error_of = |call: &str| outcomes[call].error.clone().expect("it failed").kind();
    assert_eq!(error_of("waits"), CallErrorKind::NoWorker, "nobody could have run it");
    assert_eq!(outcomes["open"].state(), v1::CallState::Expired, "its client could have answered");
}

#[tokio::test]
async fn a_call_that_shall_not_wait_fails_when_the_last_worker_is_lost() {
    let yard = Yard::start(FIXTURE).await;
    let mut worker = yard.worker_with_slots(1).await;
    let mut busy = yard.client.execute(vec![count("busy", 1000, 100)]).await;
    busy.until(|event| matches!(event, Event::CallOutput(_))).await;
    let fails = v1::NewCall { without_worker: WithoutWorker::Fail.into(), ..count("fails", 1, 0) };
    let stream = yard.client.execute(vec![fails.clone()]).await;
    worker.kill().await;
    let began = Instant::now();
    let error = check::outcomes(&stream.to_end().await)["fails"].error.clone().expect("it failed");
    assert_eq!(error.kind(), CallErrorKind::NoWorker, "{error:?}");
    assert!(began.elapsed() < PATIENCE / 2, "within seconds, not at the deadline");
    // Now that the loss is known, the next one is not even queued.
    let events = yard.client.execute(vec![fails]).await.to_end().await;
    assert_eq!(check::outcomes(&events)["fails"].error.clone().expect("it failed").kind(), CallErrorKind::NoWorker);
}

#[tokio::test]
async fn a_run_that_fails_fast_ends_with_its_first_failure() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let calls = vec![count("long", 1000, 100), call("bad", "panics", json!({})), question("q")];
    let request = v1::CreateRunRequest { calls, fail_fast: true, ..v1::CreateRunRequest::default() };
    let created = yard.client.runs.clone().create_run(request).await.expect("accepted").into_inner();
    let run = harness::Run { client: yard.client.clone(), id: created.run.expect("a run").run_id };
    let events = run.watch(v1::FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert_eq!(outcomes["bad"].state(), CallState::Failed);
    for other in ["long", "q"] {
        assert_eq!(outcomes[other].state(), CallState::Cancelled);
        assert!(outcomes[other].reason.contains("bad"), "{}", outcomes[other].reason);
    }
    assert_eq!(run.get().await.status(), RunStatus::Failed);
}
