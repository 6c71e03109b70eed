//! Agents that call several agents at once: whatever is killed, cancelled or late, their children are executed once, in
//! order, and no longer than their parent.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use harness::model::Line;
use harness::{Client, PATIENCE, Run, Stream, call};
use proto::v1::run_event::Event;
use proto::v1::{self, CallState, FloorPolicy};
use serde_json::{Value, json};

use crate::agents::{Office, is_run};
use crate::check;

const AGENTS: &str = r#"
[agent.lead]
OPENAI
description = "Has others work."
tools = ["member"]
confirmation = "none"
output_key = "lead"
[agent.member]
OPENAI
description = "Works."
tools = ["waits", "sleep"]
confirmation = "none"
output_key = "member"
"#;

/// What the members are told, in the order of the calls.
const WORDS: [&str; 3] = ["one", "two", "three"];

/// A lead that calls three members at once, and members that each make one call.
fn script(member: impl Fn(&str) -> (&'static str, Value)) -> Vec<(&'static str, Vec<Line>)> {
    let calls = WORDS.map(|word| ("member".to_owned(), json!({ "input": word })));
    let lead = vec![Line::Says("Go.".to_owned(), calls.into()), Line::text("All are done.")];
    let members = WORDS.map(|word| (word, vec![Line::calls(&[member(word)]), Line::text(&format!("{word} is done"))]));
    members.into_iter().chain([("plan", lead)]).collect()
}

fn plan() -> v1::NewCall {
    call("a", "lead", json!({ "input": "plan" }))
}

/// The run that this call of a run makes, once it has made it.
async fn made_by(run: &Run, call_id: &str) -> Run {
    let of_call = |event: &Event| match event {
        Event::CallOutput(output) if output.call_id == call_id => is_run(event).map(str::to_owned),
        _ => None,
    };
    let mut stream = run.watch(FloorPolicy::Interleaved).await;
    stream.until(|event| of_call(event).is_some()).await;
    let id = check::kinds(&stream.seen).into_iter().find_map(of_call);
    Run { client: run.client.clone(), id: id.expect("it was seen") }
}

/// The run of the lead, and those of its members, once the members execute their calls.
async fn working(office: &Office, stream: &mut Stream) -> (Run, Vec<Run>) {
    stream.until(|event| matches!(event, Event::RunOpened(_))).await;
    let lead = made_by(&stream.run(&office.yard.client), "a").await;
    let mut members = Vec::new();
    for place in 0..WORDS.len() {
        let member = made_by(&lead, &format!("t1.{place}")).await;
        let mut events = member.watch(FloorPolicy::Interleaved).await;
        events.until(|event| matches!(event, Event::AttemptStarted(started) if started.call_id == "t1.0")).await;
        members.push(member);
    }
    (lead, members)
}

async fn ended(run: &Run) -> Vec<v1::RunEvent> {
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    events
}

fn calls(run: &v1::Run) -> Vec<&str> {
    run.calls.iter().map(|call| call.call_id.as_str()).collect()
}

/// A lead whose members wait at gates.
struct Gates(tempfile::TempDir);

impl Gates {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, word: &str) -> PathBuf {
        Path::new(self.0.path()).join(word)
    }

    async fn office(&self) -> Office {
        Office::start(AGENTS, &script(|word| ("waits", json!({ "path": self.path(word) }))), 16).await
    }

    /// Opens the gates, the last member's first: each ends before the one before it.
    async fn open_from_the_last(&self, lead: &Run) {
        let mut events = lead.watch(FloorPolicy::Interleaved).await;
        for (place, word) in WORDS.iter().enumerate().rev() {
            std::fs::write(self.path(word), "open").expect("a file is written");
            let id = format!("t1.{place}");
            events.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == id)).await;
        }
    }
}

/// What holds after a kill: the members' state is merged in the order of the calls although they ended in another,
/// nothing was called or asked for twice, and the events of the parent have everything once.
async fn all_is_done_once(office: &Office, events: &[v1::RunEvent], (parent, lead, members): (&Run, &Run, &[Run])) {
    check::whole(events, true);
    let outcome = &check::outcomes(events)["a"];
    assert_eq!((outcome.state(), check::text(outcome).as_str()), (CallState::Completed, "All are done."));
    assert_eq!(check::said(events)["a"], "Go.\n\nAll are done.");
    assert_eq!(parent.get().await.extra_state, r#"{"lead":"All are done."}"#);
    let run = lead.get().await;
    assert_eq!(calls(&run), ["t1", "t1.0", "t1.1", "t1.2", "t2"]);
    assert_eq!(run.extra_state, r#"{"member":"three is done"}"#, "the last call decides, which ended first");
    ended(lead).await;
    for (member, word) in members.iter().zip(WORDS) {
        assert_eq!(calls(&member.get().await), ["t1", "t1.0", "t2"], "{word}");
        ended(member).await;
    }
    for word in ["plan", "one", "two", "three"] {
        assert_eq!((office.model.count(word, 0), office.model.count(word, 1)), (1, 1), "{word}");
    }
    assert_eq!(office.model.asked().len(), 8);
}

#[tokio::test]
async fn a_worker_killed_amid_parallel_children_changes_nothing_that_is_seen() {
    let gates = Gates::new();
    let mut office = gates.office().await;
    let mut stream = office.begin(vec![plan()]).await;
    let (lead, members) = working(&office, &mut stream).await;
    let parent = stream.run(&office.yard.client);
    office.worker.kill().await;
    let _second = office.fixture.worker(&office.yard.broker.url(), "main", 16).await;
    gates.open_from_the_last(&lead).await;
    let events = stream.to_end().await;
    all_is_done_once(&office, &events, (&parent, &lead, &members)).await;
}

#[tokio::test]
async fn a_coordinator_killed_amid_parallel_children_changes_nothing_that_is_seen() {
    let gates = Gates::new();
    let mut office = gates.office().await;
    let mut stream = office.begin(vec![plan()]).await;
    let (lead, members) = working(&office, &mut stream).await;
    let parent = stream.run(&office.yard.client);
    office.yard.coordinator.kill().await;
    while stream.next().await.is_ok() {}
    let before = stream.seen;
    let address = office.yard.coordinator.address();
    let url = office.yard.broker.url();
    office.yard.coordinator = office.yard.fixture.coordinator_at(&url, address).await;
    let client = Client::connect(address).await;
    let (parent, lead) = (parent.through(&client), lead.through(&client));
    let members: Vec<Run> = members.iter().map(|member| member.through(&client)).collect();
    gates.open_from_the_last(&lead).await;
    let after = before.last().map(|event| event.sequence);
    let rest = parent.watch_after(FloorPolicy::Arrival, after).await.expect("the run is there").to_end().await;
    let events = [before, rest].concat();
    all_is_done_once(&office, &events, (&parent, &lead, &members)).await;
    assert_eq!(events, ended(&parent).await, "a late reader sees the same");
}

/// Waits until the worker has no calls, and all of its slots.
async fn is_idle(office: &Office) {
    let is_idle = |stats: &Value| stats["running"] == 0 && stats["free_slots"] == 16;
    office.admin.until("/stats", |_, text| serde_json::from_str(text).is_ok_and(|stats| is_idle(&stats))).await;
}

fn naps() -> Vec<(&'static str, Vec<Line>)> {
    script(|_| ("sleep", json!({ "ms": 600_000, "text": "" })))
}

#[tokio::test]
async fn cancelling_a_lead_in_mid_turn_stops_what_is_two_runs_below_within_the_grace_period() {
    let office = Office::start(AGENTS, &naps(), 16).await;
    let mut stream = office.begin(vec![plan()]).await;
    let (lead, members) = working(&office, &mut stream).await;
    let asked = Instant::now();
    stream.run(&office.yard.client).cancel("all hands on deck").await;
    for member in &members {
        let outcomes = check::outcomes(&ended(member).await);
        let sleep = &outcomes["t1.0"];
        assert_eq!((sleep.state(), sleep.stopped()), (CallState::Cancelled, v1::Stopped::Confirmed), "{outcomes:?}");
    }
    let outcomes = check::outcomes(&ended(&lead).await);
    for call in ["t1.0", "t1.1", "t1.2"] {
        assert_eq!(outcomes[call].state(), CallState::Cancelled, "{outcomes:?}");
    }
    let took = asked.elapsed();
    assert!(took < run::limit::CANCEL_GRACE, "it took {took:?}");
    assert_eq!(check::outcomes(&stream.to_end().await)["a"].state(), CallState::Cancelled);
    for word in ["plan", "one", "two", "three"] {
        assert_eq!(office.model.count(word, 1), 0, "{word}");
    }
    is_idle(&office).await;
}

#[tokio::test]
async fn nothing_below_a_lead_may_take_longer_than_its_call() {
    let office = Office::start(AGENTS, &naps(), 16).await;
    let timeout = Some(proto::convert::duration(Duration::from_secs(5)));
    let mut stream = office.begin(vec![v1::NewCall { timeout, ..plan() }]).await;
    let (lead, members) = working(&office, &mut stream).await;
    let time = |at: Option<prost_types::Timestamp>| at.map(|at| (at.seconds, at.nanos)).expect("a deadline");
    let parent = stream.run(&office.yard.client).get().await;
    let (seconds, nanos) = time(parent.calls[0].deadline);
    // What is left of the time is rounded, and two clocks are involved.
    let latest = (seconds + 1, nanos);
    for run in members.iter().chain([&lead]) {
        let deadline = time(run.get().await.deadline);
        assert!(deadline <= latest, "{deadline:?} of {}, {latest:?}", run.id);
    }
    assert_eq!(check::outcomes(&stream.to_end().await)["a"].state(), CallState::Expired);
    for member in &members {
        let outcomes = tokio::time::timeout(PATIENCE / 6, ended(member)).await.expect("it ends with the call");
        assert_ne!(check::outcomes(&outcomes)["t1.0"].state(), CallState::Completed);
    }
    is_idle(&office).await;
}
