//! Responses and runs of the Assistants API whose calls share a run with those of other requests.

use harness::http::events;
use harness::{Http, Yard};
use hyper::Method;
use serde_json::{Value, json};

use crate::FIXTURE;

const JSON: (&str, &str) = ("content-type", "application/json");

/// An open run without calls.
async fn open_run(http: Http) -> String {
    let created = http.post("/v1/runs", &json!({ "keep_open": true })).await.json();
    created["run"]["run_id"].as_str().expect("an id").to_owned()
}

fn item(id: &str, tool: &str, arguments: &Value) -> Value {
    json!({ "type": "function_call", "call_id": id, "name": tool, "arguments": arguments.to_string() })
}

/// A request of the Responses API whose calls are added to a run.
fn added(run: &str, items: &[Value]) -> Value {
    json!({ "input": items, "toolyard": { "run": run } })
}

fn question(id: &str) -> Value {
    item(id, "ask_user", &json!({ "question": "Which one?" }))
}

async fn respond(http: Http, body: &Value) -> Value {
    let answer = http.post("/v1/responses", body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("{name} is no text: {value}"))
}

#[tokio::test]
async fn responses_share_a_run_in_which_exclusive_calls_keep_their_order() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let run = open_run(http).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("order");
    let edit = |id: &str| added(&run, &[item(id, "edits", &json!({ "path": path, "name": id, "for_ms": 100 }))]);
    let (one, two) = (edit("one"), edit("two"));
    let (first, second) = tokio::join!(respond(http, &one), respond(http, &two));
    for (response, name) in [(&first, "one"), (&second, "two")] {
        assert_eq!((text(response, "status"), &response["output"][0]["output"]), ("completed", &json!(name)));
        assert_eq!(response["output"].as_array().map(Vec::len), Some(1), "its own call alone: {response}");
        assert_eq!((text(&response["toolyard"], "run_id"), &response["toolyard"]["part"]), (run.as_str(), &json!(0)));
        let input = response["toolyard"]["input"].as_array().expect("a list");
        assert_eq!((input.len(), text(&input[0], "call_id")), (1, name));
    }
    assert_ne!(first["id"], second["id"]);
    let order = std::fs::read_to_string(&path).expect("both ran");
    let lines: Vec<&str> = order.lines().collect();
    let [begin, end, ..] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((lines.len(), begin.replace("begin", "end").as_str()), (4, *end), "one after the other: {lines:?}");
    // The same request gets the same response, which can be read and streamed under its id.
    assert_eq!(respond(http, &one).await, first);
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), order, "it is not executed again");
    let id = text(&first, "id");
    assert_eq!(http.get(&format!("/v1/responses/{id}")).await.json(), first);
    let streamed = events(&http.get(&format!("/v1/responses/{id}?stream=true")).await.body);
    let [.., last, done] = &streamed[..] else { panic!("{streamed:?}") };
    assert_eq!((&last.json()["response"], done.data.as_str()), (&first, "[DONE]"));
    let items = http.get(&format!("/v1/responses/{id}/input_items")).await.json();
    assert_eq!((items["data"].as_array().map(Vec::len), &items["data"][0]["call_id"]), (Some(1), &json!("one")));
}

#[tokio::test]
async fn a_response_of_a_shared_run_waits_for_its_client_and_is_cancelled_without_the_others() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let run = open_run(http).await;
    let counts = item("runs", "count", &json!({ "label": "a", "pieces": 10_000, "every_ms": 20 }));
    let mut slow = added(&run, &[counts]);
    slow["background"] = true.into();
    let slow = respond(http, &slow).await;
    let asked = respond(http, &added(&run, &[question("one"), question("two")])).await;
    assert_eq!((text(&asked, "status"), asked["output"].as_array().map(Vec::len)), ("completed", Some(2)));
    let answer = |id: &str| {
        let output = json!({ "type": "function_call_output", "call_id": id, "output": "blue" });
        json!({ "previous_response_id": asked["id"], "input": [output] })
    };
    let first = respond(http, &answer("one")).await;
    assert_eq!(first["status"], "in_progress", "the other question is still open, whatever else runs");
    let refused = http.post("/v1/responses", &answer("runs")).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (404, &json!("CALL_NOT_FOUND")));
    // The calls of a client have no floor to wait for, if no other call has it.
    let cancelled = http.post(&format!("/v1/responses/{}/cancel", text(&slow, "id")), &json!({})).await.json();
    assert_eq!(text(&cancelled, "status"), "cancelled", "{cancelled}");
    let second = respond(http, &answer("two")).await;
    assert_eq!((&second["id"], text(&second, "status")), (&first["id"], "completed"));
    assert_eq!(text(&second, "id"), format!("{}_1", text(&asked, "id")));
    assert_eq!(respond(http, &answer("one")).await, second, "the same answer again");
    let whole = http.get(&format!("/v1/runs/{run}")).await.json();
    assert_eq!(whole["run"]["status"], "RUN_STATUS_IN_PROGRESS", "it is open: {whole}");
}

#[tokio::test]
async fn what_a_shared_run_cannot_have_is_refused_and_nothing_is_added() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let run = open_run(http).await;
    let echo = |id: &str| item(id, "echo", &json!({ "text": "hi" }));
    let with = |extra: Value| {
        let mut body = added(&run, &[echo("a")]);
        body.as_object_mut().expect("an object").extend(extra.as_object().cloned().unwrap_or_default());
        body
    };
    let options = |options: Value| json!({ "input": [echo("a")], "toolyard": options });
    let gone = "run_00_0193a7b4c2d07e3f8a1b2c3d4e5f6071";
    let cases = [
        (with(json!({ "parallel_tool_calls": false })), (400, "MALFORMED", "/toolyard")),
        (with(json!({ "store": false })), (400, "MALFORMED", "/toolyard")),
        (options(json!({ "run": run, "fail_fast": true })), (400, "MALFORMED", "/toolyard")),
        (options(json!({ "run": "run_1" })), (400, "MALFORMED", "/toolyard/run")),
        (options(json!({ "run": gone })), (410, "EVENTS_EXPIRED", "/toolyard/run")),
    ];
    for (body, expected) in cases {
        let refused = http.post("/v1/responses", &body).await;
        let error = refused.json()["error"].clone();
        assert_eq!((refused.status, text(&error, "code"), text(&error, "param")), expected, "{body}: {error}");
    }
    let whole = http.get(&format!("/v1/runs/{run}")).await.json();
    assert_eq!(whole["run"]["calls"].as_array().map_or(0, Vec::len), 0, "{whole}");
    // Calls of several requests are no answer of one.
    for id in ["a", "b", "c"] {
        respond(http, &added(&run, &[echo(id)])).await;
    }
    let mixed = http.post("/v1/responses", &added(&run, &[echo("a"), echo("c")])).await;
    assert_eq!((mixed.status, &mixed.json()["error"]["code"]), (400, &json!("DUPLICATE_CALL_ID")));
    let response = respond(http, &added(&run, &[echo("a")])).await;
    let path = format!("/v1/responses/{}", text(&response, "id"));
    let deleted = http.ask(Method::DELETE, &path, &[], "").await;
    assert_eq!((deleted.status, &deleted.json()["error"]["code"]), (400, &json!("UNSUPPORTED")));
    assert_eq!(http.get(&format!("{path}9")).await.status, 404, "there are no such calls");
}

#[tokio::test]
async fn options_of_a_call_whose_id_the_request_does_not_have_are_refused_and_nothing_is_added() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let run = open_run(http).await;
    // Google's form: its calls have no ids, and those of a shared run are random.
    let turn = json!({ "role": "model", "parts": [{ "functionCall": { "name": "echo", "args": { "text": "hi" } } }] });
    let options = json!({ "run": run, "calls": [{ "call_id": "call_0", "execute": false }] });
    let refused = http.post("/v1/tool_calls:batch", &json!({ "turn": turn, "toolyard": options })).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.json().to_string().contains("/toolyard/calls/0/call_id"), "{refused:?}");
    assert_eq!(http.get(&format!("/v1/runs/{run}")).await.json()["run"]["calls"], json!([]));
    // A thread that is no object is none.
    let calls = json!([{ "id": "a", "type": "function", "function": { "name": "echo", "arguments": "{}" } }]);
    let thread = http.post("/v1/threads/runs", &json!({ "tool_calls": calls, "thread": "t1" })).await;
    assert_eq!(thread.status, 200, "{thread:?}");
}

#[tokio::test]
async fn a_run_of_the_assistants_api_is_the_calls_of_its_request_in_a_shared_run() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let run = open_run(http).await;
    let function = |id: &str, name: &str, arguments: Value| {
        let function = json!({ "name": name, "arguments": arguments.to_string() });
        json!({ "id": id, "type": "function", "function": function })
    };
    let create = async |calls: &[Value]| {
        let body = json!({ "tool_calls": calls, "toolyard": { "run": run }, "stream": true });
        let streamed = http.ask(Method::POST, "/v1/threads/runs", &[JSON], body.to_string()).await;
        let sent = events(&streamed.body);
        let last = sent.iter().rev().find(|event| event.name.as_deref() != Some("done"));
        last.expect("events").json()
    };
    let echoed = create(&[function("a", "echo", json!({ "text": "hi" }))]).await;
    assert_eq!((text(&echoed, "status"), text(&echoed, "id")), ("completed", format!("{run}_c0x1").as_str()));
    let ask = |id: &str| function(id, "ask_user", json!({ "question": "Which?" }));
    let other = create(&[ask("other")]).await;
    let asked = create(&[ask("one"), ask("two")]).await;
    assert_eq!((text(&other, "status"), text(&asked, "status")), ("requires_action", "requires_action"));
    let path = format!("/v1/threads/any/runs/{}", text(&asked, "id"));
    let submit = async |ids: &[&str]| {
        let outputs: Vec<Value> = ids.iter().map(|id| json!({ "tool_call_id": id, "output": "blue" })).collect();
        http.post(&format!("{path}/submit_tool_outputs"), &json!({ "tool_outputs": outputs })).await
    };
    let partial = submit(&["one"]).await;
    assert_eq!((partial.status, &partial.json()["error"]["code"]), (409, &json!("ANSWERS_MISSING")));
    let remedy = partial.json()["error"]["remedy"].to_string();
    assert!(
        remedy.contains("in one request") && !remedy.contains("all_required"),
        "its API has no such field: {remedy}"
    );
    let done = submit(&["one", "two"]).await.json();
    assert_eq!((text(&done, "status"), &done["id"]), ("completed", &asked["id"]), "{done}");
    let steps = http.get(&format!("{path}/steps")).await.json();
    assert_eq!(steps["data"].as_array().map(Vec::len), Some(2), "{steps}");
    let cancelled = http.post(&format!("/v1/threads/any/runs/{}/cancel", text(&other, "id")), &json!({})).await;
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    let now = http.get(&format!("/v1/threads/any/runs/{}", text(&other, "id"))).await.json();
    assert_eq!(text(&now, "status"), "cancelled", "{now}");
    let whole = http.get(&format!("/v1/runs/{run}")).await.json();
    assert_eq!(whole["run"]["status"], "RUN_STATUS_IN_PROGRESS", "it is open: {whole}");
}

#[tokio::test]
async fn calls_that_were_added_to_a_run_are_cancelled_with_their_client_and_the_run_goes_on() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let run = open_run(http).await;
    let kept = respond(http, &added(&run, &[question("kept")])).await;
    let counts = item("left", "count", &json!({ "label": "a", "pieces": 10_000, "every_ms": 20 }));
    let options = json!({ "run": run, "on_disconnect": "cancel" });
    let body = json!({ "input": [counts], "stream": true, "toolyard": options }).to_string();
    let mut begun = http.begin(Method::POST, "/v1/responses?events=all", &[JSON], body).await;
    begun.until(|bytes| events(bytes).len() > 3).await;
    drop(begun);
    let mut watched = http.events(&run, None).await;
    watched.until(|bytes| events(bytes).iter().any(|event| event.data.contains("call_ended"))).await;
    let whole = http.get(&format!("/v1/runs/{run}")).await.json();
    let states: Vec<&Value> =
        whole["run"]["calls"].as_array().into_iter().flatten().map(|call| &call["state"]).collect();
    assert_eq!(states, ["CALL_STATE_WAITING_FOR_CLIENT", "CALL_STATE_CANCELLED"], "{whole}");
    assert_eq!(http.get(&format!("/v1/responses/{}", text(&kept, "id"))).await.json(), kept);
}
