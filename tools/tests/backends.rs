//! `web_search` and `file_search` with a real HTTP server as their backend.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use run::ErrorKind;
use sandbox::{Sandbox, Settings};
use serde_json::{Value, json};
use tempfile::TempDir;
use tools::Backends;
use toolyard_tool::testkit::{self, Called};
use toolyard_tool::{Content, Table};

async fn search(headers: HeaderMap, Json(asked): Json<Value>) -> axum::response::Response {
    let key = headers.get("authorization").and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned();
    match asked["query"].as_str().unwrap() {
        "limited" => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "7")], "slow down").into_response(),
        "broken" => (StatusCode::BAD_GATEWAY, format!("key was {key}")).into_response(),
        "repeated" => {
            let text = format!("invalid key {}", key.trim_start_matches("Bearer "));
            (StatusCode::BAD_GATEWAY, text).into_response()
        }
        // The key lies across the end of what is quoted.
        "long" => (StatusCode::BAD_GATEWAY, format!("{}{key}", "x".repeat(2_037))).into_response(),
        "malformed" => Json(json!({ "results": 5 })).into_response(),
        "no json" => "oh".into_response(),
        "large" => Json(json!({ "results": [{ "url": "x", "content": "x".repeat(70_000) }] })).into_response(),
        "nothing" => Json(json!({ "results": [] })).into_response(),
        query => {
            assert_eq!(key, "Bearer sesame");
            let url = "https://x.example/";
            let page = |number| json!({ "title": format!("Page {number}"), "url": url, "content": query });
            let all: Vec<Value> = (1..=asked["max_results"].as_u64().unwrap() + 3).map(page).collect();
            Json(json!({ "answer": "So it is.", "results": all })).into_response()
        }
    }
}

async fn documents(Json(asked): Json<Value>) -> axum::response::Response {
    let passage = json!({ "file_id": "f1", "filename": "a.pdf", "score": 0.5, "text": "a passage" });
    let events = [json!({ "results": [passage] }), json!({ "text": "It " }), json!({ "text": "is.", "final": true })];
    match asked["query"].as_str().unwrap() {
        "lines" => {
            let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
            ([("content-type", "application/x-ndjson")], lines).into_response()
        }
        "events" => {
            let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
            ([("content-type", "text/event-stream")], events + "data: [DONE]\n\n").into_response()
        }
        "long names" => {
            let passage = json!({ "file_id": "f", "filename": "n".repeat(100_000), "text": "" });
            let lines = format!("{}\n", json!({ "results": [passage] })).repeat(20);
            ([("content-type", "application/x-ndjson")], lines).into_response()
        }
        "final" => Json(json!({ "results": [passage], "text": "It is.", "final": true })).into_response(),
        "empty" => Json(json!({ "results": [], "final": true })).into_response(),
        "list" => Json(json!([1])).into_response(),
        _ => Json(json!({ "results": [passage, passage, passage], "text": "unused", "file_ids": asked["file_ids"] }))
            .into_response(),
    }
}

/// The tools of a file of backends, and the folder of the file.
async fn table() -> (Table, TempDir) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/search", post(search)).route("/documents", post(documents));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), "sesame\n").unwrap();
    let text = format!(
        "[web_search]\nurl = \"http://{address}/search\"\nresponse_bytes_max = 65536\n\
         headers.Authorization = {{ file = \"key\", prefix = \"Bearer \" }}\n\
         [file_search]\nurl = \"http://{address}/documents\"\n\
         [egress]\naddresses = [\"127.0.0.0/8\"]\n"
    );
    let file = folder.path().join("backends.toml");
    std::fs::write(&file, text).unwrap();
    let backends = Backends::read(&file).unwrap();
    assert_eq!(backends.secret_files(), [folder.path().join("key")]);
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-tests").into());
    let sandbox = Sandbox::new(Settings::default()).unwrap();
    (backends.host(Table::new(), &sandbox).await.unwrap(), folder)
}

async fn call(tool: &str, arguments: Value) -> Called {
    let (table, _folder) = table().await;
    testkit::call_in(&table, tool, arguments).await
}

#[track_caller]
fn json_of(part: &Content) -> Value {
    match part {
        Content::Json(text) => serde_json::from_str(text).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_search_has_numbered_pages_as_json_and_as_text() {
    let called = call("web_search", json!({ "query": "rust", "max_results": 2 })).await;
    let parts = called.result.unwrap();
    let url = "https://x.example/";
    let page = |index| json!({ "index": index, "title": format!("Page {index}"), "url": url, "snippet": "rust" });
    let expected = json!({ "query": "rust", "answer": "So it is.", "results": [page(1), page(2)] });
    assert_eq!(json_of(&parts[0]), expected);
    let text = "So it is.\n\n[1] Page 1\nhttps://x.example/\nrust\n\n[2] Page 2\nhttps://x.example/\nrust";
    assert_eq!(parts[1], Content::Text(text.to_owned()));
}

#[tokio::test]
async fn errors_of_a_backend_are_typed_and_tell_no_key() {
    let error = call("web_search", json!({ "query": "limited" })).await.result.unwrap_err();
    assert_eq!((error.kind, error.retry_after.unwrap().as_secs()), (ErrorKind::RateLimited, 7));
    let error = call("web_search", json!({ "query": "broken" })).await.result.unwrap_err();
    assert!(error.retryable && error.message.contains("502"), "{error:?}");
    assert!(!error.message.contains("sesame"), "{error:?}");
    let error = call("web_search", json!({ "query": "repeated" })).await.result.unwrap_err();
    assert!(error.message.contains("invalid key [secret]"), "{error:?}");
    let error = call("web_search", json!({ "query": "long" })).await.result.unwrap_err();
    assert!(error.message.contains("xxx") && !error.message.contains("Bearer"), "{error:?}");
    let error = call("web_search", json!({ "query": "large" })).await.result.unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutputTooLarge);
    for query in ["malformed", "no json"] {
        let error = call("web_search", json!({ "query": query })).await.result.unwrap_err();
        assert!(!error.retryable && error.message.contains("something of no use"), "{error:?}");
    }
    let called = call("web_search", json!({ "query": "nothing" })).await;
    assert!(called.answer().contains("Nothing was found."), "{called:?}");
}

#[tokio::test]
async fn passages_are_json_and_no_more_than_were_asked_for() {
    let called = call("file_search", json!({ "query": "plain", "max_results": 2 })).await;
    let parts = called.result.as_ref().unwrap();
    assert_eq!((parts.len(), json_of(&parts[0])["results"].as_array().unwrap().len()), (1, 2));
    assert_eq!(json_of(&parts[0])["results"][0]["filename"], "a.pdf");
    assert_eq!(called.text(), "");
}

#[tokio::test]
async fn a_final_answer_is_the_text_itself_and_streams_if_its_backend_does() {
    for (query, streamed) in [("final", ""), ("lines", "It is."), ("events", "It is.")] {
        let called = call("file_search", json!({ "query": query })).await;
        assert_eq!(called.text(), streamed, "{query}");
        let parts = called.result.unwrap();
        assert_eq!(parts[0], Content::Text("It is.".to_owned()), "{query}");
        assert_eq!(json_of(&parts[1])["results"][0]["file_id"], "f1", "{query}");
    }
    let error = call("file_search", json!({ "query": "long names" })).await.result.unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutputTooLarge, "{error:?}");
    for query in ["empty", "list"] {
        let error = call("file_search", json!({ "query": query })).await.result.unwrap_err();
        assert!(error.message.contains("something of no use"), "{error:?}");
    }
}

#[tokio::test]
async fn only_tools_with_a_backend_are_hosted_and_a_wrong_file_is_refused_with_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backends.toml");
    for (text, why) in [
        ("[web_search]\n", "web_search: it has no url"),
        ("[web_search]\nurl = \"ftp://x\"\n", "web_search"),
        ("[web_search]\nurl = \"https://x\"\nidle_timeout_ms = 0\n", "idle_timeout_ms is 0"),
        ("[web_search]\nurl = \"https://x\"\nkey = \"y\"\n", "unknown field `key`"),
        ("[wep_search]\nurl = \"https://x\"\n", "no table \"wep_search\""),
        ("[code_interpreter]\npithon = \"x\"\n", "unknown field `pithon`"),
        ("web_search = 5\n", "write a table"),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = Backends::read(&file).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    std::fs::write(&file, "[file_search]\nurl = \"https://search.example/\"\n").unwrap();
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-tests").into());
    let sandbox = Sandbox::new(Settings::default()).unwrap();
    let table = Backends::read(&file).unwrap().host(Table::new(), &sandbox).await.unwrap();
    assert!(table.hosts("file_search") && !table.hosts("web_search") && !table.hosts("code_interpreter"));
}
