//! `image_generation` with a real HTTP server as its backend.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use run::ErrorKind;
use sandbox::{Sandbox, Settings};
use serde_json::{Value, json};
use tempfile::TempDir;
use tools::Backends;
use toolyard_tool::testkit::{self, Called};
use toolyard_tool::{Chunk, Content, Table};

/// Bytes that begin as a PNG.
fn png(bytes: usize) -> Vec<u8> {
    [b"\x89PNG\r\n\x1a\n".to_vec(), vec![7; bytes]].concat()
}

async fn images(headers: HeaderMap, Json(asked): Json<Value>) -> axum::response::Response {
    assert_eq!(headers.get("authorization").unwrap(), "Bearer sesame");
    assert_eq!((&asked["model"], &asked["stream"]), (&json!("painter-1"), &json!(true)));
    let image = |bytes| BASE64_STANDARD.encode(png(bytes));
    let partial = |index: u32, bytes| {
        let kind = "image_generation.partial_image";
        json!({ "type": kind, "partial_image_index": index, "b64_json": image(bytes) })
    };
    let completed = json!({ "type": "image_generation.completed", "b64_json": image(100), "size": asked["size"],
        "quality": "high", "usage": { "total_tokens": 9 } });
    let events = match asked["prompt"].as_str().unwrap() {
        "limited" => return (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "7")], "slow down").into_response(),
        "whole" => {
            let data = json!([{ "b64_json": image(100), "revised_prompt": "a whole cat" }]);
            return Json(json!({ "created": 1, "data": data, "size": "1024x1024" })).into_response();
        }
        "url" => return Json(json!({ "data": [{ "url": "https://x.example/a.png" }] })).into_response(),
        "none" => return Json(json!({ "data": [] })).into_response(),
        "text" => return Json(json!({ "data": [{ "b64_json": "aGVsbG8=" }] })).into_response(),
        "refused" => vec![json!({ "type": "error", "error": { "code": "moderation_blocked", "message": "no" } })],
        "broken" => vec![partial(0, 10)],
        _ => vec![partial(0, 10), partial(1, 100_000), json!({ "type": "image_generation.new" }), completed],
    };
    let events: String = events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"])).collect();
    ([("content-type", "text/event-stream")], events).into_response()
}

/// The tool, and the folder of the file of backends.
async fn table() -> (Table, TempDir) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/v1/images/generations", post(images));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), "sesame\n").unwrap();
    let text = format!(
        "[image_generation]\nurl = \"http://{address}/v1/images/generations\"\nmodel = \"painter-1\"\n\
         headers.Authorization = {{ file = \"key\", prefix = \"Bearer \" }}\n\
         [egress]\naddresses = [\"127.0.0.0/8\"]\n"
    );
    let file = folder.path().join("backends.toml");
    std::fs::write(&file, text).unwrap();
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-tests").into());
    let sandbox = Sandbox::new(Settings::default()).unwrap();
    (Backends::read(&file).unwrap().host(Table::new(), &sandbox).await.unwrap(), folder)
}

async fn call(prompt: &str) -> Called {
    let arguments = json!({ "prompt": prompt, "size": "1024x1024", "partial_images": 2 });
    let (table, _folder) = table().await;
    testkit::call_in(&table, "image_generation", arguments).await
}

#[track_caller]
fn json_of(part: &Content) -> Value {
    match part {
        Content::Json(text) => serde_json::from_str(text).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn partial_images_and_progress_come_while_the_image_is_generated() {
    let called = call("a cat").await;
    let progress: Vec<(f64, Option<f64>)> = called
        .output
        .iter()
        .filter_map(|chunk| match chunk {
            Chunk::Progress(progress) => Some((progress.done, progress.total)),
            Chunk::Content { .. } => None,
        })
        .collect();
    assert_eq!(progress, [0.0, 1.0, 2.0, 3.0].map(|done| (done, Some(3.0))));
    let mut partial: Vec<(Value, Vec<u8>)> = Vec::new();
    for chunk in &called.output {
        match chunk {
            Chunk::Content { channel, content: content @ Content::Json(_) } if channel == "partial_image" => {
                partial.push((json_of(content), Vec::new()))
            }
            Chunk::Content { channel, content: Content::Data { media_type, data } } => {
                assert_eq!((channel.as_str(), media_type.as_str()), ("partial_image", "image/png"));
                partial.last_mut().unwrap().1.extend_from_slice(data);
            }
            Chunk::Content { .. } | Chunk::Progress(_) => {}
        }
    }
    let announced = |index: u32, bytes: usize| {
        let image = json!({ "index": index, "media_type": "image/png", "size_bytes": bytes });
        (json!({ "partial_image": image }), png(bytes - 8))
    };
    assert_eq!(partial, [announced(0, 18), announced(1, 100_008)]);
}

#[tokio::test]
async fn an_image_of_a_stored_run_has_a_url_and_one_of_another_run_is_inline() {
    let parts = call("a cat").await.result.unwrap();
    let Content::Object(object) = &parts[1] else { panic!("{parts:?}") };
    assert_eq!((object.media_type.as_str(), object.size), ("image/png", 108));
    let summary = json_of(&parts[0]);
    assert_eq!(summary["url"], format!("/v1/objects/{}", object.id));
    assert_eq!((&summary["quality"], &summary["usage"]), (&json!("high"), &json!({ "total_tokens": 9 })));

    let (table, _folder) = table().await;
    let called = testkit::call_unstored(&table, "image_generation", json!({ "prompt": "whole" })).await;
    let parts = called.result.unwrap();
    let expected = json!({ "media_type": "image/png", "size_bytes": 108, "output_format": "png",
        "size": "1024x1024", "revised_prompt": "a whole cat" });
    assert_eq!(json_of(&parts[0]), expected);
    assert_eq!(parts[1], Content::Data { media_type: "image/png".into(), data: png(100).into() });
}

#[tokio::test]
async fn errors_of_the_backend_are_typed_and_say_what_is_wrong() {
    let error = call("limited").await.result.unwrap_err();
    assert_eq!((error.kind, error.retry_after.unwrap().as_secs()), (ErrorKind::RateLimited, 7));
    for (prompt, retryable, why) in [
        ("broken", true, "ended before the image was complete"),
        ("refused", false, "could not generate the image: no"),
        ("url", false, "it has a url instead"),
        ("none", false, "no image in `data`"),
        ("text", false, "no PNG, JPEG or WebP"),
    ] {
        let error = call(prompt).await.result.unwrap_err();
        assert!(error.retryable == retryable && error.message.contains(why), "{prompt}: {error:?}");
    }
    let (table, _folder) = table().await;
    for wrong in [json!({ "prompt": "" }), json!({ "prompt": "a", "size": "big" }), json!({ "prompt": "a", "n": 2 })] {
        let error = testkit::call_in(&table, "image_generation", wrong).await.result.unwrap_err();
        assert_eq!(error.kind, ErrorKind::ArgumentsInvalid, "{error:?}");
    }
}
