//! No request costs more than its size suggests: schemas, patterns and grammars that multiply are rejected or answered
//! at once, with the path of the mistake, and the calls of other clients go on meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Callers, Client, Costly, Fixture, Guarded, Yard, call, reason};
use proto::v1::request_tool::Format;
use proto::v1::{self, CallErrorKind, CallState};
use serde_json::{Value, json};

use crate::FIXTURE;

/// The processor time that such a request may take through three doors, unoptimised, with calls of another client
/// beside it. Before they were bounded they took minutes, or the coordinator.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long a call of another client may take meanwhile, on a busy machine.
const OTHERS_MAX: Duration = Duration::from_secs(20);
/// Bytes of memory that a coordinator may have after all of them.
const MEMORY_MAX: u64 = 400 * 1024 * 1024;

/// Sends it through gRPC; returns the answer about it.
async fn by_grpc(client: &Client, costly: &Costly) -> String {
    match client.runs.clone().create_run(costly.request()).await {
        Err(refusal) => {
            assert_eq!(reason(&refusal), "MALFORMED", "{}: {refusal}", costly.what);
            refusal.message().to_owned()
        }
        Ok(created) => {
            let run = created.into_inner().run.expect("the response has the run");
            assert_eq!(run.calls[0].state(), CallState::Failed, "{}", costly.what);
            let error = run.calls[0].outcome.clone().and_then(|outcome| outcome.error).expect("it failed");
            assert_eq!(error.kind(), CallErrorKind::ArgumentsInvalid, "{error:?}");
            error.message
        }
    }
}

/// Calls a tool again and again, as another client would; gives how long the slowest took.
async fn others(client: Client, stop: Arc<AtomicBool>) -> Duration {
    let mut slowest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        let events = client.execute(vec![call("a", "echo", json!({ "text": "hello" }))]).await.to_end().await;
        assert!(!events.is_empty());
        slowest = slowest.max(start.elapsed());
    }
    slowest
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_multiply_are_refused_at_once_through_every_door_and_others_go_on() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    yard.client.wait_for_tool("echo").await;
    let stop = Arc::new(AtomicBool::new(false));
    let probe = tokio::spawn(others(yard.client.clone(), Arc::clone(&stop)));
    for costly in Costly::all() {
        let before = yard.coordinator.processor_time();
        let said = by_grpc(&yard.client, &costly).await;
        assert!(said.contains(costly.says), "{}: {said}", costly.what);

        let definition = match &costly.format {
            Format::InputSchema(text) => ("input_schema", text),
            Format::Regex(text) => ("regex", text),
            Format::Lark(text) => ("lark", text),
            Format::Text(_) => continue,
        };
        let own = json!({ "name": "own", definition.0: definition.1 });
        let body = json!({ "calls": [{ "tool": "own", "arguments": costly.arguments }], "request_tools": [own] });
        let answer = yard.http().post("/v1/runs", &body).await;
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        assert!([201, 400].contains(&answer.status) && said.contains(costly.says), "{}: {said}", costly.what);

        // The third door knows schemas as they are, and grammars under another name.
        if let Format::InputSchema(text) = &costly.format {
            let schema: Value = serde_json::from_str(text).expect("JSON");
            let tool = json!({ "type": "function", "name": "own", "parameters": schema });
            let asked =
                json!({ "type": "function_call", "call_id": "a", "name": "own", "arguments": costly.arguments });
            let answer = yard.http().post("/v1/responses", &json!({ "input": [asked], "tools": [tool] })).await;
            let said = String::from_utf8_lossy(&answer.body).into_owned();
            assert!([200, 400].contains(&answer.status) && said.contains(costly.says), "{}: {said}", costly.what);
        }
        let taken = yard.coordinator.processor_time() - before;
        eprintln!("{}: {taken:?} through three doors", costly.what);
        assert!(taken < ANSWER_MAX, "{} takes {taken:?}", costly.what);
    }
    stop.store(true, Ordering::Relaxed);
    let slowest = probe.await.expect("the others are served");
    eprintln!("others: {slowest:?} at most");
    assert!(slowest < OTHERS_MAX, "{slowest:?}");
    let peak = yard.coordinator.memory_peak();
    eprintln!("peak: {} MiB", peak / 1024 / 1024);
    assert!(peak < MEMORY_MAX, "{peak} bytes");
}

const CALLERS: &str = r#"
    answer_token_key_file = "answer.key"

    [[callers]]
    name = "agent"
    tenant = "acme"
    roles = ["submit", "read", "answer"]
    tools = [{ names = ["*"] }]
    keys = ["{agent}"]

    [[callers]]
    name = "lead"
    tenant = "acme"
    roles = ["submit", "read", "approve"]
    tools = [{ names = ["*"] }]
    keys = ["{lead}"]

    [[callers]]
    name = "clerk"
    tenant = "acme"
    roles = ["read", "approve"]
    keys = ["{clerk}"]

    [[callers]]
    name = "full"
    tenant = "full"
    roles = ["submit", "read"]
    tools = [{ names = ["*"] }]
    keys = ["{full}"]

    [quotas.full]
    open_runs = 1
"#;

async fn guarded() -> Guarded {
    let callers = Callers::new("");
    callers.beside("answer.key", b"0123456789abcdef0123456789abcdef");
    callers.write(CALLERS);
    let guarded = Guarded::start(Fixture::new(FIXTURE).with("TOOLYARD_FIXTURE_TOOLS", "external"), callers).await;
    guarded.client("agent").wait_for_tool("described").await;
    guarded
}

#[tokio::test]
async fn role_and_quota_are_asked_before_anything_of_a_request_is_compiled() {
    let yard = guarded().await;
    let unexecuted = || v1::CreateRunRequest {
        execute: Some(false),
        calls: vec![call("q", "described", json!({}))],
        ..v1::CreateRunRequest::default()
    };
    yard.client("full").runs.clone().create_run(unexecuted()).await.expect("it may have one run");
    // Compiling this would be refused otherwise: whoever hears that had it compiled.
    let broken = Costly { what: "", format: Format::Regex("(".to_owned()), arguments: String::new(), says: "" };
    let refused = async |client: &Client| {
        reason(&client.runs.clone().create_run(broken.request()).await.expect_err("it is refused"))
    };
    assert_eq!(refused(&yard.client("agent")).await, "MALFORMED");
    assert_eq!(refused(&yard.client("full")).await, "QUOTA_EXCEEDED");
    assert_eq!(refused(&yard.client("clerk")).await, "ROLE_MISSING");

    let agent = yard.client("agent");
    let run = agent.runs.clone().create_run(unexecuted()).await.expect("accepted").into_inner().run.expect("the run");
    let asked = v1::CreateAnswerTokenRequest { run_id: run.run_id, call_id: "q".to_owned(), lifetime: None };
    let token = agent.runs.clone().create_answer_token(asked).await.expect("it may answer").into_inner().token;
    let tool = json!({ "type": "custom", "name": "own", "format": { "type": "grammar", "syntax": "regex", "definition": "(" } });
    let input = json!([{ "type": "custom_tool_call", "call_id": "a", "name": "own", "input": "x" }]);
    let body = json!({ "input": input, "tools": [tool] });
    for path in ["/v1/responses", "/responses", "/v1/threads/runs"] {
        for key in [token.clone(), yard.callers.key("clerk")] {
            let bearer = format!("Bearer {key}");
            let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
            let http = harness::Http::new(yard.coordinator.address());
            let answer = http.ask(hyper::Method::POST, path, &headers, body.to_string()).await;
            assert_eq!((answer.status, &answer.json()["error"]["code"]), (403, &json!("ROLE_MISSING")), "{path}");
        }
    }
}

#[tokio::test]
async fn approval_is_waived_only_by_who_may_approve_and_arguments_are_replaced_only_by_who_may_call() {
    let yard = guarded().await;
    let [agent, lead, clerk] = ["agent", "lead", "clerk"].map(|name| yard.client(name));
    let create = async |client: &Client, confirmation: v1::Confirmation, approval: Option<v1::ApprovalRequest>| {
        let calls = vec![v1::NewCall { approval, ..call("a", "described", json!({})) }];
        let rules = Some(v1::RunRules { confirmation: confirmation.into(), ..v1::RunRules::default() });
        let request = v1::CreateRunRequest { calls, rules, ..v1::CreateRunRequest::default() };
        client.runs.clone().create_run(request).await.expect("accepted").into_inner().run.expect("the run")
    };
    let none = v1::Confirmation::None;
    let open = v1::Confirmation::Unspecified;
    let in_silence = || Some(v1::ApprovalRequest { timeout: None, default: v1::ApprovalDefault::Approve.into() });
    for run in [create(&agent, none, None).await, create(&agent, open, in_silence()).await] {
        let error = run.calls[0].outcome.clone().and_then(|outcome| outcome.error).expect("it is refused");
        assert_eq!(error.kind(), CallErrorKind::NotPermitted, "{error:?}");
        assert!(error.message.contains("the role approve"), "{error:?}");
    }
    assert_ne!(create(&lead, none, None).await.calls[0].state(), CallState::Failed);
    assert_eq!(create(&lead, open, in_silence()).await.calls[0].state(), CallState::AwaitingApproval);

    let run = create(&agent, open, None).await;
    assert_eq!(run.calls[0].state(), CallState::AwaitingApproval);
    let approve = |arguments: Option<&str>| {
        let approval = v1::CallApproval { arguments: arguments.map(str::to_owned) };
        let decision = Some(v1::call_decision::Decision::Approve(approval));
        let decisions = vec![v1::CallDecision { call_id: "a".to_owned(), decision }];
        v1::DecideCallsRequest { run_id: run.run_id.clone(), decisions }
    };
    let refused = clerk.runs.clone().decide_calls(approve(Some("{}"))).await.expect_err("it may not call the tool");
    assert_eq!(reason(&refused), "TOOL_DENIED", "{refused}");
    clerk.runs.clone().decide_calls(approve(None)).await.expect("it may approve what was asked for");
}
