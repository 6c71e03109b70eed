//! Cancelling ends queued calls at once and running calls soon after, and their later output is ignored.

use std::time::{Duration, Instant};

use harness::Yard;
use proto::v1::{self, CallState, FloorPolicy, RunStatus, run_event::Event};

use crate::{FIXTURE, check, count, question};

#[tokio::test]
async fn cancelling_a_run_ends_its_running_queued_and_waiting_calls() {
    let yard = Yard::start(FIXTURE).await;
    // One slot: the second call waits in the queue.
    let _worker = yard.worker_with_slots(1).await;
    let calls = vec![count("one", 1000, 100), count("two", 1000, 100), question("ask")];
    let mut stream = yard.client.execute(calls).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let run = stream.run(&yard.client);
    let asked = Instant::now();
    run.cancel("changed my mind").await;
    let events = stream.to_end().await;
    assert!(asked.elapsed() < Duration::from_secs(10), "a tool that listens stops soon");
    check::whole(&events, true);
    for outcome in check::outcomes(&events).values() {
        assert_eq!(outcome.state(), CallState::Cancelled);
        assert_eq!(outcome.reason, "changed my mind");
    }
    assert_eq!(run.get().await.status(), RunStatus::Cancelled);
    run.cancel("twice does no harm").await;
}

#[tokio::test]
async fn cancelling_is_proved_step_by_step() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(2).await;
    let stubborn = harness::call("deaf", "stubborn", serde_json::json!({ "ms": 3000 }));
    let mut stream = yard.client.execute(vec![count("heeds", 1000, 50), stubborn]).await;
    for call in ["heeds", "deaf"] {
        stream.until(|event| matches!(event, Event::AttemptStarted(started) if started.call_id == call)).await;
    }
    let queued = yard.client.create(vec![count("queued", 1, 0)]).await;
    queued.cancel("not needed").await;
    let outcomes = check::outcomes(&queued.watch(FloorPolicy::Arrival).await.to_end().await);
    // Its tool is repeatable: a worker may run it before its start is in the log.
    assert_eq!(outcomes["queued"].stopped(), v1::Stopped::Unconfirmed);
    let run = stream.run(&yard.client);
    run.cancel("not needed").await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    let at = |wanted: fn(&Event) -> Option<&str>, call: &str| {
        let is_wanted = |event: &&v1::RunEvent| event.event.as_ref().and_then(wanted) == Some(call);
        let time = events.iter().find(is_wanted).and_then(|event| event.time);
        time.map(|time| (time.seconds, time.nanos))
    };
    let requested =
        |call| at(|event| if let Event::CancelRequested(it) = event { Some(&it.call_id) } else { None }, call);
    let delivered =
        |call| at(|event| if let Event::CancelDelivered(it) = event { Some(&it.call_id) } else { None }, call);
    let noticed =
        |call| at(|event| if let Event::CancelAcknowledged(it) = event { Some(&it.call_id) } else { None }, call);
    let ended = |call| at(|event| if let Event::CallEnded(it) = event { Some(&it.call_id) } else { None }, call);
    let steps = [requested("heeds"), delivered("heeds"), noticed("heeds"), ended("heeds")];
    assert!(steps.iter().all(Option::is_some) && steps.is_sorted(), "{steps:?}");
    assert!(delivered("deaf").is_some(), "its worker has heard");
    assert_eq!(noticed("deaf"), None, "a tool that listens to nothing notices nothing");
    let outcomes = check::outcomes(&events);
    assert_eq!(outcomes["heeds"].stopped(), v1::Stopped::Confirmed);
}

#[tokio::test]
async fn cancelling_one_call_leaves_the_others_alone() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let mut stream = yard.client.execute(vec![count("stays", 20, 50), count("goes", 1000, 50)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let run = stream.run(&yard.client);
    let request =
        v1::CancelCallRequest { run_id: run.id.clone(), call_id: "goes".to_owned(), reason: "enough".to_owned() };
    yard.client.runs.clone().cancel_call(request).await.expect("a call can be cancelled");
    let events = stream.to_end().await;
    let outcomes = check::outcomes(&events);
    assert_eq!(outcomes["stays"].state(), CallState::Completed);
    assert_eq!(outcomes["goes"].state(), CallState::Cancelled);
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await);
}

#[tokio::test]
async fn a_call_that_is_cancelled_in_the_queue_has_no_effect() {
    let yard = Yard::start(FIXTURE).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    // One slot, taken for less than it takes a job to be no longer fresh.
    let _worker = yard.worker_with_slots(1).await;
    let mut busy = yard.client.execute(vec![count("busy", 7, 100)]).await;
    busy.until(|event| matches!(event, Event::CallOutput(_))).await;
    let arguments = serde_json::json!({ "path": path, "line": "done", "then_wait_ms": 0 });
    let run = yard.client.create(vec![harness::call("w", "writes", arguments)]).await;
    run.cancel("not any more").await;
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(outcomes["w"].stopped(), v1::Stopped::NotRunning);
    check::whole(&busy.to_end().await, true);
    // The worker has taken up and dropped the cancelled job before it comes to this one.
    let after = vec![harness::call("after", "echo", serde_json::json!({ "text": "after" }))];
    yard.client.execute(after).await.to_end().await;
    assert!(!path.exists(), "the cancelled call was executed");
}

#[tokio::test]
async fn a_tool_that_talks_on_after_its_deadline_is_stopped() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(1).await;
    let timeout = Some(proto::convert::duration(Duration::from_secs(1)));
    let babble = harness::call("b", "babbles", serde_json::json!({}));
    let events = yard.client.execute(vec![v1::NewCall { timeout, ..babble }]).await.to_end().await;
    let outcome = &check::outcomes(&events)["b"];
    assert!(outcome.state() == CallState::Expired || outcome.state() == CallState::Failed, "{outcome:?}");
    // Its slot is free again.
    let next = vec![harness::call("next", "echo", serde_json::json!({ "text": "free" }))];
    let events = yard.client.execute(next).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["next"]), "free");
}

#[tokio::test]
async fn a_call_expires_at_its_deadline_whatever_its_tool_does() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let timeout = Some(proto::convert::duration(Duration::from_secs(1)));
    let calls = vec![
        v1::NewCall { timeout, ..count("endless", 100_000, 100) },
        v1::NewCall { timeout, ..question("never answered") },
    ];
    let events = yard.client.execute(calls).await.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    for outcome in outcomes.values() {
        assert_eq!(outcome.state(), CallState::Expired, "{outcomes:?}");
    }
}
