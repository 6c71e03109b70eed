//! Tools that are plain functions, through the whole of it.

use std::time::{Duration, Instant};

use harness::{Yard, call};
use proto::v1::{CallErrorKind, CallState, Stopped, run_event::Event};
use serde_json::json;

use crate::{FIXTURE, check};

const VERSE: &str = "one two three four five six";

#[tokio::test]
async fn a_stream_is_heard_piece_by_piece_while_its_function_runs() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let calls = vec![call("verse", "recite", json!({ "verse": VERSE, "every_ms": 50 }))];
    let mut stream = yard.client.execute(calls).await;
    stream.until(|event| matches!(event, Event::CallOutput(output) if output.chunk == 1)).await;
    let heard = stream.seen.len();
    let events = stream.to_end().await;
    let later = events[heard..].iter().filter(|event| matches!(event.event, Some(Event::CallOutput(_))));
    assert!(later.count() >= 3, "the first words were heard before the last was said: {events:#?}");
    check::whole(&events, true);
    assert_eq!(check::said(&events)["verse"], VERSE);
    assert_eq!(check::text(&check::outcomes(&events)["verse"]), "Done");
}

#[tokio::test]
async fn a_stream_stops_when_its_call_is_cancelled() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let mut stream =
        yard.client.execute(vec![call("verse", "recite", json!({ "verse": VERSE, "every_ms": 600 }))]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    stream.run(&yard.client).cancel("heard enough").await;
    let events = stream.to_end().await;
    assert_eq!(check::outcomes(&events)["verse"].state(), CallState::Cancelled);
    assert!(check::said(&events)["verse"].len() < VERSE.len(), "it did not speak to its end");
}

#[tokio::test]
async fn a_function_that_blocks_its_thread_speaks_and_stops_when_it_looks() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let mut stream = yard.client.execute(vec![call("thought", "ponder", json!({}))]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    stream.run(&yard.client).cancel("thought enough").await;
    let events = stream.to_end().await;
    let outcome = &check::outcomes(&events)["thought"];
    assert_eq!((outcome.state(), outcome.stopped()), (CallState::Cancelled, Stopped::Confirmed));
}

#[tokio::test]
async fn a_rate_limit_is_waited_out_as_long_as_it_asks() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let began = Instant::now();
    let calls = vec![call("asks", "limited", json!({ "attempts": 1, "wait_ms": 1500 }))];
    let events = yard.client.execute(calls).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["asks"]), "attempt 2");
    assert!(began.elapsed() >= Duration::from_millis(1500), "asked again after {:?}", began.elapsed());
    let calls = vec![call("asks", "limited", json!({ "attempts": 9, "wait_ms": 10 }))];
    let events = yard.client.execute(calls).await.to_end().await;
    let error = check::outcomes(&events)["asks"].error.clone().expect("it failed");
    assert_eq!((error.kind(), error.message.as_str()), (CallErrorKind::RateLimited, "enough for now"));
    let asked = error.retry_after.and_then(|wait| Duration::try_from(wait).ok());
    assert_eq!(asked, Some(Duration::from_millis(10)), "the caller learns how long to wait");
}

#[tokio::test]
async fn a_call_is_tried_again_by_its_worker_or_by_the_log_and_never_by_both() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let hesitant =
        |id: &str, attempts: u32, speaks: bool| call(id, "hesitant", json!({ "attempts": attempts, "speaks": speaks }));
    let events =
        yard.client.execute(vec![hesitant("silent", 9, false), hesitant("speaks", 1, true)]).await.to_end().await;
    let outcomes = check::outcomes(&events);
    let error = outcomes["silent"].error.clone().expect("it failed");
    assert_eq!(error.message, "not sure (tried 3 times)");
    assert_eq!(outcomes["speaks"].state(), CallState::Completed);
    assert_eq!(check::said(&events)["speaks"], "hm", "what the first attempt said was withdrawn");
    let attempts = |id: &str| {
        let kinds = check::kinds(&events);
        kinds.iter().filter(|kind| matches!(kind, Event::AttemptStarted(started) if started.call_id == id)).count()
    };
    assert_eq!((attempts("silent"), attempts("speaks")), (1, 2));
}
