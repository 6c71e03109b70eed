//! The OpenAI APIs: their output for a run is the same bytes, from any coordinator and after any crash. `tests/sdk`
//! tests them with the vendor's own SDKs.

use std::time::Duration;

use harness::http::events;
use harness::{Fixture, Http, Yard, client_answer};
use hyper::Method;
use proto::v1::FloorPolicy;
use serde_json::{Value, json};

use crate::FIXTURE;

fn count(id: &str, pieces: u32, every_ms: u64) -> Value {
    let arguments = json!({ "label": id, "pieces": pieces, "every_ms": every_ms }).to_string();
    json!({ "type": "function_call", "call_id": id, "name": "count", "arguments": arguments })
}

fn question(id: &str) -> Value {
    json!({ "type": "function_call", "call_id": id, "name": "ask_user", "arguments": "{\"question\":\"Which one?\"}" })
}

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

#[tokio::test]
async fn a_response_that_a_kill_cut_off_is_read_on_elsewhere_without_a_byte_of_difference() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let body = json!({ "input": [count("a", 60, 50), count("b", 20, 50)], "stream": true });
    let mut broken = yard.http().begin(Method::POST, "/responses?events=all", &JSON, body.to_string()).await;
    broken.until(|bytes| events(bytes).len() > 20).await;
    yard.coordinator.kill().await;
    while broken.next().await.is_ok_and(|goes_on| goes_on) {}
    let whole = broken.bytes.windows(2).rposition(|end| end == b"\n\n").expect("an event came whole") + 2;
    broken.bytes.truncate(whole);
    let sent = broken.sent();
    let id = sent[0].json()["response"]["id"].as_str().expect("a response has an id").to_owned();
    let last = sent.last().expect("events came").json()["sequence_number"].clone();

    let elsewhere = yard.fixture.coordinator(&yard.broker.url()).await;
    let http = Http::new(elsewhere.address());
    let stream = |after: &str| format!("/v1/responses/{id}?stream=true&events=all{after}");
    let rest = http.get(&stream(&format!("&starting_after={last}"))).await;
    let late = http.get(&stream("")).await;
    let resumed = [broken.bytes, rest.body.to_vec()].concat();
    assert_eq!(String::from_utf8(resumed), String::from_utf8(late.body.to_vec()));
    let sent = events(&late.body);
    let [.., last, done] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((last.name.as_deref(), done.data.as_str()), (Some("response.completed"), "[DONE]"));
    let response = last.json()["response"].clone();
    assert_eq!(http.get(&format!("/responses/{id}")).await.json(), response);
    let items = response["output"].as_array().expect("items");
    let counted = items.iter().find(|item| item["call_id"] == "a").expect("the call");
    assert_eq!(counted["output"], format!("{}\ncounted to 60", crate::counted("a", 60)));
}

#[tokio::test]
async fn a_run_that_requires_action_is_answered_through_either_face_or_none() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    for through in ["responses", "assistants", "native"] {
        let asked = http.post("/responses", &json!({ "input": [question("ask"), count("a", 2, 1)] })).await.json();
        let id = asked["id"].as_str().expect("an id").to_owned();
        let open = asked["output"].as_array().expect("items").iter().filter(|item| item["type"] == "function_call");
        assert_eq!((asked["status"].as_str(), open.count()), (Some("completed"), 1), "{asked}");
        let run = id.replacen("resp_", "run_", 1);
        let seen = http.get(&format!("/threads/thread_1/runs/{run}")).await.json();
        let required = &seen["required_action"]["submit_tool_outputs"]["tool_calls"][0]["id"];
        assert_eq!((&seen["status"], required), (&json!("requires_action"), &json!("ask")));
        match through {
            "responses" => {
                let output = json!({ "type": "function_call_output", "call_id": "ask", "output": "blue" });
                let body = json!({ "previous_response_id": id, "input": [output] });
                let answered = http.post("/responses", &body).await.json();
                assert_eq!((&answered["status"], &answered["output"]), (&json!("completed"), &json!([])), "{answered}");
            }
            "assistants" => {
                let body = json!({ "tool_outputs": [{ "tool_call_id": "ask", "output": "blue" }] });
                let path = format!("/threads/thread_1/runs/{run}/submit_tool_outputs");
                assert_eq!(http.post(&path, &body).await.status, 200);
            }
            _ => {
                let run = harness::Run { client: yard.client.clone(), id: run.clone() };
                run.submit(vec![client_answer("ask", "blue")]).await.expect("the call waits");
            }
        }
        let next = http.get(&format!("/responses/{id}_1?stream=true")).await;
        assert_eq!(events(&next.body).iter().rev().nth(1).expect("events").name.as_deref(), Some("response.completed"));
        let items = http.get(&format!("/responses/{id}_1/input_items")).await.json();
        assert_eq!(items["data"][0]["output"], "blue");
        assert_eq!(http.get(&format!("/threads/thread_1/runs/{run}")).await.json()["status"], "completed");
        assert_eq!(http.get(&format!("/responses/{id}")).await.json(), asked, "a response never changes");
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_served_is_told_why_in_the_form_of_the_api() {
    let yard = Yard::start(FIXTURE).await;
    let http = yard.http();
    let plain = http.ask(Method::POST, "/responses", &[("content-type", "text/plain")], "{}").await;
    let error = |answer: &harness::http::Answer| {
        let error = answer.json()["error"].clone();
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
        (answer.status, error["code"].as_str().expect("a code").to_owned(), error["param"].clone())
    };
    let of = |status, code: &str, param: Value| (status, code.to_owned(), param);
    assert_eq!(error(&plain), of(415, "UNSUPPORTED_MEDIA_TYPE", Value::Null));
    let broken = http.ask(Method::POST, "/v1/responses", &JSON, "{\"input\":").await;
    assert_eq!(error(&broken), of(400, "MALFORMED", Value::Null));
    let twice = http.post("/responses", &json!({ "input": [count("a", 1, 1), count("a", 1, 1)] })).await;
    assert_eq!(error(&twice), of(400, "MALFORMED", json!("/input/1")));
    let unknown = http.get("/responses/resp_none").await;
    assert_eq!(error(&unknown), of(404, "RESPONSE_NOT_FOUND", json!("response_id")));
    let old = http.get("/responses/resp_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071").await;
    assert_eq!(error(&old), of(410, "EVENTS_EXPIRED", json!("response_id")));
    let garbled = http.get("/responses/resp_%0d%0aset-cookie:x=1").await;
    assert_eq!((garbled.status, garbled.headers.contains_key("set-cookie")), (404, false));
    let wild = http.get("/threads/t/runs/run_x").await;
    assert_eq!(error(&wild), of(404, "RUN_NOT_FOUND", json!("run_id")));
}

#[tokio::test]
async fn calls_are_answered_one_after_another_and_the_rest_goes_on_waiting() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let always = json!({ "type": "mcp", "server_label": "toolyard", "require_approval": "always" });
    let asked = http
        .post("/responses", &json!({ "input": [count("a", 1, 1), count("b", 1, 1)], "tools": [always] }))
        .await
        .json();
    let requests = asked["output"].as_array().expect("items").clone();
    let types = |response: &Value| -> Vec<String> {
        let items = response["output"].as_array().into_iter().flatten();
        items.filter_map(|item| Some(item["type"].as_str()?.to_owned())).collect()
    };
    assert_eq!(types(&asked), ["mcp_approval_request", "mcp_approval_request"], "{asked}");
    let decides = |nth: usize, approve: bool, previous: &Value| {
        let decision =
            json!({ "type": "mcp_approval_response", "approval_request_id": requests[nth]["id"], "approve": approve });
        json!({ "previous_response_id": previous["id"], "input": [decision] })
    };
    let next = http.post("/responses", &decides(0, true, &asked)).await.json();
    assert_eq!(
        (next["status"].as_str(), types(&next)),
        (Some("completed"), vec!["mcp_call".into(), "mcp_approval_request".into()])
    );
    let last = http.post("/responses", &decides(1, false, &next)).await.json();
    assert_eq!((last["status"].as_str(), types(&last)), (Some("completed"), vec!["mcp_call".into()]), "{last}");
    let given = last["toolyard"]["input"].as_array().expect("outputs");
    assert_eq!(given.iter().map(|item| &item["call_id"]).collect::<Vec<_>>(), ["a", "b"]);
    // A repetition gets what the first request got, also if an older response is named.
    assert_eq!(http.post("/responses", &decides(1, false, &asked)).await.json(), last);
    assert_eq!(http.post("/responses", &decides(1, false, &next)).await.json(), last);
    assert_eq!(http.post("/responses", &decides(0, true, &asked)).await.json(), next);

    let asked = http.post("/responses", &json!({ "input": [question("one"), question("two")] })).await.json();
    let answers = |id: &str| {
        let output = json!({ "type": "function_call_output", "call_id": id, "output": "blue" });
        json!({ "previous_response_id": asked["id"], "input": [output] })
    };
    let first = http.post("/responses", &answers("one")).await.json();
    assert_eq!(first["status"], "in_progress", "the other question is still open");
    let second = http.post("/responses", &answers("two")).await.json();
    assert_eq!((&second["id"], &second["status"]), (&first["id"], &json!("completed")));
    assert_eq!(http.post("/responses", &answers("one")).await.json(), second, "the same answer again");
}

#[tokio::test]
async fn the_result_of_a_final_tool_is_a_message_of_the_thread_of_its_run() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let calls = json!([{ "id": "a", "type": "function", "function": { "name": "shows", "arguments": "{\"text\":\"so it is\"}" } }]);
    let streamed = http.post("/threads/runs", &json!({ "tool_calls": calls, "stream": true })).await;
    let sent = events(&streamed.body);
    let message =
        sent.iter().find(|event| event.name.as_deref() == Some("thread.message.completed")).expect("a message");
    let message = message.json();
    let thread = message["thread_id"].as_str().expect("a thread");
    let listed = http.get(&format!("/threads/{thread}/messages")).await.json();
    assert_eq!(listed["data"], json!([message]));
    let named = http.get(&format!("/threads/any/messages?run_id={}", message["run_id"].as_str().expect("a run"))).await;
    assert_eq!(named.json()["data"][0]["content"], message["content"]);
    let unnamed = http.get("/threads/any/messages").await;
    assert_eq!((unnamed.status, unnamed.json()["error"]["param"].clone()), (404, json!("run_id")));
}

/// The part of the document that defines messages, with one of them at its top.
fn schema(document: &Value, name: &str) -> schema::Schema {
    let reference = |name: &str| format!("#/components/schemas/{name}");
    let all = document["components"]["schemas"].as_object().expect("schemas");
    let (mut schemas, mut needed) = (serde_json::Map::new(), vec![name.to_owned()]);
    while let Some(name) = needed.pop() {
        let text = all[&name].to_string();
        schemas.insert(name.clone(), all[&name].clone());
        let refers = |other: &&String| text.contains(&format!("\"{}\"", reference(other)));
        needed.extend(all.keys().filter(refers).filter(|other| !schemas.contains_key(*other)).cloned());
    }
    let text = json!({ "$ref": reference(name), "components": { "schemas": schemas } }).to_string();
    schema::Schema::compile(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[tokio::test]
async fn what_the_faces_say_is_what_the_document_says_of_it() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let document = http.get("/v1/openapi.json").await.json();
    let fits = |name: &str, value: &Value| {
        let violations = schema(&document, name).check(value.to_string().as_bytes()).err();
        assert!(violations.is_none(), "{name}: {violations:?}: {value}");
    };
    let shell = json!({ "type": "shell_call", "call_id": "sh", "action": { "commands": ["echo hello"] } });
    let fails = json!({ "type": "function_call", "call_id": "f", "name": "nobody_has_this", "arguments": "{}" });
    let never = json!({ "type": "mcp", "server_label": "toolyard", "require_approval": "never" });
    let body = json!({ "input": [count("a", 3, 1), shell, fails, question("ask")], "tools": [never, { "type": "shell" }], "stream": true });
    fits("OpenAIResponseRequest", &body);
    let streamed = http.post("/v1/responses?events=all", &body).await;
    let sent = events(&streamed.body);
    let [told @ .., done] = &sent[..] else { panic!("nothing was said") };
    assert_eq!(done.data, "[DONE]");
    told.iter().for_each(|event| fits("OpenAIResponseEvent", &event.json()));
    let response = told.last().expect("events").json()["response"].clone();
    fits("OpenAIResponse", &response);
    let types: Vec<&str> =
        response["output"].as_array().expect("items").iter().filter_map(|item| item["type"].as_str()).collect();
    assert!(["mcp_call", "shell_call", "function_call"].iter().all(|kind| types.contains(kind)), "{types:?}");

    let id = response["id"].as_str().expect("an id").to_owned();
    fits("OpenAIItemList", &http.get(&format!("/v1/responses/{id}/input_items")).await.json());
    let run = id.replacen("resp_", "run_", 1);
    let at = |rest: &str| format!("/v1/threads/thread_1/runs/{run}{rest}");
    fits("OpenAIRun", &http.get(&at("")).await.json());
    fits("OpenAIStepList", &http.get(&at("/steps")).await.json());
    let output = |id: &str| json!({ "tool_call_id": id, "output": "blue" });
    let body = json!({ "tool_outputs": [output("ask"), output("sh")], "stream": true });
    fits("OpenAIToolOutputs", &body);
    let streamed = http.post(&at("/submit_tool_outputs"), &body).await;
    for event in events(&streamed.body).iter().filter(|event| event.name.as_deref() != Some("done")) {
        fits("OpenAIRunEvent", &event.json());
    }
    fits("OpenAIItemList", &http.get(&format!("/v1/responses/{id}_1/input_items")).await.json());
    fits("OpenAIThread", &http.post("/v1/threads", &json!({})).await.json());
    fits("OpenAIError", &http.get("/v1/responses/resp_none").await.json());
    let deleted = http.ask(Method::DELETE, &format!("/v1/responses/{id}"), &[], "").await.json();
    fits("OpenAIResponseDeleted", &deleted);
}

#[tokio::test]
async fn a_run_is_erased_when_all_of_its_responses_are_deleted() {
    let yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_ERASE_AFTER", 1)).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let first = http.post("/responses", &json!({ "input": [question("ask")] })).await.json();
    let output = json!({ "type": "function_call_output", "call_id": "ask", "output": "blue" });
    let second = json!({ "previous_response_id": first["id"], "input": [output] });
    let second = http.post("/responses", &second).await.json();
    assert_eq!(second["status"], "completed", "{second}");
    let id = |response: &Value| response["id"].as_str().expect("an id").to_owned();
    let at = |response: &Value| format!("/responses/{}", id(response));
    let run = format!("/v1/runs/{}", id(&first).replacen("resp_", "run_", 1));
    for (response, others) in [(&first, 200), (&second, 404)] {
        let deleted = http.ask(Method::DELETE, &at(response), &[], "").await;
        assert_eq!((deleted.status, &deleted.json()["deleted"]), (200, &json!(true)), "{deleted:?}");
        assert_eq!(http.get(&at(response)).await.status, 404);
        assert_eq!(http.get(&at(&second)).await.status, others);
    }
    let is_erased = async {
        while http.get(&run).await.status != 404 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, is_erased).await.expect("it is erased after its grace period");
}

#[tokio::test]
async fn a_stream_of_interleaved_items_is_resumed_by_its_own_numbers() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    // Both are silent for a while, so that only interleaved items have begun.
    let body = json!({ "input": [count("a", 2, 3000), count("b", 2, 3000)], "stream": true });
    let mut broken = http.begin(Method::POST, "/responses?items=interleaved", &JSON, body.to_string()).await;
    broken.until(|bytes| events(bytes).iter().any(|event| event.data.contains(r#""call_id":"b""#))).await;
    let sent = broken.sent();
    let id = sent[0].json()["response"]["id"].as_str().expect("a response has an id").to_owned();
    let last = sent.last().expect("events came").json()["sequence_number"].clone();
    drop(broken);
    let rest = http.get(&format!("/v1/responses/{id}?stream=true&items=interleaved&starting_after={last}")).await;
    assert_eq!(rest.status, 200, "{rest:?}");
    // Events that the API does not document have numbers too, and are not sent.
    let first = events(&rest.body)[0].json()["sequence_number"].clone();
    assert!(first.as_u64() > last.as_u64(), "{first} after {last}");
}

#[tokio::test]
async fn a_tool_without_output_of_its_own_is_seen_while_it_runs() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    for path in ["/v1/responses", "/v1/responses?items=interleaved"] {
        is_seen_while_it_runs(&yard, path).await;
    }
}

async fn is_seen_while_it_runs(yard: &Yard, path: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = folder.path().join("gate");
    let arguments = json!({ "path": gate }).to_string();
    let item = json!({ "type": "function_call", "call_id": "silent", "name": "waits", "arguments": arguments });
    let body = json!({ "input": [item], "stream": true }).to_string();
    let mut stream = yard.http().begin(Method::POST, path, &JSON, body).await;
    let named = |bytes: &[u8], name: &str| {
        let name = format!("response.{name}");
        events(bytes).iter().any(|event| event.name.as_deref() == Some(&name) && event.data.contains("waits"))
    };
    stream.until(|bytes| named(bytes, "output_item.added")).await;
    assert!(!named(&stream.bytes, "output_item.done"), "it runs");
    std::fs::write(&gate, "open").expect("a file is written");
    stream.to_end().await.expect("the stream does not break");
    assert!(named(&stream.bytes, "output_item.done"));
}

#[tokio::test]
async fn a_run_of_the_assistants_api_requires_action_again_while_a_call_awaits_approval() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let function = |id: &str, name: &str, arguments: Value| {
        let function = json!({ "name": name, "arguments": arguments.to_string() });
        json!({ "id": id, "type": "function", "function": function })
    };
    let calls = [
        function("ask", "ask_user", json!({ "question": "Which?" })),
        function("count", "count", json!({ "label": "a", "pieces": 1, "every_ms": 1 })),
    ];
    let always = json!({ "type": "mcp", "server_label": "toolyard", "require_approval": "always" });
    let asked = http.post("/threads/runs", &json!({ "tool_calls": calls, "tools": [always] })).await.json();
    let path = format!("/threads/thread_1/runs/{}", asked["id"].as_str().expect("an id"));
    let waiting = |told: &Value| {
        assert_eq!(told["status"], "requires_action", "{told}");
        assert_eq!(told["required_action"]["submit_tool_outputs"]["tool_calls"], json!([]), "{told}");
        assert_eq!(told["toolyard"]["awaiting_approval"], json!(["count"]), "{told}");
    };
    // The stream ends although the status did not change.
    let outputs = json!({ "tool_outputs": [{ "tool_call_id": "ask", "output": "blue" }], "stream": true });
    let submitted = http.post(&format!("{path}/submit_tool_outputs"), &outputs).await;
    let sent = events(&submitted.body);
    let [.., last, done] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((last.name.as_deref(), done.data.as_str()), (Some("thread.run.requires_action"), "[DONE]"));
    waiting(&last.json());
    waiting(&http.get(&path).await.json());
    let run = path.rsplit('/').next().expect("an id");
    let decision = json!({ "decisions": [{ "call_id": "count", "approve": {} }] });
    let decided = http.post(&format!("/v1/runs/{run}/decisions"), &decision).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    let run = harness::Run { client: yard.client.clone(), id: run.to_owned() };
    run.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(http.get(&path).await.json()["status"], "completed");
}
