//! `on_disconnect=cancel`: a client that leaves cancels its run, unless another request may follow it, or it was the
//! coordinator that left.

use harness::http::{Answering, events};
use harness::{Client, Http, Run, Yard};
use hyper::Method;
use proto::v1::run_event::Event;
use proto::v1::{FloorPolicy, RunStatus};
use serde_json::{Value, json};

use crate::FIXTURE;

/// The request of each endpoint for a run of one call that streams so many pieces, 20 a second.
fn requests(pieces: u32) -> [(&'static str, Value); 4] {
    let input = json!({ "label": "a", "pieces": pieces, "every_ms": 50 });
    let arguments = input.to_string();
    let turn = json!({ "role": "assistant",
        "content": [{ "type": "tool_use", "id": "a", "name": "count", "input": input }] });
    let native = json!({ "calls": [{ "call_id": "a", "tool": "count", "arguments": arguments }] });
    let item = json!({ "type": "function_call", "call_id": "a", "name": "count", "arguments": arguments });
    let function = json!({ "id": "a", "type": "function", "function": { "name": "count", "arguments": arguments } });
    let options = json!({ "on_disconnect": "cancel" });
    [
        ("/v1/tool_calls:batch?on_disconnect=cancel", turn),
        ("/v1/runs?on_disconnect=cancel", native),
        ("/v1/responses", json!({ "input": [item], "stream": true, "toolyard": options })),
        ("/v1/threads/runs", json!({ "tool_calls": [function], "stream": true, "toolyard": options })),
    ]
}

/// Sends a request and reads some output; returns the answer, and the id of its run.
async fn begun(http: Http, (path, body): (&str, &Value), key: Option<&str>) -> (Answering, String) {
    let mut headers = vec![("content-type", "application/json"), ("accept", "text/event-stream")];
    headers.extend(key.map(|key| ("idempotency-key", key)));
    let mut answering = http.begin(Method::POST, path, &headers, body.to_string()).await;
    assert_eq!(answering.status, 200, "{path}");
    answering.until(|bytes| events(bytes).len() > 3).await;
    let text = String::from_utf8_lossy(&answering.bytes).replace("resp_", "run_");
    let at = text.find("run_0").expect("a run has an id");
    let id = text[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    (answering, id)
}

async fn ended(client: &Client, id: &str) -> RunStatus {
    let run = Run { client: client.clone(), id: id.to_owned() };
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    let Some(Event::RunEnded(ended)) = events.into_iter().last().and_then(|event| event.event) else {
        panic!("a run ends")
    };
    ended.status()
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_run_on_each_endpoint() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    for (path, body) in &requests(2000) {
        let (answering, id) = begun(yard.http(), (path, body), None).await;
        drop(answering);
        assert_eq!(ended(&yard.client, &id).await, RunStatus::Cancelled, "{path}");
    }
}

#[tokio::test]
async fn a_run_that_a_repeated_request_may_follow_goes_on_without_its_client() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    for (number, (path, body)) in requests(50).iter().enumerate() {
        let key = format!("request-{number}");
        let (answering, id) = begun(yard.http(), (path, body), Some(&key)).await;
        drop(answering);
        let (mut again, same) = begun(yard.http(), (path, body), Some(&key)).await;
        again.to_end().await.expect("the stream does not break");
        assert_eq!((same, ended(&yard.client, &id).await), (id, RunStatus::Completed), "{path}");
    }
}

#[tokio::test]
async fn the_runs_of_a_coordinator_that_stops_go_on() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let mut runs = Vec::new();
    for (path, body) in &requests(150) {
        let (answering, id) = begun(yard.http(), (path, body), None).await;
        runs.push((*path, answering, id));
    }
    yard.coordinator.terminate().await;
    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(next.address()).await;
    for (path, answering, id) in runs {
        drop(answering);
        assert_eq!(ended(&client, &id).await, RunStatus::Completed, "{path}");
    }
}
