//! Other rows, and the common setup of all rows.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use harness::{Client, Fixture, Keys, PATIENCE, Run, Yard, call, check, reason};
use proto::v1::{self, CallState, FloorPolicy};
use serde_json::json;
use tonic::Status;

use crate::report::Seen;

/// How often something is looked at.
const LOOK: Duration = Duration::from_millis(20);
const SKEW: &str = "TOOLYARD_CLOCK_SKEW_MS";
const SKEW_MS: i64 = 5 * 60 * 1000;
const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// The program that plays coordinators and workers. It lies beside this one.
pub(crate) fn fixture() -> Fixture {
    let own = std::env::current_exe().expect("this program has a path");
    let program = own.with_file_name("fixture");
    let build = "cargo build -p toolyard-tests --bins, with --release for a release build of this one";
    assert!(program.exists(), "{} is missing: build it with {build}", program.display());
    Fixture::new(program.to_str().expect("its path is text"))
}

/// A broker with the users of `keys`.
pub(crate) async fn guarded_broker(keys: &Keys) -> local::Broker {
    let options = local::BrokerOptions { config: Some(keys.accounts()), ..local::BrokerOptions::default() };
    local::Broker::start(options, |_| {}).await.expect("a broker starts")
}

fn echo() -> v1::NewCall {
    call("c", "echo", json!({ "text": "x" }))
}

async fn completes(run: &Run) {
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::outcomes(&events)["c"].state(), CallState::Completed, "{events:#?}");
}

async fn counts(client: &Client) -> Result<v1::CountRunsResponse, Status> {
    Ok(client.index.clone().count_runs(v1::CountRunsRequest::default()).await?.into_inner())
}

async fn until_complete(client: &Client) {
    let complete = async {
        while !counts(client).await.is_ok_and(|counts| counts.coverage.is_some_and(|known| known.complete)) {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, complete).await.expect("the index is complete");
}

pub(crate) async fn redis_dies() -> Seen {
    let mut store = local::Store::start(|_| {}).await.expect("a store starts");
    let yard = Yard::start_with(fixture().with_redis(&store.url())).await;
    let _worker = yard.worker().await;
    for _ in 0..20 {
        completes(&yard.client.create(vec![echo()]).await).await;
    }
    until_complete(&yard.client).await;
    store.kill().await;
    completes(&yard.client.create(vec![echo()]).await).await;
    let refused = counts(&yard.client).await.expect_err("the store is dead");
    assert_eq!(reason(&refused), "INDEX_UNAVAILABLE");
    store.restart().await.expect("the store comes back");
    let began = Instant::now();
    until_complete(&yard.client).await;
    Seen::new(began.elapsed(), "calls completed meanwhile; lists were complete again after its return")
}

pub(crate) async fn clocks_differ() -> Seen {
    let yard = Yard::start_with(fixture().with(SKEW, SKEW_MS)).await;
    let _worker = fixture().with(SKEW, -SKEW_MS).worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("sleep").await;
    completes(&yard.client.create(vec![echo()]).await).await;
    let timeout = Some(proto::convert::duration(Duration::from_secs(2)));
    let slow = v1::NewCall { timeout, ..call("c", "sleep", json!({ "ms": 60_000, "text": "" })) };
    let began = Instant::now();
    let events = yard.client.execute(vec![slow]).await.to_end().await;
    let took = began.elapsed();
    assert_eq!(check::outcomes(&events)["c"].state(), CallState::Expired);
    assert!(took > Duration::from_millis(1700), "it ended early, after {took:?}");
    Seen::new(took, "a call without a deadline completed; one with 2 s expired")
}

pub(crate) async fn a_call_is_parked() -> Seen {
    let yard = Yard::start_with(fixture()).await;
    let _worker = yard.worker().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("there");
    let run = yard.client.create(vec![call("c", "gives", json!({ "when_there": path }))]).await;
    check::whole(&run.watch(FloorPolicy::Arrival).await.to_end().await, true);
    assert!(run.get().await.calls[0].parked);
    std::fs::write(&path, "").expect("what it needs is there now");
    let began = Instant::now();
    let mut again = Vec::new();
    for _ in 0..2 {
        let request = v1::RedriveCallRequest { run_id: run.id.clone(), call_id: "c".to_owned() };
        let answer = yard.client.runs.clone().redrive_call(request).await.expect("it is parked").into_inner();
        again.push(answer.run.expect("the response has the run").run_id);
    }
    assert_eq!(again[0], again[1], "twice is one run");
    completes(&Run { client: yard.client.clone(), id: again.remove(0) }).await;
    Seen::new(began.elapsed(), "two requests made one new run, which completed")
}

pub(crate) async fn a_webhook_is_parked() -> Seen {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file: PathBuf = folder.path().join("webhooks.toml");
    // An address without a listener.
    let port = local::free_port().expect("a port");
    let text = format!(
        "[[endpoint]]\nname = \"agents\"\nurl = \"http://127.0.0.1:{port}/\"\nsecret_files = [\"secret\"]\ngive_up_after_s = 2\n"
    );
    std::fs::write(folder.path().join("secret"), SECRET).expect("it can be written");
    std::fs::write(&file, text).expect("it can be written");
    let yard = Yard::start_with(fixture().with("TOOLYARD_WEBHOOKS", file.display())).await;
    let _worker = yard.worker().await;
    completes(&yard.client.create(vec![echo()]).await).await;
    let began = Instant::now();
    let parked = async {
        loop {
            let request = v1::ListParkedWebhooksRequest::default();
            let listed = yard.client.webhooks.clone().list_parked_webhooks(request).await.expect("it is listed");
            if !listed.into_inner().webhooks.is_empty() {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, parked).await.expect("it is parked");
    Seen::new(began.elapsed(), "`webhooks parked` lists it; its run had completed at once")
}

pub(crate) async fn a_pool_is_paused() -> Seen {
    let yard = Yard::start_with(fixture()).await;
    let _worker = yard.worker().await;
    yard.client.wait_for_tool("echo").await;
    let what = Some(v1::pause_request::What::Pool("main".to_owned()));
    let pause = v1::PauseRequest { what, reason: "a drill".to_owned() };
    yard.client.fleet.clone().pause(pause).await.expect("it can be paused");
    let waits = yard.client.create(vec![echo()]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(waits.get().await.calls[0].state(), CallState::Queued, "it waits");
    let what = Some(v1::resume_request::What::Pool("main".to_owned()));
    let began = Instant::now();
    yard.client.fleet.clone().resume(v1::ResumeRequest { what }).await.expect("it can be resumed");
    completes(&waits).await;
    Seen::new(began.elapsed(), "a call waited for 1 s, and completed after the resume")
}
