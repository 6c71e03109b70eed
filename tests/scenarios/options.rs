//! Every option of a run, through each endpoint that has a form of its own, with the effect that it has.

use harness::{Http, Run, Yard};
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy, RunStatus};
use serde_json::{Value, json};

use crate::FIXTURE;

const ENDPOINTS: [&str; 3] = ["batch", "responses", "assistants"];

/// A call: its id, its tool and its arguments.
type Call<'a> = (&'a str, &'a str, Value);

/// Sends calls with options to an endpoint, and returns the id of their run.
async fn send(http: Http, endpoint: &str, calls: &[Call<'_>], options: Value) -> String {
    let (path, body, id) = match endpoint {
        "batch" => {
            let call =
                |(id, name, input): &Call<'_>| json!({ "type": "tool_use", "id": id, "name": name, "input": input });
            let content: Vec<Value> = calls.iter().map(call).collect();
            let turn = json!({ "role": "assistant", "content": content });
            ("/v1/tool_calls:batch?wait=1s", json!({ "turn": turn, "toolyard": options }), "run_id")
        }
        "responses" => {
            let call = |(id, name, input): &Call<'_>| {
                let arguments = input.to_string();
                json!({ "type": "function_call", "call_id": id, "name": name, "arguments": arguments })
            };
            let input: Vec<Value> = calls.iter().map(call).collect();
            ("/v1/responses", json!({ "input": input, "toolyard": options }), "id")
        }
        _ => {
            let call = |(id, name, input): &Call<'_>| {
                let function = json!({ "name": name, "arguments": input.to_string() });
                json!({ "id": id, "type": "function", "function": function })
            };
            let calls: Vec<Value> = calls.iter().map(call).collect();
            ("/v1/threads/runs", json!({ "tool_calls": calls, "toolyard": options }), "id")
        }
    };
    let answer = http.post(path, &body).await;
    assert_eq!(answer.status, 200, "{endpoint}: {answer:?}");
    answer.json()[id].as_str().expect("an id").replacen("resp_", "run_", 1)
}

async fn sent(yard: &Yard, endpoint: &str, calls: &[Call<'_>], options: Value) -> Run {
    Run { client: yard.client.clone(), id: send(yard.http(), endpoint, calls, options).await }
}

/// The run, once it has ended.
async fn ended(yard: &Yard, endpoint: &str, calls: &[Call<'_>], options: Value) -> v1::Run {
    let run = sent(yard, endpoint, calls, options).await;
    run.watch(FloorPolicy::Arrival).await.to_end().await;
    run.get().await
}

fn outcome(run: &v1::Run, call: usize) -> &v1::CallOutcome {
    run.calls[call].outcome.as_ref().expect("it has ended")
}

fn error(run: &v1::Run, call: usize) -> CallErrorKind {
    outcome(run, call).error.as_ref().unwrap_or_else(|| panic!("it failed: {run:?}")).kind()
}

fn text(run: &v1::Run, call: usize) -> String {
    crate::check::text(outcome(run, call))
}

#[tokio::test]
async fn each_endpoint_takes_what_a_run_says_of_its_tools_files_and_tenant() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let upload = yard.http().post("/v1/objects", &json!("a file")).await.json();
    let object = upload["object"]["object_id"].as_str().expect("an upload has an id").to_owned();
    for endpoint in ENDPOINTS {
        let echo = || ("a", "echo", json!({ "text": "hi" }));
        let files = json!({ "files": [{ "tool": "opens", "name": "notes", "object_id": object }] });
        let run = ended(&yard, endpoint, &[("a", "opens", json!({}))], files).await;
        assert!(text(&run, 0).starts_with("notes 8 "), "{endpoint}: {}", text(&run, 0));
        let run = ended(&yard, endpoint, &[echo()], json!({ "tenant": "acme" })).await;
        assert_eq!((run.tenant.as_str(), text(&run, 0).as_str()), ("acme", "hi"), "{endpoint}");
        let attached = json!({ "tools": ["knows"], "context": "{\"user\":\"Ada\"}" });
        let run = ended(&yard, endpoint, &[echo(), ("b", "knows", json!({}))], attached).await;
        assert_eq!((error(&run, 0), text(&run, 1).as_str()), (CallErrorKind::UnknownTool, "Hello, Ada!"), "{endpoint}");
        let own = json!({ "request_tools": [{ "name": "pick", "input_schema": "{\"type\":\"object\"}" }] });
        let run = sent(&yard, endpoint, &[("a", "pick", json!({ "colour": "blue" }))], own).await.get().await;
        assert_eq!(run.calls[0].state(), CallState::WaitingForClient, "{endpoint}");
        let run = sent(&yard, endpoint, &[echo()], json!({ "execute": false })).await.get().await;
        assert_eq!((run.calls[0].state(), run.calls[0].attempts), (CallState::WaitingForClient, 0), "{endpoint}");
    }
}

#[tokio::test]
async fn each_endpoint_takes_what_a_run_says_of_its_times_its_failures_and_its_storage() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(2).await;
    let sleep = |id: &'static str| (id, "sleep", json!({ "ms": 600_000, "text": "awake" }));
    for endpoint in ENDPOINTS {
        let run = ended(&yard, endpoint, &[("a", "echo", json!({ "text": "hi" }))], json!({ "timeout": "90s" })).await;
        let seconds = |time: Option<prost_types::Timestamp>| time.expect("a time").seconds;
        let lasts = seconds(run.deadline) - seconds(run.create_time);
        assert!((89..=91).contains(&lasts), "{endpoint}: {lasts} s");
        assert!(run.erase_time.is_none(), "{endpoint}");
        let run = ended(&yard, endpoint, &[("a", "echo", json!({ "text": "hi" }))], json!({ "store": false })).await;
        assert!(run.erase_time.is_some(), "{endpoint}");
        let failing = [sleep("a"), ("b", "echo", json!({ "nothing": 1 }))];
        let run = ended(&yard, endpoint, &failing, json!({ "fail_fast": true })).await;
        assert_eq!((run.status(), run.calls[0].state()), (RunStatus::Failed, CallState::Cancelled), "{endpoint}");
        let overdue = ended(&yard, endpoint, &[sleep("a")], json!({ "timeout": "1s" })).await;
        // The call and its run have the same deadline: either may be ended first.
        assert_eq!(overdue.calls[0].state(), CallState::Expired, "{endpoint}");
    }
    // Both slots are taken from here on.
    let both = ["x", "y"].map(|id| harness::call(id, "sleep", json!({ "ms": 600_000, "text": "" })));
    let taken = yard.client.create(both.into()).await;
    let mut events = taken.watch(FloorPolicy::Interleaved).await;
    for _ in 0..2 {
        events.until(|event| matches!(event, v1::run_event::Event::AttemptStarted(_))).await;
    }
    for endpoint in ENDPOINTS {
        let options = json!({ "calls": [{ "call_id": "a", "queue_timeout": "0.5s" }] });
        let run = ended(&yard, endpoint, &[("a", "echo", json!({ "text": "late" }))], options).await;
        assert_eq!((run.calls[0].state(), run.calls[0].attempts), (CallState::Expired, 0), "{endpoint}");
    }
    taken.cancel("the test is over").await;
}

#[tokio::test]
async fn results_that_are_the_answer_end_a_turn_through_each_endpoint() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let answers = |id: &'static str| (id, "answers", json!({ "text": id }));
    for endpoint in ENDPOINTS {
        let run = ended(&yard, endpoint, &[answers("one"), answers("two")], json!({})).await;
        assert!(run.return_direct, "{endpoint}");
        if endpoint == "assistants" {
            let path = format!("/v1/threads/thread_1/runs/{}", run.run_id);
            let told = yard.http().get(&path).await.json();
            assert_eq!(told["toolyard"]["finish_reason"], "returnDirect", "{told}");
            let messages =
                yard.http().get(&format!("/v1/threads/thread_1/messages?run_id={}", run.run_id)).await.json();
            let texts: Vec<&Value> = messages["data"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|message| &message["content"][0]["text"]["value"])
                .collect();
            assert!(texts.len() == 2 && texts.contains(&&json!("one")) && texts.contains(&&json!("two")), "{messages}");
        }
        let mixed = [answers("one"), ("b", "echo", json!({ "text": "two" }))];
        assert!(!ended(&yard, endpoint, &mixed, json!({})).await.return_direct, "{endpoint}");
    }
}
