//! An assistant turn goes in as a vendor's model produced it, and its tool messages come out.

use harness::http::events;
use harness::{Http, Yard};
use hyper::Method;
use serde_json::{Value, json};

use crate::FIXTURE;

const JSON: (&str, &str) = ("content-type", "application/json");

async fn batch(http: Http, query: &str, turn: &Value) -> Value {
    let answer = http.post(&format!("/v1/tool_calls:batch{query}"), turn).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn anthropic(calls: &[(&str, &str, Value)]) -> Value {
    let block =
        |(id, name, input): &(&str, &str, Value)| json!({ "type": "tool_use", "id": id, "name": name, "input": input });
    json!({ "role": "assistant", "content": calls.iter().map(block).collect::<Vec<_>>() })
}

#[tokio::test]
async fn each_vendor_is_answered_in_its_own_form_and_in_the_order_of_its_calls() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let slow = json!({ "label": "s", "pieces": 3, "every_ms": 50 });
    let (slow_text, quick_text) = (slow.to_string(), "{\"text\":\"hi\"}");
    let chat = |id: &str, name: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
    let item = |id: &str, name: &str, arguments: &str| json!({ "type": "function_call", "call_id": id, "name": name, "arguments": arguments });
    let request = |id: u32, name: &str, arguments: &Value| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": name, "arguments": arguments } });
    let quick = json!({ "text": "hi" });
    let cases = [
        (
            "openai-chat",
            json!({ "role": "assistant", "content": null, "tool_calls": [chat("a", "count", &slow_text), chat("b", "echo", quick_text)] }),
            vec!["/0/tool_call_id", "/1/content"],
            vec![json!("a"), json!("hi")],
        ),
        (
            "openai-responses",
            json!([item("a", "count", &slow_text), item("b", "echo", quick_text)]),
            vec!["/0/call_id", "/1/output"],
            vec![json!("a"), json!("hi")],
        ),
        (
            "anthropic",
            anthropic(&[("a", "count", slow.clone()), ("b", "echo", quick.clone())]),
            vec!["/0/content/0/tool_use_id", "/0/content/1/content/0/text"],
            vec![json!("a"), json!("hi")],
        ),
        (
            "gemini",
            json!({ "role": "model", "parts": [{ "functionCall": { "name": "count", "args": slow } }, { "functionCall": { "id": "b", "name": "echo", "args": quick } }] }),
            vec!["/0/parts/0/functionResponse/name", "/0/parts/1/functionResponse/response/output"],
            vec![json!("count"), json!("hi")],
        ),
        (
            "mcp",
            json!([request(7, "count", &slow), request(8, "echo", &quick)]),
            vec!["/0/id", "/1/result/content/0/text"],
            vec![json!(7), json!("hi")],
        ),
    ];
    for (form, turn, places, expected) in cases {
        for query in ["", &format!("?format={form}&wait=20s")] {
            let answer = batch(yard.http(), query, &turn).await;
            assert_eq!(
                (&answer["format"], &answer["complete"], &answer["status"]),
                (&json!(form), &json!(true), &json!("RUN_STATUS_COMPLETED"))
            );
            for (place, expected) in places.iter().zip(&expected) {
                assert_eq!(answer["messages"].pointer(place), Some(expected), "{form} {place}: {answer}");
            }
        }
    }
}

#[tokio::test]
async fn results_are_in_one_message_in_the_order_of_the_calls_whichever_ends_first() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    for round in 0..8_u64 {
        // As good as random, and the same in every run of the test.
        let delays: Vec<u64> = (1..=12_u64).map(|call| (call * (37 + 12 * round)) % 101 * 2).collect();
        let ids: Vec<String> = (0..delays.len()).map(|call| format!("c{call}")).collect();
        let calls: Vec<(&str, &str, Value)> =
            ids.iter().zip(&delays).map(|(id, ms)| (id.as_str(), "sleep", json!({ "ms": ms, "text": id }))).collect();
        let answer = batch(yard.http(), "?format=anthropic&wait=30s", &anthropic(&calls)).await;
        let messages = answer["messages"].as_array().expect("messages");
        let blocks = messages[0]["content"].as_array().expect("blocks");
        let answered: Vec<[&Value; 2]> =
            blocks.iter().map(|block| [&block["tool_use_id"], &block["content"][0]["text"]]).collect();
        let expected: Vec<[Value; 2]> = ids.iter().map(|id| [json!(id), json!(id)]).collect();
        let expected: Vec<[&Value; 2]> = expected.iter().map(|pair| pair.each_ref()).collect();
        assert_eq!((messages.len(), answered), (1, expected), "with the delays {delays:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_executed_is_told_to_the_model_and_spoils_nothing() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let call = |id: &str, name: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
    let calls = [
        call("a", "echo", "{\"text\":"),
        call("b", "ecko", "{}"),
        call("c", "no such name!", "{}"),
        call("d", "count", "{\"pieces\":\"many\"}"),
        call("e", "echo", "{\"text\":\"fine\"}"),
    ];
    let answer = batch(yard.http(), "", &json!({ "role": "assistant", "tool_calls": calls })).await;
    let said: Vec<&str> = answer["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .filter_map(|message| message["content"].as_str())
        .collect();
    assert_eq!((said.len(), said[4]), (5, "fine"), "{answer}");
    assert!(said[..4].iter().all(|said| said.starts_with("Error: ")), "{answer}");
    assert!(said[1].contains("echo"), "it names the tools that there are: {}", said[1]);
    // Nothing is left to execute: then there is no run.
    let answer = batch(yard.http(), "", &json!({ "role": "assistant", "tool_calls": [call("a", "echo", "{")] })).await;
    assert_eq!((&answer["complete"], &answer["run_id"]), (&json!(true), &Value::Null));
    let answer = batch(yard.http(), "?format=anthropic", &anthropic(&[])).await;
    assert_eq!((&answer["messages"], &answer["complete"]), (&json!([]), &json!(true)));
}

#[tokio::test]
async fn results_are_the_answer_where_all_of_a_turn_return_directly() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let text = || json!({ "text": "hi" });
    let search = json!({ "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} });
    let table = [
        (vec![("a", "answers", text())], None, true),
        (vec![("a", "answers", text()), ("b", "answers", text())], None, true),
        (vec![("a", "answers", text()), ("b", "echo", text())], None, false),
        (vec![("a", "answers", text()), ("b", "answers", json!({}))], None, false),
        (vec![("a", "answers", text()), ("b", "no such name!", json!({}))], None, false),
        (vec![("a", "answers", text())], Some(search), false),
        (vec![], None, false),
    ];
    for (calls, beside, expected) in table {
        let mut turn = anthropic(&calls);
        turn["content"].as_array_mut().expect("blocks").extend(beside);
        let answer = batch(yard.http(), "?format=anthropic", &turn).await;
        assert_eq!((&answer["complete"], &answer["return_direct"]), (&json!(true), &json!(expected)), "{answer}");
        let results = answer["messages"][0]["content"].as_array().map_or(0, Vec::len);
        assert_eq!(results, calls.len(), "all results are there either way: {answer}");
    }
}

#[tokio::test]
async fn a_turn_that_takes_longer_or_waits_for_its_client_is_waited_for_again() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let turn = anthropic(&[
        ("slow", "count", json!({ "label": "s", "pieces": 20, "every_ms": 100 })),
        ("ask", "ask_user", json!({ "question": "Which?" })),
        ("now", "echo", json!({ "text": "here" })),
    ]);
    let again = async |wait: &str| {
        let headers = [JSON, ("idempotency-key", "turn-1")];
        http.ask(Method::POST, &format!("/v1/tool_calls:batch?wait={wait}"), &headers, turn.to_string()).await.json()
    };
    let first = again("0s").await;
    assert_eq!(first["complete"], false);
    let open = |answer: &Value| {
        answer["open_calls"].as_array().expect("a list").iter().map(|call| call["call_id"].clone()).collect::<Vec<_>>()
    };
    assert!(open(&first).contains(&json!("slow")), "{first}");
    // All but the client's own call has ended, or will be waited for.
    let second = again("30s").await;
    assert_eq!(
        (&second["run_id"], open(&second), &second["status"]),
        (&first["run_id"], vec![json!("ask")], &json!("RUN_STATUS_REQUIRES_ACTION"))
    );
    assert_eq!(second["open_calls"][0]["state"], "CALL_STATE_WAITING_FOR_CLIENT");
    let run = second["run_id"].as_str().expect("there is a run");
    let outputs = json!({ "outputs": [{ "call_id": "ask", "result": [{ "text": "the blue one" }] }] });
    assert_eq!(http.post(&format!("/v1/runs/{run}/outputs"), &outputs).await.status, 200);
    let third = again("30s").await;
    assert_eq!((&third["complete"], &third["run_id"]), (&json!(true), &first["run_id"]));
    let said: Vec<&Value> = third["messages"][0]["content"]
        .as_array()
        .expect("blocks")
        .iter()
        .map(|block| &block["content"][0]["text"])
        .collect();
    assert_eq!(said[1..], ["the blue one", "here"]);
    assert_eq!(again("30s").await, third, "the same request has the same answer");
}

#[tokio::test]
async fn a_turn_that_is_not_waited_for_is_answered_with_what_ended_at_once() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let turn = anthropic(&[("a", "no_such_tool", json!({}))]);
    let answer = batch(yard.http(), "?wait=0s&format=anthropic", &turn).await;
    assert_eq!((&answer["complete"], &answer["open_calls"]), (&json!(true), &json!([])), "{answer}");
    assert_eq!(answer["messages"][0]["content"][0]["is_error"], true, "{answer}");
}

#[tokio::test]
async fn a_client_that_accepts_events_sees_the_output_and_then_the_answer() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let turn = anthropic(&[("a", "count", json!({ "label": "a", "pieces": 3, "every_ms": 1 }))]).to_string();
    let headers = [JSON, ("accept", "text/event-stream")];
    let streamed = yard.http().ask(Method::POST, "/v1/tool_calls:batch", &headers, turn).await;
    let sent = events(&streamed.body);
    let (answer, output) = sent.split_last().expect("there are events");
    assert_eq!((answer.name.as_deref(), &answer.json()["complete"]), (Some("messages"), &json!(true)));
    let numbers: Vec<u64> = output.iter().filter_map(|event| event.id).collect();
    assert_eq!(numbers, (0..output.len() as u64).collect::<Vec<_>>());
    let run = answer.json()["run_id"].as_str().expect("there was a run").to_owned();
    let watched = yard.http().get(&format!("/v1/runs/{run}/events?floor_policy=FLOOR_POLICY_INTERLEAVED")).await;
    assert_eq!(events(&watched.body)[..output.len()], *output, "it is the run's own output");
}

#[tokio::test]
async fn a_turn_of_no_known_form_is_refused_with_its_place() {
    let yard = Yard::start(FIXTURE).await;
    let chat = json!({ "role": "assistant", "tool_calls": [{ "id": "a", "type": "function", "function": { "name": "echo", "arguments": "{}" } }] }).to_string();
    let twice = anthropic(&[("a", "echo", json!({})), ("a", "echo", json!({}))]).to_string();
    let cases = [
        ("", "{\"hello\":1}", "FORM_UNKNOWN"),
        ("", "{\"role\":\"assistant\",\"tool_calls\":[", "MALFORMED"),
        ("", &twice, "DUPLICATE_CALL_ID"),
        ("?format=anthropic", &chat, "FORM_MISMATCH"),
        ("?format=klingon", &chat, "MALFORMED"),
        ("?wait=long", &chat, "MALFORMED"),
        ("?wait=301s", &chat, "MALFORMED"),
        ("?wiat=1s", &chat, "MALFORMED"),
        ("?tenant=no%20such%20name", &chat, "MALFORMED"),
    ];
    for (query, turn, reason) in cases {
        let refused =
            yard.http().ask(Method::POST, &format!("/v1/tool_calls:batch{query}"), &[JSON], turn.to_owned()).await;
        assert_eq!(refused.problem(), (400, reason.to_owned()), "{query} {turn}");
        assert!(refused.json()["errors"][0]["detail"].is_string(), "{query} {turn}");
    }
    let headers = [JSON, ("idempotency-key", "a\u{e9}")];
    let refused = yard.http().ask(Method::POST, "/v1/tool_calls:batch", &headers, chat).await;
    assert_eq!((refused.problem().0, &refused.json()["errors"][0]["header"]), (400, &json!("idempotency-key")));
}
