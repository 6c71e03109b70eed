//! Objects in a bucket of an S3 store: chunks that are never overwritten, keys with least permissions, and a store that
//! is unavailable. Tests for both stores are in `objects`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::{Bucket, Client, Fixture, PATIENCE, Run, Shards, Yard, call, reason};
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy};
use run::ObjectId;
use serde_json::json;
use tonic::Code;

use crate::objects::{BYTES, broker, made, object, read};
use crate::{FIXTURE, check};

/// Three pieces.
const LARGE: usize = (9 << 20) + 5;

async fn outcome(run: &Run) -> v1::CallOutcome {
    check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await)["a"].clone()
}

fn makes(bytes: usize) -> Vec<v1::NewCall> {
    vec![call("a", "makes", json!({ "bytes": bytes }))]
}

fn echo() -> Vec<v1::NewCall> {
    vec![call("a", "echo", json!({ "text": "small" }))]
}

#[tokio::test]
async fn what_lies_there_is_not_written_over_and_goes_with_its_run_alone() {
    let bucket = Bucket::start().await;
    let yard = Yard::beside(&bucket, Fixture::new(FIXTURE)).await;
    let _worker = yard.worker().await;
    let (run, object) = object(&yard.client, LARGE).await;
    let all = made(LARGE);
    let of_run = |run: &Run| format!("ty/obj/{}/0/main/", run.id);
    assert_eq!(bucket.keys(&of_run(&run)).await.len(), 3);
    let broker = broker(yard.broker.url()).await;
    let as_whom = |key: &str| objects::Objects::new(&broker, Some(bucket.with_key(key)));
    let id: ObjectId = object.object_id.parse().expect("an id");
    as_whom("worker-main").put(&id, 0, "forged".into()).await.expect("as a second copy of the same, it does no harm");
    assert_eq!(read(&yard.client, &object.object_id, 0, None).await.expect("it is there"), all);
    let edge = (4 << 20) - 10;
    let middle = read(&yard.client, &object.object_id, edge, Some(20)).await.expect("it is there");
    let edge = usize::try_from(edge).expect("a place");
    assert_eq!(middle, all[edge..edge + 20], "over the edge of a piece");

    // As an attempt that does not count leaves it.
    let orphan = format!("{}.0.main.00000000000000ff", run.id);
    let orphan_id: ObjectId = orphan.parse().expect("an id");
    as_whom("worker-main").put(&orphan_id, 0, "late".into()).await.expect("it may");
    let nobodys = read(&yard.client, &orphan, 0, None).await.expect_err("nothing refers to it");
    assert_eq!((nobodys.code(), reason(&nobodys).as_str()), (Code::NotFound, "OBJECT_NOT_FOUND"));
    let (other, kept) = crate::objects::object(&yard.client, BYTES).await;
    let run_id = run.id.parse().expect("an id");
    as_whom("worker-main").remove_run(run_id).await.expect_err("a worker removes nothing");
    as_whom("coordinator").remove_run(run_id).await.expect("a coordinator does");
    assert_eq!(bucket.keys(&of_run(&run)).await, Vec::<String>::new(), "the orphan is gone, too");
    assert_eq!(bucket.keys(&of_run(&other)).await.len(), 1);
    let gone = read(&yard.client, &object.object_id, 0, None).await.expect_err("it is gone");
    assert_eq!(reason(&gone), "OBJECT_NOT_FOUND");
    assert_eq!(read(&yard.client, &kept.object_id, 0, None).await.expect("it is there"), made(BYTES));
}

#[tokio::test]
async fn a_workers_key_opens_its_own_pools_part_and_only_to_write() {
    let bucket = Bucket::start().await;
    let yard = Yard::beside(&bucket, Fixture::new(FIXTURE)).await;
    let broker = broker(yard.broker.url()).await;
    let worker = objects::Objects::new(&broker, Some(bucket.with_key("worker-main")));
    let id = |text: &str| text.parse::<ObjectId>().expect("an id");
    let own = id("run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f.3.main.00000000000000ff");
    worker.put(&own, 0, "mine".into()).await.expect("it may");
    let denied = worker.chunk(&own, 0).await.expect_err("it does not read").to_string();
    assert!(denied.contains("AccessDenied"), "{denied}");
    let others = "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f.3.other.00000000000000ff";
    for other in [others, "upl_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f"] {
        let denied = worker.put(&id(other), 0, "theirs".into()).await.expect_err("it is not its").to_string();
        assert!(denied.contains("AccessDenied"), "{other}: {denied}");
    }
    assert_eq!(bucket.keys("ty/obj/").await.len(), 1);
}

#[tokio::test]
async fn of_a_run_that_is_not_to_be_stored_nothing_stays_in_the_bucket() {
    let bucket = Bucket::start().await;
    let yard = Yard::beside(&bucket, Fixture::new(FIXTURE).with("TOOLYARD_ERASE_AFTER", 2)).await;
    let _worker = yard.worker().await;
    let request = v1::CreateRunRequest { calls: makes(BYTES), store: Some(false), ..v1::CreateRunRequest::default() };
    let run = yard.client.runs.clone().create_run(request).await.expect("accepted").into_inner().run.expect("a run");
    let run = Run { client: yard.client.clone(), id: run.run_id };
    assert_eq!(outcome(&run).await.state(), CallState::Completed);
    let (_, kept) = object(&yard.client, BYTES).await;
    let give_up = Instant::now() + PATIENCE;
    let get = v1::GetRunRequest { run_id: run.id.clone() };
    while yard.client.runs.clone().get_run(get.clone()).await.is_ok()
        || !bucket.keys(&format!("ty/obj/{}", run.id)).await.is_empty()
    {
        assert!(Instant::now() < give_up, "it is never erased");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(read(&yard.client, &kept.object_id, 0, None).await.expect("it is there"), made(BYTES));
}

#[tokio::test]
async fn a_run_is_erased_while_the_bucket_is_away_and_its_objects_when_it_is_back() {
    let mut bucket = Bucket::start().await;
    let yard = Yard::beside(&bucket, Fixture::new(FIXTURE).with("TOOLYARD_ERASE_AFTER", 3)).await;
    let _worker = yard.worker().await;
    let not_stored = |calls| v1::CreateRunRequest { calls, store: Some(false), ..v1::CreateRunRequest::default() };
    let mut runs = Vec::new();
    for calls in [makes(BYTES), echo()] {
        let run = yard.client.runs.clone().create_run(not_stored(calls)).await.expect("accepted").into_inner();
        runs.push(Run { client: yard.client.clone(), id: run.run.expect("a run").run_id });
    }
    for run in &runs {
        assert_eq!(outcome(run).await.state(), CallState::Completed);
    }
    bucket.server.kill().await;
    let shards = Shards::at(&yard.broker.url()).await;
    let give_up = Instant::now() + PATIENCE;
    for run in &runs {
        while shards.entries(&format!("ty.run.*.{}.>", run.id)).await > 0 {
            assert!(Instant::now() < give_up, "the log waits for the bucket");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    bucket.server.restart().await.expect("it comes back");
    let give_up = Instant::now() + PATIENCE;
    while !bucket.keys(&format!("ty/obj/{}", runs[0].id)).await.is_empty() {
        assert!(Instant::now() < give_up, "its objects are forgotten");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_worker_whose_key_is_wrong_says_so_and_harms_nothing_else() {
    let bucket = Bucket::start().await;
    let yard = Yard::beside(&bucket, Fixture::new(FIXTURE)).await;
    let worker = bucket.strangers(&Fixture::new(FIXTURE)).worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("makes").await;
    let error = outcome(&yard.client.create(makes(BYTES)).await).await.error.expect("it failed");
    assert_eq!(error.kind(), CallErrorKind::ResultTooLarge);
    assert!(
        error.message.contains("could not be stored") && error.message.contains("SignatureDoesNotMatch"),
        "{error:?}"
    );
    assert_eq!(check::text(&outcome(&yard.client.create(echo()).await).await), "small");
    drop(worker);
    let _worker = yard.worker().await;
    let (_, object) = object(&yard.client, BYTES).await;
    assert_eq!(read(&yard.client, &object.object_id, 0, None).await.expect("it is there"), made(BYTES));
}

#[tokio::test]
async fn a_coordinator_whose_key_is_wrong_does_not_begin() {
    let bucket = Bucket::start().await;
    let broker = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    for (key, code) in [("nobody", "InvalidAccessKeyId"), ("worker-main", "AccessDenied")] {
        let options = coordinator::Options {
            nats_url: broker.url(),
            credentials: nats::Credentials::default(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            log: coordinator::LogOptions::default(),
            bucket: Some(bucket.with_key(key)),
            redis_url: None,
            redis_ca: None,
            admin: None,
            api: coordinator::ApiOptions::default(),
        };
        let error = coordinator::Coordinator::bind(options).await.expect_err("it may not");
        let coordinator::Error::Bucket(objects::BucketError::Refused { what: "write", .. }) = &error else {
            panic!("{error:?}")
        };
        assert!(error.to_string().contains(code) && !error.to_string().contains("do-not-tell"), "{error}");
    }
}

#[tokio::test]
async fn a_store_that_is_away_loses_nothing_and_delays_only_what_needs_it() {
    let mut bucket = Bucket::start().await;
    let yard = Yard::beside(&bucket, Fixture::new(FIXTURE)).await;
    let _worker = yard.worker().await;
    let (_, before) = object(&yard.client, BYTES).await;
    bucket.server.kill().await;
    let away = read(&yard.client, &before.object_id, 0, None).await.expect_err("nobody has it");
    assert_eq!((away.code(), reason(&away).as_str()), (Code::Unavailable, "OBJECTS_UNAVAILABLE"), "{away:?}");
    // That it begins does not depend on it.
    let another = bucket.coordinators(&Fixture::new(FIXTURE)).coordinator(&yard.broker.url()).await;
    bucket.server.restart().await.expect("it comes back");
    let client = Client::connect(another.address()).await;
    // It answers before it has found all that it keeps.
    let give_up = Instant::now() + Duration::from_secs(60);
    let again = loop {
        match read(&client, &before.object_id, 0, None).await {
            Ok(bytes) => break bytes,
            Err(away) => assert!(Instant::now() < give_up, "{away:?}"),
        }
    };
    assert_eq!(again, made(BYTES));
    // It is paused, because the duration of a restart is unknown, and a result waits for 20 s.
    bucket.server.pause();
    let run = yard.client.create(makes(BYTES)).await;
    assert_eq!(check::text(&outcome(&yard.client.create(echo()).await).await), "small");
    bucket.server.resume();
    assert_eq!(outcome(&run).await.state(), CallState::Completed);
}
