//! Tools with which agents work together, through a cluster: what they keep survives crashes, and what they start ends
//! with them.

use std::collections::HashMap;

use harness::{PATIENCE, Run, Worker, Yard, call};
use prost::Message as _;
use proto::v1::run_event::Event;
use proto::v1::{self, CallState, Confirmation, FloorPolicy, RunStatus, call_output::Piece};
use proto::wire::v1::TakenRequest;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::requests::Broker;
use crate::{FIXTURE, check};

pub(crate) const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// A yard with a worker of these tools, and one of the crew.
pub(crate) struct Ship {
    yard: Yard,
    workers: [Worker; 2],
}

impl Ship {
    pub(crate) async fn start(triggers: Option<&std::path::Path>) -> Self {
        let yard = Yard::start(FIXTURE).await;
        let api = format!("http://{}", yard.coordinator.address());
        let tools = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", "collaboration").with("TOOLYARD_API_URL", api);
        let tools = triggers.iter().fold(tools, |it, file| it.with("TOOLYARD_TRIGGERS", file.display()));
        let crew = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", "crew");
        let url = yard.broker.url();
        let workers = [tools.worker(&url, "together", 16).await, crew.worker(&url, "crew", 16).await];
        yard.client.wait_for_tool("team_agent").await;
        yard.client.wait_for_tool("crew_works").await;
        Self { yard, workers }
    }

    /// A run of one call that needs no approval.
    async fn begin(&self, tool: &str, arguments: Value) -> Run {
        let rules = Some(v1::RunRules { confirmation: Confirmation::None.into(), ..v1::RunRules::default() });
        let calls = vec![call("a", tool, arguments)];
        let request = v1::CreateRunRequest { calls, rules, ..v1::CreateRunRequest::default() };
        let created = self.yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
        Run { client: self.yard.client.clone(), id: created.run.expect("the response has the run").run_id }
    }

    async fn outcome(&self, tool: &str, arguments: Value) -> v1::CallOutcome {
        let events = self.begin(tool, arguments).await.watch(FloorPolicy::Arrival).await.to_end().await;
        check::whole(&events, true);
        check::outcomes(&events)["a"].clone()
    }

    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Value {
        let outcome = self.outcome(tool, arguments).await;
        assert_eq!(outcome.state(), CallState::Completed, "{tool}: {outcome:?}");
        serde_json::from_str(&check::text(&outcome)).expect("it answers JSON")
    }

    pub(crate) async fn error(&self, tool: &str, arguments: Value) -> String {
        let outcome = self.outcome(tool, arguments).await;
        outcome.error.unwrap_or_else(|| panic!("{tool} completed")).message
    }
}

#[tokio::test]
async fn what_tools_keep_survives_a_killed_coordinator_and_a_killed_broker() {
    let mut ship = Ship::start(None).await;
    let task = ship.call("task", json!({ "action": "create", "title": "Mend the sail" })).await;
    let topic =
        ship.call("forum", json!({ "action": "open", "title": "Course", "text": "Due west, to the reef" })).await;
    let entry =
        json!({ "action": "add", "title": "Watch", "start": "2026-03-01T20:00:00Z", "end": "2026-03-02T00:00:00Z" });
    ship.call("schedule", entry).await;
    let done = ship.call("task", json!({ "action": "complete", "id": task["id"], "version": task["version"] })).await;
    assert_eq!(done["status"], "done");

    let address = ship.yard.coordinator.address();
    ship.yard.coordinator.kill().await;
    ship.yard.broker.kill().await;
    ship.yard.broker.restart().await.expect("the broker comes back");
    ship.yard.coordinator = ship.yard.fixture.coordinator_at(&ship.yard.broker.url(), address).await;
    ship.yard.client.wait_for_tool("task").await;

    assert_eq!(ship.call("task", json!({ "action": "get", "id": task["id"] })).await, done);
    let read = ship.call("forum", json!({ "action": "read", "topic": topic["topic"]["id"] })).await;
    assert_eq!(read["posts"][0]["text"], "Due west, to the reef");
    let range = json!({ "action": "list", "start": "2026-03-01T00:00:00Z", "end": "2026-03-02T00:00:00Z" });
    assert_eq!(ship.call("schedule", range).await["items"][0]["title"], "Watch");
    let found = ship.call("search", json!({ "query": "reef" })).await;
    assert_eq!(found["results"][0]["kind"], "forum", "{found}");
    let stale = json!({ "action": "update", "id": task["id"], "status": "open", "version": task["version"] });
    assert!(ship.error("task", stale).await.contains("was changed"));
    let time = json!({ "action": "weekday", "time": "2026-03-01" });
    assert_eq!(ship.call("time_reasoning", time).await["weekday"], "Sunday");
}

#[tokio::test]
async fn a_team_answers_in_the_order_of_its_members_and_failures_stop_nobody() {
    let ship = Ship::start(None).await;
    let members = json!([
        { "tool": "crew_fails" },
        { "tool": "crew_answers", "arguments": { "course": "west" } },
        { "tool": "nobody" },
    ]);
    let team = ship.call("team_agent", json!({ "members": members })).await;
    assert_eq!((&team["completed"], &team["of"]), (&json!(1), &json!(3)), "{team}");
    let answers = team["answers"].as_array().expect("a list");
    let tools: Vec<&Value> = answers.iter().map(|answer| &answer["tool"]).collect();
    assert_eq!(tools, ["crew_fails", "crew_answers", "nobody"]);
    assert!(answers[0]["error"].as_str().expect("it failed").contains("the anchor is stuck"), "{team}");
    assert_eq!(answers[1]["result"], json!({ "course": "west" }));
    assert_eq!(answers[2]["state"], "failed");
    for (members, expected) in [
        (json!([{ "tag": "none" }]), "at /members/0: no tool is like this"),
        (json!([{ "tool": "a", "tag": "b" }]), "at /members/0: give either tool"),
        (json!([{}]), "at /members/0: give either tool"),
    ] {
        let error = ship.error("team_agent", json!({ "members": members })).await;
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn the_members_of_a_cancelled_team_are_cancelled() {
    let ship = Ship::start(None).await;
    let members = json!([{ "tool": "crew_answers" }, { "tool": "crew_works" }]);
    let run = ship.begin("team_agent", json!({ "members": members })).await;
    let mut stream = run.watch(FloorPolicy::Arrival).await;
    stream.until(says).await;
    let said = check::said(&stream.seen)["a"].clone();
    assert!(said.contains("m0 crew_answers: completed"), "{said}");
    let child = Run { client: ship.yard.client.clone(), id: child_of(&said) };
    assert_eq!(child.get().await.status(), RunStatus::InProgress);
    run.cancel("all hands on deck").await;
    let ended = tokio::time::timeout(PATIENCE, async { child.watch(FloorPolicy::Arrival).await.to_end().await });
    let outcomes = check::outcomes(&ended.await.expect("the child ends"));
    assert_eq!(outcomes["m0"].state(), CallState::Completed);
    assert_eq!(outcomes["m1"].state(), CallState::Cancelled);
}

/// As when its coordinator has recorded the id and not yet opened the run, or has died in between.
#[tokio::test]
async fn a_team_whose_request_id_names_a_run_that_is_not_in_the_log_tries_again() {
    let mut ship = Ship::start(None).await;
    let members = json!([{ "tool": "crew_answers" }, { "tool": "crew_works" }]);
    let run = ship.begin("team_agent", json!({ "members": members })).await;
    let mut stream = run.watch(FloorPolicy::Arrival).await;
    stream.until(says).await;
    let child = child_of(&check::said(&stream.seen)["a"]);
    let broker = Broker::of(&ship.yard).await;
    let (name, taken) = broker.only().await;
    assert_eq!(taken.run_id, child);
    broker.is_taken(&name, &TakenRequest { digest: vec![7; 32].into(), ..taken.clone() }, 2000).await;
    let [together, _] = &mut ship.workers;
    together.kill().await;
    let api = format!("http://{}", ship.yard.coordinator.address());
    let tools = ship.yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", "collaboration").with("TOOLYARD_API_URL", api);
    let _second = tools.worker(&ship.yard.broker.url(), "together", 16).await;
    let failed = |event: &Event| match event {
        Event::AttemptEnded(ended) => {
            ended.error.as_ref().filter(|error| error.message.contains("there is no run")).map(|_| ended.attempt)
        }
        _ => None,
    };
    stream.until(|event| failed(event).is_some()).await;
    let before = check::kinds(&stream.seen).into_iter().find_map(failed).expect("it was seen");

    broker.keys.put(&name, taken.encode_to_vec().into()).await.expect("the broker stores it");
    let goes_on = |event: &Event| says(event) && matches!(event, Event::CallOutput(it) if it.attempt > before);
    stream.until(goes_on).await;
    assert_eq!(child_of(&check::said(&stream.seen)["a"]), child);
    run.cancel("all hands on deck").await;
    check::whole(&stream.to_end().await, true);
}

/// Whether it is output, and no report of progress.
fn says(event: &Event) -> bool {
    matches!(event, Event::CallOutput(output) if matches!(output.piece, Some(Piece::Content(_))))
}

/// The run that a call made, which its output names.
fn child_of(said: &str) -> String {
    let named = said.split("(run ").nth(1).and_then(|rest| rest.split(')').next());
    named.expect("it names the run").to_owned()
}

#[tokio::test]
async fn a_team_of_teams_waits_for_approval_and_ends_at_its_depth() {
    let ship = Ship::start(None).await;
    let inner = json!({ "members": [{ "tool": "crew_answers" }] });
    let team = json!({ "members": [{ "tool": "team_agent", "arguments": inner }] });
    // As if the run were the second below that of a client.
    let metadata = [("toolyard.depth".to_owned(), "2".to_owned())].into();
    let calls = vec![v1::NewCall { metadata, ..call("a", "team_agent", team) }];
    let rules = Some(v1::RunRules { confirmation: Confirmation::None.into(), ..v1::RunRules::default() });
    let request = v1::CreateRunRequest { calls, rules, ..v1::CreateRunRequest::default() };
    let mut stream = ship.yard.client.execute_request(request).await.expect("it is accepted");
    stream.until(says).await;
    let said = check::said(&stream.seen)["a"].clone();
    assert!(said.contains("m0 team_agent: awaits approval"), "{said}");
    let approve = v1::call_decision::Decision::Approve(v1::CallApproval::default());
    let decisions = vec![v1::CallDecision { call_id: "m0".to_owned(), decision: Some(approve) }];
    let request = v1::DecideCallsRequest { run_id: child_of(&said), decisions };
    ship.yard.client.runs.clone().decide_calls(request).await.expect("it waits for it");
    let events = stream.to_end().await;
    let text = check::text(&check::outcomes(&events)["a"]);
    assert!(text.contains("3 runs were made below each other"), "{text}");
}

#[tokio::test]
async fn a_broadcast_ends_with_its_quorum_and_lists_what_failed_and_what_is_pending() {
    let ship = Ship::start(None).await;
    let broadcast = json!({ "tag": "crew", "quorum": 1, "cancel_rest": true, "arguments": { "all": "hands" } });
    let heard = ship.call("task_broadcast", broadcast).await;
    assert_eq!((&heard["quorum_reached"], &heard["completed"]), (&json!(true), &json!(1)), "{heard}");
    let child = Run { client: ship.yard.client.clone(), id: heard["run_id"].as_str().expect("an id").to_owned() };
    let events = child.watch(FloorPolicy::Arrival).await.to_end().await;
    let outcomes = check::outcomes(&events);
    let states: Vec<CallState> = ["m0", "m1", "m2"].map(|id| outcomes[id].state()).to_vec();
    assert_eq!(states, [CallState::Completed, CallState::Failed, CallState::Cancelled]);
    // The others continue, so their run does not end with the call that made it.
    let some = ship.call("task_broadcast", json!({ "tag": "crew", "quorum": 1 })).await;
    let going = Run { id: some["run_id"].as_str().expect("an id").to_owned(), ..child.clone() };
    assert_eq!((going.get().await.parent, child.get().await.parent.is_some()), (None, true));
    going.cancel("it is late").await;
    let all = ship.call("task_broadcast", json!({ "tag": "crew", "tool": "crew_[af]*", "timeout_s": 30 })).await;
    assert_eq!((&all["completed"], &all["failed"], &all["pending"]), (&json!(1), &json!(1), &json!(0)), "{all}");
    let late = ship.call("task_broadcast", json!({ "tag": "crew", "timeout_s": 1 })).await;
    assert_eq!((&late["quorum_reached"], &late["failed"]), (&json!(false), &json!(2)), "{late}");
    for (broadcast, expected) in [
        (json!({ "tag": "none" }), "at /tag: no tool has the tag"),
        (json!({ "tag": "crew", "quorum": 9 }), "at /quorum: 3 tools have the tag"),
    ] {
        let error = ship.error("task_broadcast", broadcast).await;
        assert!(error.contains(expected), "{error}");
    }
}

/// Reads a request, with its headers, and answers.
pub(crate) async fn receive(listener: &TcpListener, status: &str) -> (HashMap<String, String>, String) {
    let (mut connection, _) = listener.accept().await.expect("a connection");
    let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
    let (head, length) = loop {
        let count = connection.read(&mut buffer).await.expect("it is sent");
        read.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lines = head.lines().filter_map(|line| line.split_once(": "));
            let headers: HashMap<_, _> = lines.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
            let length: usize = headers["content-length"].parse().expect("a number");
            if body.len() >= length {
                break (headers, body.to_owned());
            }
        }
    };
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 5\r\nconnection: close\r\nretry-after: 0\r\n\r\nheard");
    connection.write_all(answer.as_bytes()).await.expect("it is read");
    (head, length)
}

#[tokio::test]
async fn a_trigger_is_signed_repeated_only_when_asked_and_leads_nowhere_else() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("triggers.toml");
    let url = format!("http://{}/go", listener.local_addr().expect("it listens"));
    let text = |private: bool| {
        format!(
            "[[trigger]]\nname = \"deploy\"\nurl = \"{url}\"\nsecret_files = [\"secret\"]\nallow_private = {private}\n"
        )
    };
    std::fs::write(folder.path().join("secret"), SECRET).expect("it can be written");
    std::fs::write(&file, text(false)).expect("it can be written");
    let refused = collaboration::Triggers::read(&file, |_| None).expect_err("it leads inside");
    assert!(refused.to_string().contains("not an address of the public network"), "{refused}");
    std::fs::write(&file, text(true)).expect("it can be written");
    let ship = Ship::start(Some(&file)).await;
    let run = ship.begin("remote_trigger", json!({ "trigger": "deploy", "payload": { "version": "1.2" } })).await;
    let mut ids = Vec::new();
    for status in ["503 Busy", "202 Accepted"] {
        let (headers, body) = receive(&listener, status).await;
        assert_eq!(body, r#"{"version":"1.2"}"#);
        let secret = hooks::sign::Secret::parse(SECRET).expect("a secret");
        let at: u64 = headers["webhook-timestamp"].parse().expect("seconds");
        let at = run::Timestamp(at * 1000);
        let expected = hooks::sign::headers(&[secret], &headers["webhook-id"], at, body.as_bytes());
        assert_eq!(headers["webhook-signature"], expected["webhook-signature"].to_str().expect("ASCII"));
        assert_eq!(headers["webhook-id"], headers["idempotency-key"]);
        ids.push(headers["webhook-id"].clone());
    }
    assert_eq!(ids[0], ids[1]);
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    let answer: Value = serde_json::from_str(&check::text(&check::outcomes(&events)["a"])).expect("JSON");
    assert_eq!((&answer["status"], &answer["body"], &answer["tries"]), (&json!(202), &json!("heard"), &json!(2)));
    // A server's error does not say whether the message had an effect: it is not sent again.
    let run = ship.begin("remote_trigger", json!({ "trigger": "deploy" })).await;
    receive(&listener, "500 Oops").await;
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    let answer: Value = serde_json::from_str(&check::text(&check::outcomes(&events)["a"])).expect("JSON");
    assert_eq!((&answer["accepted"], &answer["status"], &answer["tries"]), (&json!(false), &json!(500), &json!(1)));
    let error = ship.error("remote_trigger", json!({ "trigger": "elsewhere" })).await;
    assert!(error.contains("there is no trigger \"elsewhere\"; there are: deploy"), "{error}");
}

#[tokio::test]
async fn a_tool_schedules_calls_which_run_until_the_schedule_is_deleted() {
    let ship = Ship::start(None).await;
    let create = json!({ "action": "create", "every_s": 1, "tool": "crew_answers", "name": "Pump" });
    let made = ship.call("schedule_cron", create).await;
    let id = made["schedule_id"].as_str().expect("it has an id").to_owned();
    let fired = async {
        loop {
            let listed = ship.call("schedule_cron", json!({ "action": "list" })).await;
            if listed["schedules"][0]["last_run_id"].as_str().is_some_and(|run| !run.is_empty()) {
                return listed;
            }
        }
    };
    let listed = tokio::time::timeout(PATIENCE, fired).await.expect("it fires");
    assert_eq!(
        (&listed["schedules"][0]["tool"], &listed["schedules"][0]["name"]),
        (&json!("crew_answers"), &json!("Pump"))
    );
    let paused = ship.call("schedule_cron", json!({ "action": "pause", "schedule_id": id })).await;
    assert_eq!(paused["status"], "paused");
    ship.call("schedule_cron", json!({ "action": "delete", "schedule_id": id })).await;
    assert_eq!(ship.call("schedule_cron", json!({ "action": "list" })).await["schedules"], json!([]));
    for (wrong, place) in [
        (json!({ "action": "create", "tool": "crew_answers" }), "give one of cron, every_s and at"),
        (json!({ "action": "create", "tool": "crew_answers", "at": "soon" }), "/at"),
        (json!({ "action": "create", "cron": "0 9 * * *" }), "/tool"),
        (json!({ "action": "create", "tool": "crew_answers", "cron": "0 0 30 2 *" }), "never fires"),
        (json!({ "action": "pause" }), "/schedule_id"),
    ] {
        let error = ship.error("schedule_cron", wrong).await;
        assert!(error.contains(place), "{place} is not in {error}");
    }
}

#[tokio::test]
async fn schedules_lead_no_deeper_than_teams_and_to_no_other_tenant() {
    let ship = Ship::start(None).await;
    let begin = |arguments: Value, depth: &str, tenant: &str| {
        let metadata = [("toolyard.depth".to_owned(), depth.to_owned())].into();
        let calls = vec![v1::NewCall { metadata, ..call("a", "schedule_cron", arguments) }];
        let rules = Some(v1::RunRules { confirmation: Confirmation::None.into(), ..v1::RunRules::default() });
        let request = v1::CreateRunRequest { calls, rules, tenant: tenant.to_owned(), ..Default::default() };
        async {
            let stream = ship.yard.client.execute_request(request).await.expect("it is accepted");
            check::outcomes(&stream.to_end().await)["a"].clone()
        }
    };
    let create = json!({ "action": "create", "every_s": 3600, "tool": "crew_answers" });
    let deep = begin(create.clone(), "3", "").await.error.expect("it is refused");
    assert!(deep.message.contains("3 runs were made below each other"), "{deep:?}");
    let made: Value = serde_json::from_str(&check::text(&begin(create, "0", "acme").await)).expect("JSON");
    let pause = json!({ "action": "pause", "schedule_id": made["schedule_id"] });
    let other = begin(pause.clone(), "0", "rival").await.error.expect("it is refused");
    assert!(other.message.contains("there is no schedule"), "{other:?}");
    assert_eq!(begin(pause, "0", "acme").await.state(), CallState::Completed);
}

#[tokio::test]
async fn a_model_finds_the_tool_that_it_needs_by_words() {
    let ship = Ship::start(None).await;
    let found = ship.call("search_tools", json!({ "query": "send one call to all tools", "limit": 3 })).await;
    assert_eq!(found["tools"][0]["name"], "task_broadcast", "{found}");
    assert_eq!(found["tools"][0]["input_schema"]["type"], "object");
    assert_eq!(ship.call("search_tools", json!({ "query": "quantum" })).await["tools"], json!([]));
    assert!(ship.error("search_tools", json!({ "query": " " })).await.contains("/query"));
}
