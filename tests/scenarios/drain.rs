//! A worker that an operator drains leaves like one that receives SIGTERM: nothing is lost, nothing repeated.

use std::time::{Duration, Instant};

use harness::{Client, Direction, Keys, PATIENCE, Proxy, Yard, call, reason};
use proto::v1::run_event::Event;
use proto::v1::{self, CallState};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{FIXTURE, check, count, counted};

/// How long bytes take over the loopback, with much to spare, and less than a job counts as fresh.
const ARRIVED: Duration = Duration::from_millis(200);

async fn drain(client: &Client, worker: &str) -> Result<(), tonic::Status> {
    let request = v1::DrainWorkerRequest { worker_id: worker.to_owned() };
    client.fleet.clone().drain_worker(request).await.map(drop)
}

async fn workers(client: &Client) -> Vec<v1::Worker> {
    let listed = client.fleet.clone().list_workers(v1::ListWorkersRequest::default()).await;
    listed.expect("it lists").into_inner().workers
}

async fn until_listed(client: &Client, number: usize) {
    let listed = async {
        while workers(client).await.len() != number {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, listed).await.expect("the workers are known");
}

#[tokio::test]
async fn a_worker_that_is_drained_under_load_loses_nothing_and_repeats_nothing() {
    let keys = Keys::new(&["main"]);
    let yard = Yard::guarded(FIXTURE, &keys).await;
    let (fixture, url) = (keys.workers(&yard.fixture, "main"), yard.broker.url());
    let mut leaves = fixture.worker(&url, "main", 4).await;
    let _stays = fixture.worker(&url, "main", 4).await;
    yard.client.wait_for_tool("echo").await;
    until_listed(&yard.client, 2).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");

    let enough = CancellationToken::new();
    let mut load = JoinSet::new();
    for stream in 0..8 {
        let (client, enough, path) = (yard.client.clone(), enough.clone(), path.clone());
        load.spawn(async move {
            let mut lines = 0_usize;
            while !enough.is_cancelled() {
                let line = format!("{stream} {lines}");
                let arguments = json!({ "path": path, "line": line, "then_wait_ms": 100 });
                let events = client.execute(vec![count("c", 10, 20), call("w", "writes", arguments)]).await;
                let events = events.to_end().await;
                check::whole(&events, true);
                assert_eq!(check::said(&events)["c"], counted("c", 10));
                let outcomes = check::outcomes(&events);
                assert!(outcomes.values().all(|it| it.state() == CallState::Completed), "{outcomes:?}");
                let starts = |event: &&Event| matches!(event, Event::AttemptStarted(_));
                assert_eq!(check::kinds(&events).into_iter().filter(starts).count(), 2, "no call starts again");
                lines += 1;
            }
            lines
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    drain(&yard.client, leaves.id()).await.expect("it drains");
    match drain(&yard.client, leaves.id()).await {
        Ok(()) => {}
        Err(status) => assert_eq!(reason(&status), "WORKER_NOT_FOUND", "it may have left: {status}"),
    }
    leaves.ended().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    enough.cancel();
    let mut lines = 0;
    while let Some(done) = load.join_next().await {
        lines += done.expect("every run is whole");
    }
    let written = std::fs::read_to_string(&path).expect("it was written");
    assert_eq!(written.lines().count(), lines, "each effect came once");

    let left = workers(&yard.client).await;
    assert!(left.iter().all(|worker| worker.worker_id != leaves.id()) && left.len() == 1, "{left:?}");
    let gone = drain(&yard.client, leaves.id()).await.expect_err("it is gone");
    assert_eq!((gone.code(), reason(&gone).as_str()), (Code::NotFound, "WORKER_NOT_FOUND"));
}

#[tokio::test]
async fn a_pool_whose_workers_all_drain_takes_no_calls_and_says_so() {
    let yard = Yard::start(FIXTURE).await;
    let mut leaves = yard.fixture.worker_with_drain(&yard.broker.url(), "main", 4, 120).await;
    yard.client.wait_for_tool("echo").await;
    // Until it is cancelled.
    let mut stream = yard.client.execute(vec![count("c", 1000, 100)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let keeps_it = stream.run(&yard.client);
    drain(&yard.client, leaves.id()).await.expect("it drains");
    let hurried =
        v1::NewCall { without_worker: v1::WithoutWorker::Fail.into(), ..call("not", "echo", json!({ "text": "a" })) };
    let events = yard.client.execute(vec![hurried]).await.to_end().await;
    let error = check::outcomes(&events)["not"].error.clone().expect("a failure has an error");
    assert_eq!(error.kind(), v1::CallErrorKind::NoWorker, "{error:?}");
    let run = yard.client.create(vec![call("waits", "echo", json!({ "text": "b" }))]).await;
    let request = v1::ExplainCallRequest { run_id: run.id.clone(), call_id: "waits".to_owned() };
    let queued = async {
        loop {
            let explained = yard.client.runs.clone().explain_call(request.clone()).await.expect("it is there");
            if explained.into_inner().why.contains("takes calls: start one") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, queued).await.expect("it waits for a worker");
    let get = v1::GetToolRequest { name: "echo".to_owned() };
    let tool = yard.client.tools.clone().get_tool(get).await.expect("it is known").into_inner().tool.expect("the tool");
    assert_eq!((tool.pools[0].live_workers, tool.pools[0].pulling_workers), (1, 0), "{tool:?}");
    let _other = yard.worker().await;
    check::whole(&run.watch(v1::FloorPolicy::Arrival).await.to_end().await, true);
    keeps_it.cancel("enough").await;
    check::whole(&stream.to_end().await, true);
    leaves.ended().await;
}

#[tokio::test]
async fn a_drained_worker_gives_back_what_does_not_end_in_time_and_says_so_meanwhile() {
    let yard = Yard::start(FIXTURE).await;
    let mut leaves = yard.fixture.worker_with_drain(&yard.broker.url(), "main", 4, 2).await;
    yard.client.wait_for_tool("echo").await;
    let mut stream = yard.client.execute(vec![count("c", 60, 100)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    drain(&yard.client, leaves.id()).await.expect("it drains");
    let draining = workers(&yard.client).await;
    assert!(draining.iter().all(|worker| worker.draining) && draining.len() == 1, "{draining:?}");
    drain(&yard.client, leaves.id()).await.expect("it drains already");
    let _other = yard.worker().await;
    leaves.ended().await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], counted("c", 60));
}

#[tokio::test]
async fn a_worker_that_is_told_to_stop_while_the_broker_takes_nothing_in_ends_within_30_s_of_its_drain() {
    let yard = Yard::start(FIXTURE).await;
    let proxy = Proxy::to_broker(&yard.broker.url()).await.expect("a port is free");
    let mut leaves = yard.fixture.worker_with_drain(&proxy.nats_url(), "main", 1, 1).await;
    yard.client.wait_for_tool("writes").await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    // The job reaches the worker's machine while the worker stands still. Its start is then sent for 20 s, and that
    // it is taken back for 20 s more.
    proxy.hold(Direction::ToClient);
    let writes = call("w", "writes", json!({ "path": path, "line": "once", "then_wait_ms": 0 }));
    let mut stream = yard.client.execute(vec![writes]).await;
    stream.until(|event| matches!(event, Event::RunOpened(_))).await;
    tokio::time::sleep(ARRIVED).await;
    leaves.pause();
    proxy.heal();
    tokio::time::sleep(ARRIVED).await;
    proxy.hold(Direction::Both);
    leaves.resume();
    tokio::time::sleep(ARRIVED).await;
    let asked = Instant::now();
    leaves.terminate().await;
    assert!(asked.elapsed() < Duration::from_secs(1 + 30), "{:?}", asked.elapsed());
    // The call comes again as after a crash.
    let _other = yard.worker().await;
    check::whole(&stream.to_end().await, true);
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), "once\n");
}

#[tokio::test]
async fn who_drains_a_worker_that_says_nothing_or_does_not_live_is_told() {
    let yard = Yard::start(FIXTURE).await;
    let mut worker = yard.worker().await;
    until_listed(&yard.client, 1).await;
    let unknown = drain(&yard.client, "worker-0123456789abcdef").await.expect_err("there is none");
    assert_eq!((unknown.code(), reason(&unknown).as_str()), (Code::NotFound, "WORKER_NOT_FOUND"));
    let malformed = drain(&yard.client, "no name").await.expect_err("it is no id");
    assert_eq!(reason(&malformed), "MALFORMED");
    worker.pause();
    let asked = Instant::now();
    let silent = drain(&yard.client, worker.id()).await.expect_err("it says nothing");
    assert!(asked.elapsed() < Duration::from_secs(6), "{:?}", asked.elapsed());
    assert_eq!((silent.code(), reason(&silent).as_str()), (Code::Unavailable, "WORKER_SILENT"));
    worker.resume();
    // It received the request all the same.
    worker.ended().await;
}
