//! Agents as tools, against a scripted model that speaks the real protocols: their loop is in the log, so a killed
//! worker costs no turn, and nothing of them reaches their caller but the answer.

use client::agent::{Agent, AgentError, Limits, Message, Said, Start};
use client::{Client, Connection};
use harness::model::{Asked, Line, MODEL_KEY, Model};
use harness::{Admin, PATIENCE, Run, Stream, Worker, Yard, call};
use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, CallState, Confirmation, FloorPolicy, RunStatus, call_output::Piece};
use serde_json::{Value, json};

use crate::{FIXTURE, check, hooks};

/// A yard with a worker that hosts agents beside the tools of most scenarios.
pub(crate) struct Office {
    pub(crate) yard: Yard,
    pub(crate) model: Model,
    pub(crate) fixture: harness::Fixture,
    pub(crate) worker: Worker,
    /// The admin port of the worker.
    pub(crate) admin: Admin,
    folder: tempfile::TempDir,
}

impl Office {
    pub(crate) async fn start(agents: &str, script: &[(&str, Vec<Line>)], slots: u32) -> Self {
        let (yard, model) = (Yard::start(FIXTURE).await, Model::start(script).await);
        let folder = tempfile::tempdir().expect("a folder");
        let fixture = model.of(&yard.fixture, agents, yard.coordinator.address());
        let admin = Admin::anywhere();
        let fixture = admin.of(&fixture).with("TOOLYARD_LOG", "debug").logging_to(&folder.path().join("log"));
        let worker = fixture.worker(&yard.broker.url(), "main", slots).await;
        yard.client.wait_for_tool("echo").await;
        Self { yard, model, fixture, worker, admin, folder }
    }

    /// The log of the worker that was started last.
    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).expect("the worker has a log")
    }

    pub(crate) async fn begin(&self, calls: Vec<v1::NewCall>) -> Stream {
        let rules = Some(v1::RunRules { confirmation: Confirmation::None.into(), ..v1::RunRules::default() });
        let request = v1::CreateRunRequest { calls, rules, ..v1::CreateRunRequest::default() };
        self.yard.client.execute_request(request).await.expect("it is accepted")
    }

    pub(crate) async fn outcome(&self, agent: &str, input: &str) -> (Vec<v1::RunEvent>, v1::CallOutcome) {
        let events = self.begin(vec![call("a", agent, json!({ "input": input }))]).await.to_end().await;
        check::whole(&events, true);
        let outcome = check::outcomes(&events)["a"].clone();
        (events, outcome)
    }

    pub(crate) async fn error(&self, agent: &str, input: &str) -> v1::CallError {
        let (_, outcome) = self.outcome(agent, input).await;
        outcome.error.unwrap_or_else(|| panic!("{agent} completed: {:?}", outcome.result))
    }

    pub(crate) fn child(&self, events: &[v1::RunEvent]) -> Run {
        Run { client: self.yard.client.clone(), id: child_of(events).expect("the agent reports its run") }
    }

    /// Waits until an agent's run has a call, and returns the run.
    pub(crate) async fn until_called(&self, stream: &mut Stream, call_id: &str) -> Run {
        stream.until(|event| is_run(event).is_some()).await;
        let child = self.child(&stream.seen);
        let mut events = child.watch(FloorPolicy::Interleaved).await;
        events.until(|event| matches!(event, Event::AttemptStarted(started) if started.call_id == call_id)).await;
        child
    }
}

/// The run that a report of progress names.
pub(crate) fn is_run(event: &Event) -> Option<&str> {
    match event {
        Event::CallOutput(v1::CallOutput { piece: Some(Piece::Progress(progress)), .. }) => {
            progress.message.strip_prefix("run ")
        }
        _ => None,
    }
}

fn child_of(events: &[v1::RunEvent]) -> Option<String> {
    check::kinds(events).into_iter().find_map(is_run).map(str::to_owned)
}

fn roles(asked: &Asked) -> Vec<String> {
    let messages = asked.body["messages"].as_array().expect("messages");
    messages.iter().map(|message| message["role"].as_str().expect("a role").to_owned()).collect()
}

fn echo(text: &str) -> (&str, Value) {
    ("echo", json!({ "text": text }))
}

const SCOUTS: &str = r#"
[agent.chat]
OPENAI
description = "Looks around."
instruction = "You are a scout."
tools = ["echo"]
[agent.chat_whole]
OPENAI
stream = false
description = "Looks around."
instruction = "You are a scout."
tools = ["echo"]
[agent.claude]
ANTHROPIC
description = "Looks around."
instruction = "You are a scout."
tools = ["echo"]
[agent.claude_whole]
ANTHROPIC
stream = false
description = "Looks around."
instruction = "You are a scout."
tools = ["echo"]
"#;

#[tokio::test]
async fn an_agent_answers_over_both_apis_streamed_and_whole() {
    let look = Line::Says("Let me look.".to_owned(), vec![("echo".to_owned(), json!({ "text": "a reef" }))]);
    let lines = vec![look, Line::text("There is a reef.")];
    let words = ["one", "two", "three", "four"];
    let script: Vec<(&str, Vec<Line>)> = words.iter().map(|word| (*word, lines.clone())).collect();
    let office = Office::start(SCOUTS, &script, 16).await;
    for (agent, word) in ["chat", "chat_whole", "claude", "claude_whole"].into_iter().zip(words) {
        let (events, outcome) = office.outcome(agent, word).await;
        assert_eq!((outcome.state(), check::text(&outcome).as_str()), (CallState::Completed, "There is a reef."));
        assert_eq!(check::said(&events)["a"], "Let me look.\n\nThere is a reef.", "{agent}");
        let child = office.child(&events).get().await;
        let calls: Vec<(&str, &str)> =
            child.calls.iter().map(|call| (call.call_id.as_str(), call.tool.as_str())).collect();
        assert_eq!(calls, [("t1", "assistant_turn"), ("t1.0", "echo"), ("t2", "assistant_turn")], "{agent}");
        assert_eq!(child.status(), RunStatus::Completed, "{agent}");
        assert_eq!((office.model.count(word, 0), office.model.count(word, 1)), (1, 1), "{agent}");
        let asked: Vec<Asked> = office.model.asked().into_iter().filter(|asked| asked.word == word).collect();
        let last = &asked[1].body;
        if agent.starts_with("chat") {
            assert_eq!(roles(&asked[1]), ["system", "user", "assistant", "tool"]);
            assert_eq!(last["messages"][0]["content"], "You are a scout.");
            let answer = last["messages"][3]["content"].as_str().expect("text");
            // The tool repeats its metadata: how deep it is, and the call and the run that it is below.
            assert!(answer.starts_with("a reef, 1, a, run_"), "{answer}");
            assert_eq!(last["tools"][0]["function"]["name"], "echo");
        } else {
            assert_eq!(roles(&asked[1]), ["user", "assistant", "user"]);
            assert_eq!(last["system"], "You are a scout.");
            let answer = last["messages"][2]["content"][0]["content"][0]["text"].as_str().expect("text");
            assert!(answer.starts_with("a reef, 1, a, run_"), "{answer}");
            assert_eq!(last["tools"][0]["name"], "echo");
        }
        assert_eq!(last["messages"].as_array().expect("messages").iter().filter(|it| it["content"] == word).count(), 1);
    }
    let tools = format!("{:?}", office.yard.client.tools.clone().list_tools(v1::ListToolsRequest::default()).await);
    assert!(!tools.contains(MODEL_KEY) && tools.contains("chat_whole"));
    let log = office.log();
    assert!(!log.contains(MODEL_KEY) && log.contains("pulling"), "{log}");
}

#[tokio::test]
async fn an_agent_with_a_schema_is_given_the_arguments_and_bad_ones_never_reach_it() {
    let agents = r#"
[agent.weather]
OPENAI
description = "Knows the weather."
input_schema = { type = "object", properties = { city = { type = "string" } }, required = ["city"] }
output_schema = { type = "object", properties = { sky = { type = "string" } } }
"#;
    let office = Office::start(
        agents,
        &[("city", vec![Line::text(r#"{"sky":"clear"}"#)]), ("town", vec![Line::text("Rain.")])],
        16,
    )
    .await;
    let calls = vec![
        call("good", "weather", json!({ "city": "Rome" })),
        call("bad", "weather", json!({ "town": 1 })),
        call("wordy", "weather", json!({ "": "town", "city": "Bath" })),
    ];
    let outcomes = check::outcomes(&office.begin(calls).await.to_end().await);
    let clear = v1::content::Body::Json(r#"{"sky":"clear"}"#.to_owned());
    assert_eq!(outcomes["good"].result, [v1::Content::from(clear)]);
    let wordy = outcomes["wordy"].error.as_ref().expect("it failed");
    assert!(wordy.message.contains("is no JSON"), "{}", wordy.message);
    assert_eq!(outcomes["bad"].error.as_ref().expect("it failed").kind(), CallErrorKind::ArgumentsInvalid);
    let asked = office.model.asked();
    let rome = asked.iter().map(|asked| asked.body["messages"][0]["content"].as_str().expect("text"));
    let rome: Vec<&str> = rome.filter(|text| text.contains("Rome")).collect();
    assert_eq!((asked.len(), rome.len()), (2, 1));
    assert!(rome[0].starts_with(r#"{"city":"Rome"}"#) && rome[0].contains(r#""sky":{"type":"string"}"#), "{rome:?}");
}

pub(crate) const CLERK: &str = r#"
[agent.clerk]
OPENAI
description = "Works."
tools = ["echo", "sees", "remembers", "sleep"]
confirmation = "none"
output_key = "clerk"
turns_max = 3
calls_max = 2
tokens_max = 1000
[agent.second]
OPENAI
description = "Works too."
output_key = "clerk"
[agent.poor]
OPENAI
description = "May not say much."
tools = ["echo"]
tokens_max = 15
"#;

#[tokio::test]
async fn tools_that_an_agent_does_not_have_cannot_be_called() {
    let sneaky = vec![
        Line::calls(&[("count", json!({ "label": "x", "pieces": 1, "every_ms": 0 })), echo("fine")]),
        Line::text("done"),
    ];
    let office = Office::start(CLERK, &[("sneaky", sneaky)], 16).await;
    office.model.hold("sneaky", 1);
    let mut stream = office.begin(vec![call("a", "clerk", json!({ "input": "sneaky" }))]).await;
    let child = office.until_called(&mut stream, "t1.1").await;
    office.model.until_asked("sneaky", 1).await;
    // Neither can anybody else add one to its run.
    let append =
        v1::AppendCallsRequest { run_id: child.id.clone(), calls: vec![crate::count("x", 1, 0)], ..Default::default() };
    let run = office.yard.client.runs.clone().append_calls(append).await.expect("it is open").into_inner().run;
    let added = run.expect("a run").calls.into_iter().find(|call| call.call_id == "x").expect("it is there");
    assert_eq!(added.outcome.expect("it ended").error.expect("it failed").kind(), CallErrorKind::UnknownTool);
    office.model.release("sneaky", 1);
    let events = stream.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["a"]), "done");
    let asked = office.model.asked();
    let answers = asked[1].body["messages"].as_array().expect("messages");
    let told: Vec<&Value> = answers.iter().filter(|it| it["role"] == "tool").map(|it| &it["content"]).collect();
    assert!(told[0].as_str().expect("text").starts_with("Error: there is no tool \"count\""), "{told:?}");
    assert!(told[1].as_str().expect("text").starts_with("fine"), "{told:?}");
}

#[tokio::test]
async fn an_agent_sees_nothing_of_its_callers_state_and_returns_one_value() {
    let state = json!({ "state": { "inner": 1 }, "after_ms": 0 });
    let lines = vec![Line::calls(&[("sees", json!({})), ("remembers", state)]), Line::text("seen")];
    let office = Office::start(CLERK, &[("look", lines), ("late", vec![Line::text("second")])], 16).await;
    office.model.hold("look", 1);
    let rules = Some(v1::RunRules { confirmation: Confirmation::None.into(), ..v1::RunRules::default() });
    let request = v1::CreateRunRequest {
        calls: vec![call("a", "clerk", json!({ "input": "look" })), call("b", "second", json!({ "input": "late" }))],
        context: json!({ "user": "ada", "note": 1, "secret": "s3cret" }).to_string(),
        rules,
        ..v1::CreateRunRequest::default()
    };
    let mut stream = office.yard.client.execute_request(request).await.expect("it is accepted");
    stream.until(|event| matches!(event, Event::RunOpened(_))).await;
    let run = stream.run(&office.yard.client);
    // The second ends first; the order of the calls decides all the same.
    let mut interleaved = run.watch(FloorPolicy::Interleaved).await;
    interleaved.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "b")).await;
    office.model.release("look", 1);
    let events = stream.to_end().await;
    let asked: Vec<Asked> = office.model.asked().into_iter().filter(|asked| asked.word == "look").collect();
    let told = asked[1].body["messages"].as_array().expect("messages")[2]["content"].as_str().expect("text");
    let told: Value = serde_json::from_str(told).expect("JSON");
    assert_eq!(told, json!({ "user": null, "note": null, "secret": null }));
    let parent = run.get().await;
    let state: Value = serde_json::from_str(&parent.extra_state).expect("a state");
    assert_eq!(state, json!({ "clerk": "second" }));
    let child = office.child(&events.iter().filter(|it| of_call(it, "a")).cloned().collect::<Vec<_>>()).get().await;
    assert_eq!(child.extra_state, r#"{"inner":1}"#);
}

fn of_call(event: &v1::RunEvent, call: &str) -> bool {
    matches!(&event.event, Some(Event::CallOutput(output)) if output.call_id == call)
}

#[tokio::test]
async fn limits_end_an_agent_with_an_error_that_says_which() {
    let again = Line::calls(&[echo("again")]);
    let script = [
        ("endless", vec![again.clone(); 5]),
        ("many", vec![Line::calls(&[echo("1"), echo("2"), echo("3")]), Line::text("two were enough")]),
        ("wordy", vec![again.clone(), again.clone(), again]),
    ];
    let office = Office::start(CLERK, &script, 16).await;
    let error = office.error("clerk", "endless").await;
    assert_eq!(error.kind(), CallErrorKind::LimitExceeded);
    assert!(error.message.contains("\"clerk\" failed: it stopped after 3 turns"), "{}", error.message);
    let (_, outcome) = office.outcome("clerk", "many").await;
    assert_eq!(check::text(&outcome), "two were enough");
    let asked: Vec<Asked> = office.model.asked().into_iter().filter(|asked| asked.word == "many").collect();
    assert!(
        asked[1].body["messages"][4]["content"].as_str().expect("text").contains("the limit of 2 calls is reached")
    );
    let error = office.error("poor", "wordy").await;
    assert!(error.message.contains("it used 20 tokens, its limit is 15"), "{}", error.message);
    assert_eq!(office.model.count("wordy", 2), 0);
}

const WHOLE: &str = r#"
[agent.whole]
OPENAI
stream = false
description = "Works in one piece."
"#;

#[tokio::test]
async fn a_model_that_fails_is_an_error_of_the_call_or_is_asked_again() {
    let script = [
        ("refused", vec![Line::Fails(401, 9)]),
        ("broken", vec![Line::Fails(200, 9)]),
        ("limited", vec![Line::Fails(500, 1), Line::text("now")]),
    ];
    let office = Office::start(&format!("{CLERK}{WHOLE}"), &script, 16).await;
    for (agent, input, status) in [("clerk", "refused", "401"), ("clerk", "broken", ""), ("whole", "broken", "")] {
        let error = office.error(agent, input).await;
        assert!(error.message.starts_with(&format!("the agent {agent:?} failed: ")), "{}", error.message);
        // The service quotes the key.
        assert!(error.message.contains("scripted failure of [secret]"), "{}", error.message);
        assert!(error.message.contains(status) && !error.message.contains(MODEL_KEY), "{}", error.message);
    }
    assert_eq!((office.model.count("refused", 0), office.model.count("broken", 0)), (1, 2));
    assert!(!office.log().contains(MODEL_KEY));
    let (_, outcome) = office.outcome("clerk", "limited").await;
    assert_eq!(check::text(&outcome), "now");
    assert_eq!(office.model.count("limited", 0), 2);
}

const DEEP: &str = r#"
[agent.deep]
OPENAI
description = "Calls itself."
tools = ["deep"]
confirmation = "none"
"#;

#[tokio::test]
async fn agents_that_call_agents_end_at_their_depth_and_need_no_slots() {
    let lines = vec![Line::calls(&[("deep", json!({ "input": "deeper" }))]), Line::text("enough")];
    let office = Office::start(DEEP, &[("deeper", lines)], 1).await;
    let calls = (0..8).map(|number| call(&format!("a{number}"), "deep", json!({ "input": "deeper" }))).collect();
    let outcomes = check::outcomes(&office.begin(calls).await.to_end().await);
    assert_eq!(outcomes.len(), 8);
    for outcome in outcomes.values() {
        assert_eq!(check::text(outcome), "enough", "{outcome:?}");
    }
    // Three below each other, and the fourth is told that it may not.
    assert_eq!((office.model.count("deeper", 0), office.model.count("deeper", 1)), (8 * 3, 8 * 3));
    let asked = office.model.asked();
    let chain = "3 runs were made below each other (deep > deep > deep > deep)";
    let told = |asked: &Asked| asked.body["messages"].to_string().contains(chain);
    assert_eq!(asked.iter().filter(|asked| told(asked)).count(), 8);
}

pub(crate) fn naps() -> Vec<Line> {
    vec![Line::calls(&[("sleep", json!({ "ms": 600_000, "text": "awake" }))]), Line::text("slept")]
}

#[tokio::test]
async fn the_run_of_a_cancelled_agent_is_cancelled() {
    let office = Office::start(CLERK, &[("nap", naps())], 16).await;
    let mut stream = office.begin(vec![call("a", "clerk", json!({ "input": "nap" }))]).await;
    let child = office.until_called(&mut stream, "t1.0").await;
    stream.run(&office.yard.client).cancel("all hands on deck").await;
    let ended = async { child.watch(FloorPolicy::Arrival).await.to_end().await };
    let outcomes = check::outcomes(&tokio::time::timeout(PATIENCE, ended).await.expect("the child ends"));
    assert_eq!((outcomes["t1"].state(), outcomes["t1.0"].state()), (CallState::Completed, CallState::Cancelled));
    assert_eq!(check::outcomes(&stream.to_end().await)["a"].state(), CallState::Cancelled);
    assert_eq!(office.model.count("nap", 1), 0);
}

#[tokio::test]
async fn an_agent_ends_at_the_deadline_of_its_call() {
    let office = Office::start(CLERK, &[("nap", naps())], 16).await;
    let timeout = Some(prost_types::Duration { seconds: 3, nanos: 0 });
    let asked = v1::NewCall { timeout, ..call("a", "clerk", json!({ "input": "nap" })) };
    let mut stream = office.begin(vec![asked]).await;
    let child = office.until_called(&mut stream, "t1.0").await;
    let run = stream.run(&office.yard.client);
    let (deadline, child_deadline) = (run.get().await.calls[0].deadline, child.get().await.deadline);
    let nanos = |at: Option<prost_types::Timestamp>| at.map(|at| (at.seconds, at.nanos)).expect("a deadline");
    let (mut latest, child_deadline) = (nanos(deadline), nanos(child_deadline));
    // Two clocks are involved.
    latest.0 += 1;
    assert!(child_deadline <= latest, "{child_deadline:?} {latest:?}");
    assert_eq!(check::outcomes(&stream.to_end().await)["a"].state(), CallState::Expired);
    let ended = child.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_ne!(check::outcomes(&ended)["t1.0"].state(), CallState::Completed);
}

const READER: &str = r#"
[agent.reader]
OPENAI
description = "Works in four turns."
tools = ["echo", "waits"]
"#;

#[tokio::test]
async fn an_agent_whose_worker_is_killed_goes_on_and_no_turn_is_asked_for_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = folder.path().join("gate");
    let wait = || ("waits", json!({ "path": gate }));
    let lines = vec![
        Line::Says("First.".to_owned(), vec![("echo".to_owned(), json!({ "text": "1" }))]),
        Line::Says("Second.".to_owned(), vec![("echo".to_owned(), json!({ "text": "2" }))]),
        Line::calls(&[wait(), wait()]),
        Line::text("Done."),
    ];
    let mut office = Office::start(READER, &[("book", lines)], 16).await;
    let mut stream = office.begin(vec![call("a", "reader", json!({ "input": "book" }))]).await;
    let child = office.until_called(&mut stream, "t3.1").await;
    office.worker.kill().await;
    let _second = office.fixture.worker(&office.yard.broker.url(), "main", 16).await;
    std::fs::write(&gate, "open").expect("a file is written");
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::text(&check::outcomes(&events)["a"]), "Done.");
    assert_eq!(check::said(&events)["a"], "First.\n\nSecond.\n\nDone.");
    let counts: Vec<usize> = (0..4).map(|turn| office.model.count("book", turn)).collect();
    assert_eq!(counts, [1, 1, 1, 1]);
    assert_eq!(child_of(&events), Some(child.id.clone()));
    let calls: Vec<String> = child.get().await.calls.into_iter().map(|call| call.call_id).collect();
    assert_eq!(calls, ["t1", "t1.0", "t2", "t2.0", "t3", "t3.0", "t3.1", "t4"]);
}

#[tokio::test]
async fn a_worker_killed_while_the_model_speaks_leads_to_that_turn_alone_being_asked_again() {
    let lines = vec![Line::calls(&[echo("1")]), Line::text("Done.")];
    let mut office = Office::start(READER, &[("book", lines)], 16).await;
    office.model.hold("book", 1);
    let stream = office.begin(vec![call("a", "reader", json!({ "input": "book" }))]).await;
    office.model.until_asked("book", 1).await;
    office.worker.kill().await;
    office.model.release("book", 1);
    let _second = office.fixture.worker(&office.yard.broker.url(), "main", 16).await;
    assert_eq!(check::text(&check::outcomes(&stream.to_end().await)["a"]), "Done.");
    assert_eq!((office.model.count("book", 0), office.model.count("book", 1)), (1, 2));
}

fn said(message: &Value) -> Said {
    Said { message: Message::from_string(message.to_string()).expect("JSON"), tokens: 1 }
}

fn calls_echo(id: &str, tool: &str, arguments: &Value) -> Value {
    let function = json!({ "name": tool, "arguments": arguments.to_string() });
    json!({ "role": "assistant", "content": null,
        "tool_calls": [{ "id": id, "type": "function", "function": function }] })
}

#[tokio::test]
async fn a_service_keeps_the_same_loop_and_calls_without_an_answer_have_one_that_says_so() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let client = Client::connect(&Connection::to(format!("http://{}", yard.coordinator.address()))).await;
    let client = client.expect("it connects");
    let run = v1::CreateRunRequest { request_id: "talk-1".to_owned(), ..v1::CreateRunRequest::default() };
    let start = || Start { run: run.clone(), tools: vec!["echo".to_owned(), "sleep".to_owned()], ..Start::default() };
    let mut agent = Agent::open(&client, start()).await.expect("it opens");
    assert_eq!(agent.next().await.expect("it goes on").expect("messages").len(), 0);
    agent.store(said(&calls_echo("c1", "echo", &json!({ "text": "hi" })))).await.expect("it is stored");
    let messages = agent.next().await.expect("it goes on").expect("messages");
    assert_eq!(messages[1].get(), r#"{"role":"tool","tool_call_id":"c1","content":"hi"}"#);

    // Two of the same loop: what one stored counts for the other.
    let mut other = Agent::open(&client, start()).await.expect("it opens");
    assert_eq!((other.run_id(), other.turns()), (agent.run_id(), 1));
    let sleeps = calls_echo("c2", "sleep", &json!({ "ms": 600_000, "text": "" }));
    agent.store(said(&sleeps)).await.expect("it is stored");
    other.store(said(&calls_echo("c3", "echo", &json!({ "text": "never" })))).await.expect("the first one counts");
    assert_eq!(other.messages().len(), 4);
    let last: Value = serde_json::from_str(other.messages()[3].get()).expect("JSON");
    assert_eq!(last["tool_call_id"], "c2");
    assert_eq!(last["content"], "Error: this call was cancelled: it has no result");

    client.cancel_run(agent.run_id(), "enough").await.expect("it is cancelled");
    let ended = agent.store(said(&json!({ "role": "assistant", "content": "bye" }))).await;
    assert!(matches!(ended, Err(AgentError::Ended(_))), "{ended:?}");
    let limits = Limits { turns: 100, calls: 100, tokens: None };
    let refused = Agent::open(&client, Start { limits, ..start() }).await;
    assert!(matches!(refused, Err(AgentError::Limits { turns: 100, calls: 100 })), "{refused:?}");
}

#[tokio::test]
async fn a_message_that_was_stored_counts_if_the_run_ends_before_it_is_confirmed() {
    let file = hooks::File::new();
    let (asked, gate) = (file.path("asked"), file.path("gate"));
    let waits = format!("touch '{}'; while [ ! -e '{}' ]; do sleep 0.01; done", asked.display(), gate.display());
    let file = file.hook("waits", "post_tool_use", "assistant_turn", &waits);
    let yard = file.yard().await;
    let client = Client::connect(&Connection::to(format!("http://{}", yard.coordinator.address()))).await;
    let client = client.expect("it connects");
    let mut agent = Agent::open(&client, Start::default()).await.expect("it opens");
    let run_id = agent.run_id().to_owned();
    let ends = async {
        while !asked.exists() {
            tokio::task::yield_now().await;
        }
        client.cancel_run(&run_id, "enough").await.expect("it is cancelled");
        std::fs::write(&gate, "open").expect("a file is written");
    };
    let bye = said(&json!({ "role": "assistant", "content": "bye" }));
    let (stored, ()) = tokio::join!(agent.store(bye), ends);
    stored.expect("the message is in the log");
    assert!(agent.next().await.expect("it was the answer").is_none());
    assert_eq!(agent.text(), "bye");
}

#[tokio::test]
async fn a_loop_that_goes_on_tells_what_was_executed_and_not_what_would_be_now() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let client = Client::connect(&Connection::to(format!("http://{}", yard.coordinator.address()))).await;
    let client = client.expect("it connects");
    let run = v1::CreateRunRequest { request_id: "talk-2".to_owned(), ..v1::CreateRunRequest::default() };
    let start = |tools: &[&str]| Start {
        run: run.clone(),
        tools: tools.iter().map(|&it| it.into()).collect(),
        ..Start::default()
    };
    let mut agent = Agent::open(&client, start(&["echo"])).await.expect("it opens");
    agent.store(said(&calls_echo("c1", "echo", &json!({ "text": "hi" })))).await.expect("it is stored");
    agent.next().await.expect("it goes on").expect("messages");
    agent.store(said(&calls_echo("c2", "sees", &json!({})))).await.expect("it is stored");

    // With other tools. The calls of the last message were all refused, and the one before has its answer all the same.
    let mut other = Agent::open(&client, start(&["sees"])).await.expect("it opens");
    let messages = other.next().await.expect("it goes on").expect("messages");
    assert_eq!(messages[1].get(), r#"{"role":"tool","tool_call_id":"c1","content":"hi"}"#);
    let told: Value = serde_json::from_str(messages[3].get()).expect("JSON");
    assert_eq!(told["content"], "Error: it was not executed");

    // The first one ends the loop; the second one, which had asked the model too, takes that answer.
    agent.store(said(&json!({ "role": "assistant", "content": "bye" }))).await.expect("it is stored");
    agent.close().await.expect("it is closed");
    other.store(said(&json!({ "role": "assistant", "content": "ciao" }))).await.expect("the first one counts");
    assert!(other.next().await.expect("it has ended").is_none());
    assert_eq!(other.text(), "bye");
    other.close().await.expect("it is closed already");
}

#[tokio::test]
async fn many_agents_at_once_are_complete_and_in_order_on_two_slots_and_several_connections() {
    let lines = vec![Line::calls(&[echo("x"), echo("y")]), Line::text("Done.")];
    let office = Office::start(READER, &[("book", lines)], 2).await;
    office.model.hold("book", 1);
    let mut streams = Vec::new();
    for _ in 0..3 {
        let calls = (0..100).map(|number| call(&format!("a{number}"), "reader", json!({ "input": "book" }))).collect();
        streams.push(office.begin(calls).await);
    }
    // All 300 wait for the model at the same time, and take no slot.
    office.model.until_asked_times("book", 1, 300).await;
    let is_free = |stats: &Value| stats["running"] == 300 && stats["free_slots"] == 2;
    office.admin.until("/stats", |_, text| serde_json::from_str(text).is_ok_and(|stats| is_free(&stats))).await;
    office.model.release("book", 1);
    for stream in streams {
        let events = stream.to_end().await;
        check::whole(&events, true);
        let outcomes = check::outcomes(&events);
        assert!(outcomes.len() == 100 && outcomes.values().all(|outcome| check::text(outcome) == "Done."));
    }
    assert_eq!((office.model.count("book", 0), office.model.count("book", 1)), (300, 300));
}
