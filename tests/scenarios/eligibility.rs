//! Which calls are executed is decided call by call: by the call itself, by the rules of its run, and by hooks. Of a
//! call that is left to its client no worker gets a job.

use std::time::Duration;

use harness::{Run, Shards, Yard, call, client_answer, reason};
use proto::v1::call_decision::Decision;
use proto::v1::run_event::Event;
use proto::v1::{self, CallState, FloorPolicy, RunStatus};
use serde_json::{Value, json};

use crate::hooks::File;
use crate::{FIXTURE, check};

fn echo(id: &str, text: &str) -> v1::NewCall {
    call(id, "echo", json!({ "text": text }))
}

fn of(calls: Vec<v1::NewCall>) -> v1::CreateRunRequest {
    v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() }
}

async fn create(yard: &Yard, request: v1::CreateRunRequest) -> Run {
    let created = yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    Run { client: yard.client.clone(), id: created.run.expect("the response has the run").run_id }
}

/// Answers the calls that are left to the client, once the run waits for nothing else. Then exactly they had no
/// attempt, and each other call had one job.
async fn answer(yard: &Yard, run: &Run, left: &[&str]) -> Vec<v1::RunEvent> {
    let mut stream = run.watch(FloorPolicy::Interleaved).await;
    stream
        .until(
            |event| matches!(event, Event::RunStatusChanged(changed) if changed.status() == RunStatus::RequiresAction),
        )
        .await;
    let answers = left.iter().map(|id| client_answer(id, "mine")).collect();
    run.submit(answers).await.expect("they wait for the client");
    let events = stream.to_end().await;
    check::whole(&events, false);
    let of_kind = |call: fn(&Event) -> Option<&String>| {
        let mut ids: Vec<&str> = check::kinds(&events).into_iter().filter_map(call).map(String::as_str).collect();
        ids.sort_unstable();
        ids
    };
    let waited = of_kind(|event| if let Event::CallWaiting(it) = event { Some(&it.call_id) } else { None });
    let started = of_kind(|event| if let Event::AttemptStarted(it) = event { Some(&it.call_id) } else { None });
    assert_eq!(waited, left, "the client is told of these");
    assert!(!started.iter().any(|id| left.contains(id)), "{started:?}");
    let jobs = Shards::at(&yard.broker.url()).await.entries(&format!("ty.run.*.{}.*.job.>", run.id)).await;
    assert_eq!(jobs, started.len(), "no job but of calls that were executed");
    events
}

#[tokio::test]
async fn a_call_says_for_itself_that_it_is_left_to_its_client() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let theirs = v1::NewCall { execute: Some(false), ..echo("theirs", "a") };
    let ours = v1::NewCall { execute: Some(true), ..echo("ours", "b") };
    let misfit = v1::NewCall { execute: Some(false), ..call("misfit", "echo", json!({ "text": 1 })) };
    let run = create(&yard, of(vec![theirs.clone(), ours.clone(), echo("unsaid", "c"), misfit])).await;
    let outcomes = check::outcomes(&answer(&yard, &run, &["theirs"]).await);
    let text = |id: &str| check::text(&outcomes[id]);
    assert_eq!((text("theirs"), text("ours"), text("unsaid")), ("mine".into(), "b".into(), "c".into()));
    assert_eq!(outcomes["misfit"].state(), CallState::Failed, "it is checked as any other");
    // A call alone is a run whose opening is its job, unless the call is the client's.
    let run = create(&yard, of(vec![theirs.clone()])).await;
    answer(&yard, &run, &["theirs"]).await;
    // What a call says for itself does not outweigh its run.
    let run = create(&yard, v1::CreateRunRequest { execute: Some(false), ..of(vec![ours]) }).await;
    answer(&yard, &run, &["ours"]).await;
    // The request with another choice is another request.
    let request = |calls| v1::CreateRunRequest { request_id: "one".to_owned(), ..of(calls) };
    create(&yard, request(vec![theirs])).await;
    let other = yard.client.runs.clone().create_run(request(vec![echo("theirs", "a")])).await;
    assert_eq!(reason(&other.expect_err("it is another")), "REQUEST_ID_TAKEN");
}

#[tokio::test]
async fn every_endpoint_can_leave_single_calls_to_the_client() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let arguments = |text: &str| json!({ "text": text }).to_string();
    let native = json!({ "calls": [
        { "call_id": "a", "tool": "echo", "arguments": arguments("x"), "execute": false },
        { "call_id": "b", "tool": "echo", "arguments": arguments("y") },
    ] });
    let created = http.post("/v1/runs", &native).await.json();
    let run = Run { client: yard.client.clone(), id: created["run"]["run_id"].as_str().expect("an id").to_owned() };
    answer(&yard, &run, &["a"]).await;

    let options = json!({ "calls": [{ "call_id": "a", "execute": false }] });
    let block = |id: &str| json!({ "type": "tool_use", "id": id, "name": "echo", "input": { "text": id } });
    let turn = json!({ "role": "assistant", "content": [block("a"), block("b")] });
    let answered = http.post("/v1/tool_calls:batch", &json!({ "turn": turn, "toolyard": options })).await.json();
    let open = answered["open_calls"].as_array().expect("a list");
    let states: Vec<&Value> = open.iter().map(|call| &call["state"]).collect();
    assert_eq!((&open[0]["call_id"], &states[..]), (&json!("a"), &[&json!("CALL_STATE_WAITING_FOR_CLIENT")][..]));

    let item = |id: &str| json!({ "type": "function_call", "call_id": id, "name": "echo", "arguments": arguments(id) });
    let body = json!({ "input": [item("a"), item("b")], "toolyard": options });
    let response = http.post("/v1/responses", &body).await.json();
    let items: Vec<(&Value, &Value)> =
        response["output"].as_array().expect("items").iter().map(|item| (&item["type"], &item["output"])).collect();
    assert_eq!(items, [(&json!("function_call"), &Value::Null), (&json!("mcp_call"), &json!("b"))], "{response}");

    let function =
        |id: &str| json!({ "id": id, "type": "function", "function": { "name": "echo", "arguments": arguments(id) } });
    let body = json!({ "tool_calls": [function("a"), function("b")], "toolyard": options });
    let created = http.post("/v1/threads/runs", &body).await.json();
    let path = format!("/threads/thread_1/runs/{}", created["id"].as_str().expect("an id"));
    let give_up = std::time::Instant::now() + harness::PATIENCE;
    let required = loop {
        let seen = http.get(&path).await.json();
        if seen["status"] == "requires_action" {
            break seen["required_action"]["submit_tool_outputs"]["tool_calls"].clone();
        }
        assert!(std::time::Instant::now() < give_up, "{seen}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let ids: Vec<&Value> = required.as_array().expect("calls").iter().map(|call| &call["id"]).collect();
    assert_eq!(ids, [&json!("a")]);
    for path in ["/v1/tool_calls:batch", "/v1/responses"] {
        let options = json!({ "calls": [{ "call_id": "z", "execute": false }] });
        let body = json!({ "turn": turn, "input": [item("a")], "toolyard": options });
        let body = if path == "/v1/responses" { body } else { json!({ "turn": turn, "toolyard": options }) };
        let refused = http.post(path, &body).await;
        let text = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(refused.status == 400 && text.contains("/toolyard/calls/0/call_id"), "{path}: {text}");
    }
}

#[tokio::test]
async fn the_rules_of_a_run_leave_calls_of_some_tools_to_the_client_those_that_are_added_too() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let folder = tempfile::tempdir().expect("a folder");
    let scarce =
        |id: &str, tool: &str| call(id, tool, json!({ "path": folder.path().join("edited"), "name": id, "for_ms": 1 }));
    let rules = v1::RunRules { client_tools: vec!["scarce".to_owned()], ..v1::RunRules::default() };
    let request = v1::CreateRunRequest {
        keep_open: true,
        rules: Some(rules),
        ..of(vec![echo("ours", "a"), scarce("alias", "scarce_too")])
    };
    let run = create(&yard, request).await;
    let more = v1::AppendCallsRequest {
        run_id: run.id.clone(),
        calls: vec![echo("ours too", "b"), scarce("by name", "scarce")],
        ..v1::AppendCallsRequest::default()
    };
    yard.client.runs.clone().append_calls(more).await.expect("the run is open");
    yard.client.runs.clone().close_run(v1::CloseRunRequest { run_id: run.id.clone() }).await.expect("it is open");
    answer(&yard, &run, &["alias", "by name"]).await;
    assert!(!folder.path().join("edited").exists());
    let refused = |client_tools: Vec<String>| {
        let rules = Some(v1::RunRules { client_tools, ..v1::RunRules::default() });
        let mut runs = yard.client.runs.clone();
        async move { runs.create_run(v1::CreateRunRequest { rules, ..of(vec![echo("a", "")]) }).await }
    };
    for tools in [vec!["no name".to_owned()], (0..257).map(|n| format!("tool_{n}")).collect()] {
        let refusal = refused(tools).await.expect_err("it is malformed");
        assert_eq!(reason(&refusal), "MALFORMED");
        assert!(refusal.message().starts_with("rules.client_tools"), "{refusal}");
    }
}

/// Leaves calls to their clients that say so in their arguments, and allows all others.
fn leaves() -> File {
    let script = r#"grep -q theirs && echo '{"decision":"leave_to_client"}' || echo '{"decision":"allow"}'"#;
    File::new().hook("leaves", "pre_tool_use", "*", script)
}

#[tokio::test]
async fn a_hook_leaves_single_calls_to_the_client() {
    let file = leaves().hook(
        "behind",
        "pre_tool_use",
        "echo",
        r#"sed 's/it is theirs/it is yours/; s/.*"arguments":\(.*\)}$/{"decision":"modify","arguments":\1}/'"#,
    );
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let in_an_hour = proto::convert::api::timestamp(nats::now().after(Duration::from_secs(3600)));
    let delayed = v1::NewCall { not_before: Some(in_an_hour), ..echo("delayed", "theirs later") };
    let run = create(&yard, of(vec![echo("a", "it is theirs"), echo("b", "ours"), delayed])).await;
    let calls = run.get().await.calls;
    assert_eq!(calls[0].arguments, r#"{"text":"it is yours"}"#, "hooks behind it are asked too");
    let outcomes = check::outcomes(&answer(&yard, &run, &["a", "delayed"]).await);
    assert_eq!((check::text(&outcomes["a"]), check::text(&outcomes["b"])), ("mine".into(), "ours".into()));
    let run = create(&yard, of(vec![echo("alone", "theirs")])).await;
    answer(&yard, &run, &["alone"]).await;
}

#[tokio::test]
async fn a_call_that_was_accepted_to_be_executed_is_not_left_to_the_client_when_it_is_approved() {
    let file = leaves();
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let run = create(&yard, of(vec![call("a", "confirms", json!({ "text": "ours" }))])).await;
    let approve = |arguments: Value| {
        let approval = v1::CallApproval { arguments: Some(arguments.to_string()) };
        let decision = Some(Decision::Approve(approval));
        let decisions = vec![v1::CallDecision { call_id: "a".to_owned(), decision }];
        let request = v1::DecideCallsRequest { run_id: run.id.clone(), decisions };
        let mut runs = yard.client.runs.clone();
        async move { runs.decide_calls(request).await }
    };
    let refused = approve(json!({ "text": "theirs" })).await.expect_err("a hook leaves it to the client");
    assert!(refused.message().contains("leaves a call with these arguments to the client"), "{refused}");
    assert_eq!(run.get().await.calls[0].state(), CallState::AwaitingApproval, "nothing changed");
    approve(json!({ "text": "ours too" })).await.expect("it may be executed so");
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(outcomes["a"].state(), CallState::Completed);
}
