//! Many workers in one process: they share connections to the broker, each has few requests for jobs open, and none
//! depends on another.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use harness::{Client, Coordinator, Fixture, PATIENCE, Traffic, call};
use proto::v1;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use worker::{Table, tool};

use crate::{FIXTURE, check};

const WORKERS: usize = 12;
const SLOTS: u32 = 4;
const CALLS: usize = 300;
const IN_FLIGHT: usize = 16;

/// Repeats a text.
#[tool(crate = ::worker, read_only)]
async fn repeat(text: String) -> String {
    text
}

/// Repeats a text after two seconds.
#[tool(crate = ::worker, read_only)]
async fn repeat_late(text: String) -> String {
    tokio::time::sleep(Duration::from_secs(2)).await;
    text
}

/// A coordinator, and the workers of this process.
struct Crowd {
    broker: local::Broker,
    client: Client,
    workers: Vec<(String, CancellationToken)>,
    serving: JoinSet<()>,
    _coordinator: Coordinator,
}

impl Crowd {
    async fn start() -> Self {
        let options = local::BrokerOptions { monitored: true, ..local::BrokerOptions::default() };
        let broker = local::Broker::start(options, |_| {}).await.expect("a broker starts");
        let coordinator = Fixture::new(FIXTURE).coordinator(&broker.url()).await;
        let client = Client::connect(coordinator.address()).await;
        let (mut workers, mut serving) = (Vec::new(), JoinSet::new());
        for _ in 0..WORKERS {
            let options = worker::Options {
                slots: SLOTS,
                ..worker::Options::new(broker.url(), "main".parse().expect("the name of a pool"))
            };
            let table = Table::new().host(Repeat).and_then(|table| table.host(RepeatLate)).expect("they can be hosted");
            let (stop, (ready, id)) = (CancellationToken::new(), oneshot::channel());
            let served = worker::serve(options, table, stop.clone(), move |id: &worker::WorkerId| {
                ready.send(id.to_string()).expect("the test waits");
            });
            serving.spawn(async move { served.await.expect("it serves until it is told to stop") });
            workers.push((id.await.expect("it becomes ready"), stop));
        }
        client.wait_for_tool("repeat").await;
        Self { broker, client, workers, serving, _coordinator: coordinator }
    }

    async fn make_calls(&self) {
        let calls = stream::iter(0..CALLS).map(|number| async move {
            let text = number.to_string();
            let run = self.client.execute(vec![call("only", "repeat", json!({ "text": text }))]).await;
            assert_eq!(check::text(&check::outcomes(&run.to_end().await)["only"]), text);
        });
        calls.buffer_unordered(IN_FLIGHT).collect::<()>().await;
    }

    /// Connections of workers at the broker.
    async fn connections(&self) -> usize {
        Traffic::connections(&self.broker, "worker-").await.expect("the broker tells of itself")
    }

    /// The ids of the workers that the coordinator knows.
    async fn known(&self) -> Vec<String> {
        let listed = self.client.fleet.clone().list_workers(v1::ListWorkersRequest::default()).await;
        listed.expect("they are listed").into_inner().workers.into_iter().map(|worker| worker.worker_id).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_one_process_share_connections_and_have_at_most_two_requests_for_jobs_open() {
    let crowd = Crowd::start().await;
    crowd.make_calls().await;
    let known = crowd.known().await;
    assert!(crowd.workers.iter().all(|(id, _)| known.contains(id)), "each is a worker of its own: {known:?}");

    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let connections = crowd.connections().await;
    assert!((1..=threads.min(WORKERS)).contains(&connections), "{connections} connections of {threads} threads");

    let context =
        async_nats::jetstream::new(async_nats::connect(crowd.broker.url()).await.expect("the broker is there"));
    let mut queue: async_nats::jetstream::consumer::PullConsumer =
        context.get_consumer_from_stream("pool-main", "ty-log").await.expect("the pool has a queue");
    let waiting = queue.info().await.expect("the queue is there").num_waiting;
    assert!((1..=WORKERS * 2).contains(&waiting), "{waiting} open requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_leaves_and_a_broker_that_is_killed_take_no_other_worker_of_the_process_along() {
    let mut crowd = Crowd::start().await;
    // It made the connection that others of its thread use.
    let (first, stop) = crowd.workers.remove(0);
    stop.cancel();
    crowd.serving.join_next().await.expect("one of them ends").expect("it ends well");
    crowd.make_calls().await;
    let known = crowd.known().await;
    assert!(!known.contains(&first), "it has left");
    assert!(crowd.workers.iter().all(|(id, _)| known.contains(id)), "the others have not: {known:?}");

    let late = crowd.client.execute(vec![call("only", "repeat_late", json!({ "text": "after" }))]).await;
    crowd.broker.kill().await;
    crowd.broker.restart().await.expect("the broker comes back");
    assert_eq!(check::text(&check::outcomes(&late.to_end().await)["only"]), "after");
    crowd.make_calls().await;

    for (_, stop) in &crowd.workers {
        stop.cancel();
    }
    while let Some(ended) = crowd.serving.join_next().await {
        ended.expect("each of them ends well");
    }
    let closed = async {
        while crowd.connections().await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, closed).await.expect("the last worker of a thread closes its connection");
}
