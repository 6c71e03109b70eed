//! What a call costs, in what does not vary with the machine: entries of the log, and messages at the broker.

use std::time::{Duration, Instant};

use harness::{Client, Fixture, Traffic, Yard, call};
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
/// What a process says or hears by the second and not by the call, at most: heartbeats, leases, marks, their answers.
const OTHER_PER_S: f64 = 30.0;

#[tokio::test]
async fn a_single_call_costs_eight_messages_at_the_broker() {
    let options = local::BrokerOptions { monitored: true, ..local::BrokerOptions::default() };
    let broker = local::Broker::start(options, |_| {}).await.expect("a broker starts");
    let fixture = Fixture::new(FIXTURE);
    let coordinator = fixture.coordinator(&broker.url()).await;
    let _worker = fixture.worker(&broker.url(), "main", 16).await;
    let client = Client::connect(coordinator.address()).await;
    client.wait_for_tool("echo").await;
    let execute = async |calls| {
        for _ in 0..calls {
            client.execute(vec![call("only", "echo", json!({ "text": "hello" }))]).await.to_end().await;
        }
    };
    execute(20).await;
    // Taking its shards, and reading what lies in them for its index, costs a coordinator some hundred messages.
    while !client.index_is_complete().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let count = async || {
        let of = async |name| Traffic::of(&broker, name).await.expect("the broker tells of itself");
        (of("coordinator-").await, of("worker-").await)
    };
    let (before, began) = (count().await, Instant::now());
    execute(CALLS).await;
    let (after, time_s) = (count().await, began.elapsed().as_secs_f64());
    let (coordinator, worker) = (after.0.since(before.0), after.1.since(before.1));

    let costs = [
        // The opening.
        ("coordinator to broker", coordinator.to_broker, 1.0),
        // Its confirmation, and both entries.
        ("broker to coordinator", coordinator.from_broker, 3.0),
        // The end, the job's acknowledgement, and a quarter of a request for jobs.
        ("worker to broker", worker.to_broker, 2.25),
        // The job, and the end's confirmation.
        ("broker to worker", worker.from_broker, 2.0),
    ];
    for (what, messages, per_call) in costs {
        let least = per_call * f64::from(CALLS);
        let most = least * (1.0 + SLOW_PERCENT / 100.0) + time_s * OTHER_PER_S;
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        let is = messages as f64;
        assert!(least * 0.99 <= is && is <= most, "{what}: {is} messages in {time_s:.1} s, not {least} to {most:.0}");
    }
}
