//! A new version of a tool gets the share of calls that the operator sets, and workers execute only tools that they
//! host.

use std::collections::BTreeMap;

use harness::{Client, Fixture, PATIENCE, Pools, Worker, Yard, call};
use proto::v1;
use serde_json::json;

use crate::{FIXTURE, check};

/// The file with which pool `next` takes `share` percent of the calls of pool `usual`.
fn shares(share: u8) -> String {
    format!("[pools.usual]\ntools = [\"release\"]\n[pools.next]\nreplaces = \"usual\"\nshare = {share}\n")
}

async fn worker(yard: &Yard, pool: &str, table: &str) -> Worker {
    yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", table).worker(&yard.broker.url(), pool, 4).await
}

/// Waits until the tool is as it should be.
async fn until(client: &Client, wanted: impl Fn(&v1::Tool) -> bool) {
    let get = || v1::GetToolRequest { name: "release".to_owned() };
    let seen = async {
        while !client
            .tools
            .clone()
            .get_tool(get())
            .await
            .is_ok_and(|answer| answer.into_inner().tool.iter().any(&wanted))
        {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, seen).await.expect("the tool becomes as it should be");
}

fn share(wanted: u32) -> impl Fn(&v1::Tool) -> bool {
    move |tool| tool.pools.iter().any(|pool| pool.share == wanted && pool.replaces == "usual" && pool.live_workers > 0)
}

/// Makes so many calls, all of which must complete, and counts which version executed them.
async fn versions(client: &Client, count: usize, arguments: &serde_json::Value) -> BTreeMap<String, usize> {
    let mut seen = BTreeMap::new();
    for first in (0..count).step_by(50) {
        let numbers = first..count.min(first + 50);
        let calls = numbers.map(|number| call(&number.to_string(), "release", arguments.clone())).collect();
        let events = client.execute(calls).await.to_end().await;
        for outcome in check::outcomes(&events).values() {
            assert_eq!(outcome.state(), v1::CallState::Completed, "{outcome:?}");
            *seen.entry(check::text(outcome)).or_default() += 1;
        }
    }
    seen
}

fn all(version: &str, count: usize) -> BTreeMap<String, usize> {
    BTreeMap::from([(version.to_owned(), count)])
}

#[tokio::test]
async fn a_version_is_rolled_out_and_back_by_its_share_and_no_call_fails() {
    let pools = Pools::new(&shares(0));
    let yard = Yard::start_with(pools.of(&Fixture::new(FIXTURE))).await;
    let client = &yard.client;
    let _usual = worker(&yard, "usual", "release_1").await;
    let mut next = worker(&yard, "next", "release_2").await;
    until(client, share(0)).await;
    assert_eq!(versions(client, 100, &json!({})).await, all("1", 100));

    pools.write(&shares(30));
    until(client, |tool| share(30)(tool) && tool.version == "1").await;
    let seen = versions(client, 400, &json!({})).await;
    assert!((60..180).contains(&seen["2"]), "some 30 % are expected: {seen:?}");

    pools.write(&shares(100));
    until(client, |tool| share(100)(tool) && tool.version == "2").await;
    assert_eq!(versions(client, 100, &json!({ "more": "than before" })).await, all("2", 100));

    pools.write(&shares(0));
    until(client, |tool| share(0)(tool) && tool.version == "1").await;
    assert_eq!(versions(client, 100, &json!({})).await, all("1", 100), "it is rolled back");

    pools.write(&shares(100));
    until(client, share(100)).await;
    next.terminate().await;
    assert_eq!(versions(client, 50, &json!({})).await, all("1", 50), "the new version has no worker any more");
}

#[tokio::test]
async fn a_call_that_does_not_fit_the_new_version_goes_to_the_one_that_its_caller_knows() {
    let pools = Pools::new(&shares(99));
    let yard = Yard::start_with(pools.of(&Fixture::new(FIXTURE))).await;
    let _usual = worker(&yard, "usual", "release_1").await;
    let _next = worker(&yard, "next", "release_3").await;
    until(&yard.client, |tool| share(99)(tool) && tool.version == "1").await;
    assert_eq!(versions(&yard.client, 100, &json!({})).await, all("1", 100));
}

/// What a call of a run waits for.
async fn waits(run: &harness::Run, call: &str, wanted: &str) {
    let waits = async {
        let request = || v1::ExplainCallRequest { run_id: run.id.clone(), call_id: call.to_owned() };
        let mut runs = run.client.runs.clone();
        while !runs.explain_call(request()).await.expect("the call is there").into_inner().why.contains(wanted) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waits).await.unwrap_or_else(|_| panic!("{call} does not say: {wanted}"));
}

#[tokio::test]
async fn a_worker_with_an_older_version_leaves_calls_of_the_newer_one_to_others() {
    let yard = Yard::start(FIXTURE).await;
    let _older = worker(&yard, "main", "release_1").await;
    let mut newer = worker(&yard, "main", "release_3").await;
    until(&yard.client, |tool| tool.version == "3").await;
    let arguments = json!({ "must": "be there" });
    assert_eq!(versions(&yard.client, 40, &arguments).await, all("3", 40), "both are asked for jobs");

    // A call of the newer one outlives its worker. The older one does not count as one that takes it.
    let what = Some(v1::pause_request::What::Pool("main".to_owned()));
    let pause = v1::PauseRequest { what, reason: "for the test".to_owned() };
    yard.client.fleet.clone().pause(pause).await.expect("it is paused");
    let run = yard.client.create(vec![call("late", "release", arguments)]).await;
    newer.terminate().await;
    until(&yard.client, |tool| tool.version == "1").await;
    let resume = v1::ResumeRequest { what: Some(v1::resume_request::What::Pool("main".to_owned())) };
    yard.client.fleet.clone().resume(resume).await.expect("it goes on");
    waits(&run, "late", "no worker of the pool that hosts the tool takes calls: start one").await;
    let _again = worker(&yard, "main", "release_3").await;
    let events = run.watch(v1::FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["late"]), "3");
}
