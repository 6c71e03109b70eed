//! Hooks that the deployment requires: workers that do not run them give nothing to anybody.

use std::time::Duration;

use async_nats::jetstream;
use futures::StreamExt as _;
use harness::{Fixture, Yard, call};
use prost::Message as _;
use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy};
use proto::wire::v1 as wire;
use serde_json::json;

use crate::hooks::{File, error, everything_stored};
use crate::{FIXTURE, check, count};

/// A hook that replaces every secret, without which no worker's result counts.
fn redacting() -> File {
    let redact = r#"sed 's/.*"result":\(.*\)/{"decision":"modify_result","result":\1/; s/s3cret/…/g'"#;
    File::new().hook("redacts", "post_tool_use", "{count,writes}", redact).line("output = true\nrequired = true")
}

/// A worker without any hooks.
async fn bare_worker(yard: &Yard) -> harness::Worker {
    Fixture::new(FIXTURE).worker(&yard.broker.url(), "main", 1).await
}

#[tokio::test]
async fn a_worker_without_a_required_hook_leaves_its_calls_to_one_that_runs_it() {
    let file = redacting();
    let yard = file.yard().await;
    let _bare = bare_worker(&yard).await;
    yard.client.wait_for_tool("count").await;
    let path = file.path("written");
    let say = json!({ "label": "s3cret", "pieces": 2, "every_ms": 0 });
    let writes = call("writes", "writes", json!({ "path": path, "line": "once", "then_wait_ms": 0 }));
    let run = yard.client.create(vec![call("count", "count", say), writes]).await;
    let broker = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    let mut heartbeats = broker.subscribe("ty.alive.main").await.expect("the broker takes it");
    let _worker = yard.worker().await;
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert_eq!(outcomes["count"].state(), CallState::Completed, "{outcomes:?}");
    assert_eq!(outcomes["writes"].state(), CallState::Completed, "{outcomes:?}");
    assert_eq!(check::said(&events)["count"], "…-0 …-1 ");
    assert_eq!(std::fs::read_to_string(&path).expect("it ran").lines().count(), 1, "it ran once");
    // Workers report their hooks, so that `why` knows who can take such a call.
    let reports = async {
        while let Some(message) = heartbeats.next().await {
            let heartbeat = wire::WorkerHeartbeat::decode(message.payload).expect("it is a heartbeat");
            if heartbeat.hooks == ["redacts"] {
                return;
            }
        }
    };
    tokio::time::timeout(harness::PATIENCE, reports).await.expect("the worker reports its hook");
}

fn entry(kinds: Vec<wire::event::Kind>) -> Vec<u8> {
    let events = kinds.into_iter().map(|kind| wire::Event { kind: Some(kind) }).collect();
    let attempt = Some(wire::Attempt { number: 1, nonce: 1 });
    wire::Entry { version: 1, attempt, events, ..wire::Entry::default() }.encode_to_vec()
}

/// As a worker of an earlier release writes them, which does not know that hooks can be required.
fn entries_of_an_old_worker() -> [Vec<u8>; 2] {
    let secret = || proto::v1::Content::from(proto::v1::content::Body::Text("s3cret".to_owned()));
    let lease = "nowhere".into();
    let started = wire::AttemptStarted { worker_id: "worker-old".to_owned(), lease, from: 0 };
    let piece = Some(wire::chunk::Piece::Content(secret()));
    let output = wire::Output { first: 0, chunks: vec![wire::Chunk { channel: String::new(), piece }] };
    let ended = wire::AttemptEnded {
        chunks: 1,
        outcome: wire::AttemptOutcome::Completed.into(),
        result: vec![secret()],
        ..wire::AttemptEnded::default()
    };
    [
        entry(vec![wire::event::Kind::AttemptStarted(started), wire::event::Kind::Output(output)]),
        entry(vec![wire::event::Kind::AttemptEnded(ended)]),
    ]
}

#[tokio::test]
async fn what_a_worker_without_a_required_hook_stored_is_given_to_nobody() {
    let yard = redacting().yard().await;
    let _bare = bare_worker(&yard).await;
    yard.client.wait_for_tool("count").await;
    let run = yard.client.create(vec![count("c", 1, 0)]).await;
    let broker = jetstream::new(async_nats::connect(yard.broker.url()).await.expect("the broker is there"));
    let subject = format!("ty.run.{}.{}.0.out.main", &run.id[4..6], run.id);
    for payload in entries_of_an_old_worker() {
        let sent = broker.publish(subject.clone(), payload.into()).await.expect("it is sent");
        sent.await.expect("the broker stores it");
    }
    let watching = run.watch(FloorPolicy::Arrival).await.to_end();
    let events = tokio::time::timeout(Duration::from_secs(30), watching).await.expect("the call ends at once");
    check::whole(&events, true);
    let (kind, message) = error(&check::outcomes(&events)["c"]);
    assert_eq!(kind, CallErrorKind::HookRequired, "{message}");
    assert!(message.contains("redacts"), "{message}");
    let told = format!("{events:?} {:?}", run.get().await);
    assert!(!told.contains("s3cret"), "{told}");
    let log = String::from_utf8_lossy(&everything_stored(&yard).await).into_owned();
    assert!(log.contains("s3cret"), "it was stored");
}

/// As a worker without the hook writes it that could not go on, and quotes the tool: another attempt is made.
fn lost_attempt() -> Vec<u8> {
    let started = wire::AttemptStarted { worker_id: "worker-old".to_owned(), lease: "nowhere".into(), from: 0 };
    let error = v1::CallError {
        kind: CallErrorKind::WorkerLost.into(),
        message: "it met s3cret".to_owned(),
        ..v1::CallError::default()
    };
    let ended = wire::AttemptEnded {
        outcome: wire::AttemptOutcome::Failed.into(),
        error: Some(error),
        ..wire::AttemptEnded::default()
    };
    entry(vec![wire::event::Kind::AttemptStarted(started), wire::event::Kind::AttemptEnded(ended)])
}

#[tokio::test]
async fn the_error_of_an_attempt_without_a_required_hook_is_withheld_from_readers_too() {
    let file = redacting();
    let yard = file.yard().await;
    let _bare = bare_worker(&yard).await;
    yard.client.wait_for_tool("count").await;
    let run = yard.client.create(vec![count("c", 1, 0)]).await;
    let broker = jetstream::new(async_nats::connect(yard.broker.url()).await.expect("the broker is there"));
    let subject = format!("ty.run.{}.{}.0.out.main", &run.id[4..6], run.id);
    let sent = broker.publish(subject, lost_attempt().into()).await.expect("it is sent");
    sent.await.expect("the broker stores it");
    let mut stream = run.watch(FloorPolicy::Arrival).await;
    stream.until(|event| matches!(event, Event::AttemptEnded(_))).await;
    // One that runs the hook makes the next attempt.
    let _worker = yard.worker().await;
    let events = stream.to_end().await;
    let attempt = check::kinds(&events).into_iter().find_map(|kind| match kind {
        Event::AttemptEnded(ended) => ended.error.clone(),
        _ => None,
    });
    let attempt = attempt.expect("the attempt is seen to fail");
    let withheld = "withheld: the worker does not run the required hooks";
    assert_eq!((attempt.kind(), attempt.message.as_str()), (CallErrorKind::WorkerLost, withheld));
    assert_eq!(check::outcomes(&events)["c"].state(), CallState::Completed);
    let told = format!("{events:?} {:?}", run.get().await);
    assert!(!told.contains("s3cret"), "{told}");
    let sse = yard.http().get(&format!("/v1/runs/{}/events", run.id)).await;
    let sse = String::from_utf8_lossy(&sse.body).into_owned();
    assert!(sse.contains(withheld) && !sse.contains("s3cret"), "{sse}");
}
