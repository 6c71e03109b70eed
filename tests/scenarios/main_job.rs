//! Several calls at the same time, one ordered stream.

use std::time::{Duration, Instant};

use harness::{Yard, call};
use proto::v1::{self, run_event::Event};
use serde_json::json;

use crate::{FIXTURE, check, count, counted};

#[tokio::test]
async fn three_calls_of_two_seconds_take_two_seconds_and_speak_one_after_another() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let began = Instant::now();
    let stream = yard.client.execute(vec![count("a", 20, 100), count("b", 20, 100), count("c", 20, 100)]).await;
    let events = stream.to_end().await;
    let took = began.elapsed();
    check::whole(&events, true);
    let said = check::said(&events);
    for id in ["a", "b", "c"] {
        assert_eq!(said[id], counted(id, 20));
    }
    assert!(took >= Duration::from_secs(2), "each call takes two seconds, the run took {took:?}");
    // One after another they would take six.
    assert!(took < Duration::from_secs(5), "the calls ran at the same time, the run took {took:?}");
}

#[tokio::test]
async fn a_single_call_ends_with_its_result() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let events = yard.client.execute(vec![call("only", "echo", json!({ "text": "hello" }))]).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::text(&check::outcomes(&events)["only"]), "hello");
    assert!(check::kinds(&events).iter().any(|kind| matches!(kind, Event::AttemptStarted(_))));
}

#[tokio::test]
async fn metadata_of_a_call_reaches_its_tool() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let metadata = [("user".to_owned(), "Ada".to_owned())].into();
    let calls = vec![v1::NewCall { metadata, ..call("c", "echo", json!({ "text": "hello" })) }];
    let events = yard.client.execute(calls).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["c"]), "hello, Ada");
}

#[tokio::test]
async fn calls_can_be_added_to_a_run_that_was_left_open() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let request = v1::CreateRunRequest { keep_open: true, ..v1::CreateRunRequest::default() };
    let created = yard.client.runs.clone().create_run(request).await.expect("an open run may be empty").into_inner();
    let run_id = created.run.expect("the response has the run").run_id;
    let mut runs = yard.client.runs.clone();
    for id in ["first", "second"] {
        let calls = vec![call(id, "echo", json!({ "text": id }))];
        let appended = runs
            .append_calls(v1::AppendCallsRequest { run_id: run_id.clone(), calls, ..v1::AppendCallsRequest::default() })
            .await;
        assert!(appended.is_ok(), "{appended:?}");
    }
    // What came begins, and does not wait for the run to be closed.
    let run = harness::Run { client: yard.client.clone(), id: run_id.clone() };
    let mut early = run.watch(v1::FloorPolicy::Arrival).await;
    early.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "first")).await;
    runs.close_run(v1::CloseRunRequest { run_id: run_id.clone() }).await.expect("a run can be closed");
    let late = vec![call("late", "echo", json!({ "text": "late" }))];
    let refused = runs
        .append_calls(v1::AppendCallsRequest {
            run_id: run_id.clone(),
            calls: late,
            ..v1::AppendCallsRequest::default()
        })
        .await;
    let refused = refused.expect_err("a closed run takes no calls");
    assert!(["RUN_CLOSED", "RUN_ENDED"].contains(&harness::reason(&refused).as_str()), "{refused:?}");
    let events = run.watch(v1::FloorPolicy::Submission).await.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert_eq!((check::text(&outcomes["first"]), check::text(&outcomes["second"])), ("first".into(), "second".into()));
}

#[tokio::test]
async fn a_failed_attempt_is_tried_again_and_what_it_said_is_withdrawn() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let events = yard.client.execute(vec![call("flaky", "fails", json!({ "attempts": 1 }))]).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["flaky"], "attempt 2");
    assert_eq!(check::text(&check::outcomes(&events)["flaky"]), "at last");
    assert!(check::kinds(&events).iter().any(|kind| matches!(kind, Event::CallOutputWithdrawn(_))));
}

#[tokio::test]
async fn a_call_that_uses_up_its_attempts_fails_with_its_tools_own_words() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let events = yard.client.execute(vec![call("hopeless", "fails", json!({ "attempts": 9 }))]).await.to_end().await;
    let outcome = &check::outcomes(&events)["hopeless"];
    assert_eq!(outcome.state(), v1::CallState::Failed);
    assert_eq!(outcome.error.as_ref().expect("a failure has an error").message, "not yet");
    let started = check::kinds(&events).iter().filter(|kind| matches!(kind, Event::AttemptStarted(_))).count();
    assert_eq!(started, 3);
}

#[tokio::test]
async fn a_tool_that_panics_fails_its_call_and_its_worker_lives_on() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    for _ in 0..2 {
        let events = yard.client.execute(vec![call("p", "panics", json!({}))]).await.to_end().await;
        let error = check::outcomes(&events)["p"].error.clone().expect("a failure has an error");
        assert_eq!(error.kind(), v1::CallErrorKind::ToolPanicked);
        assert!(error.message.contains("as it was asked to"), "{}", error.message);
    }
    let events = yard.client.execute(vec![call("e", "echo", json!({ "text": "alive" }))]).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["e"]), "alive");
}

#[tokio::test]
async fn a_call_waits_in_the_queue_until_a_worker_comes() {
    let yard = Yard::start(FIXTURE).await;
    let mut worker = yard.worker().await;
    worker.kill().await;
    let mut stream = yard.client.execute(vec![call("w", "echo", json!({ "text": "at last" }))]).await;
    stream.until(|event| matches!(event, Event::RunOpened(_))).await;
    let _next = yard.worker().await;
    let events = stream.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["w"]), "at last");
}
