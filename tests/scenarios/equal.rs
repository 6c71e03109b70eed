//! Every endpoint takes what the native one takes: options in the body, shared runs, approvals, names of exports.

use harness::http::events;
use harness::{Http, Yard, call, reason};
use hyper::Method;
use proto::v1;
use serde_json::{Value, json};

use crate::FIXTURE;
use crate::callers::guarded;
use crate::http_callers::post;
use crate::registry::{until, worker};

const JSON: (&str, &str) = ("content-type", "application/json");

async fn batch(http: Http, query: &str, body: &Value) -> Value {
    let answer = http.post(&format!("/v1/tool_calls:batch{query}"), body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn turn(calls: &[(&str, &str, Value)]) -> Value {
    let block =
        |(id, name, input): &(&str, &str, Value)| json!({ "type": "tool_use", "id": id, "name": name, "input": input });
    json!({ "role": "assistant", "content": calls.iter().map(block).collect::<Vec<_>>() })
}

/// The turn with options.
fn with(calls: &[(&str, &str, Value)], options: Value) -> Value {
    json!({ "turn": turn(calls), "toolyard": options })
}

/// The texts of the results, in order.
fn said(answer: &Value) -> Vec<&str> {
    let blocks = answer["messages"][0]["content"].as_array().into_iter().flatten();
    blocks.map(|block| block["content"][0]["text"].as_str().unwrap_or_default()).collect()
}

fn states(answer: &Value) -> Vec<&str> {
    let open = answer["open_calls"].as_array().into_iter().flatten();
    open.map(|call| call["state"].as_str().unwrap_or_default()).collect()
}

#[tokio::test]
async fn a_batch_has_the_options_of_a_run() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let text = || json!({ "text": "hi" });
    // Context reaches the tool, a tool of the request is the client's, and others than the attached are unknown.
    let tool = json!({ "name": "pick", "regex": "[a-z]+" });
    let calls = [("a", "knows", json!({})), ("b", "count", json!({})), ("c", "pick", json!({ "input": "blue" }))];
    let options = json!({ "context": "{\"user\":\"Ada\"}", "tools": ["knows"], "request_tools": [tool] });
    let answer = batch(http, "", &with(&calls, options)).await;
    assert_eq!(said(&answer)[0], "Hello, Ada!", "{answer}");
    assert!(said(&answer)[1].contains("unknown tool count"), "{answer}");
    let open = &answer["open_calls"][0];
    assert_eq!((&open["tool"], &open["arguments"]), (&json!("pick"), &json!("blue")), "{answer}");
    // Nothing is executed if the caller wants that, and limits count.
    let answer = batch(http, "", &with(&[("a", "echo", text())], json!({ "execute": false }))).await;
    assert_eq!(states(&answer), ["CALL_STATE_WAITING_FOR_CLIENT"], "{answer}");
    let calls = [("a", "echo", text()), ("b", "echo", text())];
    let answer = batch(http, "", &with(&calls, json!({ "rules": { "calls_max": 1 } }))).await;
    assert!(said(&answer)[1].contains("limit of 1 calls"), "{answer}");
    // The member may stand in the vendor's own object, too.
    let mut inside = turn(&[("a", "knows", json!({}))]);
    inside["toolyard"] = json!({ "context": "{\"user\":\"Bob\"}" });
    assert_eq!(said(&batch(http, "", &inside).await), ["Hello, Bob!"]);
    // What is wrong with an option is refused at its place.
    for (query, options, place) in [
        ("", json!({ "tools": ["no such name"] }), "/toolyard/tools/0"),
        ("", json!({ "timeout": "0s" }), "/toolyard/timeout"),
        ("", json!({ "calls": [{ "tool": "echo" }] }), "/toolyard/calls/0/tool"),
        ("", json!({ "calls": [{ "call_id": "z", "execute": false }] }), "/toolyard/calls/0/call_id"),
        ("", json!({ "calls": [{ "call_id": "b", "timeout": "0s" }] }), "/toolyard/calls/0/timeout"),
        ("", json!({ "approve": ["z"] }), "/toolyard/approve/0"),
    ] {
        let refused = http.post(&format!("/v1/tool_calls:batch{query}"), &with(&calls, options)).await;
        assert_eq!((refused.status, &refused.json()["errors"][0]["pointer"]), (400, &json!(place)), "{refused:?}");
    }
    let refused = http.post("/v1/tool_calls:batch?tenant=a", &with(&calls, json!({ "tenant": "b" }))).await;
    assert_eq!((refused.status, &refused.json()["errors"][0]["parameter"]), (400, &json!("tenant")));
}

#[tokio::test]
async fn responses_and_assistants_have_the_options_of_a_run() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let options = json!({ "context": "{\"user\":\"Ada\"}", "execute": true, "fail_fast": true });
    let item = json!({ "type": "function_call", "call_id": "a", "name": "knows", "arguments": "{}" });
    let body = json!({ "input": [item], "toolyard": options, "parallel_tool_calls": false });
    let response = http.post("/v1/responses", &body).await.json();
    assert_eq!(response["output"][0]["output"], "Hello, Ada!", "{response}");
    let function = json!({ "id": "a", "type": "function", "function": { "name": "knows", "arguments": "{}" } });
    let body = json!({ "tool_calls": [function], "toolyard": options, "stream": true });
    let streamed = http.ask(Method::POST, "/v1/threads/runs", &[JSON], body.to_string()).await;
    assert!(String::from_utf8_lossy(&streamed.body).contains("Hello, Ada!"), "{streamed:?}");
    for (options, param) in [
        (json!({ "keep_open": true }), "/toolyard/keep_open"),
        (json!({ "run": "run_1" }), "/toolyard/run"),
        (json!({ "rules": { "running_max": 3 } }), "/toolyard/rules/running_max"),
    ] {
        let body = json!({ "input": [item], "toolyard": options, "parallel_tool_calls": false });
        let refused = http.post("/v1/responses", &body).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)), "{refused:?}");
    }
}

#[tokio::test]
async fn a_run_is_shared_by_requests_that_each_have_one_call_and_exclusive_calls_keep_their_order() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let created = http.post("/v1/runs", &json!({ "keep_open": true })).await.json();
    let run = created["run"]["run_id"].as_str().expect("an id").to_owned();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("order");
    let edit = async |id: &str| {
        let input = json!({ "path": path, "name": id, "for_ms": 100 });
        batch(http, &format!("?run={run}"), &turn(&[(id, "edits", input)])).await
    };
    let (first, second) = tokio::join!(edit("one"), edit("two"));
    for (answer, name) in [(&first, "one"), (&second, "two")] {
        assert_eq!((said(answer), &answer["run_id"]), (vec![name], &json!(run)), "{answer}");
        assert_eq!((&answer["complete"], &answer["return_direct"]), (&json!(true), &json!(false)), "{answer}");
    }
    let order = std::fs::read_to_string(&path).expect("both ran");
    let lines: Vec<&str> = order.lines().collect();
    let [begin, end, ..] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((lines.len(), begin.replace("begin", "end").as_str()), (4, *end), "one after the other: {lines:?}");
    // The same call again is answered and not executed; the run's other calls are not its business.
    let again = edit("one").await;
    assert_eq!(said(&again), ["one"]);
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), order);
    let other = json!({ "path": path, "name": "other", "for_ms": 1 });
    let refused = http.post(&format!("/v1/tool_calls:batch?run={run}"), &turn(&[("one", "edits", other)])).await;
    assert_eq!(refused.problem().1, "DUPLICATE_CALL_ID", "another call under the id");
    // Also if other arguments were accepted than were given.
    for _ in 0..2 {
        let strict_only = json!({ "state": {}, "after_ms": 1, "fails": null });
        let answer = batch(http, &format!("?run={run}"), &turn(&[("null", "remembers", strict_only)])).await;
        assert_eq!(said(&answer), ["Remembered."], "{answer}");
    }
    // Calls without ids of their own never meet.
    let gemini =
        json!({ "role": "model", "parts": [{ "functionCall": { "name": "echo", "args": { "text": "hi" } } }] });
    for _ in 0..2 {
        let answer = batch(http, &format!("?run={run}"), &gemini).await;
        assert_eq!(answer["messages"][0]["parts"][0]["functionResponse"]["response"]["output"], "hi", "{answer}");
    }
    assert_eq!(http.post(&format!("/v1/runs/{run}/close"), &json!({})).await.status, 200);
    let refused = http.post(&format!("/v1/tool_calls:batch?run={run}"), &turn(&[("z", "echo", json!({}))])).await;
    assert_eq!(refused.problem(), (409, "RUN_ENDED".to_owned()));
    let wrong = json!({ "turn": turn(&[("z", "echo", json!({}))]), "toolyard": { "run": run, "tenant": "acme" } });
    assert_eq!(http.post("/v1/tool_calls:batch", &wrong).await.problem().1, "MALFORMED");
}

#[tokio::test]
async fn the_messages_of_a_run_are_there_later_in_the_form_of_any_vendor() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let calls =
        vec![call("a", "echo", json!({ "text": "hi" })), call("b", "ask_user", json!({ "question": "Which?" }))];
    let run = yard.client.create(calls).await.id;
    for (form, at, expected) in [
        ("anthropic", "/messages/0/content/0/tool_use_id", "a"),
        ("openai-chat", "/messages/0/content", "hi"),
        ("openai", "/messages/0/output", "hi"),
        ("gemini", "/messages/0/parts/0/functionResponse/name", "echo"),
        ("mcp", "/messages/0/result/content/0/text", "hi"),
    ] {
        let answer = http.get(&format!("/v1/runs/{run}/messages?format={form}&wait=20s")).await.json();
        assert_eq!(answer.pointer(at), Some(&json!(expected)), "{form}: {answer}");
        assert_eq!((&answer["complete"], states(&answer)), (&json!(false), vec!["CALL_STATE_WAITING_FOR_CLIENT"]));
    }
    assert_eq!(http.get(&format!("/v1/runs/{run}/messages")).await.problem().0, 400);
    assert_eq!(http.get("/v1/runs/run_00_nonsense/messages?format=mcp").await.problem().0, 400);
}

#[tokio::test]
async fn a_call_that_its_caller_approves_with_the_request_awaits_nobody() {
    let yard = guarded().await;
    let approval = v1::ApprovalRequest { timeout: None, default: 0 };
    let asked = v1::NewCall { approval: Some(approval), ..call("a", "echo", json!({ "text": "hi" })) };
    let run = |approve: &[&str]| v1::CreateRunRequest {
        calls: vec![asked.clone()],
        approve: approve.iter().map(|&id| id.to_owned()).collect(),
        ..v1::CreateRunRequest::default()
    };
    let ops = yard.client("ops");
    for approve in [&["a"][..], &["_all"]] {
        let request = v1::ExecuteRunRequest { run: Some(run(approve)), ..Default::default() };
        let events = ops.execute_request(request).await.expect("it is accepted").to_end().await;
        assert_eq!(crate::check::text(&crate::check::outcomes(&events)["a"]), "hi");
        let is_approved = |event: &v1::RunEvent| matches!(event.event, Some(v1::run_event::Event::CallApproved(_)));
        assert!(events.iter().any(is_approved), "the approval is recorded");
    }
    // Also of a call that is added to a run.
    let open = v1::CreateRunRequest { keep_open: true, ..Default::default() };
    let run_id = ops.runs.clone().create_run(open).await.expect("accepted").into_inner().run.expect("a run").run_id;
    let append = |id: &str, approve: &str| v1::AppendCallsRequest {
        run_id: run_id.clone(),
        calls: vec![v1::NewCall { call_id: id.to_owned(), ..asked.clone() }],
        approve: vec![approve.to_owned()],
        ..Default::default()
    };
    let appended = ops.runs.clone().append_calls(append("b", "b")).await.expect("it is accepted").into_inner();
    assert!(appended.run.expect("the run").calls[0].decided.is_some());
    let unnamed = ops.runs.clone().append_calls(append("", "_all")).await.expect_err("it has no id");
    assert_eq!(reason(&unnamed), "MALFORMED");
    // And through the batch endpoint.
    let turn = with(&[("a", "external", json!({}))], json!({ "approve": ["a"], "rules": { "calls_max": 1 } }));
    let denied = post(&yard, "shop", "/v1/tool_calls:batch", &turn).await;
    assert_eq!(denied.problem(), (403, "ROLE_MISSING".to_owned()));
    // Without the role nothing is stored.
    let shop = yard.client("shop");
    let refused = shop.runs.clone().create_run(run(&["a"])).await.expect_err("it lacks the role");
    assert_eq!(reason(&refused), "ROLE_MISSING");
    let unknown = ops.runs.clone().create_run(run(&["z"])).await.expect_err("there is no such call");
    assert_eq!(reason(&unknown), "MALFORMED");
}

#[tokio::test]
async fn a_repeated_request_approves_its_own_calls_and_no_others() {
    let yard = guarded().await;
    let approval = v1::ApprovalRequest { timeout: None, default: 0 };
    let asked = |id: &str| v1::NewCall { approval: Some(approval), ..call(id, "echo", json!({ "text": "hi" })) };
    let request = v1::CreateRunRequest {
        calls: vec![asked("a")],
        approve: vec!["_all".to_owned()],
        keep_open: true,
        request_id: "repeated".to_owned(),
        ..Default::default()
    };
    let ops = yard.client("ops");
    let create = || async {
        let created = ops.runs.clone().create_run(request.clone()).await.expect("it is accepted");
        created.into_inner().run.expect("the response has the run")
    };
    let run_id = create().await.run_id;
    let append = v1::AppendCallsRequest { run_id: run_id.clone(), calls: vec![asked("b")], ..Default::default() };
    ops.runs.clone().append_calls(append).await.expect("it is accepted");
    let run = create().await;
    assert_eq!(run.run_id, run_id);
    let decided: Vec<bool> = run.calls.iter().map(|call| call.decided.is_some()).collect();
    assert_eq!(decided, [true, false], "the added call waits");
}

#[tokio::test]
async fn a_schedule_whose_runs_approve_needs_the_role_of_its_creator() {
    let yard = guarded().await;
    let shop = yard.client("shop");
    let create = |approve: &[&str]| {
        let run = v1::CreateRunRequest {
            calls: vec![call("a", "echo", json!({ "text": "hi" }))],
            approve: approve.iter().map(|&id| id.to_owned()).collect(),
            ..Default::default()
        };
        let every = v1::schedule_spec::Timing::Every(prost_types::Duration { seconds: 3600, nanos: 0 });
        let spec = v1::ScheduleSpec { timing: Some(every), run: Some(run), ..Default::default() };
        let request = v1::CreateScheduleRequest { spec: Some(spec), ..Default::default() };
        let mut schedules = shop.schedules.clone();
        async move { schedules.create_schedule(request).await }
    };
    create(&[]).await.expect("it approves nothing");
    assert_eq!(reason(&create(&["a"]).await.expect_err("it lacks the role")), "ROLE_MISSING");
}

#[tokio::test]
async fn a_client_that_disconnects_cancels_its_calls_if_it_wants_that() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let arguments = json!({ "label": "a", "pieces": 10_000, "every_ms": 20 });
    let events_too = [JSON, ("accept", "text/event-stream")];
    let item = json!({ "type": "function_call", "call_id": "a", "name": "count", "arguments": arguments.to_string() });
    let native = json!({ "calls": [{ "call_id": "a", "tool": "count", "arguments": arguments.to_string() }] });
    let cases = [
        ("/v1/tool_calls:batch?on_disconnect=cancel", turn(&[("a", "count", arguments)])),
        ("/v1/runs?on_disconnect=cancel", native),
        ("/v1/responses", json!({ "input": [item], "stream": true, "toolyard": { "on_disconnect": "cancel" } })),
    ];
    for (path, body) in cases {
        let mut begun = http.begin(Method::POST, path, &events_too, body.to_string()).await;
        begun.until(|bytes| events(bytes).len() > 3).await;
        let id = String::from_utf8_lossy(&begun.bytes);
        let at = id.find("run_0").or_else(|| id.find("resp_0")).expect("an id");
        let id: String = id[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let id = id.split('_').skip(1).take(2).collect::<Vec<_>>().join("_");
        drop(begun);
        let mut watched = http.events(&format!("run_{id}"), None).await;
        watched.until(|bytes| events(bytes).last().is_some_and(|event| event.name.as_deref() == Some("end"))).await;
        let run = http.get(&format!("/v1/runs/run_{id}")).await.json();
        assert_eq!(run["run"]["status"], "RUN_STATUS_CANCELLED", "{path}: {run}");
    }
}

#[tokio::test]
async fn a_call_that_is_too_large_fails_alone_and_a_turn_without_calls_is_answered() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let calls = [("a", "echo", json!({ "text": "x".repeat(300_000) })), ("b", "echo", json!({ "text": "hi" }))];
    let answer = batch(http, "", &turn(&calls)).await;
    assert!(said(&answer)[0].contains("the arguments are too large"), "{answer}");
    assert_eq!((said(&answer)[1], &answer["messages"][0]["content"][0]["is_error"]), ("hi", &json!(true)));
    let item = |(id, name, arguments): &(&str, &str, Value)| {
        let arguments = arguments.to_string();
        json!({ "type": "function_call", "call_id": id, "name": name, "arguments": arguments })
    };
    let response = http.post("/v1/responses", &json!({ "input": calls.iter().map(item).collect::<Vec<_>>() })).await;
    let items = response.json()["output"].clone();
    assert!(items[0]["error"].to_string().contains("too large"), "{items}");
    assert_eq!(items[1]["output"], "hi", "{items}");
    let answer = batch(http, "", &json!({ "role": "assistant", "content": "hello" })).await;
    assert_eq!((&answer["finish"], &answer["complete"], &answer["messages"]), (&json!(true), &json!(true), &json!([])));
}

#[tokio::test]
async fn a_batch_shows_its_output_in_the_order_that_its_client_wants() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let count = |label: &str| json!({ "label": label, "pieces": 5, "every_ms": 20 });
    let body = turn(&[("a", "count", count("a")), ("b", "count", count("b"))]).to_string();
    let headers = [JSON, ("accept", "text/event-stream")];
    let path = "/v1/tool_calls:batch?floor_policy=FLOOR_POLICY_SUBMISSION";
    let streamed = yard.http().ask(Method::POST, path, &headers, body.clone()).await;
    let sent = events(&streamed.body);
    let speakers = sent.iter().map(|event| event.json()["call_output"]["call_id"].clone()).filter(|id| !id.is_null());
    let mut speakers: Vec<Value> = speakers.collect();
    speakers.dedup();
    assert_eq!(speakers, [json!("a"), json!("b")], "one after the other");
    let refused = yard.http().ask(Method::POST, path, &[JSON], body).await;
    assert_eq!(refused.problem(), (400, "MALFORMED".to_owned()));
}

#[tokio::test]
async fn a_tool_is_called_by_the_name_of_its_export_through_every_endpoint() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = worker(&yard, "main", "dotted").await;
    until(&yard.client, |page| page.tools.len() == 3).await;
    let http = yard.http();
    let long = "l".repeat(100);
    for (format, own) in ["openai-chat", "openai", "anthropic", "mcp"]
        .into_iter()
        .flat_map(|format| ["corp.github.create_issue", "corp__github__create_issue", &long].map(|own| (format, own)))
    {
        let exported = http.get(&format!("/v1/tools?format={format}")).await.json();
        let names = exported["names"].as_object().expect("names");
        let name = names.iter().find(|(_, tool)| **tool == own).map_or(own, |(name, _)| name.as_str());
        assert!(!name.contains('.'), "{format}: {name}");
        let is_own = |tool: &Value| assert_eq!(tool, own, "{format}: {name}");
        let chat = json!({ "id": "a", "type": "function", "function": { "name": name, "arguments": "{}" } });
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": name } });
        let body = match format {
            "openai-chat" => json!([chat]),
            "openai" => json!([{ "type": "function_call", "call_id": "a", "name": name, "arguments": "{}" }]),
            "anthropic" => turn(&[("a", name, json!({}))]),
            _ => request,
        };
        is_own(&batch(http, "?wait=1s", &body).await["open_calls"][0]["tool"]);
        let native = http.post("/v1/runs", &json!({ "calls": [{ "tool": name }] })).await.json();
        is_own(&native["run"]["calls"][0]["tool"]);
        let item = json!({ "type": "function_call", "call_id": "a", "name": name, "arguments": "{}" });
        let response = http.post("/v1/responses", &json!({ "input": [item] })).await.json();
        let run = response["id"].as_str().expect("an id").replacen("resp_", "run_", 1);
        let run = http.get(&format!("/v1/runs/{run}")).await;
        is_own(&run.json()["run"]["calls"][0]["tool"]);
        let run = http.post("/v1/threads/runs", &json!({ "tool_calls": [chat] })).await.json();
        let run = http.get(&format!("/v1/runs/{}", run["id"].as_str().expect("an id"))).await.json();
        is_own(&run["run"]["calls"][0]["tool"]);
    }
    // An error names the tools as the model knows them.
    let answer = batch(http, "", &turn(&[("a", "corp__github__create_isue", json!({}))])).await;
    let why = said(&answer)[0];
    assert!(why.contains("corp__github__create_issue_") && !why.contains("corp.github"), "{why}");
}

#[tokio::test]
async fn definitions_come_with_notes_and_are_strict_if_they_can_be() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let _other = worker(&yard, "other", "described").await;
    let http = yard.http();
    until(&yard.client, |page| page.tools.iter().any(|tool| tool.name == "described")).await;
    let exported = http.get("/v1/tools?format=openai&strict=true").await.json();
    let notes = &exported["notes"];
    assert_eq!(notes["described"]["needs_approval"], true, "{notes}");
    assert_eq!((&notes["ask_user"]["answered_by_client"], &notes["sees"]["read_only"]), (&json!(true), &json!(true)));
    let tools = exported["tools"].as_array().expect("a list");
    let find = |name: &str| tools.iter().find(|tool| tool["name"] == name).expect("it is described");
    let annotates = find("annotates");
    assert_eq!((&annotates["strict"], &annotates["parameters"]["required"]), (&json!(true), &json!(["note"])));
    assert_eq!(annotates["parameters"]["additionalProperties"], false);
    let others = exported["not_strict"].as_object().expect("reasons");
    for tool in tools {
        let name = tool["name"].as_str().expect("a name");
        assert_eq!(tool["strict"], !others.contains_key(name), "{name}");
    }
    // What a strict model writes is understood: null stands for a parameter that may be missing.
    let strict_only = json!({ "state": {}, "after_ms": 1, "fails": null });
    let answer = batch(http, "", &turn(&[("a", "remembers", strict_only)])).await;
    assert_eq!((said(&answer), &answer["complete"]), (vec!["Remembered."], &json!(true)), "{answer}");
    assert_eq!(http.get("/v1/tools?format=gemini&strict=true").await.problem().0, 400);
}

#[tokio::test]
async fn a_conversation_has_its_open_calls_executed_and_its_dangling_ones_answered() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let tool = |id: &str| json!({ "type": "tool_use", "id": id, "name": "echo", "input": { "text": id } });
    let result = |id: &str| json!({ "type": "tool_result", "tool_use_id": id, "content": "done" });
    let messages = json!([
        { "role": "user", "content": "Go" },
        { "role": "assistant", "content": [tool("lost")] },
        { "role": "user", "content": "Never mind" },
        { "role": "assistant", "content": [tool("a"), tool("b")] },
        { "role": "user", "content": [result("a")] },
    ]);
    let answer = batch(yard.http(), "", &json!({ "messages": messages })).await;
    assert_eq!((said(&answer), &answer["complete"]), (vec!["b"], &json!(true)), "{answer}");
    assert_eq!((&answer["dangling"][0]["after"], &answer["passed_over"][0]["reason"]), (&json!(1), &json!("answered")));
    assert_eq!(answer["dangling"][0]["messages"][0]["content"][0]["tool_use_id"], "lost", "{answer}");
}
