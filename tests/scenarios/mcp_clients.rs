//! Clients of the MCP endpoint that repeat a request, leave, err, or accept less than others.

use std::time::Duration;

use bytes::Bytes;
use harness::http::Answering;
use harness::{Collector, Fixture, Http, PATIENCE, Run, Yard, client_answer, said};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::v1;
use proto::v1::{CallState, RunStatus};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::FIXTURE;
use crate::callers::guarded;
use crate::mcp::{Mcp, event_id, messages, only_run, text, whole, yard};

const TRACE: &str = "7cf92f3577b34da6a3ce929d0e0e4736";

/// A call under a key with which it may be repeated.
async fn begin_with_key(client: &Mcp, tool: &str, arguments: Value, key: &str) -> Answering {
    let body = client.body("tools/call", json!({ "name": tool, "arguments": arguments }));
    let mut headers = client.headers("tools/call", tool);
    headers.push(("idempotency-key", key));
    client.http.begin(Method::POST, "/mcp", &headers, body).await
}

async fn last(stream: Answering) -> Value {
    messages(&whole(stream).await).pop().expect("an answer")
}

async fn until_ended(run: &Run, state: CallState) {
    let ended = async {
        while run.get().await.calls[0].state() != state {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("the call ends like this");
}

/// The id of the only open question of a run.
async fn question_of(run: &Run) -> String {
    let asked = async {
        loop {
            let found = run.get().await.calls.into_iter().find(|call| call.state() == CallState::WaitingForClient);
            if let Some(question) = found {
                return question.call_id;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("the tool asks")
}

#[tokio::test]
async fn a_traced_call_that_is_repeated_under_its_key_is_one_call_and_each_request_has_its_span() {
    let collector = Collector::start().await;
    let yard = Yard::start_with(collector.of(&Fixture::new(FIXTURE))).await;
    let _worker = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", "mcp").worker(&yard.broker.url(), "main", 16).await;
    yard.client.wait_for_tool("greet").await;
    let client = Mcp::new(&yard.coordinator);
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let created = last(begin_with_key(&client, "slow_compute", json!({ "seconds": 0 }), "k").await).await;
        tasks.push(created["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {created}")).to_owned());
    }
    assert_eq!(tasks[0], tasks[1]);
    let no_key = last(begin_with_key(&client, "greet", json!({ "name": "Ada" }), "ü").await).await;
    assert_eq!(no_key["error"]["code"], -32602, "a key that cannot be read is refused: {no_key}");

    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let params = json!({ "name": "test_elicitation", "arguments": {}, "_meta": { "traceparent": traceparent } });
    let mut asked = Mcp::new(&yard.coordinator);
    asked.capabilities = json!({ "elicitation": {} });
    let asks = asked.ask("tools/call", "test_elicitation", params).await;
    assert_eq!(asks["result"]["resultType"], "input_required", "{asks}");
    let is_asking = |span: &harness::Span| span.name == "tools/call test_elicitation";
    let spans = collector.until(TRACE, |spans| spans.iter().any(is_asking)).await;
    let asking = spans.iter().find(|span| is_asking(span)).expect("it was exported");
    assert_eq!(said(asking, "mcp.method.name").as_deref(), Some("tools/call"));
}

#[tokio::test]
async fn a_call_that_another_request_follows_goes_on_when_its_first_client_leaves() {
    let (yard, _worker) = yard().await;
    let mut client = Mcp::new(&yard.coordinator);
    client.capabilities = json!({});
    let first = begin_with_key(&client, "slow_compute", json!({ "seconds": 4 }), "k").await;
    let run = only_run(&yard, "slow_compute").await;
    let second = begin_with_key(&client, "slow_compute", json!({ "seconds": 4 }), "k").await;
    drop(first);
    let answer = last(second).await;
    assert_eq!(text(&answer["result"]), "computed for 4 s", "{answer}");
    assert_eq!(run.get().await.calls[0].state(), CallState::Completed);
}

#[tokio::test]
async fn an_early_answer_that_does_not_fit_leaves_the_call_open() {
    let (yard, _worker) = yard().await;
    let mut client = Mcp::new(&yard.coordinator);
    client.capabilities = json!({ "elicitation": {} });
    let mut params = json!({ "name": "test_elicitation", "arguments": {} });
    params["inputResponses"] = json!({ "user": { "action": "accept", "content": { "username": 7 } } });
    let refused = client.ask("tools/call", "test_elicitation", params).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    let run = only_run(&yard, "test_elicitation").await;
    let answer = client_answer(&question_of(&run).await, r#"{"username":"ada","email":"ada@example.org"}"#);
    run.submit(vec![answer]).await.expect("the question is still open");
    until_ended(&run, CallState::Completed).await;
}

/// The question of an older client's stream.
async fn asked(stream: &mut Answering) -> Value {
    let is_asked = |sent: &Value| sent["method"] == "elicitation/create";
    stream.until(|bytes| messages(bytes).iter().any(is_asked)).await;
    messages(&stream.bytes).into_iter().find(is_asked).expect("it was asked")
}

async fn post(client: &Mcp, body: &Value) -> harness::http::Answer {
    client.http.ask(Method::POST, "/mcp", &client.headers("", ""), body.to_string()).await
}

#[tokio::test]
async fn an_error_of_an_older_client_decides_nothing_about_an_approval() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let client = Mcp::legacy(&yard.coordinator).await;
    let mut stream = client.begin("confirms", json!({ "text": "really" })).await;
    let question = asked(&mut stream).await;
    let error = json!({ "jsonrpc": "2.0", "id": question["id"], "error": { "code": -1, "message": "no window" } });
    assert_eq!(post(&client, &error).await.status, 202);
    let run = only_run(&yard, "confirms").await;
    assert_eq!(run.get().await.calls[0].state(), CallState::AwaitingApproval);
    let approve = v1::call_decision::Decision::Approve(v1::CallApproval::default());
    let decisions = vec![v1::CallDecision { call_id: "mcp".to_owned(), decision: Some(approve) }];
    let decide = v1::DecideCallsRequest { run_id: run.id.clone(), decisions };
    yard.client.runs.clone().decide_calls(decide).await.expect("it is still to be decided");
    assert_eq!(text(&last(stream).await["result"]), "really");
}

#[tokio::test]
async fn an_error_of_an_older_client_dismisses_the_question_of_a_tool() {
    let (yard, _worker) = yard().await;
    let client = Mcp::legacy(&yard.coordinator).await;
    let mut stream = client.begin("test_elicitation", json!({})).await;
    let question = asked(&mut stream).await;
    let error = json!({ "jsonrpc": "2.0", "id": question["id"], "error": { "code": -1, "message": "no window" } });
    assert_eq!(post(&client, &error).await.status, 202);
    let answer = last(stream).await;
    assert!(text(&answer["result"]).contains("cancel"), "{answer}");
}

#[tokio::test]
async fn an_older_client_without_streams_learns_that_its_call_has_a_question() {
    let (yard, _worker) = yard().await;
    let client = Mcp::legacy(&yard.coordinator).await;
    let params = json!({ "name": "test_elicitation", "arguments": {} });
    let body = client.body("tools/call", params);
    let mut headers = client.headers("tools/call", "test_elicitation");
    headers.retain(|(name, _)| *name != "accept");
    headers.push(("accept", "application/json"));
    let answer = client.http.ask(Method::POST, "/mcp", &headers, body).await.json();
    let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {answer}"));
    assert!(message.contains("text/event-stream"), "{message}");
    let run = only_run(&yard, "test_elicitation").await;
    assert_eq!(answer["error"]["data"]["runId"], run.id.as_str());
    assert_eq!(run.get().await.status(), RunStatus::RequiresAction, "others can answer");
}

#[tokio::test]
async fn a_task_is_reported_when_its_state_changes_and_once_when_it_has_ended() {
    let (yard, _worker) = yard().await;
    let client = Mcp::new(&yard.coordinator);
    let mut tasks = Vec::new();
    for seconds in [0, 5] {
        let created = client.call("slow_compute", json!({ "seconds": seconds })).await;
        tasks.push(created["result"]["taskId"].as_str().expect("a task").to_owned());
    }
    client.task_when(&tasks[0], &["completed"]).await;
    let params = json!({ "notifications": { "taskIds": tasks } });
    let body = client.body("subscriptions/listen", params);
    let headers = client.headers("subscriptions/listen", "");
    let mut stream = client.http.begin(Method::POST, "/mcp", &headers, body).await;
    let reports = |bytes: &[u8], task: &str| -> Vec<String> {
        let of_task = |sent: &Value| sent["method"] == "notifications/tasks" && sent["params"]["taskId"] == task;
        let status = |sent: Value| sent["params"]["status"].as_str().unwrap_or_default().to_owned();
        messages(bytes).into_iter().filter(of_task).map(status).collect()
    };
    stream.until(|bytes| reports(bytes, &tasks[1]).last().is_some_and(|status| status == "completed")).await;
    assert_eq!(reports(&stream.bytes, &tasks[0]), ["completed"]);
    assert_eq!(reports(&stream.bytes, &tasks[1]), ["working", "completed"]);
}

#[tokio::test]
async fn an_id_or_a_progress_token_that_is_too_long_is_refused() {
    let (yard, _worker) = yard().await;
    let client = Mcp::legacy(&yard.coordinator).await;
    let long = "x".repeat(1 << 20);
    let request = |id: &str, token: &str| {
        let meta = json!({ "progressToken": token });
        let params = json!({ "name": "greet", "arguments": { "name": "Ada" }, "_meta": meta });
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
    };
    for (id, token) in [(long.as_str(), "p"), ("7", long.as_str())] {
        let refused = post(&client, &request(id, token)).await;
        assert!(refused.body.len() < 4096, "{} bytes", refused.body.len());
        assert_eq!(refused.json()["error"]["code"], -32600, "{refused:?}");
    }
    let answered = messages(&post(&client, &request(&"y".repeat(200), "p")).await.body);
    assert_eq!(text(&answered.last().expect("an answer")["result"]), "Hello, Ada!");
}

#[tokio::test]
async fn a_cancellation_finds_its_call_however_its_id_is_written() {
    let (yard, _worker) = yard().await;
    let client = Mcp::legacy(&yard.coordinator).await;
    let params = json!({ "name": "slow_compute", "arguments": { "seconds": 600 } });
    let body = format!(r#"{{"jsonrpc":"2.0","id":"\u00fc","method":"tools/call","params":{params}}}"#);
    let stream = client.http.begin(Method::POST, "/mcp", &client.headers("tools/call", ""), body).await;
    let run = only_run(&yard, "slow_compute").await;
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": "ü" } });
    assert_eq!(post(&client, &cancelled).await.status, 202);
    until_ended(&run, CallState::Cancelled).await;
    assert!(messages(&whole(stream).await).is_empty(), "a cancelled request has no answer");
}

#[tokio::test]
async fn the_numbers_of_progress_go_on_after_a_resumed_stream() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let client = Mcp::legacy(&yard.coordinator).await;
    let arguments = json!({ "label": "x".repeat(500), "pieces": 60, "every_ms": 50 });
    let done = |bytes: &[u8]| -> Vec<i64> {
        let progress = |sent: &Value| sent["params"]["progress"].as_i64();
        messages(bytes).iter().filter_map(progress).collect()
    };
    let mut stream = client.begin("count", arguments).await;
    stream.until(|bytes| bytes.ends_with(b"\n\n") && done(bytes).last().is_some_and(|done| *done > 5000)).await;
    let before = done(&stream.bytes).pop().expect("it has some");
    let id = event_id(&stream.bytes);
    drop(stream);
    let mut headers = client.headers("", "");
    headers.push(("last-event-id", &id));
    let resumed = client.http.ask(Method::GET, "/mcp", &headers, "").await;
    let after = done(&resumed.body);
    assert!(after.first().is_some_and(|first| *first > before) && after.is_sorted(), "{before} and then {after:?}");
}

#[tokio::test]
async fn tools_are_not_reported_as_changed_when_another_pool_hosts_the_same() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    // An alias.
    yard.client.wait_for_tool("scarce_too").await;
    let client = Mcp::legacy(&yard.coordinator).await;
    let mut stream = client.http.begin(Method::GET, "/mcp", &client.headers("", ""), "").await;
    let _same = yard.fixture.worker(&yard.broker.url(), "other", 1).await;
    let both = async {
        while yard.http().get("/v1/workers").await.json()["workers"].as_array().map_or(0, Vec::len) < 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, both).await.expect("both are known");
    let is_changed = |bytes: &[u8]| messages(bytes).iter().any(|it| it["method"] == "notifications/tools/list_changed");
    let reported = tokio::time::timeout(Duration::from_secs(2), stream.until(is_changed)).await;
    assert!(reported.is_err(), "nothing has changed");
    let _more = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", "mcp").worker(&yard.broker.url(), "more", 1).await;
    stream.until(is_changed).await;
}

/// The status, the headers and the body of an answer over HTTP/2.
async fn over_http2(to: std::net::SocketAddr, method: Method, path: &str) -> (u16, HeaderMap, Bytes) {
    let stream = TcpStream::connect(to).await.expect("the coordinator listens");
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("it speaks HTTP/2");
    let mut driving = JoinSet::new();
    driving.spawn(async move { drop(connection.await) });
    let request = Request::builder().method(method).uri(format!("http://{to}{path}"));
    let request = request.body(Full::new(Bytes::new())).expect("a request");
    let answer = tokio::time::timeout(PATIENCE, sender.send_request(request)).await.expect("in time");
    let (parts, body) = answer.expect("it answers").into_parts();
    let body = body.collect().await.expect("it is whole").to_bytes();
    (parts.status.as_u16(), parts.headers, body)
}

#[tokio::test]
async fn a_client_over_http2_learns_where_tokens_come_from() {
    let yard = guarded().await;
    let to = yard.coordinator.address();
    let (status, headers, _) = over_http2(to, Method::POST, "/mcp").await;
    let challenge = headers["www-authenticate"].to_str().expect("a text");
    assert_eq!(status, 401);
    assert!(challenge.contains(&format!("resource_metadata=\"http://{to}/")), "{challenge}");
    let (status, _, body) = over_http2(to, Method::GET, "/.well-known/oauth-protected-resource").await;
    let metadata: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!((status, &metadata["resource"]), (200, &json!(format!("http://{to}/mcp"))));
    assert_eq!(Http::new(to).get("/.well-known/oauth-protected-resource").await.json(), metadata);
}
