//! Open runs that would keep much of the log, beside coordinators that do not know of carried runs.

use std::time::Duration;

use futures::StreamExt as _;
use harness::{Client, PATIENCE, Shards, client_answer};
use proto::names;
use proto::v1::CallState;

use crate::{broker, check, count, events, present, previous, question, until_action_is_required};

/// Calls that fill the part of the log that runs may use that have ended, several times over.
const ENOUGH: usize = 1500;
/// Entries stay in the log for half a minute, and a coordinator looks every 5 s.
const CARRIED_BY: Duration = Duration::from_secs(50);

/// Parts of runs that are carried.
async fn parts(nats_url: &str) -> usize {
    let nats = async_nats::jetstream::new(async_nats::connect(nats_url).await.expect("the broker is there"));
    let bucket = nats.get_stream(format!("KV_{}", names::CARRIED_BUCKET)).await.expect("the bucket is there");
    let all = bucket.info_with_subjects(">").await.expect("the broker answers");
    let parts = all.filter(|subject| {
        let is_fence = subject.as_ref().is_ok_and(|(subject, _)| subject.contains(".fence."));
        std::future::ready(!is_fence)
    });
    parts.count().await
}

#[tokio::test]
#[ignore = "needs the previous release: tests/release/run"]
async fn open_runs_are_carried_once_no_coordinator_of_the_previous_release_is_left() {
    let broker = broker().await;
    let url = broker.url();
    let small = present().with("TOOLYARD_LOG_MAX_MESSAGES", 8000).with("TOOLYARD_TAIL_PERCENT", 10);
    let coordinator = small.coordinator(&url).await;
    let client = Client::connect(coordinator.address()).await;
    let _worker = present().worker(&url, "main", 16).await;
    client.wait_for_tool("count").await;
    let mut older = previous().coordinator(&url).await;
    Shards::at(&url).await.until(&[8, 8]).await;
    let mut open = Vec::new();
    for _ in 0..8 {
        open.push(client.create(vec![question("ask")]).await);
    }
    for run in &open {
        until_action_is_required(run).await;
    }
    let run = |_| async { check::whole(&client.execute(vec![count("c", 1, 0)]).await.to_end().await, true) };
    futures::stream::iter(0..ENOUGH).for_each_concurrent(32, run).await;
    tokio::time::sleep(CARRIED_BY).await;
    assert_eq!(parts(&url).await, 0, "the other coordinator would forget them");
    older.terminate().await;
    let carried = async {
        while parts(&url).await < open.len() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(PATIENCE + CARRIED_BY, carried).await.expect("they are carried");
    for run in &open {
        run.submit(vec![client_answer("ask", "this one")]).await.expect("it waits");
        assert_eq!(check::outcomes(&events(run).await)["ask"].state(), CallState::Completed);
    }
}
