//! What the loop of an agent makes of the results of its calls: those of tools that return directly are the answer,
//! images reach the model, tools receive the conversation, and a limit of tokens holds for everything below.

use client::agent::{Agent, AgentError, Form, Limits, Message, Said, Start};
use client::{Client, Connection};
use harness::Yard;
use harness::model::{Asked, Line};
use proto::v1::{self, CallErrorKind, CallState, RunStatus};
use serde_json::{Value, json};

use crate::agents::Office;
use crate::{FIXTURE, check};

async fn connected(yard: &Yard) -> Client {
    Client::connect(&Connection::to(format!("http://{}", yard.coordinator.address()))).await.expect("it connects")
}

/// A message that calls tools.
fn calls(calls: &[(&str, &str, Value)], tokens: u64) -> Said {
    let call = |(id, name, arguments): &(&str, &str, Value)| {
        let function = json!({ "name": name, "arguments": arguments.to_string() });
        json!({ "id": id, "type": "function", "function": function })
    };
    let calls: Vec<Value> = calls.iter().map(call).collect();
    let message = json!({ "role": "assistant", "content": null, "tool_calls": calls });
    Said { message: Message::from_string(message.to_string()).expect("JSON"), tokens }
}

fn start(request_id: &str, tools: &[&str]) -> Start {
    let run = v1::CreateRunRequest { request_id: request_id.to_owned(), ..v1::CreateRunRequest::default() };
    Start { run, tools: tools.iter().map(|&tool| tool.to_owned()).collect(), ..Start::default() }
}

const LOOPS: &str = r#"
[agent.quick]
OPENAI
description = "Answers with what a tool found."
tools = ["answers", "echo"]
[agent.sighted]
ANTHROPIC
description = "Sees pictures."
tools = ["draws"]
[agent.listened]
OPENAI
instruction = "Be brief."
description = "Has tools that know what was said."
tools = ["converses"]
[agent.lead]
OPENAI
description = "Has another one work."
tools = ["worker"]
confirmation = "none"
tokens_max = 25
[agent.worker]
OPENAI
description = "Works."
tools = ["echo"]
tokens_max = 1000
"#;

#[tokio::test]
async fn a_turn_whose_tools_all_return_directly_is_the_answer_and_the_model_is_not_asked_again() {
    let answers = |text: &str| ("answers", json!({ "text": text }));
    let mixed = Line::calls(&[answers("one"), ("echo", json!({ "text": "two" }))]);
    let script = [
        ("single", vec![Line::calls(&[answers("forty-two")])]),
        ("several", vec![Line::calls(&[answers("one"), answers("two")])]),
        ("mixed", vec![mixed, Line::text("Both.")]),
    ];
    let office = Office::start(LOOPS, &script, 16).await;
    for (word, answer, asked) in [("several", "", 1), ("single", "", 1), ("mixed", "Both.", 2)] {
        let (events, outcome) = office.outcome("quick", word).await;
        assert_eq!(outcome.state(), CallState::Completed, "{outcome:?}");
        let text = check::text(&outcome);
        match word {
            "mixed" => assert_eq!(text, answer),
            // The tool repeats its metadata behind the text.
            "single" => assert!(text.starts_with("forty-two, 1, a, run_"), "{text}"),
            _ => {
                let texts: Vec<String> = serde_json::from_str(&text).expect("an array");
                assert!(texts[0].starts_with("one, ") && texts[1].starts_with("two, "), "{texts:?}");
            }
        }
        assert_eq!(office.model.asked().iter().filter(|it| it.word == word).count(), asked, "{word}");
        assert_eq!(office.child(&events).get().await.status(), RunStatus::Completed, "{word}");
    }
}

#[tokio::test]
async fn a_loop_that_goes_on_after_a_direct_answer_has_the_same_answer() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let client = connected(&yard).await;
    let start = || start("direct-1", &["answers"]);
    let mut agent = Agent::open(&client, start()).await.expect("it opens");
    agent.store(calls(&[("c1", "answers", json!({ "text": "done" }))], 1)).await.expect("it is stored");
    assert!(agent.next().await.expect("it was the answer").is_none());
    assert_eq!(agent.text(), "done");
    let mut other = Agent::open(&client, start()).await.expect("it opens");
    assert!(other.next().await.expect("it was the answer").is_none());
    assert_eq!(other.text(), "done");
    // One that failed is no answer.
    other.store(calls(&[("c2", "answers", json!({}))], 1)).await.expect("it is stored");
    assert_eq!(other.next().await.expect("it goes on").map(|messages| messages.len()), Some(4));
}

#[tokio::test]
async fn the_model_of_an_agent_sees_a_stored_image_and_a_note_of_one_that_is_too_large() {
    let draws = |bytes: usize| Line::calls(&[("draws", json!({ "bytes": bytes }))]);
    let script = [
        ("stored", vec![draws(1 << 20), Line::text("A picture.")]),
        ("large", vec![draws(9 << 20), Line::text("A reference.")]),
    ];
    let office = Office::start(LOOPS, &script, 16).await;
    for word in ["stored", "large"] {
        let (_, outcome) = office.outcome("sighted", word).await;
        assert_eq!(outcome.state(), CallState::Completed, "{outcome:?}");
        let asked: Vec<Asked> = office.model.asked().into_iter().filter(|asked| asked.word == word).collect();
        let block = asked[1].body["messages"][2]["content"][0]["content"][0].clone();
        if word == "stored" {
            assert_eq!((&block["type"], &block["source"]["media_type"]), (&json!("image"), &json!("image/png")));
            let base64 = block["source"]["data"].as_str().expect("bytes");
            assert_eq!(base64.len(), (1_usize << 20).div_ceil(3) * 4);
        } else {
            assert!(block["text"].as_str().is_some_and(|note| note.contains("stored as")), "{block}");
        }
    }
}

#[tokio::test]
async fn a_tool_of_an_agent_receives_what_was_said_before_its_call() {
    let converse = || Line::calls(&[("converses", json!({}))]);
    let office = Office::start(LOOPS, &[("who", vec![converse(), converse(), Line::text("You.")])], 16).await;
    let (_, outcome) = office.outcome("listened", "who").await;
    assert_eq!(check::text(&outcome), "You.");
    let asked: Vec<Asked> = office.model.asked().into_iter().filter(|asked| asked.word == "who").collect();
    let heard = |turn: usize| -> Vec<Value> {
        let messages = asked[turn].body["messages"].as_array().expect("messages");
        let text = messages.last().expect("an answer")["content"].as_str().expect("text");
        let told: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        told["messages"].as_array().unwrap_or_else(|| panic!("a conversation: {told}")).clone()
    };
    let first = heard(1);
    assert_eq!(first[0], json!({ "role": "system", "text": "Be brief." }));
    assert_eq!(first[1], json!({ "role": "user", "text": "who" }));
    assert_eq!((first.len(), &first[2]["calls"][0]["tool"]), (3, &json!("converses")), "{first:?}");
    let roles: Vec<Value> = heard(2).iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
}

#[tokio::test]
async fn the_tokens_of_agents_below_count_and_none_has_more_than_is_left() {
    let delegate = |word: &str| Line::calls(&[("worker", json!({ "input": word }))]);
    let again = || Line::calls(&[("echo", json!({ "text": "again" }))]);
    // Each message takes 10 tokens.
    let script = [
        ("plan", vec![delegate("task"), Line::text("never")]),
        ("greedy", vec![delegate("endless"), Line::text("never")]),
        ("task", vec![Line::text("done")]),
        ("endless", vec![again(), again(), again(), again()]),
    ];
    let office = Office::start(LOOPS, &script, 16).await;
    // The lead has used 10, and the worker below 10 of the 15 that were left: 5 are left for the next message.
    let (events, outcome) = office.outcome("lead", "plan").await;
    assert_eq!(check::text(&outcome), "never", "{outcome:?}");
    let child = office.child(&events).get().await;
    let records: Vec<Value> = child
        .calls
        .iter()
        .filter(|call| call.tool == "assistant_turn")
        .map(|call| serde_json::from_str(&call.arguments).expect("a record"))
        .collect();
    assert_eq!((&records[0]["tokens"], &records[0]["below"]), (&json!(10), &Value::Null));
    assert_eq!((&records[1]["tokens"], &records[1]["below"]), (&json!(10), &json!(10)), "of the worker");
    let error = office.error("lead", "greedy").await;
    assert_eq!(error.kind(), CallErrorKind::LimitExceeded);
    assert!(error.message.contains("it used 30 tokens, its limit is 25"), "{}", error.message);
    assert_eq!(office.model.count("endless", 2), 0, "15 tokens were left to it, which two messages used up");
}

#[tokio::test]
async fn a_failure_of_the_model_is_a_message_if_the_service_wants_it() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let client = connected(&yard).await;
    let mut agent = Agent::open(&client, start("failed-1", &["echo"])).await.expect("it opens");
    agent.next().await.expect("it goes on").expect("messages");
    let said = Said::exception(Form::Chat, "the service answered 503").expect("Chat Completions has messages");
    agent.store(said).await.expect("it is stored");
    assert!(agent.next().await.expect("it is the answer").is_none());
    assert_eq!((agent.text().as_str(), agent.tokens()), ("Exception: the service answered 503", 0));
    agent.close().await.expect("it is closed");
    for form in [Form::Responses, Form::Anthropic, Form::Gemini] {
        let request_id = format!("failed-{form:?}");
        let opening = Start { form, ..start(&request_id, &["echo"]) };
        let mut agent = Agent::open(&client, opening).await.expect("it opens");
        agent.store(Said::exception(form, "no").expect("it has messages")).await.expect("it is stored");
        assert!(agent.next().await.expect("it is the answer").is_none(), "{form:?}");
        assert_eq!(agent.text(), "Exception: no", "{form:?}");
    }
    assert!(Said::exception(Form::Mcp, "no").is_none());
}

#[tokio::test]
async fn a_loop_without_tokens_left_asks_nothing() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let client = connected(&yard).await;
    let limits = Limits { tokens: Some(20), ..Limits::default() };
    let mut agent = Agent::open(&client, Start { limits, ..start("poor-1", &["echo"]) }).await.expect("it opens");
    let two = [("c1", "echo", json!({ "text": "one" })), ("c2", "echo", json!({ "text": "two" }))];
    agent.store(calls(&two, 12)).await.expect("it is stored");
    let messages = agent.next().await.expect("8 are left").expect("messages");
    let told = |message: &Message| serde_json::from_str::<Value>(message.get()).expect("JSON")["content"].clone();
    // The tool repeats its metadata: the calls of a message share what is left.
    assert_eq!((told(&messages[1]), told(&messages[2])), (json!("one, 4"), json!("two, 4")));
    agent.store(calls(&two, 8)).await.expect("it is stored");
    let ended = agent.next().await;
    assert!(matches!(ended, Err(AgentError::Tokens { used: 20, limit: 20 })), "{ended:?}");
    let run = client.run(agent.run_id()).await.expect("it is there");
    let ids: Vec<String> = run.calls.into_iter().map(|call| call.call_id).collect();
    assert_eq!(ids, ["t1", "t1.0", "t1.1", "t2", "t2.0", "t2.1"]);
}

/// What is to be reviewed.
#[derive(schemars::JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct Change {
    /// The change as a unified diff.
    diff: String,
    lines_max: Option<u32>,
}

#[test]
fn the_schema_of_an_agents_input_comes_from_a_type() {
    let agent = json!({
        "api": "openai", "url": "https://models.example/v1/chat/completions", "model": "m", "description": "Reviews.",
    });
    let read = || {
        let Value::Object(top) = json!({ "agent": { "reviewer": agent } }) else { unreachable!() };
        agents::Agents::of(top, std::path::Path::new("")).expect("it is a file of agents")
    };
    let fleet = collaboration::Fleet::new(Connection::to("http://127.0.0.1:1"));
    let typed = read().typed::<Change>("reviewer").expect("there is such an agent");
    let table = typed.host(worker::Table::new(), &fleet).expect("it is hosted");
    let manifest = table.manifests().find(|manifest| manifest.name.as_str() == "reviewer").expect("it is there");
    let schema: Value = serde_json::from_str(&manifest.input_schema).expect("JSON");
    assert_eq!(schema["properties"]["diff"]["description"], "The change as a unified diff.");
    assert_eq!(schema["required"], json!(["diff"]));
    let unknown = read().typed::<Change>("nobody").expect_err("there is no such agent");
    assert_eq!(unknown.to_string(), "there is no agent \"nobody\"");
}
