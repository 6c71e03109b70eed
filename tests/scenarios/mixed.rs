//! Runs in which some calls are executed here and others are the client's, and tools that only one request knows.

use std::time::Duration;

use harness::{Run, Yard, call, client_answer, reason};
use proto::v1::request_tool::Format;
use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy, RunStatus};
use serde_json::json;
use tonic::Status;

use crate::{FIXTURE, check, count, question};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Ok,
    Fails,
    Client,
}

const KINDS: [Kind; 3] = [Kind::Ok, Kind::Fails, Kind::Client];

fn new_call(kind: Kind, id: &str) -> v1::NewCall {
    match kind {
        Kind::Ok => call(id, "echo", json!({ "text": "fine" })),
        Kind::Fails => call(id, "panics", json!({})),
        Kind::Client => question(id),
    }
}

/// A call that runs for longer than it may.
fn overdue(id: &str) -> v1::NewCall {
    let timeout = Some(proto::convert::duration(Duration::from_millis(300)));
    v1::NewCall { timeout, ..call(id, "sleep", json!({ "ms": 600_000, "text": "" })) }
}

async fn submit_all(run: &Run, outputs: Vec<v1::ToolOutput>) -> Result<v1::Run, Status> {
    let request = v1::SubmitToolOutputsRequest { run_id: run.id.clone(), outputs, all_required: true };
    let response = run.client.runs.clone().submit_tool_outputs(request).await?;
    Ok(response.into_inner().run.expect("the response has the run"))
}

fn tool(name: &str, format: Format) -> v1::RequestTool {
    v1::RequestTool { name: name.to_owned(), format: Some(format) }
}

fn text_call(id: &str, tool: &str, input: &str) -> v1::NewCall {
    let (call_id, tool, arguments) = (id.to_owned(), tool.to_owned(), input.to_owned());
    v1::NewCall { call_id, tool, arguments, ..v1::NewCall::default() }
}

#[tokio::test]
async fn every_mix_of_calls_that_succeed_fail_and_wait_for_the_client_ends_well() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let words = KINDS.iter().flat_map(|a| KINDS.iter().flat_map(move |b| KINDS.iter().map(move |c| [*a, *b, *c])));
    for word in words {
        let calls = ["a", "b", "c"].iter().zip(word).map(|(id, kind)| new_call(kind, id)).collect();
        let run = yard.client.create(calls).await;
        let mut stream = run.watch(FloorPolicy::Arrival).await;
        let ids = ["a", "b", "c"].into_iter().zip(word);
        let waiting: Vec<&str> = ids.filter(|(_, kind)| *kind == Kind::Client).map(|(id, _)| id).collect();
        if !waiting.is_empty() {
            stream
                .until(|event| matches!(event, Event::RunStatusChanged(to) if to.status() == RunStatus::RequiresAction))
                .await;
            let state = run.get().await;
            let over = |call: &v1::Call| call.state() != CallState::WaitingForClient;
            assert_eq!(state.calls.iter().filter(|call| !over(call)).count(), waiting.len(), "{word:?}");
            // One after another: what was answered stays so.
            for id in waiting {
                run.submit(vec![client_answer(id, "mine")]).await.expect("it waits");
            }
        }
        let events = stream.to_end().await;
        check::whole(&events, true);
        let outcomes = check::outcomes(&events);
        for (id, kind) in ["a", "b", "c"].into_iter().zip(word) {
            match kind {
                Kind::Ok => assert_eq!(check::text(&outcomes[id]), "fine", "{word:?}"),
                Kind::Fails => assert_eq!(outcomes[id].state(), CallState::Failed, "{word:?}"),
                Kind::Client => assert_eq!(check::text(&outcomes[id]), "mine", "{word:?}"),
            }
        }
        assert_eq!(run.get().await.status(), RunStatus::Completed, "{word:?}");
    }
}

#[tokio::test]
async fn a_call_that_expires_leaves_a_run_that_can_be_answered_wherever_it_stands() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let mut runs = Vec::new();
    for order in orders {
        let calls = [overdue("late"), call("ok", "echo", json!({ "text": "fine" })), question("asks")];
        runs.push(yard.client.create(order.map(|place: usize| calls[place].clone()).into()).await);
    }
    for (run, order) in runs.into_iter().zip(orders) {
        let mut stream = run.watch(FloorPolicy::Arrival).await;
        stream
            .until(|event| matches!(event, Event::RunStatusChanged(to) if to.status() == RunStatus::RequiresAction))
            .await;
        run.submit(vec![client_answer("asks", "mine")]).await.expect("it waits");
        let events = stream.to_end().await;
        check::whole(&events, true);
        let outcomes = check::outcomes(&events);
        assert_eq!(outcomes["late"].state(), CallState::Expired, "{order:?}");
        assert_eq!((check::text(&outcomes["ok"]), check::text(&outcomes["asks"])), ("fine".into(), "mine".into()));
        assert_eq!(run.get().await.status(), RunStatus::Completed, "{order:?}");
    }
}

#[tokio::test]
async fn answers_accumulate_unless_all_are_required_and_each_wrong_one_has_its_own_refusal() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![question("a"), question("b"), count("c", 1, 0), question("d")]).await;
    run.watch(FloorPolicy::Arrival)
        .await
        .until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "c"))
        .await;
    run.client
        .runs
        .clone()
        .cancel_call(v1::CancelCallRequest { run_id: run.id.clone(), call_id: "d".to_owned(), reason: String::new() })
        .await
        .expect("it waits");

    let missing = submit_all(&run, vec![client_answer("a", "1")]).await.expect_err("b is missing");
    assert_eq!(reason(&missing), "ANSWERS_MISSING");
    assert!(missing.message().ends_with("of b are missing"), "{missing}");
    let table = [
        (vec![client_answer("a", "1"), client_answer("x", "1")], "CALL_NOT_FOUND"),
        (vec![client_answer("a", "1"), client_answer("a", "2")], "CALL_ALREADY_ANSWERED"),
        (vec![client_answer("a", "1"), client_answer("c", "1")], "CALL_NOT_WAITING"),
        (vec![client_answer("a", "1"), client_answer("d", "late")], "CALL_NOT_WAITING"),
        (vec![], "NO_ANSWERS"),
    ];
    for (outputs, expected) in table {
        assert_eq!(reason(&run.submit(outputs).await.expect_err(expected)), expected);
    }
    assert_eq!(run.get().await.calls[0].state(), CallState::WaitingForClient, "a refusal stores nothing");

    run.submit(vec![client_answer("a", "1"), client_answer("a", "1")]).await.expect("the same twice");
    run.submit(vec![client_answer("a", "1")]).await.expect("the same again");
    assert_eq!(
        reason(&run.submit(vec![client_answer("a", "2")]).await.expect_err("a second")),
        "CALL_ALREADY_ANSWERED"
    );
    let ended = submit_all(&run, vec![client_answer("b", "2")]).await.expect("that is all of them");
    assert_eq!(ended.status(), RunStatus::Completed);
    submit_all(&run, vec![client_answer("b", "2")]).await.expect("the same again, after the end");
}

#[tokio::test]
async fn a_run_that_is_not_to_be_executed_returns_its_calls_and_runs_nothing() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("written");
    let write = call("w", "writes", json!({ "path": path, "line": "x", "then_wait_ms": 0 }));
    let request = v1::CreateRunRequest {
        calls: vec![write, call("wrong", "echo", json!({ "text": 1 })), call("none", "no_such_tool", json!({}))],
        execute: Some(false),
        keep_open: true,
        ..v1::CreateRunRequest::default()
    };
    let created = yard.client.runs.clone().create_run(request).await.expect("the run is accepted").into_inner();
    let run = Run { client: yard.client.clone(), id: created.run.expect("the response has the run").run_id };
    let more =
        v1::AppendCallsRequest { run_id: run.id.clone(), calls: vec![count("more", 1, 0)], ..Default::default() };
    yard.client.runs.clone().append_calls(more).await.expect("the run is open");
    yard.client.runs.clone().close_run(v1::CloseRunRequest { run_id: run.id.clone() }).await.expect("it is open");
    let state = run.get().await;
    let states: Vec<_> = state.calls.iter().map(v1::Call::state).collect();
    let (waits, failed) = (CallState::WaitingForClient, CallState::Failed);
    assert_eq!((state.status(), states), (RunStatus::RequiresAction, vec![waits, failed, failed, waits]));
    run.submit(vec![client_answer("w", "done elsewhere"), client_answer("more", "that, too")])
        .await
        .expect("they wait");
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    assert!(!events.iter().any(|event| matches!(event.event, Some(Event::AttemptStarted(_)))));
    assert!(!path.exists());
    assert_eq!(check::text(&check::outcomes(&events)["w"]), "done elsewhere");
}

#[tokio::test]
async fn tools_of_a_request_are_the_clients_and_their_input_is_checked() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let schema = json!({ "type": "object", "properties": { "x": { "type": "integer" } }, "required": ["x"] });
    let tools = vec![
        tool("say", Format::Text(v1::TextFormat {})),
        tool("point", Format::InputSchema(schema.to_string())),
        tool("version", Format::Regex(r"\d+\.\d+".to_owned())),
        tool("sum", Format::Lark("start: INT (\"+\" INT)*\n%import common.INT\n%ignore \" \"".to_owned())),
        // A name of the request's goes before that of a worker's tool.
        tool("echo", Format::Text(v1::TextFormat {})),
    ];
    let calls = vec![
        text_call("say", "say", "not { json"),
        text_call("say nothing", "say", ""),
        call("point", "point", json!({ "x": 1 })),
        call("no point", "point", json!({ "x": "one" })),
        text_call("version", "version", "1.20"),
        text_call("no version", "version", "v1.20, perhaps"),
        text_call("sum", "sum", "1 + 2 +30"),
        text_call("no sum", "sum", "1 + x"),
        text_call("echo", "echo", "hello"),
    ];
    let request = v1::CreateRunRequest { calls, request_tools: tools, ..v1::CreateRunRequest::default() };
    let created = yard.client.runs.clone().create_run(request).await.expect("the run is accepted").into_inner();
    let state = created.run.expect("the response has the run");
    for call in &state.calls {
        if call.call_id.starts_with("no ") {
            let error = call.outcome.clone().and_then(|outcome| outcome.error).expect("it was refused");
            assert_eq!(error.kind(), CallErrorKind::ArgumentsInvalid, "{call:?}");
            assert!(call.call_id != "no sum" || error.message.contains("column 5: expected INT"), "{call:?}");
        } else {
            assert_eq!(call.state(), CallState::WaitingForClient, "{call:?}");
        }
    }
    assert_eq!((state.calls[0].arguments.as_str(), state.calls[1].arguments.as_str()), ("not { json", ""));
}

#[tokio::test]
async fn a_tool_of_a_request_that_makes_no_sense_is_refused_with_its_place() {
    let yard = Yard::start(FIXTURE).await;
    let table = [
        (tool("no name", Format::Text(v1::TextFormat {})), "request_tools[0].name"),
        (tool("a", Format::Regex("(".to_owned())), "request_tools[0].regex"),
        (tool("a", Format::Regex(r"\w{500}{500}".to_owned())), "request_tools[0].regex"),
        (tool("a", Format::InputSchema("{".to_owned())), "request_tools[0].input_schema"),
        (v1::RequestTool { name: "a".to_owned(), format: None }, "request_tools[0].format"),
        (tool("a", Format::Lark("start: \"unended".to_owned())), "request_tools[0].lark: line 1"),
        (tool("a", Format::Lark("start: \"a\"\n\n%declare B".to_owned())), "request_tools[0].lark: line 3: %declare"),
    ];
    let create = async |tools| {
        let calls = vec![question("q")];
        let request = v1::CreateRunRequest { calls, request_tools: tools, ..v1::CreateRunRequest::default() };
        yard.client.runs.clone().create_run(request).await.expect_err("it is malformed")
    };
    for (tool, field) in table {
        let refusal = create(vec![tool]).await;
        assert_eq!(reason(&refusal), "MALFORMED", "{refusal}");
        assert!(refusal.message().starts_with(field), "{refusal}");
    }
    let text = || tool("a", Format::Text(v1::TextFormat {}));
    assert!(create(vec![text(), text()]).await.message().starts_with("request_tools[1].name"));
}
