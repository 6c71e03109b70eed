//! Runs whose entries have left the log, by age or by hand: they block no takeover and do not stay open for ever.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use harness::{Client, PATIENCE, Run, Shards, Yard, call, reason};
use prost::Message as _;
use proto::convert::worker::{Question, decode_answer, encode_question};
use proto::v1::{self, CallState, FloorPolicy};
use proto::wire::v1 as wire;
use serde_json::json;

use crate::{FIXTURE, check, question};

fn shard_of(run: &str) -> u8 {
    u8::from_str_radix(&run[4..6], 16).expect("a run id names its shard")
}

/// Waits until the snapshot of a run's shard lists the run as open, or does not.
async fn until_listed(shards: &Shards, run: &str, listed: bool) {
    let give_up = Instant::now() + PATIENCE;
    let is_listed =
        |snapshot: proto::convert::snapshot::Snapshot| snapshot.open.iter().any(|open| open.run.to_string() == run);
    while shards.snapshot(shard_of(run)).await.is_some_and(is_listed) != listed {
        assert!(Instant::now() < give_up, "listed in the snapshot: {}", !listed);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Removes a run's entries from the log, as age would a day later.
async fn purge(yard: &Yard, run: &str) {
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    let log = jetstream::new(nats).get_stream("ty-log").await.expect("the log is there");
    log.purge().filter(format!("ty.run.*.{run}.>")).await.expect("the broker is there");
}

async fn get(client: &Client, run: &Run) -> Result<v1::Run, tonic::Status> {
    let request = v1::GetRunRequest { run_id: run.id.clone() };
    Ok(client.runs.clone().get_run(request).await?.into_inner().run.expect("the response has the run"))
}

#[tokio::test]
async fn a_run_whose_entries_are_gone_blocks_no_takeover_and_the_others_of_its_shard_go_on() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let gone = yard.client.create(vec![question("ask")]).await;
    // Another one of the same shard, which stays.
    let stays = loop {
        let run = yard.client.create(vec![question("ask")]).await;
        if shard_of(&run.id) == shard_of(&gone.id) {
            break run;
        }
        run.cancel("of another shard").await;
    };
    yard.coordinator.terminate().await;
    let shards = Shards::at(&yard.broker.url()).await;
    until_listed(&shards, &gone.id, true).await;
    purge(&yard, &gone.id).await;

    yard.coordinator = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(yard.coordinator.address()).await;
    client.wait_for_tool("echo").await;
    let echo = |id: &str| call(id, "echo", json!({ "text": "fine" }));
    // Two calls: they are dispatched by the owner.
    for _ in 0..20 {
        let events = client.execute(vec![echo("a"), echo("b")]).await.to_end().await;
        check::whole(&events, true);
    }
    let stays = stays.through(&client);
    stays.submit(vec![harness::client_answer("ask", "the left one")]).await.expect("it waits");
    let events = stays.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::outcomes(&events)["ask"].state(), CallState::Completed);
    let missing = get(&client, &gone).await.expect_err("its entries are gone");
    assert_eq!(reason(&missing), "RUN_NOT_FOUND");
    until_listed(&shards, &gone.id, false).await;
}

/// The version of an entry that a newer release writes.
const NEWER: u32 = 3;

#[tokio::test]
async fn a_run_whose_opening_only_a_newer_release_can_read_stays_open_for_it_and_its_job_is_not_dropped() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let nats = async_nats::ConnectOptions::new().custom_inbox_prefix("_INBOX.pool.main");
    let nats = nats.connect(yard.broker.url()).await.expect("the broker is there");
    let log = jetstream::new(nats.clone());
    // The opening of a run of one call, as a coordinator of a newer release would store it.
    let old = yard.client.create(vec![call("a", "echo", json!({ "text": "fine" }))]).await;
    old.watch(FloorPolicy::Arrival).await.to_end().await;
    let stream = log.get_stream("ty-log").await.expect("the log is there");
    let subject = format!("ty.run.{:02x}.{}.0.job.main", shard_of(&old.id), old.id);
    let opening = stream.get_last_raw_message_by_subject(&subject).await.expect("its job opens it");
    let mut entry = wire::Entry::decode(opening.payload).expect("it is an entry");
    entry.version = NEWER;
    let shard = shard_of(&old.id);
    let run = run::RunId::new(run::Shard(shard), uuid::Uuid::now_v7());
    let subject = format!("ty.run.{shard:02x}.{run}.0.job.main");
    let stored = log.publish(subject, entry.encode_to_vec().into()).await.expect("it is sent").await;
    let sequence = stored.expect("it is stored").sequence;

    let shards = Shards::at(&yard.broker.url()).await;
    let (call, attempt) = (run::CallIndex(0), None);
    let question = Question { run, call, delivered: 2, sequence, attempt, executed: false };
    let asked = format!("ty.ask.main.{shard:02x}");
    for round in ["its first owner", "the next one"] {
        until_listed(&shards, &run.to_string(), true).await;
        let answered = async {
            loop {
                match nats.request(asked.clone(), encode_question(&question)).await {
                    Ok(answer) => return decode_answer(answer.payload, call).expect("it is an answer"),
                    // No coordinator leads the shard yet.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        let answer = tokio::time::timeout(PATIENCE, answered).await.expect("somebody answers");
        assert!(answer.is_none(), "{round} does not know what to do: {answer:?}");
        yard.coordinator.terminate().await;
        yard.coordinator = yard.fixture.coordinator(&yard.broker.url()).await;
    }
}

#[tokio::test]
async fn an_owner_that_finds_the_entries_of_an_open_run_gone_forgets_the_run_and_its_watchers_are_told() {
    let yard = Yard::start(FIXTURE).await;
    // Keeps the first entry of the log older than the run, for which GetRun would answer EVENTS_EXPIRED otherwise.
    let _older = yard.client.create(vec![question("ask")]).await;
    let request = v1::CreateRunRequest {
        keep_open: true,
        timeout: Some(proto::convert::duration(Duration::from_secs(4))),
        ..v1::CreateRunRequest::default()
    };
    let created = yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    let run = Run { client: yard.client.clone(), id: created.run.expect("the response has the run").run_id };
    let mut watch = run.watch(FloorPolicy::Arrival).await;
    watch.next().await.expect("its opening is read");
    let shards = Shards::at(&yard.broker.url()).await;
    // From now on it cannot be ended: whatever is appended expects an entry that is gone.
    purge(&yard, &run.id).await;
    let told = async {
        loop {
            match watch.next().await {
                Ok(true) => {}
                Ok(false) => panic!("it ended: {:#?}", watch.seen),
                Err(error) => return error,
            }
        }
    };
    let error = tokio::time::timeout(PATIENCE, told).await.expect("its watcher is told");
    assert_eq!(reason(&error), "EVENTS_EXPIRED", "{error}");
    // Its watcher may find out before the owner.
    let begun = Instant::now();
    let missing = loop {
        match get(&yard.client, &run).await {
            Err(error) => break error,
            Ok(run) => assert!(begun.elapsed() < PATIENCE, "it is gone: {run:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(reason(&missing), "RUN_NOT_FOUND");
    until_listed(&shards, &run.id, false).await;
}
