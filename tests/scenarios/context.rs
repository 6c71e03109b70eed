//! The context of calls and the extra state of results, and which parties can see them.

use harness::{Client, Run, Yard, call, reason};
use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy, ToolConcurrency};
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::{FIXTURE, check};

fn given(call: v1::NewCall, context: &Value) -> v1::NewCall {
    v1::NewCall { context: context.to_string(), ..call }
}

fn remembers(id: &str, state: &Value, after_ms: u64) -> v1::NewCall {
    call(id, "remembers", json!({ "state": state, "after_ms": after_ms }))
}

async fn create(client: &Client, request: v1::CreateRunRequest) -> Result<Run, Status> {
    let response = client.runs.clone().create_run(request).await?.into_inner();
    Ok(Run { client: client.clone(), id: response.run.expect("the response has the run").run_id })
}

/// The results of a run's calls, once it has ended.
async fn results(run: &Run) -> Vec<Value> {
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    let calls = run.get().await.calls;
    calls.iter().map(|call| serde_json::from_str(&check::text(&outcomes[&call.call_id])).expect("it is JSON")).collect()
}

fn state(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("{text:?} is no JSON"))
}

#[tokio::test]
async fn a_tool_sees_the_keys_that_it_declares_and_nobody_else_sees_any() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let tool = yard.client.tools.clone().get_tool(v1::GetToolRequest { name: "sees".to_owned() }).await;
    let tool = tool.expect("it is there").into_inner().tool.expect("the response has the tool");
    assert_eq!(tool.context_keys, ["note", "user"]);
    assert!(!tool.input_schema.contains("user"), "{}", tool.input_schema);

    let run = create(
        &yard.client,
        v1::CreateRunRequest {
            calls: vec![
                call("run's", "sees", json!({})),
                given(call("own", "sees", json!({})), &json!({ "note": { "own": 1 }, "secret": "s3cret" })),
                call("echo", "echo", json!({ "text": "\"nothing\"" })),
            ],
            context: r#"{"user":"ada","note":{"run":true},"secret":"s3cret"}"#.to_owned(),
            keep_open: true,
            ..v1::CreateRunRequest::default()
        },
    );
    let run = run.await.expect("it is accepted");
    let calls = vec![given(call("later", "sees", json!({})), &json!({ "user": null }))];
    let append = v1::AppendCallsRequest { run_id: run.id.clone(), calls, ..v1::AppendCallsRequest::default() };
    yard.client.runs.clone().append_calls(append).await.expect("it takes more");
    yard.client.runs.clone().close_run(v1::CloseRunRequest { run_id: run.id.clone() }).await.expect("it closes");
    let expected = [
        json!({ "user": "ada", "note": { "run": true }, "secret": null }),
        json!({ "user": "ada", "note": { "own": 1 }, "secret": null }),
        json!("nothing"),
        json!({ "user": null, "note": { "run": true }, "secret": null }),
    ];
    assert_eq!(results(&run).await, expected);
    let seen = format!("{:?} {:?}", run.get().await, run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert!(!seen.contains("s3cret"));
}

#[tokio::test]
async fn nothing_that_one_call_was_given_reaches_another() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(1).await;
    for turn in 0..10 {
        for tenant in ["acme", "umbrella"] {
            let user = format!("{tenant}-{turn}");
            let run = create(
                &yard.client,
                v1::CreateRunRequest {
                    calls: vec![call("a", "sees", json!({}))],
                    tenant: tenant.to_owned(),
                    context: json!({ "user": user }).to_string(),
                    ..v1::CreateRunRequest::default()
                },
            );
            let expected = json!({ "user": user, "note": null, "secret": null });
            assert_eq!(results(&run.await.expect("it is accepted")).await, [expected]);
        }
        let run = yard.client.create(vec![call("a", "sees", json!({}))]).await;
        assert_eq!(results(&run).await, [json!({ "user": null, "note": null, "secret": null })]);
    }
}

/// The results of a command of each tenant, on a worker whose tenants have folders of their own.
async fn shell(client: &Client, tenant: &str, command: &str) -> Vec<Value> {
    let rules = v1::RunRules { confirmation: v1::Confirmation::None.into(), ..v1::RunRules::default() };
    let request = v1::CreateRunRequest {
        calls: vec![call("a", "bash", json!({ "command": command }))],
        tenant: tenant.to_owned(),
        rules: Some(rules),
        ..v1::CreateRunRequest::default()
    };
    results(&create(client, request).await.expect("it is accepted")).await
}

#[tokio::test]
async fn tenants_that_alternate_on_one_worker_find_only_their_own_files_also_after_it_is_killed() {
    let (yard, root) = (Yard::start(FIXTURE).await, tempfile::tempdir().expect("a folder"));
    let fixture = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", format!("built_in:{}", root.path().display()));
    let fixture = fixture.with("TOOLYARD_FIXTURE_WORKSPACE", "tenant");
    let mut worker = fixture.worker(&yard.broker.url(), "main", 1).await;
    yard.client.wait_for_tool("bash").await;
    for turn in 0..4 {
        if turn == 2 {
            worker.kill().await;
            worker = fixture.worker(&yard.broker.url(), "main", 1).await;
        }
        for tenant in ["acme", "umbrella", ""] {
            let command = format!(
                "set -e; test $(ls | wc -l) = {turn}; ! ls | grep -v '^of-{tenant}-'; touch of-{tenant}-{turn}"
            );
            assert_eq!(shell(&yard.client, tenant, &command).await, [json!({ "exit_code": 0 })], "{tenant} {turn}");
        }
    }
    let folders = || std::fs::read_dir(root.path()).expect("it is there").map(|entry| entry.expect("one").file_name());
    let of_workers = folders().filter(|name| name.to_string_lossy().starts_with("worker-")).count();
    assert_eq!((folders().count(), of_workers), (4, 1), "what the killed worker left is gone: {:?}", folders());
    drop(worker);
}

#[tokio::test]
async fn what_cannot_be_given_is_refused_and_not_repeated() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let large = |bytes: usize| json!({ "secret": "s".repeat(bytes) }).to_string();
    let too_large = large(16 * 1024);
    let history = json!({ "TOOL_CALL_HISTORY": ["s3cret"] }).to_string();
    let sees = |context: &str| v1::NewCall { context: context.to_owned(), ..call("c", "sees", json!({})) };
    let half = |key: &str| json!({ key: "s".repeat(9 * 1024) }).to_string();
    let cases = [
        (too_large.clone(), String::new(), Code::ResourceExhausted, "PAYLOAD_TOO_LARGE"),
        (String::new(), too_large, Code::ResourceExhausted, "PAYLOAD_TOO_LARGE"),
        (half("user"), half("note"), Code::ResourceExhausted, "PAYLOAD_TOO_LARGE"),
        ("[\"s3cret\"]".to_owned(), String::new(), Code::InvalidArgument, "MALFORMED"),
        (String::new(), "{\"user\": s3cret".to_owned(), Code::InvalidArgument, "MALFORMED"),
        (history.clone(), String::new(), Code::InvalidArgument, "MALFORMED"),
        (String::new(), history, Code::InvalidArgument, "MALFORMED"),
    ];
    for (context, own, code, why) in cases {
        let calls = vec![sees(&own)];
        let request = v1::CreateRunRequest { calls, context, ..v1::CreateRunRequest::default() };
        let refused = create(&yard.client, request).await.expect_err(why);
        assert_eq!((refused.code(), reason(&refused).as_str()), (code, why), "{refused:?}");
        assert!(refused.message().contains("context") && !refused.message().contains("s3cret"), "{refused:?}");
    }
    let request = v1::CreateRunRequest {
        calls: vec![sees(&large(16_000))],
        context: large(16_000),
        ..v1::CreateRunRequest::default()
    };
    create(&yard.client, request).await.expect("what no tool declares is not stored, so it does not count");

    let calls = vec![
        call("missing", "knows", json!({})),
        given(call("misfit", "knows", json!({})), &json!({ "user": ["s3cret"] })),
    ];
    let events = yard.client.execute(calls).await.to_end().await;
    for outcome in check::outcomes(&events).values() {
        let error = outcome.error.clone().expect("it failed");
        assert_eq!(error.kind(), CallErrorKind::NeedsInput);
        assert!(error.message.contains("\"user\"") && !error.message.contains("s3cret"), "{}", error.message);
    }
}

#[tokio::test]
async fn the_same_request_with_another_context_is_another_request() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let request = |run: &str, own: &str| v1::CreateRunRequest {
        calls: vec![v1::NewCall { context: own.to_owned(), ..call("a", "sees", json!({})) }],
        context: run.to_owned(),
        request_id: "order 7".to_owned(),
        ..v1::CreateRunRequest::default()
    };
    let ada = r#"{"user":"ada"}"#;
    let first = create(&yard.client, request(ada, "")).await.expect("it is accepted");
    assert_eq!(create(&yard.client, request(ada, "")).await.expect("it is known").id, first.id);
    for (run, own) in [("", ""), ("", ada), (r#"{"user":"bob"}"#, ""), (ada, r#"{"note":1}"#)] {
        let refused = create(&yard.client, request(run, own)).await.expect_err("it is another one");
        assert_eq!(reason(&refused), "REQUEST_ID_TAKEN", "{run:?} {own:?}");
    }
    assert_eq!(results(&first).await[0]["user"], "ada");
}

#[tokio::test]
async fn a_history_holds_the_calls_that_had_ended_in_the_order_of_the_calls() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let beside = v1::NewCall { concurrency: ToolConcurrency::Parallel.into(), ..call("beside", "recalls", json!({})) };
    let calls = vec![
        call("slow", "sleep", json!({ "ms": 500, "text": "slept" })),
        beside,
        call("quick", "echo", json!({ "text": "hi" })),
        call("unknown", "nowhere", json!({})),
        call("first", "recalls", json!({})),
        call("bad", "panics", json!({})),
        call("second", "recalls", json!({})),
    ];
    let run = yard.client.create(calls).await;
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    let told = |id: &str| -> Vec<Value> {
        let told = state(&check::text(&outcomes[id]));
        told.as_array().expect("a list").clone()
    };
    let ids = |told: &[Value]| -> Vec<String> {
        told.iter().map(|past| past["call_id"].as_str().expect("an id").to_owned()).collect()
    };
    let (first, second) = (told("first"), told("second"));
    assert_eq!(ids(&told("beside")), ["unknown"], "nothing else had ended as it began");
    assert_eq!(ids(&first), ["slow", "beside", "quick", "unknown"]);
    assert_eq!(ids(&second), ["slow", "beside", "quick", "unknown", "first", "bad"]);
    let slow = json!({
        "call_id": "slow", "tool": "sleep", "arguments": { "ms": 500, "text": "slept" },
        "outcome": { "state": "completed", "result": [{ "text": "slept" }] }, "left_out": false,
    });
    assert_eq!(first[0], slow);
    assert_eq!(second[3]["outcome"]["kind"], "UNKNOWN_TOOL");
    assert_eq!(second[5]["outcome"]["state"], "failed");
    assert_eq!(second[4]["outcome"]["result"][0]["json"][0], slow, "what was told is a result like any other");

    let alone = yard.client.create(vec![call("only", "recalls", json!({}))]).await;
    assert_eq!(results(&alone).await, [json!([])]);
}

#[tokio::test]
async fn state_is_merged_in_the_order_of_the_calls_though_a_coordinator_is_killed_in_between() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let fails = json!({ "state": { "x": "fails", "bad": 1 }, "after_ms": 1, "fails": true });
    let calls = vec![
        remembers("slow", &json!({ "x": "slow", "slow": 1.5 }), 4000),
        remembers("quick", &json!({ "x": "quick", "quick": { "a": [null] } }), 1),
        call("fails", "remembers", fails),
        remembers("late", &json!({ "x": "late", "bad": 2 }), 60_000),
        remembers("none", &json!({}), 1),
    ];
    let run = yard.client.create(calls).await;
    let mut stream = run.watch(FloorPolicy::Interleaved).await;
    let is_end = |event: &Event, id: &str| matches!(event, Event::CallEnded(ended) if ended.call_id == id);
    stream.until(|event| is_end(event, "quick")).await;
    let so_far = run.get().await;
    assert_eq!(state(&so_far.extra_state), json!({ "x": "quick", "quick": { "a": [null] } }));
    yard.coordinator.kill().await;

    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let run = run.through(&Client::connect(next.address()).await);
    let cancel = v1::CancelCallRequest { run_id: run.id.clone(), call_id: "late".to_owned(), reason: String::new() };
    run.client.runs.clone().cancel_call(cancel).await.expect("it can be cancelled");
    let expected = json!({ "x": "quick", "slow": 1.5, "quick": { "a": [null] } });
    for policy in [FloorPolicy::Arrival, FloorPolicy::Submission, FloorPolicy::Interleaved] {
        let events = run.watch(policy).await.to_end().await;
        let Some(Event::RunEnded(ended)) = events.last().and_then(|event| event.event.clone()) else {
            panic!("a run ends: {events:#?}")
        };
        assert_eq!(state(&ended.extra_state), expected, "{policy:?}");
        let outcomes = check::outcomes(&events);
        assert_eq!(state(&outcomes["slow"].extra_state), json!({ "x": "slow", "slow": 1.5 }));
        assert_eq!(outcomes["late"].state(), CallState::Cancelled);
        let nothing = ["fails", "late", "none"].map(|id| outcomes[id].extra_state.as_str());
        assert_eq!(nothing, ["", "", ""]);
    }
    let whole = run.get().await;
    assert_eq!(state(&whole.extra_state), expected);
    assert!(whole.calls.iter().all(|call| call.arguments.starts_with('{')));
}

#[tokio::test]
async fn more_state_than_a_call_may_give_fails_it() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let calls = vec![
        remembers("fits", &json!({ "k": "s".repeat(8 * 1024 - 3) }), 1),
        remembers("large", &json!({ "k": "s".repeat(8 * 1024 - 2) }), 1),
    ];
    let run = yard.client.create(calls).await;
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(outcomes["fits"].state(), CallState::Completed);
    let error = outcomes["large"].error.clone().expect("it failed");
    assert_eq!(error.kind(), CallErrorKind::ResultTooLarge, "{}", error.message);
    assert_eq!(run.get().await.extra_state.len(), 8 * 1024 - 1 + r#"{"k":}"#.len());
}

#[tokio::test]
async fn context_and_state_are_told_over_http_too() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let sees = json!({ "call_id": "sees", "tool": "sees", "context": "{\"note\":[2]}" });
    let arguments = json!({ "state": { "cart": ["tea"] }, "after_ms": 1 }).to_string();
    let remembers = json!({ "call_id": "gives", "tool": "remembers", "arguments": arguments });
    let body = json!({ "calls": [sees, remembers], "context": "{\"user\":\"ada\",\"note\":[1]}" });
    let answer = http.post("/v1/runs", &body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let id = answer.json()["run"]["run_id"].as_str().expect("the run has an id").to_owned();
    http.events(&id, None).await.to_end().await.expect("the stream does not break");
    let run = http.get(&format!("/v1/runs/{id}")).await.json()["run"].clone();
    let seen = run["calls"][0]["outcome"]["result"][0]["json"].as_str().expect("it is JSON").to_owned();
    assert_eq!(state(&seen), json!({ "user": "ada", "note": [2], "secret": null }));
    assert_eq!(run["extra_state"], "{\"cart\":[\"tea\"]}");
    assert_eq!(run["calls"][1]["outcome"]["extra_state"], run["extra_state"]);

    let refused = http.post("/v1/runs", &json!({ "calls": [], "context": "7" })).await;
    assert_eq!(refused.problem(), (400, "MALFORMED".to_owned()));
    let large = json!({ "user": "s".repeat(16 * 1024) }).to_string();
    let refused = http.post("/v1/runs", &json!({ "calls": [{ "tool": "sees" }], "context": large })).await;
    assert_eq!(refused.problem(), (413, "PAYLOAD_TOO_LARGE".to_owned()));
}

#[tokio::test]
async fn a_call_that_is_given_a_context_and_gives_state_costs_two_appends_too() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let broker = async_nats::jetstream::new(async_nats::connect(yard.broker.url()).await.expect("the broker is there"));
    let messages = async || broker.get_stream("ty-log").await.expect("the log is there").cached_info().state.messages;
    // A tool may be slower than the window in which its start is folded into its end, so the cheapest of some counts.
    let is_given = given(call("c", "sees", json!({})), &json!({ "user": "ada" }));
    for one in [is_given, remembers("c", &json!({ "a": 1 }), 0)] {
        let mut costs = Vec::new();
        for _ in 0..20 {
            let before = messages().await;
            yard.client.execute(vec![one.clone()]).await.to_end().await;
            costs.push(messages().await - before);
        }
        assert_eq!(costs.iter().min(), Some(&2), "{}: {costs:?}", one.tool);
    }
}
