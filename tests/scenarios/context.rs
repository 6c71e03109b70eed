//! What tools give beside their results, and by whom it is seen.

use harness::{Client, Yard, call};
use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy};
use serde_json::{Value, json};

use crate::{FIXTURE, check};

fn remembers(id: &str, state: &Value, after_ms: u64) -> v1::NewCall {
    call(id, "remembers", json!({ "state": state, "after_ms": after_ms }))
}

fn state(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("{text:?} is no JSON"))
}

#[tokio::test]
async fn state_is_merged_in_the_order_of_the_calls_though_a_coordinator_is_killed_in_between() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let fails = json!({ "state": { "x": "fails", "bad": 1 }, "after_ms": 1, "fails": true });
    let calls = vec![
        remembers("slow", &json!({ "x": "slow", "slow": 1.5 }), 3000),
        remembers("quick", &json!({ "x": "quick", "quick": { "a": [null] } }), 1),
        call("fails", "remembers", fails),
        remembers("late", &json!({ "x": "late", "bad": 2 }), 60_000),
        remembers("none", &json!({}), 1),
    ];
    let run = yard.client.create(calls).await;
    let mut stream = run.watch(FloorPolicy::Interleaved).await;
    let is_end = |event: &Event, id: &str| matches!(event, Event::CallEnded(ended) if ended.call_id == id);
    stream.until(|event| is_end(event, "quick")).await;
    let so_far = run.get().await;
    assert_eq!(state(&so_far.extra_state), json!({ "x": "quick", "quick": { "a": [null] } }));
    yard.coordinator.kill().await;

    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let run = run.through(&Client::connect(next.address()).await);
    let cancel = v1::CancelCallRequest { run_id: run.id.clone(), call_id: "late".to_owned(), reason: String::new() };
    run.client.runs.clone().cancel_call(cancel).await.expect("it can be cancelled");
    let expected = json!({ "x": "quick", "slow": 1.5, "quick": { "a": [null] } });
    for policy in [FloorPolicy::Arrival, FloorPolicy::Submission, FloorPolicy::Interleaved] {
        let events = run.watch(policy).await.to_end().await;
        let Some(Event::RunEnded(ended)) = events.last().and_then(|event| event.event.clone()) else {
            panic!("a run ends: {events:#?}")
        };
        assert_eq!(state(&ended.extra_state), expected, "{policy:?}");
        let outcomes = check::outcomes(&events);
        assert_eq!(state(&outcomes["slow"].extra_state), json!({ "x": "slow", "slow": 1.5 }));
        assert_eq!(outcomes["late"].state(), CallState::Cancelled);
        let nothing = ["fails", "late", "none"].map(|id| outcomes[id].extra_state.as_str());
        assert_eq!(nothing, ["", "", ""]);
    }
    let whole = run.get().await;
    assert_eq!(state(&whole.extra_state), expected);
    assert!(whole.calls.iter().all(|call| call.arguments.starts_with('{')));
}

#[tokio::test]
async fn more_state_than_a_call_may_give_fails_it() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let calls = vec![
        remembers("fits", &json!({ "k": "s".repeat(8 * 1024 - 3) }), 1),
        remembers("large", &json!({ "k": "s".repeat(8 * 1024 - 2) }), 1),
    ];
    let run = yard.client.create(calls).await;
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(outcomes["fits"].state(), CallState::Completed);
    let error = outcomes["large"].error.clone().expect("it failed");
    assert_eq!(error.kind(), CallErrorKind::ResultTooLarge, "{}", error.message);
    assert_eq!(run.get().await.extra_state.len(), 8 * 1024 - 1 + r#"{"k":}"#.len());
}
