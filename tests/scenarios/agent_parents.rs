//! Runs that calls made end with these calls, also if no worker is there to cancel them.

use harness::{PATIENCE, Yard, call, client_answer};
use proto::v1::run_event::Event;
use proto::v1::{self, CallState, FloorPolicy, RunStatus};
use serde_json::json;

use crate::agents::{CLERK, Office, naps};
use crate::{FIXTURE, check, question};

#[tokio::test]
async fn the_run_of_an_agent_whose_call_ends_without_a_worker_is_cancelled() {
    let mut office = Office::start(CLERK, &[("nap", naps())], 16).await;
    let mut stream = office.begin(vec![call("a", "clerk", json!({ "input": "nap" }))]).await;
    let child = office.until_called(&mut stream, "t1.0").await;
    office.worker.kill().await;
    stream.run(&office.yard.client).cancel("all hands on deck").await;
    assert_eq!(check::outcomes(&stream.to_end().await)["a"].state(), CallState::Cancelled);
    let ended = async { child.watch(FloorPolicy::Arrival).await.to_end().await };
    let outcomes = check::outcomes(&tokio::time::timeout(PATIENCE, ended).await.expect("the child ends"));
    assert_eq!(outcomes["t1.0"].state(), CallState::Cancelled);
    let child = child.get().await;
    assert_eq!(child.status(), RunStatus::Cancelled);
    assert_eq!(child.parent.expect("a parent").call_id, "a");
}

#[tokio::test]
async fn a_run_ends_with_the_call_that_made_it_and_soon_if_the_run_of_that_call_has_ended() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let parent = yard.client.create(vec![question("a")]).await;
    let sleeps = || vec![call("b", "sleep", json!({ "ms": 600_000, "text": "awake" }))];
    let made_by = |run_id: &str, call_id: &str| v1::CreateRunRequest {
        calls: sleeps(),
        parent: Some(v1::ParentCall { run_id: run_id.to_owned(), call_id: call_id.to_owned() }),
        ..v1::CreateRunRequest::default()
    };
    let mut child = yard.client.execute_request(made_by(&parent.id, "a")).await.expect("it is accepted");
    child.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    assert_eq!(child.run(&yard.client).get().await.status(), RunStatus::InProgress);
    parent.submit(vec![client_answer("a", "done")]).await.expect("it is taken");
    let events = child.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::outcomes(&events)["b"].state(), CallState::Cancelled);
    let orphan = yard.client.execute_request(made_by(&parent.id, "a")).await.expect("it is accepted");
    assert_eq!(check::outcomes(&orphan.to_end().await)["b"].state(), CallState::Cancelled);
    for wrong in ["run_99_0193a7b4c2d07e3f8a1b2c3d4e5f6001", "run"] {
        let refused = yard.client.execute_request(made_by(wrong, "a")).await.expect_err("there is no such shard");
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{wrong}: {refused}");
        assert!(refused.message().contains("parent"), "{wrong}: {refused}");
    }
}
