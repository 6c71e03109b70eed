//! Tools that are plain functions, through the whole of it.

use std::time::{Duration, Instant};

use client::CallEvent;
use futures::TryStreamExt as _;
use harness::{Yard, call};
use proto::v1::{self, CallErrorKind, CallState, Stopped, run_event::Event};
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

/// A call that must stream, of a tool that does.
fn recites() -> v1::NewCall {
    v1::NewCall { stream: true, ..call("verse", "recite", json!({ "verse": VERSE, "every_ms": 1 })) }
}

fn unstreamed(outcome: &v1::CallOutcome) -> String {
    let error = outcome.error.clone().expect("it failed");
    assert_eq!(error.kind(), CallErrorKind::StreamingUnsupported, "{error:?}");
    error.message
}

#[tokio::test]
async fn a_call_that_is_to_be_streamed_by_a_tool_that_does_not_stream_is_an_error_that_names_the_tool() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let echo = |id: &str, stream: bool| v1::NewCall { stream, ..call(id, "echo", json!({ "text": "hi" })) };
    let theirs = v1::NewCall { execute: Some(false), ..echo("theirs", true) };
    let events = yard.client.execute(vec![recites(), echo("must", true), echo("may", false), theirs]).await;
    let events = events.to_end().await;
    let outcomes = check::outcomes(&events);
    assert_eq!(check::said(&events)["verse"], VERSE);
    assert_eq!(check::text(&outcomes["may"]), "hi", "without the wish every tool may be called");
    for id in ["must", "theirs"] {
        let message = unstreamed(&outcomes[id]);
        assert!(message.starts_with("tool echo does not support streaming"), "{id}: {message}");
    }
    let started =
        |event: &v1::RunEvent| matches!(&event.event, Some(Event::AttemptStarted(it)) if it.call_id == "must");
    assert!(!events.iter().any(started));
    // The other endpoints have the wish as a member of the call's options.
    let options = json!({ "calls": [{ "call_id": "a", "stream": true }] });
    let arguments = json!({ "text": "hi" }).to_string();
    let item = json!({ "type": "function_call", "call_id": "a", "name": "echo", "arguments": arguments });
    for (path, member) in [("/v1/tool_calls:batch", "turn"), ("/v1/responses", "input")] {
        let body = json!({ member: [item], "toolyard": options });
        let answer = yard.http().post(path, &body).await.json().to_string();
        assert!(answer.contains("tool echo does not support streaming"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn the_client_library_follows_one_call_as_a_stream_of_its_own() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let connection = client::Connection::to(format!("http://{}", yard.coordinator.address()));
    let client = client::Client::connect(&connection).await.expect("the coordinator listens");
    let call = v1::NewCall { call_id: String::new(), stream: false, ..recites() };
    let heard: Vec<CallEvent> =
        client.stream_call(call).await.expect("it is accepted").try_collect().await.expect("it is heard to its end");
    let chunks = heard.iter().filter_map(|event| match event {
        CallEvent::Chunk { content: v1::Content { body: Some(v1::content::Body::Text(text)) }, .. } => Some(&**text),
        _ => None,
    });
    let chunks: Vec<&str> = chunks.collect();
    assert_eq!((chunks.len(), chunks.concat().as_str()), (6, VERSE), "a chunk for each word");
    let Some(CallEvent::Done { tool, outcome }) = heard.last() else { panic!("{heard:?}") };
    assert_eq!((tool.as_str(), outcome.state()), ("recite", CallState::Completed));
    let echo = harness::call("e", "echo", json!({ "text": "hi" }));
    let heard: Vec<CallEvent> =
        client.stream_call(echo).await.expect("it is accepted").try_collect().await.expect("it is heard to its end");
    let [CallEvent::Done { tool, outcome }] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!(tool, "echo");
    assert!(unstreamed(outcome).contains("tool echo does not support streaming"));
}
