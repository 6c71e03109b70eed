//! Rejected requests of the OpenAI APIs: each with a status, a reason, the field, and a remedy; they have no effect.

use harness::http::Answer;
use harness::{Http, Yard};
use hyper::Method;
use serde_json::{Value, json};

use crate::FIXTURE;

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

fn question(id: &str) -> Value {
    json!({ "type": "function_call", "call_id": id, "name": "ask_user", "arguments": "{\"question\":\"Which one?\"}" })
}

fn output(id: &str) -> Value {
    json!({ "type": "function_call_output", "call_id": id, "output": "blue" })
}

/// The status, code and field of an error, whose message also names the mistake and a remedy.
fn refusal(answer: &Answer) -> (u16, String, Value) {
    let error = answer.json()["error"].clone();
    assert!(error.is_object(), "{answer:?}");
    for said in ["message", "remedy"] {
        assert!(error[said].as_str().is_some_and(|said| !said.is_empty()), "{error}");
    }
    assert_ne!(error["remedy"], "look at `detail`", "{error}");
    assert_eq!(error["type"], "invalid_request_error");
    let is_retried = answer.headers.get("x-should-retry").is_none_or(|said| said != "false");
    assert_eq!(is_retried, answer.status != 409, "{answer:?}");
    (answer.status, error["code"].as_str().expect("a code").to_owned(), error["param"].clone())
}

fn of(status: u16, code: &str, param: &str) -> (u16, String, Value) {
    let param = if param.is_empty() { Value::Null } else { param.into() };
    (status, code.to_owned(), param)
}

async fn asked(http: Http, ids: &[&str]) -> (String, String) {
    let calls: Vec<Value> = ids.iter().map(|id| question(id)).collect();
    let response = http.post("/responses", &json!({ "input": calls })).await.json();
    let id = response["id"].as_str().expect("an id").to_owned();
    (id.clone(), id.replacen("resp_", "run_", 1))
}

#[tokio::test]
async fn a_body_that_cannot_be_taken_is_refused_alike_on_every_route() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let (id, run) = asked(http, &["ask"]).await;
    let before = http.get(&format!("/responses/{id}")).await.json();
    let large = format!("{{\"input\":\"{}\"}}", "x".repeat(5 << 20));
    for path in [
        "/responses".to_owned(),
        "/v1/responses".to_owned(),
        "/threads".to_owned(),
        "/threads/runs".to_owned(),
        "/threads/t/runs".to_owned(),
        format!("/threads/t/runs/{run}/submit_tool_outputs"),
        format!("/threads/t/runs/{run}/cancel"),
        format!("/responses/{id}/cancel"),
    ] {
        let ask = |headers: Vec<(&'static str, &'static str)>, body: &str| {
            let (path, body) = (path.clone(), body.to_owned());
            async move { refusal(&http.ask(Method::POST, &path, &headers, body).await) }
        };
        assert_eq!(
            ask(vec![("content-type", "text/plain")], "{}").await,
            of(415, "UNSUPPORTED_MEDIA_TYPE", ""),
            "{path}"
        );
        assert_eq!(ask(vec![], "{}").await, of(415, "UNSUPPORTED_MEDIA_TYPE", ""), "{path}");
        let packed = vec![JSON[0], ("content-encoding", "gzip")];
        assert_eq!(ask(packed, "{}").await, of(415, "UNSUPPORTED_MEDIA_TYPE", ""), "{path}");
        assert_eq!(ask(JSON.to_vec(), &large).await, of(413, "PAYLOAD_TOO_LARGE", ""), "{path}");
        let takes_a_body = !path.ends_with("/cancel") && path != "/threads";
        for garbage in ["", "[", "[]", "null", "\u{feff}{}"] {
            if takes_a_body {
                assert_eq!(ask(JSON.to_vec(), garbage).await, of(400, "MALFORMED", ""), "{path}: {garbage:?}");
            }
        }
    }
    let deep = format!("{{\"input\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(http.ask(Method::POST, "/responses", &JSON, deep).await.status, 400);
    assert_eq!(before["status"], "completed", "it waits for its client");
    let output = json!({ "previous_response_id": id, "input": [output("ask")] });
    assert_eq!(http.post("/responses", &output).await.status, 200, "nothing came of what was refused");
}

#[tokio::test]
async fn what_is_wrong_in_a_request_is_pointed_at() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let chat =
        json!({ "id": "a", "type": "function", "function": { "name": "echo", "arguments": "{\"text\":\"a\"}" } });
    let many: Vec<Value> = (0..129).map(|index| question(&format!("ask{index}"))).collect();
    for (path, body, expected) in [
        ("/responses", json!({}), of(400, "MALFORMED", "/input")),
        ("/responses", json!({ "input": [] }), of(400, "NO_CALLS", "/input")),
        ("/responses", json!({ "input": "hello" }), of(400, "UNSUPPORTED", "/input")),
        ("/responses", json!({ "input": [question("a")], "stream": "yes" }), of(400, "MALFORMED", "/stream")),
        ("/responses", json!({ "input": [question("a")], "store": 1 }), of(400, "MALFORMED", "/store")),
        ("/responses", json!({ "input": [question("a")], "tools": {} }), of(400, "MALFORMED", "/tools")),
        (
            "/responses",
            json!({ "input": [question("a")], "tools": [{ "type": "x" }] }),
            of(400, "UNSUPPORTED", "/tools/0/type"),
        ),
        (
            "/responses",
            json!({ "input": [question("a")], "metadata": { "a/b": 1 } }),
            of(400, "MALFORMED", "/metadata/a~1b"),
        ),
        (
            "/responses",
            json!({ "input": [question("a")], "max_tool_calls": 0 }),
            of(400, "MALFORMED", "/max_tool_calls"),
        ),
        (
            "/responses",
            json!({ "input": [question("a")], "conversation": "c" }),
            of(400, "UNSUPPORTED", "/conversation"),
        ),
        (
            "/responses",
            json!({ "input": [{ "type": "function_call", "name": "t", "arguments": "{}" }] }),
            of(400, "MALFORMED", "/input/0"),
        ),
        ("/responses", json!({ "input": many }), of(400, "MALFORMED", "/input/128")),
        (
            "/responses",
            json!({ "input": [{ "type": "function_call", "call_id": "a", "name": "no name", "arguments": "{}" }] }),
            of(400, "MALFORMED", "/input"),
        ),
        (
            "/responses",
            json!({ "previous_response_id": 7, "input": [] }),
            of(400, "MALFORMED", "/previous_response_id"),
        ),
        ("/threads/runs", json!({}), of(400, "NO_CALLS", "/tool_calls")),
        ("/threads/runs", json!({ "tool_calls": {} }), of(400, "MALFORMED", "/tool_calls")),
        ("/threads/runs", json!({ "tool_calls": [chat, chat] }), of(400, "MALFORMED", "/tool_calls/1")),
        ("/threads/runs", json!({ "tool_calls": [chat], "stream": 1 }), of(400, "MALFORMED", "/stream")),
        ("/threads/t/runs", json!({ "tool_calls": [chat], "tools": [{}] }), of(400, "MALFORMED", "/tools/0/type")),
    ] {
        assert_eq!(refusal(&http.post(path, &body).await), expected, "{path} {body}");
    }
    let key = [JSON[0], ("idempotency-key", "once")];
    let first = json!({ "input": [question("a")], "background": true }).to_string();
    assert_eq!(http.ask(Method::POST, "/responses", &key, first).await.status, 200);
    let other = json!({ "input": [question("b")] }).to_string();
    let taken = http.ask(Method::POST, "/responses", &key, other).await;
    assert_eq!(refusal(&taken), of(409, "REQUEST_ID_TAKEN", "idempotency-key"));
    let twice = json!({ "tool_calls": [chat] }).to_string();
    let taken = http.ask(Method::POST, "/threads/runs", &key, twice).await;
    assert_eq!(refusal(&taken), of(409, "REQUEST_ID_TAKEN", "idempotency-key"));
}

#[tokio::test]
async fn what_is_asked_of_a_response_that_it_does_not_have_is_refused() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let (id, run) = asked(http, &["ask"]).await;
    let at = |rest: &str| format!("/responses/{id}{rest}");
    for (path, param) in [
        (at("?starting_after=1"), "starting_after"),
        (at("?stream=true&starting_after=-1"), "starting_after"),
        (at("?stream=true&starting_after=x"), "starting_after"),
        (at("?stream=true&starting_after=99999999999999999999"), "starting_after"),
        (at("?stream=maybe"), "stream"),
        (at("?stream=true&events=some"), "events"),
        (at("/input_items?limit=0"), "limit"),
        (at("/input_items?limit=101"), "limit"),
        (at("/input_items?order=up"), "order"),
        (at("/input_items?after=nobody"), "after"),
        (format!("/threads/t/runs/{run}/steps?after=step_x"), "after"),
    ] {
        assert_eq!(refusal(&http.get(&path).await), of(400, "MALFORMED", param), "{path}");
    }
    let next = http.get(&at("?stream=true&starting_after=1000")).await;
    assert_eq!(refusal(&next), of(400, "UNKNOWN_SEQUENCE_NUMBER", "starting_after"));
    let last = http.get(&at("?stream=true")).await;
    let last = harness::http::events(&last.body).iter().rev().nth(1).expect("events").json()["sequence_number"].clone();
    let behind = http.get(&at(&format!("?stream=true&starting_after={last}"))).await;
    assert_eq!((behind.status, behind.body.as_ref()), (200, b"data: [DONE]\n\n".as_ref()), "it has all of it");

    // Ids of one kind in another's place, parts that are not there, and ids that are nearly ours.
    let other = "resp_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071";
    for wrong in
        [&run, "call_1", "resp_", &format!("{id}_0"), &format!("{id}_01"), &id.to_uppercase(), &format!("{id}x")]
    {
        for (method, rest) in
            [(Method::GET, ""), (Method::GET, "/input_items"), (Method::POST, "/cancel"), (Method::DELETE, "")]
        {
            let answer = http.ask(method.clone(), &format!("/responses/{wrong}{rest}"), &[], "").await;
            assert_eq!(refusal(&answer), of(404, "RESPONSE_NOT_FOUND", "response_id"), "{method} {wrong}{rest}");
        }
        let body = json!({ "previous_response_id": wrong, "input": [output("ask")] });
        let answer = http.post("/responses", &body).await;
        assert_eq!(refusal(&answer), of(404, "RESPONSE_NOT_FOUND", "/previous_response_id"), "{wrong}");
    }
    assert_eq!(refusal(&http.get(&at("_7")).await), of(404, "RESPONSE_NOT_FOUND", "response_id"), "no such part");
    assert_eq!(refusal(&http.get(&format!("/responses/{other}")).await), of(410, "EVENTS_EXPIRED", "response_id"));
    let body = json!({ "previous_response_id": other, "input": [output("ask")] });
    assert_eq!(refusal(&http.post("/responses", &body).await), of(410, "EVENTS_EXPIRED", "/previous_response_id"));
    for (wrong, expected) in [
        (id.as_str(), of(404, "RUN_NOT_FOUND", "run_id")),
        ("thread_1", of(404, "RUN_NOT_FOUND", "run_id")),
        ("run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071", of(410, "EVENTS_EXPIRED", "run_id")),
    ] {
        let path = format!("/threads/t/runs/{wrong}");
        assert_eq!(refusal(&http.get(&path).await), expected, "{wrong}");
        assert_eq!(refusal(&http.get(&format!("{path}/steps")).await), expected, "{wrong}");
        assert_eq!(refusal(&http.post(&format!("{path}/cancel"), &json!({})).await), expected, "{wrong}");
        let outputs = json!({ "tool_outputs": [{ "tool_call_id": "ask", "output": "blue" }] });
        assert_eq!(refusal(&http.post(&format!("{path}/submit_tool_outputs"), &outputs).await), expected, "{wrong}");
    }
}

#[tokio::test]
async fn answers_that_are_not_those_of_the_open_calls_are_refused_and_nothing_is_answered() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let ((id, run), (_, others)) = (asked(http, &["one", "two"]).await, asked(http, &["three"]).await);
    let before = http.get(&format!("/responses/{id}")).await.json();
    for (input, expected) in [
        (json!([]), of(400, "NO_ANSWERS", "/input")),
        (json!("blue"), of(400, "MALFORMED", "/input")),
        (json!([output("one"), output("two"), output("three")]), of(404, "CALL_NOT_FOUND", "/input/2")),
        (json!([output("one"), output("one")]), of(400, "MALFORMED", "/input/1")),
        (
            json!([output("one"), { "type": "function_call_output", "output": "x" }]),
            of(400, "MALFORMED", "/input/1/call_id"),
        ),
        (
            json!([output("one"), { "type": "function_call_output", "call_id": "two", "output": 7 }]),
            of(400, "MALFORMED", "/input/1/output"),
        ),
        (json!([output("one"), question("new")]), of(400, "UNSUPPORTED", "/input/1")),
        (
            json!([{ "type": "mcp_approval_response", "approval_request_id": "one", "approve": true }]),
            of(404, "CALL_NOT_FOUND", "/input/0"),
        ),
        (
            json!([{ "type": "mcp_approval_response", "approval_request_id": "one" }]),
            of(400, "MALFORMED", "/input/0/approve"),
        ),
        (json!([{ "type": "item_reference", "id": "x" }]), of(400, "MALFORMED", "/input/0/type")),
    ] {
        let body = json!({ "previous_response_id": id, "input": input });
        assert_eq!(refusal(&http.post("/responses", &body).await), expected, "{body}");
    }
    let given = |id: &str| json!({ "tool_call_id": id, "output": "blue" });
    for (outputs, expected) in [
        (json!(null), of(400, "MALFORMED", "/tool_outputs")),
        (json!([]), of(400, "NO_ANSWERS", "/tool_outputs")),
        (json!([given("one")]), of(409, "ANSWERS_MISSING", "/tool_outputs")),
        (json!([given("one"), given("three")]), of(404, "CALL_NOT_FOUND", "/tool_outputs")),
        (json!([given("one"), given("one")]), of(400, "MALFORMED", "/tool_outputs/1")),
        (json!([{ "output": "x" }]), of(400, "MALFORMED", "/tool_outputs/0/tool_call_id")),
        (
            json!([given("one"), { "tool_call_id": "two", "output": {} }]),
            of(400, "MALFORMED", "/tool_outputs/1/output"),
        ),
    ] {
        let answer =
            http.post(&format!("/threads/t/runs/{run}/submit_tool_outputs"), &json!({ "tool_outputs": outputs })).await;
        assert_eq!(refusal(&answer), expected, "{outputs}");
    }
    for (run, id) in [(&run, "one"), (&run, "two"), (&others, "three")] {
        let state = http.get(&format!("/v1/runs/{run}")).await.json()["run"]["calls"]
            .as_array()
            .and_then(|calls| calls.iter().find(|call| call["call_id"] == id).map(|call| call["state"].clone()));
        assert_eq!(state, Some("CALL_STATE_WAITING_FOR_CLIENT".into()), "{id}");
    }
    assert_eq!(http.get(&format!("/responses/{id}")).await.json(), before);
    let body = json!({ "previous_response_id": id, "input": [output("one"), output("two")] });
    assert_eq!(http.post("/responses", &body).await.status, 200);
    let late = json!({ "previous_response_id": format!("{id}_1"), "input": [output("one")] });
    assert_eq!(
        refusal(&http.post("/responses", &late).await),
        of(409, "RESPONSE_NOT_WAITING", "/previous_response_id")
    );
    let other = json!({ "tool_outputs": [{ "tool_call_id": "one", "output": "red" }, given("two")] });
    let late = http.post(&format!("/threads/t/runs/{run}/submit_tool_outputs"), &other).await;
    assert_eq!(refusal(&late), of(409, "CALL_ALREADY_ANSWERED", "/tool_outputs"));
}
