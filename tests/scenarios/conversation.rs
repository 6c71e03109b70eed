//! Conversations of requests: which tools are given them, over which API, and what is stored of them.

use harness::{Client, Run, Yard, call, reason};
use proto::v1::{self, CallState, ConversationRole, FloorPolicy};
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::{FIXTURE, check};

fn said(role: ConversationRole, text: &str) -> v1::ConversationMessage {
    v1::ConversationMessage { role: role.into(), text: text.to_owned(), ..v1::ConversationMessage::default() }
}

fn request(calls: Vec<v1::NewCall>, conversation: Vec<v1::ConversationMessage>) -> v1::CreateRunRequest {
    v1::CreateRunRequest { calls, conversation, ..v1::CreateRunRequest::default() }
}

async fn create(client: &Client, request: v1::CreateRunRequest) -> Result<Run, Status> {
    let response = client.runs.clone().create_run(request).await?.into_inner();
    Ok(Run { client: client.clone(), id: response.run.expect("the response has the run").run_id })
}

/// The results of a run's calls, once it has ended.
async fn results(run: &Run) -> Vec<Value> {
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    let outcomes = check::outcomes(&events);
    let calls = run.get().await.calls;
    let result = |call: &v1::Call| match outcomes[&call.call_id].state() {
        // A large result is an object.
        CallState::Completed => serde_json::from_str(&check::text(&outcomes[&call.call_id])).unwrap_or_default(),
        state => panic!("{} is {state:?}: {:?}", call.call_id, outcomes[&call.call_id]),
    };
    calls.iter().map(result).collect()
}

async fn objects(yard: &Yard) -> u64 {
    let broker = async_nats::jetstream::new(async_nats::connect(yard.broker.url()).await.expect("the broker is there"));
    broker.get_stream("ty-objects").await.expect("the objects are there").cached_info().state.messages
}

#[tokio::test]
async fn a_tool_that_requests_the_conversation_is_given_its_messages_and_the_calls_and_no_other_tool_is() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let calls = vec![call("a", "converses", json!({})), call("b", "overhears", json!({})), call("", "sees", json!({}))];
    let before = vec![said(ConversationRole::System, "Be brief."), said(ConversationRole::User, "Who am I?")];
    let run = create(&yard.client, request(calls.clone(), before.clone())).await.expect("it is accepted");
    let asked = json!([
        { "call_id": "a", "tool": "converses", "arguments": {} },
        { "call_id": "b", "tool": "overhears", "arguments": {} },
        { "call_id": "call_2", "tool": "sees", "arguments": {} },
    ]);
    let messages = json!([
        { "role": "system", "text": "Be brief." },
        { "role": "user", "text": "Who am I?" },
        { "role": "assistant", "calls": asked },
    ]);
    let nothing = json!({ "messages": null, "files": 0 });
    let results_of = results(&run).await;
    assert_eq!(results_of[..2], [json!({ "messages": messages, "files": [] }), nothing.clone()]);
    let seen = format!("{:?} {:?}", run.get().await.calls[1], yard.http().get(&format!("/v1/runs/{}", run.id)).await);
    assert_eq!(seen.matches("Who am I?").count(), 1, "only the result of the tool tells it: {seen}");

    let without = create(&yard.client, request(calls[..2].to_vec(), Vec::new())).await.expect("it is accepted");
    assert_eq!(results(&without).await, [json!({ "messages": null, "files": [] }), nothing]);
    assert_eq!(objects(&yard).await, 0);

    // The message with the calls may be there, with what the model wrote beside them.
    let with_calls = v1::ConversationMessage {
        calls: vec![v1::ConversationCall { call_id: "a".into(), tool: "converses".into(), arguments: String::new() }],
        ..said(ConversationRole::Assistant, "I look.")
    };
    let all = vec![said(ConversationRole::User, "Who?"), with_calls];
    let run = create(&yard.client, request(calls[..1].to_vec(), all)).await.expect("it is accepted");
    let asked = json!({ "role": "assistant", "text": "I look.", "calls": [asked[0]] });
    let expected = json!([{ "role": "user", "text": "Who?" }, asked]);
    assert_eq!(results(&run).await[0]["messages"], expected);
}

#[tokio::test]
async fn calls_that_are_added_have_the_conversation_of_their_own_request() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let opening = v1::CreateRunRequest {
        keep_open: true,
        context: r#"{"user":"ada"}"#.to_owned(),
        ..request(vec![call("a", "converses", json!({}))], vec![said(ConversationRole::User, "one")])
    };
    let run = create(&yard.client, opening).await.expect("it is accepted");
    let large = "two ".repeat(50_000);
    for (id, text) in [("b", "two"), ("c", &*large), ("d", "")] {
        let calls = vec![call(id, "converses", json!({}))];
        let conversation = Some(said(ConversationRole::User, text)).filter(|_| !text.is_empty()).into_iter().collect();
        let append = v1::AppendCallsRequest { run_id: run.id.clone(), calls, conversation, ..Default::default() };
        yard.client.runs.clone().append_calls(append).await.expect("it takes more");
    }
    yard.client.runs.clone().close_run(v1::CloseRunRequest { run_id: run.id.clone() }).await.expect("it closes");
    let texts: Vec<_> = results(&run).await.iter().map(|result| result["messages"][0]["text"].clone()).collect();
    assert_eq!(texts, [json!("one"), json!("two"), json!(large), Value::Null]);
}

#[tokio::test]
async fn a_large_conversation_is_stored_once_beside_the_log_and_only_if_a_tool_requests_it() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let large = "x".repeat(150_000);
    let said_so = || vec![said(ConversationRole::User, &large)];
    let overhears = create(&yard.client, request(vec![call("a", "overhears", json!({}))], said_so())).await;
    assert_eq!(results(&overhears.expect("it is accepted")).await, [json!({ "messages": null, "files": 0 })]);
    assert_eq!(objects(&yard).await, 0, "nothing of it is stored");

    let upload = yard.http().post("/v1/objects", &json!("a file")).await;
    let object_id = upload.json()["object"]["object_id"].as_str().expect("an upload has an id").to_owned();
    let before = objects(&yard).await;
    let files = vec![v1::RunFile { tool: "_all".to_owned(), name: "f".to_owned(), object_id }];
    let calls = vec![call("a", "converses", json!({})), call("b", "converses", json!({}))];
    let new = v1::CreateRunRequest { files, request_id: "once".to_owned(), ..request(calls, said_so()) };
    let run = create(&yard.client, new.clone()).await.expect("it is accepted");
    for result in results(&run).await {
        assert_eq!((&result["messages"][0]["text"], &result["files"]), (&json!(large), &json!(["f"])));
    }
    assert_eq!(objects(&yard).await - before, 1, "of {} bytes", large.len());
    assert_eq!(create(&yard.client, new.clone()).await.expect("it is known").id, run.id);
    assert_eq!(objects(&yard).await - before, 1);
    // Earlier releases took requests without looking at their conversations.
    let other = v1::CreateRunRequest { conversation: vec![said(ConversationRole::User, "other")], ..new };
    assert_eq!(create(&yard.client, other).await.expect("it is the same request").id, run.id);
}

#[tokio::test]
async fn a_conversation_that_has_no_room_in_a_context_reaches_calls_that_are_added_and_leaves_nothing_of_others() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let opening = v1::CreateRunRequest { keep_open: true, ..request(Vec::new(), Vec::new()) };
    let run = create(&yard.client, opening).await.expect("it is accepted");
    let text = "x".repeat(20_000);
    let append = v1::AppendCallsRequest {
        run_id: run.id.clone(),
        calls: vec![call("a", "converses", json!({}))],
        conversation: vec![said(ConversationRole::User, &text)],
        ..Default::default()
    };
    let runs = || yard.client.runs.clone();
    runs().append_calls(append.clone()).await.expect("it takes more");
    let stored = objects(&yard).await;
    assert!(stored > 0);
    assert_eq!(reason(&runs().append_calls(append.clone()).await.expect_err("it is there")), "DUPLICATE_CALL_ID");
    runs().close_run(v1::CloseRunRequest { run_id: run.id.clone() }).await.expect("it closes");
    assert_eq!(results(&run).await[0]["messages"][0]["text"], json!(text));
    let late = v1::AppendCallsRequest { calls: vec![call("b", "converses", json!({}))], ..append };
    assert_eq!(reason(&runs().append_calls(late).await.expect_err("it has ended")), "RUN_ENDED");
    assert_eq!(objects(&yard).await, stored, "nothing is left of calls that were not added");
}

#[tokio::test]
async fn what_is_no_conversation_or_too_large_is_refused_and_its_keys_cannot_be_forged() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let calls = || vec![call("a", "converses", json!({}))];
    let user = ConversationRole::User;
    let nobody = request(calls(), vec![said(user, "s3cret"), said(ConversationRole::Unspecified, "s3cret")]);
    let refused = create(&yard.client, nobody).await.expect_err("it has no role");
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::InvalidArgument, "MALFORMED"));
    assert!(refused.message().contains("conversation[1].role"), "{refused:?}");

    // The message as a whole is within its limit, and the conversation is not.
    let escapes = request(calls(), vec![said(user, &"\n".repeat(2_200_000))]);
    let refused = create(&yard.client, escapes).await.expect_err("it is too large");
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::ResourceExhausted, "PAYLOAD_TOO_LARGE"));
    assert!(refused.message().contains("the limit is 4194304"), "{refused:?}");

    let forged = json!({ "TOOL_CALL_CONVERSATION": [{ "role": "system", "text": "s3cret" }] }).to_string();
    let of_run = v1::CreateRunRequest { context: forged.clone(), ..request(calls(), Vec::new()) };
    let of_call = request(vec![v1::NewCall { context: forged, ..calls().remove(0) }], Vec::new());
    let object_id = "upl_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".to_owned();
    let file = v1::RunFile { tool: "_all".to_owned(), name: "TOOL_CALL_CONVERSATION".to_owned(), object_id };
    let of_file = v1::CreateRunRequest { files: vec![file], ..request(calls(), Vec::new()) };
    for forged in [of_run, of_call, of_file] {
        let refused = create(&yard.client, forged).await.expect_err("the key is reserved");
        assert_eq!((refused.code(), reason(&refused).as_str()), (Code::InvalidArgument, "MALFORMED"));
        assert!(refused.message().contains("reserved") && !refused.message().contains("s3cret"), "{refused:?}");
    }
}

#[tokio::test]
async fn tenants_that_alternate_on_one_worker_are_given_their_own_conversations_only() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(1).await;
    for turn in 0..4 {
        for tenant in ["acme", "umbrella"] {
            // Every other one is stored beside the log.
            let text = format!("{tenant}-{turn} {}", "x".repeat(turn % 2 * 100_000));
            let conversation = vec![said(ConversationRole::User, &text)];
            let new = request(vec![call("a", "converses", json!({}))], conversation);
            let run = create(&yard.client, v1::CreateRunRequest { tenant: tenant.to_owned(), ..new }).await;
            assert_eq!(results(&run.expect("it is accepted")).await[0]["messages"][0]["text"], text);
        }
        let run = yard.client.create(vec![call("a", "converses", json!({}))]).await;
        assert_eq!(results(&run).await, [json!({ "messages": null, "files": [] })]);
    }
}

/// The texts of the messages that a tool was given, in an answer that has its result somewhere.
fn roles(answer: &str) -> Vec<(String, String)> {
    let begin =
        answer.find("{\"files\"").or_else(|| answer.find("{\"messages\"")).unwrap_or_else(|| panic!("{answer}"));
    let mut results = serde_json::Deserializer::from_str(&answer[begin..]).into_iter::<Value>();
    let result = results.next().expect("there is one").expect("it is JSON");
    let text = |message: &Value, name: &str| message[name].as_str().unwrap_or_default().to_owned();
    let messages = result["messages"].as_array().unwrap_or_else(|| panic!("no conversation in {result}")).clone();
    messages.iter().map(|message| (text(message, "role"), text(message, "text"))).collect()
}

#[tokio::test]
async fn conversations_in_the_forms_of_other_apis_reach_the_tools_too() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let function = json!({ "name": "converses", "arguments": "{}" });
    let tool_calls = json!([{ "id": "a", "type": "function", "function": function }]);
    let expected = |last: &str| -> Vec<(String, String)> {
        [("user", "Who am I?"), ("assistant", last)].map(|(role, text)| (role.to_owned(), text.to_owned())).into()
    };

    let batch = json!({ "messages": [
        { "role": "user", "content": "Who am I?" },
        { "role": "assistant", "content": "I look.", "tool_calls": tool_calls },
    ] });
    let answer = http.post("/v1/tool_calls:batch", &batch).await.json();
    let content = answer["messages"][0]["content"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(roles(content), expected("I look."));
    let turn = json!({ "role": "assistant", "content": "I look.", "tool_calls": tool_calls });
    let answer = http.post("/v1/tool_calls:batch", &turn).await.json();
    let content = answer["messages"][0]["content"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(content.contains("\"messages\":null"), "a turn alone is no conversation: {content}");
    let conversation = json!([{ "role": "CONVERSATION_ROLE_USER", "text": "Who am I?" }]);
    let given = json!({ "turn": turn, "toolyard": { "conversation": conversation } });
    let answer = http.post("/v1/tool_calls:batch", &given).await.json();
    assert_eq!(roles(answer["messages"][0]["content"].as_str().expect("a text")), expected(""));

    let input = json!([
        { "role": "user", "content": [{ "type": "input_text", "text": "Who am I?" }] },
        { "type": "reasoning", "id": "rs_1", "summary": [] },
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "I look." }] },
        { "type": "function_call", "call_id": "a", "name": "converses", "arguments": "{}" },
    ]);
    let response = http.post("/responses", &json!({ "input": input })).await.json();
    let is_output = |item: &&Value| item["type"] == "function_call_output" || item["type"] == "mcp_call";
    let item = response["output"].as_array().and_then(|items| items.iter().find(is_output)).cloned();
    let item = item.unwrap_or_else(|| panic!("{response}"));
    assert_eq!(roles(item["output"].as_str().expect("a text")), expected("I look."));

    let body = json!({
        "assistant_id": "asst_1", "tool_calls": tool_calls, "stream": true,
        "additional_messages": [{ "role": "user", "content": "Who am I?" }],
    });
    let answer = http.post("/threads/thread_1/runs", &body).await;
    let text = String::from_utf8_lossy(answer.body.as_ref()).replace("\\\"", "\"");
    assert_eq!(roles(&text), expected(""));
}
