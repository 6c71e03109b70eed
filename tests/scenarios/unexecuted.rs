//! Calls that must not be executed, for any reason: no worker ever gets a job of them.

use std::path::Path;

use harness::{Fixture, Run, Shards, Yard, call, client_answer};
use proto::v1::call_decision::Decision;
use proto::v1::request_tool::Format;
use proto::v1::run_event::Event;
use proto::v1::{self, CallState, FloorPolicy};
use serde_json::json;

use crate::{FIXTURE, check, question};

/// A coordinator whose hook denies what is forbidden.
async fn yard(folder: &Path) -> Yard {
    let deny = r#"grep -q forbidden && echo '{"decision":"deny","reason":"no"}' || echo '{"decision":"allow"}'"#;
    let command = json!(["sh", "-c", deny]);
    let hooks = format!("[[hook]]\nname = \"no\"\non = [\"pre_tool_use\"]\ncommand = {command}\n");
    let file = folder.join("hooks.toml");
    std::fs::write(&file, hooks).expect("it can be written");
    Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_HOOKS", file.display())).await
}

async fn create(yard: &Yard, request: v1::CreateRunRequest) -> Run {
    let created = yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    Run { client: yard.client.clone(), id: created.run.expect("the response has the run").run_id }
}

/// How many jobs the log has of a run.
async fn jobs(shards: &Shards, run: &Run) -> usize {
    shards.entries(&format!("ty.run.*.{}.*.job.>", run.id)).await
}

fn of(calls: Vec<v1::NewCall>) -> v1::CreateRunRequest {
    v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() }
}

fn echo(id: &str, text: &str) -> v1::NewCall {
    call(id, "echo", json!({ "text": text }))
}

#[tokio::test]
async fn what_is_refused_denied_or_left_to_the_client_has_no_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let yard = yard(folder.path()).await;
    let _worker = yard.worker().await;
    let shards = Shards::at(&yard.broker.url()).await;
    let (failed, waits) = (CallState::Failed, CallState::WaitingForClient);
    let text = v1::RequestTool { name: "echo".to_owned(), format: Some(Format::Text(v1::TextFormat {})) };
    let rules = Some(v1::RunRules { calls_max: 1, ..v1::RunRules::default() });
    let other = call("other", "sleep", json!({ "ms": 1, "text": "" }));
    let table = [
        ("a tool of the client's", of(vec![question("a")]), waits),
        (
            "a tool that is not attached",
            v1::CreateRunRequest { tools: vec!["sleep".to_owned()], ..of(vec![echo("a", "")]) },
            failed,
        ),
        ("a name that nobody knows", of(vec![call("a", "ecko", json!({}))]), failed),
        ("arguments that do not fit", of(vec![call("a", "echo", json!({ "text": 7 }))]), failed),
        ("what a hook denies", of(vec![echo("a", "forbidden")]), failed),
        ("a run that is not executed", v1::CreateRunRequest { execute: Some(false), ..of(vec![echo("a", "")]) }, waits),
        ("a tool of the request", v1::CreateRunRequest { request_tools: vec![text], ..of(vec![echo("a", "")]) }, waits),
        ("more calls than there may be", v1::CreateRunRequest { rules, ..of(vec![question("first"), other]) }, failed),
    ];
    for (what, request, expected) in table {
        let run = create(&yard, request).await;
        let calls = run.get().await.calls;
        assert_eq!(calls[calls.len() - 1].state(), expected, "{what}");
        if calls.iter().any(|call| call.state() == waits) {
            run.submit(vec![client_answer(&calls[0].call_id, "mine")]).await.expect("it waits for the client");
        }
        let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
        check::whole(&events, true);
        assert!(!events.iter().any(|event| matches!(event.event, Some(Event::AttemptStarted(_)))), "{what}");
        let is_told = events.iter().any(|event| matches!(event.event, Some(Event::CallWaiting(_))));
        assert_eq!(is_told, calls[0].state() == waits, "{what}: the client is told what waits for it");
        assert_eq!(jobs(&shards, &run).await, 0, "{what}");
    }
    let run = create(&yard, of(vec![echo("a", "")])).await;
    run.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(jobs(&shards, &run).await, 1, "the test would see one");
}

#[tokio::test]
async fn a_call_has_its_job_when_it_is_approved_and_none_when_it_is_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let yard = yard(folder.path()).await;
    let _worker = yard.worker().await;
    let shards = Shards::at(&yard.broker.url()).await;
    let confirms = |id: &str| call(id, "confirms", json!({ "text": id }));
    let run = create(&yard, of(vec![confirms("yes"), confirms("no")])).await;
    // Whatever was to be dispatched with them would be in the log by then.
    create(&yard, of(vec![echo("a", "")])).await.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(jobs(&shards, &run).await, 0, "nobody has agreed yet");
    let decide = async |id: &str, decision| {
        let decisions = vec![v1::CallDecision { call_id: id.to_owned(), decision: Some(decision) }];
        let request = v1::DecideCallsRequest { run_id: run.id.clone(), decisions };
        yard.client.runs.clone().decide_calls(request).await.expect("it awaits approval");
    };
    decide("no", Decision::Reject(v1::CallRejection { reason: "no".to_owned() })).await;
    decide("yes", Decision::Approve(v1::CallApproval::default())).await;
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!((outcomes["yes"].state(), outcomes["no"].state()), (CallState::Completed, CallState::Failed));
    assert_eq!(jobs(&shards, &run).await, 1);
}

#[tokio::test]
async fn what_is_answered_within_a_turn_is_not_executed_again() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("written");
    let writes = |id: &str| {
        let arguments = json!({ "path": path, "line": id, "then_wait_ms": 0 }).to_string();
        json!({ "type": "function_call", "call_id": id, "name": "writes", "arguments": arguments })
    };
    let answer = |id: &str| json!({ "type": "function_call_output", "call_id": id, "output": "Done" });
    let turn = json!([writes("a"), answer("a"), writes("b"), writes("c"), answer("c")]);
    let answered = yard.http().post("/v1/tool_calls:batch", &turn).await.json();
    assert_eq!(answered["complete"], true, "{answered}");
    let messages = answered["messages"].as_array().expect("messages");
    assert_eq!((messages.len(), &messages[0]["call_id"]), (1, &json!("b")), "{answered}");
    let passed_over = answered["passed_over"].as_array().expect("a list");
    assert!(passed_over.len() >= 2 && passed_over.iter().all(|passed| passed["reason"] == "answered"), "{answered}");
    let done = yard.http().post("/responses", &json!({ "input": turn })).await.json();
    assert_eq!(done["status"], "completed", "{done}");
    assert_eq!(std::fs::read_to_string(&path).expect("the tool writes"), "b\nb\n", "once for each request");
}
