//! What a call costs the log.

use harness::{Yard, call};
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
