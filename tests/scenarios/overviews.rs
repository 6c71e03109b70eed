//! The overview adds up the figures of all coordinators, and shows a tenant what it may see of them.

use std::time::Duration;

use harness::{Client, Guarded, PATIENCE, Shards, Yard, call};
use proto::v1::pause::What as Paused;
use proto::v1::pause_request::What;
use proto::v1::{self, GetOverviewRequest, GetOverviewResponse};
use serde_json::json;

use crate::{FIXTURE, callers, pauses, question};

async fn overview(client: &Client) -> GetOverviewResponse {
    client.fleet.clone().get_overview(GetOverviewRequest {}).await.expect("readers may see it").into_inner()
}

/// The first overview for which `is_so`.
async fn until(client: &Client, what: &str, is_so: impl Fn(&GetOverviewResponse) -> bool) -> GetOverviewResponse {
    let mut last = overview(client).await;
    let reached = async {
        while !is_so(&last) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            last = overview(client).await;
        }
    };
    if tokio::time::timeout(PATIENCE, reached).await.is_err() {
        panic!("{what}: {last:?}");
    }
    last
}

fn ended(overview: &GetOverviewResponse, tool: &str) -> u32 {
    overview.tools.iter().filter(|figures| figures.tool == tool).map(|figures| figures.completed).sum()
}

#[tokio::test]
async fn each_coordinator_shows_the_calls_of_all_and_says_how_many_they_are() {
    let yard = Yard::start(FIXTURE).await;
    let mut other = yard.fixture.coordinator(&yard.broker.url()).await;
    let there = Client::connect(other.address()).await;
    let shards = Shards::at(&yard.broker.url()).await;
    shards.until(&[8, 8]).await;
    let _worker = yard.worker().await;
    there.wait_for_tool("echo").await;
    // Each coordinator opens runs in its own shards.
    for client in [&yard.client, &there] {
        for _ in 0..3 {
            client.execute(vec![call("a", "echo", json!({ "text": "x" }))]).await.to_end().await;
        }
        client.create(vec![question("ask")]).await;
    }
    for client in [&yard.client, &there] {
        let is_whole = |it: &GetOverviewResponse| ended(it, "echo") == 6 && it.waiting_for_client == Some(2);
        let whole = until(client, "the calls of both", is_whole).await;
        assert_eq!((whole.coordinators, whole.shards, whole.runs_open), (2, 16, Some(2)));
        let echo = whole.tools.iter().find(|figures| figures.tool == "echo").expect("it was called");
        assert_eq!(echo.ended_each.iter().sum::<u32>(), 6);
        assert!(echo.to_end_p50.is_some() && echo.to_start_p95.is_some(), "{echo:?}");
    }
    // One that leaves is not counted any more, and its shards are those of the other one.
    other.terminate().await;
    shards.until(&[16]).await;
    let alone = |it: &GetOverviewResponse| it.coordinators == 1 && it.shards == 16 && it.runs_open == Some(2);
    until(&yard.client, "its open runs are those of the other one", alone).await;
}

#[tokio::test]
async fn a_coordinator_that_died_is_left_out_after_a_while() {
    let yard = Yard::start(FIXTURE).await;
    let mut other = yard.fixture.coordinator(&yard.broker.url()).await;
    until(&yard.client, "both are heard", |it| it.coordinators == 2).await;
    other.kill().await;
    let alone = |it: &GetOverviewResponse| it.coordinators == 1 && it.shards == 16;
    until(&yard.client, "only the living one is counted", alone).await;
}

#[tokio::test]
async fn a_reader_sees_the_tools_and_pools_of_its_tenant_and_no_admin_by_name() {
    let yard: Guarded = callers::guarded().await;
    let [ops, boss, rival] = ["ops", "boss", "rival"].map(|name| yard.client(name));
    yard.client("shop").create(vec![question("ask")]).await;
    rival.execute(vec![call("a", "echo", json!({ "text": "x" }))]).await.to_end().await;
    pauses::pause(&ops, What::Tool("sleep".to_owned())).await;
    let all = until(&ops, "all of it", |it| ended(it, "echo") == 1 && it.waiting_for_client == Some(1)).await;
    assert_eq!(all.pauses[0].by, "ops");
    assert_eq!(all.pools.len(), 1);

    let seen = until(&rival, "what its tenant can use", |it| ended(it, "echo") == 1).await;
    let [v1::Pause { what: Some(Paused::Tool(tool)), by, reason, .. }] = &seen.pauses[..] else { panic!("{seen:?}") };
    assert_eq!((tool.as_str(), by.as_str(), reason.as_str()), ("sleep", "", "they asked us to"));
    assert_eq!((seen.pools.len(), seen.pools[0].pool.as_str()), (1, "main"));
    assert!(seen.log.is_some());
    let of_all = [seen.runs_open, seen.waiting_for_client, seen.awaiting_approval];
    assert_eq!(of_all, [None; 3], "they would count runs of other tenants");
    assert!(seen.tools.iter().all(|figures| ["echo", "sleep"].contains(&figures.tool.as_str())), "{seen:?}");

    // This one may call no tool, so it sees none.
    let nothing = overview(&boss).await;
    assert!(nothing.tools.is_empty() && nothing.pools.is_empty() && nothing.pauses.is_empty(), "{nothing:?}");
    assert_eq!(nothing.coordinators, 1);
    let refused = yard.stranger.fleet.clone().get_overview(GetOverviewRequest {}).await;
    assert!(refused.is_err(), "without a key nothing is shown");
}
