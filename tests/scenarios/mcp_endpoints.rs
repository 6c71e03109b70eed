//! Tools of MCP servers are called through every endpoint, and a question of such a server is asked and answered there.
//! `tests/mcp/test_servers.py` does the same with the program itself and its command line.

use harness::http::Answer;
use harness::{Http, Run, Yard, call, client_answer};
use hyper::Method;
use proto::v1::FloorPolicy;
use serde_json::{Value, json};

use crate::check;
use crate::mcp::Mcp;
use crate::mcp_in::{Hosting, answer};
use crate::questions::requires_action;

const ENDPOINTS: [&str; 5] = ["grpc", "batch", "responses", "assistants", "mcp"];
const ASKS: &str = "everything__trigger-elicitation-request";

/// A call in the form of Chat Completions.
fn chat(tool: &str, arguments: &Value) -> Value {
    let function = json!({ "name": tool, "arguments": arguments.to_string() });
    json!({ "tool_calls": [{ "id": "c", "type": "function", "function": function }], "tools": unasked() })
}

fn responses(tool: &str, arguments: &Value) -> Value {
    let item = json!({ "type": "function_call", "call_id": "c", "name": tool, "arguments": arguments.to_string() });
    json!({ "input": [item], "tools": unasked() })
}

/// No call of these awaits approval.
fn unasked() -> Value {
    json!([{ "type": "mcp", "server_label": "toolyard", "require_approval": "never" }])
}

async fn batch(http: Http, tool: &str, arguments: &Value, key: &str) -> Value {
    let turn = json!({ "role": "assistant",
        "content": [{ "type": "tool_use", "id": "c", "name": tool, "input": arguments }] });
    let headers = [("content-type", "application/json"), ("idempotency-key", key)];
    let path = "/v1/tool_calls:batch?wait=60s&confirmation=none";
    http.ask(Method::POST, path, &headers, turn.to_string()).await.json()
}

fn said(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{answer:?}");
    String::from_utf8_lossy(&answer.body).into_owned()
}

/// Everything that an endpoint shows of a call that has ended.
async fn called(endpoint: &str, yard: &Yard, tool: &str, arguments: &Value) -> String {
    let http = yard.http();
    match endpoint {
        "grpc" => answer(yard, tool, arguments.clone()).await,
        "batch" => batch(http, tool, arguments, tool).await["messages"].to_string(),
        "responses" => said(&http.post("/responses", &responses(tool, arguments)).await),
        "assistants" => {
            let mut body = chat(tool, arguments);
            body["stream"] = true.into();
            said(&http.post("/threads/runs", &body).await)
        }
        _ => Mcp::new(&yard.coordinator).call(tool, arguments.clone()).await.to_string(),
    }
}

#[tokio::test]
async fn a_tool_of_each_server_is_called_through_each_endpoint() {
    let hosting = Hosting::of_others().await;
    let (yard, folder) = (&hosting.yard, hosting.folder.path().canonicalize().expect("it is there"));
    let _worker = yard.worker().await;
    std::fs::write(folder.join("a.txt"), "written before").expect("a file can be written");
    let rows = [
        ("everything__echo", json!({ "message": "through and through" }), "through and through"),
        ("files__read_text_file", json!({ "path": folder.join("a.txt") }), "written before"),
        ("git__git_log", json!({ "repo_path": folder.join("repository") }), "the first commit"),
        ("time__get_current_time", json!({ "timezone": "Asia/Shanghai" }), "Asia/Shanghai"),
    ];
    for (tool, arguments, expected) in rows {
        yard.client.wait_for_tool(tool).await;
        for endpoint in ENDPOINTS {
            let text = called(endpoint, yard, tool, &arguments).await;
            assert!(text.contains(expected), "{tool} through {endpoint}: {text}");
        }
    }
}

/// Calls the tool that asks, answers its question through the same endpoint, and returns everything that is shown then.
async fn asked_and_answered(endpoint: &str, yard: &Yard, reply: &Value) -> String {
    let (http, nothing, text) = (yard.http(), json!({}), reply.to_string());
    let native = |id: &str| Run { client: yard.client.clone(), id: id.to_owned() };
    match endpoint {
        "grpc" => {
            let mut stream = yard.client.execute(vec![call("c", ASKS, nothing)]).await;
            stream.until(requires_action).await;
            let run = stream.run(&yard.client);
            run.submit(vec![client_answer("ask_0_1_1", &text)]).await.expect("it waits");
            check::text(&check::outcomes(&stream.to_end().await)["c"])
        }
        "batch" => {
            let open = batch(http, ASKS, &nothing, "asks").await;
            let calls = open["open_calls"].as_array().expect("calls");
            let question = calls.iter().find(|call| call["asked_by_call_id"] == "c").expect("the question is open");
            let run = native(open["run_id"].as_str().expect("an id"));
            let answered = json!({ "outputs": [{ "call_id": question["call_id"], "result": [{ "text": text }] }] });
            said(&http.post(&format!("/v1/runs/{}/outputs", run.id), &answered).await);
            run.watch(FloorPolicy::Arrival).await.to_end().await;
            batch(http, ASKS, &nothing, "asks").await["messages"].to_string()
        }
        "responses" => {
            let response = http.post("/responses", &responses(ASKS, &nothing)).await.json();
            let items = response["output"].as_array().expect("items");
            let open = items.iter().find(|item| item["name"] == "elicitation").expect("the question is an item");
            let output = json!({ "type": "function_call_output", "call_id": open["call_id"], "output": text });
            let body = json!({ "previous_response_id": response["id"], "input": [output] });
            said(&http.post("/responses", &body).await)
        }
        "assistants" => {
            let begun = http.post("/threads/thread_1/runs", &chat(ASKS, &nothing)).await.json();
            let run = native(begun["id"].as_str().expect("an id"));
            run.watch(FloorPolicy::Arrival).await.until(requires_action).await;
            let there = format!("/threads/thread_1/runs/{}", run.id);
            let seen = http.get(&there).await.json();
            let required = &seen["required_action"]["submit_tool_outputs"]["tool_calls"][0];
            assert_eq!(required["function"]["name"], "elicitation", "{seen}");
            let body = json!({ "tool_outputs": [{ "tool_call_id": required["id"], "output": text }], "stream": true });
            said(&http.post(&format!("{there}/submit_tool_outputs"), &body).await)
        }
        _ => {
            let mut client = Mcp::new(&yard.coordinator);
            client.capabilities = json!({ "elicitation": {} });
            let asked = client.call(ASKS, nothing.clone()).await["result"].clone();
            assert_eq!(asked["resultType"], "input_required", "{asked}");
            let names = asked["inputRequests"].as_object().expect("questions").keys().cloned();
            let replies: serde_json::Map<_, _> = names.map(|name| (name, reply.clone())).collect();
            let params = json!({ "name": ASKS, "arguments": {}, "inputResponses": replies,
                "requestState": asked["requestState"] });
            client.ask("tools/call", ASKS, params).await.to_string()
        }
    }
}

#[tokio::test]
async fn a_server_asks_the_client_of_each_endpoint_and_goes_on_with_its_answer() {
    let hosting = Hosting::of_others().await;
    let yard = &hosting.yard;
    let _worker = yard.worker().await;
    yard.client.wait_for_tool(ASKS).await;
    for endpoint in ENDPOINTS {
        let name = format!("Ada of {endpoint}");
        let reply = json!({ "action": "accept", "content": { "name": name } });
        let text = asked_and_answered(endpoint, yard, &reply).await;
        assert!(text.contains(&name), "through {endpoint}: {text}");
    }
    let declined = asked_and_answered("grpc", yard, &json!({ "action": "decline" })).await;
    assert!(declined.contains("declined"), "{declined}");
}
