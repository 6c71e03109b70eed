//! Stale, forged and malformed entries are ignored: nothing ends wrongly, and no process crashes.

use std::time::Duration;

use async_nats::jetstream;
use futures::StreamExt as _;
use harness::{PATIENCE, Yard, call};
use prost::Message as _;
use proto::v1::{CallErrorKind, CallState, FloorPolicy, run_event::Event};
use proto::wire::v1 as wire;
use serde_json::json;

use crate::{FIXTURE, check, count, counted};

fn entry(attempt: u32, kind: wire::event::Kind) -> wire::Entry {
    let attempt = Some(wire::Attempt { number: attempt, nonce: 1 });
    wire::Entry { version: 1, attempt, events: vec![wire::Event { kind: Some(kind) }], ..wire::Entry::default() }
}

fn ended(outcome: wire::AttemptOutcome) -> wire::event::Kind {
    let ended = wire::AttemptEnded { outcome: outcome.into(), ..wire::AttemptEnded::default() };
    wire::event::Kind::AttemptEnded(ended)
}

async fn broker(yard: &Yard) -> jetstream::Context {
    jetstream::new(async_nats::connect(yard.broker.url()).await.expect("the broker is there"))
}

async fn store(broker: &jetstream::Context, subject: String, payload: Vec<u8>) {
    let sent = broker.publish(subject, payload.into()).await.expect("it is sent");
    sent.await.expect("the broker stores anything");
}

/// The reply subject of the running attempt's job, from its start.
async fn lease(broker: &jetstream::Context, run: &str) -> String {
    let stream = broker.get_stream("ty-log").await.expect("the log is there");
    let filter = format!("ty.run.*.{run}.0.out.main");
    let config = jetstream::consumer::pull::OrderedConfig { filter_subject: filter, ..Default::default() };
    let mut entries = stream.create_consumer(config).await.expect("a consumer").messages().await.expect("entries");
    loop {
        let message = entries.next().await.expect("the attempt starts").expect("an entry");
        let entry = wire::Entry::decode(message.payload.clone()).expect("an entry");
        for event in entry.events {
            if let Some(wire::event::Kind::AttemptStarted(started)) = event.kind {
                return String::from_utf8(started.lease.to_vec()).expect("a subject");
            }
        }
    }
}

#[tokio::test]
async fn a_forged_acknowledgement_ends_nothing() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let broker = broker(&yard).await;
    let mut stream = yard.client.execute(vec![count("c", 20, 50)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let lease = lease(&broker, &stream.run(&yard.client).id).await;
    let client = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    for word in ["+TERM", "+ACK", "-NAK", "garbage"] {
        client.publish(lease.clone(), word.into()).await.expect("it is sent");
    }
    client.flush().await.expect("it is out");
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], counted("c", 20));
    assert_eq!(check::outcomes(&events)["c"].state(), CallState::Completed);
}

#[tokio::test]
async fn words_of_an_older_attempt_or_an_unknown_version_are_not_heard() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let broker = broker(&yard).await;
    let mut stream = yard.client.execute(vec![count("c", 20, 50)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let run = stream.run(&yard.client);
    let subject = |call: u32, what: &str| format!("ty.run.{}.{}.{call}.{what}", &run.id[4..6], run.id);
    let completed = || ended(wire::AttemptOutcome::Completed);
    let newer = wire::Entry { version: 99, ..entry(2, completed()) };
    let stopping = wire::AttemptStopping { stage: wire::StopStage::Acknowledged.into() };
    for (subject, payload) in [
        // The attempt that runs is the first; its nonce is not 1.
        (subject(0, "out.main"), entry(0, completed()).encode_to_vec()),
        (subject(0, "out.main"), entry(1, completed()).encode_to_vec()),
        (subject(0, "out.main"), newer.encode_to_vec()),
        (subject(0, "out.main"), entry(1, wire::event::Kind::AttemptStopping(stopping)).encode_to_vec()),
        (subject(0, "out.main"), vec![0xff; 100]),
        (subject(0, "ctl"), vec![0xff; 100]),
        (subject(0, "ctl"), entry(1, completed()).encode_to_vec()),
        (subject(9, "ctl"), vec![1, 2, 3]),
        (format!("ty.run.{}.{}._.run", &run.id[4..6], run.id), vec![0xff; 100]),
        (format!("ty.run.zz.{}._.run", run.id), vec![0xff; 100]),
    ] {
        store(&broker, subject, payload).await;
    }
    // Commands are still stored behind entries that could not be read.
    run.cancel("enough").await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::outcomes(&events)["c"].state(), CallState::Cancelled);
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await);
}

#[tokio::test]
async fn garbage_on_every_other_subject_crashes_nobody() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let client = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    for subject in ["ty.alive.main", "ty.alive.other", "ty.stop.main", "ty.ask.main.00", "ty.ask.main.zz"] {
        for payload in
            [vec![], vec![0xff; 1000], wire::WorkerHeartbeat { version: 9, ..Default::default() }.encode_to_vec()]
        {
            client.publish_with_reply(subject, "nowhere", payload.into()).await.expect("it is sent");
        }
    }
    client.flush().await.expect("it is out");
    let broker = broker(&yard).await;
    for bucket in ["ty-tools", "ty-leases"] {
        let bucket = broker.get_key_value(bucket).await.expect("the bucket is there");
        bucket.put("garbage", vec![0xff; 100].into()).await.expect("the broker stores anything");
    }
    let events = yard.client.execute(vec![count("c", 3, 10)]).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], counted("c", 3));
}

#[tokio::test]
async fn a_huge_error_text_is_cut_and_says_so() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let arguments = json!({ "bytes": 3_000_000 });
    let events = yard.client.execute(vec![call("r", "rants", arguments)]).await.to_end().await;
    let error = check::outcomes(&events)["r"].error.clone().expect("it failed");
    assert_eq!(error.kind(), CallErrorKind::ToolFailed);
    assert!(error.message.len() <= run::limit::ERROR_BYTES_MAX && error.message.ends_with("(cut)"));
}

#[tokio::test]
async fn a_worker_that_stands_still_past_its_lease_is_not_heard_when_it_goes_on() {
    let yard = Yard::start(FIXTURE).await;
    let mut zombie = yard.worker().await;
    let mut stream = yard.client.execute(vec![count("c", 60, 100)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(output) if output.chunk == 3)).await;
    zombie.pause();
    let _second = yard.worker().await;
    stream.until(|event| matches!(event, Event::AttemptStarted(started) if started.attempt == 2)).await;
    zombie.resume();
    let run = stream.run(&yard.client);
    let events = tokio::time::timeout(PATIENCE, stream.to_end()).await.expect("it ends");
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], counted("c", 60));
    // The zombie's remaining output is in the log by now, and no reader receives it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await);
    zombie.kill().await;
}
