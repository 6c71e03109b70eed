//! While the store of objects is killed, runs with stored results are answered, cancelled and deleted, and results that
//! need it end with an error that says so.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use harness::backends::{Backends, image};
use harness::http::Answer;
use harness::{Bucket, Fixture, Http, PATIENCE, Run, Yard, call};
use hyper::Method;
use proto::v1::{self, CallErrorKind, FloorPolicy};
use serde_json::{Value, json};

use crate::{FIXTURE, check};

fn items() -> Value {
    let draw = json!({ "prompt": "a moon" }).to_string();
    json!([
        { "type": "function_call", "call_id": "image", "name": "image_generation", "arguments": draw },
        { "type": "function_call", "call_id": "ask", "name": "ask_user", "arguments": "{\"question\":\"Which one?\"}" },
    ])
}

/// Whether the bytes of the image are in the response.
fn shows_image(response: &Value) -> bool {
    let mut items = response["output"].as_array().into_iter().flatten();
    items.any(|item| item["result"] == BASE64_STANDARD.encode(image()))
}

/// A response whose image is in the store and whose question waits.
async fn waiting(yard: &Yard, backends: &Backends) -> String {
    backends.finish_image();
    let response = yard.http().post("/v1/responses", &json!({ "input": items() })).await.json();
    assert!(shows_image(&response), "{response}");
    response["id"].as_str().expect("an id").to_owned()
}

/// The status of a response's run.
async fn status(http: Http, response: &str) -> String {
    let run = http.get(&format!("/v1/runs/{}", response.replacen("resp_", "run_", 1))).await.json();
    run["run"]["status"].as_str().expect("a status").to_owned()
}

fn is_away(answer: &Answer) {
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("OBJECTS_UNAVAILABLE")), "{answer:?}");
}

#[tokio::test]
async fn responses_with_stored_images_are_answered_cancelled_and_deleted_while_the_store_is_away() {
    let (mut bucket, backends) = (Bucket::start().await, Backends::start().await);
    let yard = Yard::start_with(bucket.coordinators(&Fixture::new(FIXTURE))).await;
    let _worker =
        backends.of(&bucket.workers(&Fixture::new(FIXTURE), "main")).worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("image_generation").await;
    let http = yard.http();
    let (answered, cancelled, deleted) =
        (waiting(&yard, &backends).await, waiting(&yard, &backends).await, waiting(&yard, &backends).await);
    bucket.server.kill().await;
    let began = Instant::now();
    let output = json!({ "type": "function_call_output", "call_id": "ask", "output": "blue" });
    let body = json!({ "previous_response_id": answered, "input": [output] });
    // The answer counts. The image of the response that is returned cannot be read, so the request may be repeated.
    is_away(&http.post("/v1/responses", &body).await);
    assert_eq!(status(http, &answered).await, "RUN_STATUS_COMPLETED");
    is_away(&http.post(&format!("/v1/responses/{cancelled}/cancel"), &json!({})).await);
    assert_eq!(status(http, &cancelled).await, "RUN_STATUS_CANCELLED");
    let gone = http.ask(Method::DELETE, &format!("/v1/responses/{deleted}"), &[], "").await;
    assert_eq!((gone.status, &gone.json()["deleted"]), (200, &json!(true)), "{gone:?}");
    is_away(&http.get(&format!("/v1/responses/{answered}")).await);
    assert!(began.elapsed() < Duration::from_secs(15), "nothing waited for the store: {:?}", began.elapsed());

    bucket.server.restart().await.expect("it comes back");
    let give_up = Instant::now() + PATIENCE;
    loop {
        let read = http.get(&format!("/v1/responses/{answered}")).await;
        if read.status == 200 && shows_image(&read.json()) {
            break;
        }
        assert!(Instant::now() < give_up, "{read:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let again = http.post("/v1/responses", &body).await;
    assert_eq!((again.status, &again.json()["status"]), (200, &json!("completed")), "{again:?}");
}

#[tokio::test]
async fn a_large_result_of_a_killed_store_fails_its_call_with_the_reason_and_small_ones_go_on() {
    let mut bucket = Bucket::start().await;
    let yard = Yard::beside(&bucket, Fixture::new(FIXTURE)).await;
    let _worker = yard.worker().await;
    bucket.server.kill().await;
    let timeout = Some(proto::convert::duration(Duration::from_secs(50)));
    let large = v1::NewCall { timeout, ..call("large", "makes", json!({ "bytes": 1 << 20 })) };
    let run = yard.client.create(vec![large, call("small", "echo", json!({ "text": "small" }))]).await;
    let mut stream = run.watch(FloorPolicy::Interleaved).await;
    stream.until(|event| matches!(event, v1::run_event::Event::CallEnded(ended) if ended.call_id == "small")).await;
    let outcomes = check::outcomes(&stream.to_end().await);
    assert_eq!(check::text(&outcomes["small"]), "small");
    let error = outcomes["large"].error.clone().unwrap_or_else(|| panic!("{outcomes:?}"));
    assert_eq!(error.kind(), CallErrorKind::ResultTooLarge, "{error:?}");
    assert!(error.message.contains("could not be stored"), "{error:?}");

    // It hurts nothing that comes when the store is back.
    bucket.server.restart().await.expect("it comes back");
    let again = yard.client.create(vec![call("a", "makes", json!({ "bytes": 1 << 20 }))]).await;
    let again = Run { client: yard.client.clone(), id: again.id };
    let outcome = check::outcomes(&again.watch(FloorPolicy::Arrival).await.to_end().await)["a"].clone();
    assert!(outcome.error.is_none(), "{outcome:?}");
}
