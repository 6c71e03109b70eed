//! The cost of a call in units that do not depend on the machine: entries of the log, and messages at the broker.

use std::time::{Duration, Instant};

use harness::{Client, Coordinator, Fixture, Traffic, Worker, Yard, call};
use serde_json::json;

use crate::FIXTURE;

#[tokio::test]
async fn a_run_of_a_single_call_costs_two_appends_on_two_subjects() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let context =
        async_nats::jetstream::new(async_nats::connect(yard.broker.url()).await.expect("the broker is there"));
    let cost = async || {
        let stream = context.get_stream("ty-log").await.expect("the log is there");
        let state = &stream.cached_info().state;
        (state.messages, state.subjects_count)
    };
    // A tool may be slower than the window in which its start is folded into its end, so the cheapest of some counts.
    let mut costs = Vec::new();
    for _ in 0..20 {
        let before = cost().await;
        yard.client.execute(vec![call("only", "echo", json!({ "text": "hello" }))]).await.to_end().await;
        let after = cost().await;
        costs.push((after.0 - before.0, after.1 - before.1));
    }
    assert_eq!(costs.iter().min(), Some(&(2, 2)), "{costs:?}");
}

/// Calls in a count of messages: enough that what is said by the second does not matter.
const CALLS: u32 = 500;
/// Of a hundred calls, those that may be slow enough for a word more: a start that is told before its end.
const SLOW_PERCENT: f64 = 2.0;
/// Most messages of a process per second that do not depend on calls: heartbeats, leases, watermarks, their answers.
const OTHER_PER_S: f64 = 30.0;

/// A broker whose monitoring counts messages, and its counts.
struct Counted {
    broker: local::Broker,
    client: Client,
    _processes: (Coordinator, Worker),
}

impl Counted {
    async fn start() -> Self {
        let options = local::BrokerOptions { monitored: true, ..local::BrokerOptions::default() };
        let broker = local::Broker::start(options, |_| {}).await.expect("a broker starts");
        let fixture = Fixture::new(FIXTURE);
        let coordinator = fixture.coordinator(&broker.url()).await;
        let worker = fixture.worker(&broker.url(), "main", 16).await;
        let client = Client::connect(coordinator.address()).await;
        client.wait_for_tool("echo").await;
        Self { broker, client, _processes: (coordinator, worker) }
    }

    /// Taking its shards, and reading what lies in them for its index, costs a coordinator some hundred messages.
    async fn settled(&self) {
        while !self.client.index_is_complete().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The messages of the coordinator and the worker during an action, and its duration in seconds.
    async fn during(&self, work: impl Future<Output = ()>) -> (Traffic, Traffic, f64) {
        let of = async |name| Traffic::of(&self.broker, name).await.expect("the broker tells of itself");
        let (coordinator, worker, began) = (of("coordinator-").await, of("worker-").await, Instant::now());
        work.await;
        let said = (of("coordinator-").await.since(coordinator), of("worker-").await.since(worker));
        (said.0, said.1, began.elapsed().as_secs_f64())
    }
}

fn check_cost(what: &str, messages: u64, per_call: f64, time_s: f64) {
    let least = per_call * f64::from(CALLS);
    let most = least * (1.0 + SLOW_PERCENT / 100.0) + time_s * OTHER_PER_S;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let is = messages as f64;
    assert!(least * 0.99 <= is && is <= most, "{what}: {is} messages in {time_s:.1} s, not {least} to {most:.0}");
}

#[tokio::test]
async fn a_single_call_costs_seven_messages_at_the_broker() {
    let counted = Counted::start().await;
    let execute = async |calls| {
        for _ in 0..calls {
            counted.client.execute(vec![call("only", "echo", json!({ "text": "hello" }))]).await.to_end().await;
        }
    };
    execute(20).await;
    counted.settled().await;
    let mut cost = counted.during(execute(CALLS)).await;
    // On a machine that stood still for a second, answers are asked for during the next five: then it is counted again.
    for _ in 0..4 {
        if cost.0.from_broker > u64::from(CALLS) * 5 / 2 {
            cost = counted.during(execute(CALLS)).await;
        }
    }
    let (coordinator, worker, time_s) = cost;
    // The opening.
    check_cost("coordinator to broker", coordinator.to_broker, 1.0, time_s);
    // Both entries, of which the first is the opening's confirmation.
    check_cost("broker to coordinator", coordinator.from_broker, 2.0, time_s);
    // The end, the job's acknowledgement, and a twelfth of a request for jobs: the worker has 16 slots, of which a
    // quarter may be left when it makes the next request.
    check_cost("worker to broker", worker.to_broker, 2.0 + 1.0 / 12.0, time_s);
    // The job, and the end's confirmation.
    check_cost("broker to worker", worker.from_broker, 2.0, time_s);
}

#[tokio::test]
async fn an_answer_of_a_client_costs_its_append_and_reads_nothing() {
    let counted = Counted::start().await;
    let mut runs = Vec::new();
    for _ in 0..CALLS {
        runs.push(counted.client.create(vec![crate::question("ask")]).await);
    }
    counted.settled().await;
    let answer = async {
        for run in &runs {
            run.submit(vec![harness::client_answer("ask", "this one")]).await.expect("the call waits");
        }
    };
    let (coordinator, _, time_s) = counted.during(answer).await;
    check_cost("coordinator to broker", coordinator.to_broker, 1.0, time_s);
    // The confirmation, and the entry.
    check_cost("broker to coordinator", coordinator.from_broker, 2.0, time_s);
}
