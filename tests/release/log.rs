//! A log that one release wrote, read and carried on by the other. What an older release cannot read it passes over.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use harness::{Client, Fixture, PATIENCE, Run, Shards, call, client_answer};
use prost::Message as _;
use proto::v1::{self, CallState, RunStatus};
use proto::wire::v1 as wire;
use serde_json::json;

use crate::{
    approve, broker, check, confirmed, count, counted, events, present, previous, question, retried,
    until_action_is_required,
};

/// The version of an entry that no release reads yet.
const NEWER: u32 = 99;

/// Runs that one release made: three that ended, one that waits for its client, one for a worker.
struct Made {
    ended: Vec<(Run, Vec<v1::RunEvent>)>,
    waiting: Run,
    queued: Run,
}

async fn make(client: &Client, workers: &Fixture, url: &str) -> Made {
    let mut worker = workers.worker(url, "main", 4).await;
    client.wait_for_tool("echo").await;
    let cancelled = client.create(vec![question("never")]).await;
    cancelled.cancel("changed our mind").await;
    let echo = call("echo", "echo", json!({ "text": "kept" }));
    let runs =
        [client.create(vec![count("a", 4, 5), retried("again")]).await, client.create(vec![echo]).await, cancelled];
    let mut ended = Vec::new();
    for run in runs {
        let seen = events(&run).await;
        ended.push((run, seen));
    }
    let waiting = client.create(vec![count("said", 3, 5), question("ask"), confirmed("agree")]).await;
    until_action_is_required(&waiting).await;
    worker.terminate().await;
    let queued = client.create(vec![count("late", 3, 5), retried("later")]).await;
    Made { ended, waiting, queued }
}

async fn finish(made: &mut Made, client: &Client, workers: &Fixture, url: &str) {
    for (run, seen) in &made.ended {
        assert_eq!(events(&run.through(client)).await, *seen, "the other release reads the same");
    }
    let _worker = workers.worker(url, "main", 4).await;
    let waiting = made.waiting.through(client);
    assert_eq!(waiting.get().await.status(), RunStatus::RequiresAction);
    waiting.submit(vec![client_answer("ask", "the right one")]).await.expect("it waits");
    approve(&waiting, "agree").await;
    let seen = events(&waiting).await;
    assert_eq!(check::text(&check::outcomes(&seen)["ask"]), "the right one");
    assert_eq!(check::said(&seen)["said"], counted("said", 3));
    made.ended.push((waiting, seen));
    let seen = events(&made.queued.through(client)).await;
    let outcomes = check::outcomes(&seen);
    assert!(outcomes.values().all(|outcome| outcome.state() == CallState::Completed), "{outcomes:?}");
    assert_eq!(
        (&*check::said(&seen)["late"], &*check::said(&seen)["later"]),
        (&*counted("late", 3), &*counted("later", 4))
    );
    made.ended.push((made.queued.clone(), seen));
}

async fn carried_on(writers: Fixture, readers: Fixture) {
    let broker = broker().await;
    let url = broker.url();
    let mut writer = writers.coordinator(&url).await;
    let mut made = make(&Client::connect(writer.address()).await, &writers, &url).await;
    writer.terminate().await;
    let mut reader = readers.coordinator(&url).await;
    finish(&mut made, &Client::connect(reader.address()).await, &readers, &url).await;
    reader.terminate().await;
    // And back.
    let writer = writers.coordinator(&url).await;
    let client = Client::connect(writer.address()).await;
    for (run, seen) in &made.ended {
        assert_eq!(events(&run.through(&client)).await, *seen, "the first release reads what the other wrote");
    }
}

#[tokio::test]
#[ignore = "needs the previous release: tests/release/run"]
async fn a_log_of_the_previous_release_is_carried_on_by_the_present_one_and_read_by_both() {
    Box::pin(carried_on(previous(), present())).await;
}

#[tokio::test]
#[ignore = "needs the previous release: tests/release/run"]
async fn a_log_of_the_present_release_is_carried_on_by_the_previous_one_and_read_by_both() {
    Box::pin(carried_on(present(), previous())).await;
}

fn shard_of(run: &str) -> u8 {
    u8::from_str_radix(&run[4..6], 16).expect("a run id names its shard")
}

async fn store(log: &jetstream::Context, subject: String, entry: impl Into<bytes::Bytes>) {
    let sent = log.publish(subject, entry.into()).await.expect("it is sent");
    sent.await.expect("the broker stores anything");
}

#[tokio::test]
#[ignore = "needs the previous release: tests/release/run"]
async fn the_previous_release_passes_over_entries_that_it_cannot_read() {
    let broker = broker().await;
    let coordinator = previous().coordinator(&broker.url()).await;
    let client = Client::connect(coordinator.address()).await;
    let _worker = present().worker(&broker.url(), "main", 4).await;
    client.wait_for_tool("echo").await;
    let run = client.create(vec![question("ask"), count("a", 3, 5)]).await;
    until_action_is_required(&run).await;
    let log = jetstream::new(async_nats::connect(broker.url()).await.expect("the broker is there"));
    let newer = wire::Entry { version: NEWER, ..wire::Entry::default() }.encode_to_vec();
    // This one has an event that the previous release does not know.
    let erase = wire::event::Kind::RunEraseRequested(wire::RunEraseRequested::default());
    let unknown = wire::Event { kind: Some(erase) };
    let unknown = wire::Entry { version: 1, events: vec![unknown], ..wire::Entry::default() }.encode_to_vec();
    for (place, entry) in [("0.ctl", &newer), ("1.ctl", &newer), ("_.run", &newer), ("_.run", &unknown)] {
        let subject = format!("ty.run.{:02x}.{}.{place}", shard_of(&run.id), run.id);
        store(&log, subject, entry.clone()).await;
    }
    run.submit(vec![client_answer("ask", "all the same")]).await.expect("it waits");
    let seen = events(&run).await;
    assert_eq!(check::text(&check::outcomes(&seen)["ask"]), "all the same");
}

#[tokio::test]
#[ignore = "needs the previous release: tests/release/run"]
async fn a_run_that_neither_release_can_read_the_opening_of_stays_open_whichever_owns_it() {
    let broker = broker().await;
    let mut coordinator = previous().coordinator(&broker.url()).await;
    let client = Client::connect(coordinator.address()).await;
    let _workers =
        [previous().worker(&broker.url(), "main", 4).await, present().worker(&broker.url(), "main", 4).await];
    client.wait_for_tool("echo").await;
    let log = jetstream::new(async_nats::connect(broker.url()).await.expect("the broker is there"));
    let shard = 3;
    let run = run::RunId::new(run::Shard(shard), uuid::Uuid::now_v7()).to_string();
    let opening = wire::Entry { version: NEWER, ..wire::Entry::default() }.encode_to_vec();
    store(&log, format!("ty.run.{shard:02x}.{run}.0.job.main"), opening).await;
    let shards = Shards::at(&broker.url()).await;
    for fixture in [present(), previous(), present()] {
        until_listed(&shards, shard, &run).await;
        let mut queue: jetstream::consumer::PullConsumer =
            log.get_consumer_from_stream("pool-main", "ty-log").await.expect("the queue is there");
        let info = queue.info().await.expect("the queue is there");
        assert_eq!((info.num_pending, info.num_ack_pending), (0, 1), "its job is not acknowledged away");
        coordinator.terminate().await;
        coordinator = fixture.coordinator(&broker.url()).await;
        // Others are not kept waiting.
        let client = Client::connect(coordinator.address()).await;
        client.wait_for_tool("echo").await;
        let seen = events(&client.create(vec![call("e", "echo", json!({ "text": "goes on" }))]).await).await;
        assert_eq!(check::text(&check::outcomes(&seen)["e"]), "goes on");
    }
    until_listed(&shards, shard, &run).await;
}

/// Waits until the snapshot of a shard lists the run as open.
async fn until_listed(shards: &Shards, shard: u8, run: &str) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let snapshot = shards.snapshot(shard).await;
        if snapshot.is_some_and(|snapshot| snapshot.open.iter().any(|open| open.run.to_string() == run)) {
            return;
        }
        assert!(Instant::now() < give_up, "{run} is listed in the snapshot");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
