//! Runs that have ended leave the log when it fills up, and so do open runs, which are carried beside it and go on.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use async_nats::jetstream::stream::State;
use futures::StreamExt as _;
use harness::{Client, Fixture, Run, Shards, Yard, call, client_answer, reason, unlike};
use proto::v1::{self, CallState, FloorPolicy, run_event::Event};
use serde_json::json;
use tonic::Status;

use crate::delays::ahead;
use crate::objects::{BYTES, broker, lies, object};
use crate::{FIXTURE, check, question};

/// Messages that the log may hold. A call takes two, and a run with a request id one more.
const MESSAGES: u64 = 8000;
/// A tenth of them.
const KEPT: u64 = 800;
/// Entries stay for half a minute, and a coordinator looks every 5 s.
const PATIENCE: Duration = Duration::from_secs(120);

fn request(id: &str) -> v1::CreateRunRequest {
    let (calls, request_id) = (vec![call("c", "echo", json!({ "text": id }))], id.to_owned());
    v1::CreateRunRequest { calls, request_id, ..v1::CreateRunRequest::default() }
}

async fn create(client: &Client, request: v1::CreateRunRequest) -> Result<Run, Status> {
    let created = client.runs.clone().create_run(request).await?.into_inner();
    Ok(Run { client: client.clone(), id: created.run.expect("the response has the run").run_id })
}

/// Makes this many calls, each a run of its own, and waits until they have ended.
async fn fill(client: &Client, calls: usize) {
    let run = |_| async {
        let events = client.execute(vec![call("c", "echo", json!({ "text": "x" }))]).await.to_end().await;
        check::whole(&events, true);
    };
    futures::stream::iter(0..calls).for_each_concurrent(32, run).await;
}

async fn log(yard: &Yard) -> State {
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    let stream = async_nats::jetstream::new(nats).get_stream(proto::names::STREAM).await;
    stream.expect("the log is there").cached_info().state.clone()
}

/// Waits until the log begins with this entry or a later one.
async fn until_first(yard: &Yard, from: u64) -> State {
    let begun = tokio::time::Instant::now();
    loop {
        let log = log(yard).await;
        if log.first_sequence >= from {
            return log;
        }
        assert!(begun.elapsed() < PATIENCE, "the log begins with {} of {}", log.first_sequence, log.last_sequence);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn get(client: &Client, run: &str) -> Result<v1::Run, Status> {
    let request = v1::GetRunRequest { run_id: run.to_owned() };
    Ok(client.runs.clone().get_run(request).await?.into_inner().run.expect("the response has the run"))
}

/// A run that waits for its client, another one to which calls can be added, and one whose call waits for its time.
struct Waiting {
    question: Run,
    kept_open: Run,
    delayed: Run,
}

impl Waiting {
    async fn open(client: &Client) -> Self {
        let echo = || vec![call("first", "echo", json!({ "text": "early" }))];
        let kept = v1::CreateRunRequest { calls: echo(), keep_open: true, ..v1::CreateRunRequest::default() };
        let kept_open = create(client, kept).await.expect("accepted");
        kept_open.watch(FloorPolicy::Arrival).await.until(|event| matches!(event, Event::CallEnded(_))).await;
        let tomorrow = ahead(Duration::from_secs(24 * 3600));
        let later = echo().into_iter().map(|call| v1::NewCall { not_before: Some(tomorrow), ..call });
        let timeout = prost_types::Duration { seconds: 30 * 24 * 3600, nanos: 0 };
        let delayed =
            v1::CreateRunRequest { calls: later.collect(), timeout: Some(timeout), ..v1::CreateRunRequest::default() };
        Self {
            question: client.create(vec![question("ask")]).await,
            kept_open,
            delayed: create(client, delayed).await.expect("accepted"),
        }
    }

    /// Whatever has left the log, the runs are as they were, for everyone.
    async fn stand(&self, clients: &[&Client]) {
        for client in clients {
            let run = get(client, &self.question.id).await.expect("it is open");
            assert_eq!(
                (run.status(), run.calls[0].state()),
                (v1::RunStatus::RequiresAction, CallState::WaitingForClient)
            );
            let run = get(client, &self.kept_open.id).await.expect("it is open");
            assert_eq!((run.status(), run.calls[0].state()), (v1::RunStatus::InProgress, CallState::Completed));
            let run = get(client, &self.delayed.id).await.expect("it is open");
            assert_eq!(run.calls[0].state(), CallState::Delayed);
        }
    }

    /// They are answered, added to and cancelled, and read from their beginning.
    async fn end(&self, client: &Client) {
        let question = self.question.through(client);
        question.submit(vec![client_answer("ask", "the left one")]).await.expect("it waits");
        let events = question.watch(FloorPolicy::Arrival).await.to_end().await;
        check::whole(&events, true);
        assert_eq!(check::text(&check::outcomes(&events)["ask"]), "the left one");

        let run_id = self.kept_open.id.clone();
        let calls = vec![call("second", "echo", json!({ "text": "late" }))];
        let append = v1::AppendCallsRequest { run_id: run_id.clone(), calls, ..v1::AppendCallsRequest::default() };
        client.runs.clone().append_calls(append).await.expect("it is open");
        client.runs.clone().close_run(v1::CloseRunRequest { run_id }).await.expect("it is open");
        let events = self.kept_open.through(client).watch(FloorPolicy::Arrival).await.to_end().await;
        check::whole(&events, true);
        let outcomes = check::outcomes(&events);
        assert_eq!(
            (check::text(&outcomes["first"]), check::text(&outcomes["second"])),
            ("early".into(), "late".into())
        );

        let delayed = self.delayed.through(client);
        delayed.cancel("not any more").await;
        let events = delayed.watch(FloorPolicy::Arrival).await.to_end().await;
        assert_eq!(check::outcomes(&events)["first"].state(), CallState::Cancelled);
    }
}

#[tokio::test]
async fn what_has_ended_leaves_a_full_log_and_what_is_open_goes_on_and_nothing_runs_twice() {
    let fixture = Fixture::new(FIXTURE).with("TOOLYARD_LOG_MAX_MESSAGES", MESSAGES).with("TOOLYARD_TAIL_PERCENT", 10);
    let mut yard = Yard::start_with(fixture).await;
    let _worker = yard.worker().await;
    // It owns half of the shards, in which nothing happens.
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    let old = create(&yard.client, request("order 7")).await.expect("accepted");
    check::whole(&old.watch(FloorPolicy::Arrival).await.to_end().await, true);
    let (large, _) = object(&yard.client, BYTES).await;
    fill(&yard.client, 1000).await;
    let begins = log(&yard).await.last_sequence;
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(Waiting::open(&yard.client).await);
    }
    let mut watching = waiting[0].question.watch(FloorPolicy::Arrival).await;
    watching.until(|event| matches!(event, Event::CallWaiting(_))).await;
    // One of the two does not own its run.
    let client = Client::connect(second.address()).await;
    let mut watchers = Vec::new();
    for client in [&yard.client, &client] {
        let mut watcher = waiting[3].question.through(client).watch(FloorPolicy::Arrival).await;
        watcher.until(|event| matches!(event, Event::CallWaiting(_))).await;
        watchers.push(watcher);
    }
    let opened = log(&yard).await.last_sequence;
    fill(&yard.client, 1000).await;

    until_first(&yard, begins - 600).await;
    for id in [&old.id, &large.id, &unlike(&old.id)] {
        let gone = get(&yard.client, id).await.expect_err("it left the log");
        assert_eq!(reason(&gone), "EVENTS_EXPIRED", "{gone:?}");
    }
    let again = create(&yard.client, request("order 7")).await.map(|run| run.id).expect_err("it was executed");
    assert_eq!(reason(&again), "EVENTS_EXPIRED", "{again:?}");
    assert!(again.message().contains(&old.id), "{again:?}");

    // Its objects are kept for longer, until an operator erases it by its id.
    let objects = broker(yard.broker.url()).await;
    assert!(lies(&objects).await > 0);
    let erase = v1::EraseRunsRequest { run_id: large.id.clone(), ..v1::EraseRunsRequest::default() };
    let erased = yard.client.runs.clone().erase_runs(erase.clone()).await.expect("it may").into_inner();
    assert_eq!((erased.requested, lies(&objects).await), (1, 0), "{erased:?}");
    let again = yard.client.runs.clone().erase_runs(erase).await.expect("it may").into_inner();
    assert_eq!(again.matched, 0, "nothing is left: {again:?}");

    // Open runs leave as well: they are carried. Another coordinator takes them over, and they go on.
    until_first(&yard, opened + 1).await;
    client.wait_for_tool("echo").await;
    for runs in &waiting {
        runs.stand(&[&yard.client, &client]).await;
    }
    waiting[3].question.submit(vec![client_answer("ask", "the left one")]).await.expect("it waits");
    for watcher in watchers {
        check::whole(&watcher.to_end().await, true);
    }
    let last = watching.seen.last().expect("it was opened").sequence;
    yard.coordinator.kill().await;
    for runs in &waiting {
        if runs.question.id != waiting[3].question.id {
            runs.stand(&[&client]).await;
        }
        runs.end(&client).await;
    }
    let rest = waiting[0].question.through(&client).watch_after(FloorPolicy::Arrival, Some(last)).await;
    let rest = rest.expect("it goes on where it was").to_end().await;
    assert!(rest.iter().all(|event| event.sequence > last) && !rest.is_empty(), "{rest:?}");

    // When they have ended they leave too, and can still be read.
    let ended = log(&yard).await.last_sequence;
    fill(&client, 1000).await;
    until_first(&yard, ended + 1).await;
    for runs in &waiting {
        let events = runs.kept_open.through(&client).watch(FloorPolicy::Arrival).await.to_end().await;
        check::whole(&events, true);
        assert_eq!(check::outcomes(&events).len(), 2);
    }
    let begun = tokio::time::Instant::now();
    while log(&yard).await.messages > KEPT + 600 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", log(&yard).await);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    fill(&client, 10).await;
}

#[tokio::test]
async fn runs_that_have_ended_leave_a_log_with_room_by_their_age_and_open_ones_go_on() {
    let mut yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_TAIL_SECONDS", 1)).await;
    let _worker = yard.worker().await;
    let old = create(&yard.client, request("order 7")).await.expect("accepted");
    check::whole(&old.watch(FloorPolicy::Arrival).await.to_end().await, true);
    let waiting = Waiting::open(&yard.client).await;
    let opened = log(&yard).await.last_sequence;
    fill(&yard.client, 10).await;
    until_first(&yard, opened + 1).await;
    waiting.stand(&[&yard.client]).await;
    // The owner of a run keeps it in memory for a while.
    yard.coordinator.kill().await;
    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(next.address()).await;
    client.wait_for_tool("echo").await;
    let gone = get(&client, &old.id).await.expect_err("it left the log");
    assert_eq!(reason(&gone), "EVENTS_EXPIRED", "{gone:?}");
    waiting.stand(&[&client]).await;
    waiting.end(&client).await;
}

/// When delayed calls are due, in seconds after their runs were created: one after the other, from about the time at
/// which all entries of their runs have left the log. On a slow machine that is later.
fn due_after() -> impl Iterator<Item = u64> {
    (70..240).step_by(8)
}

fn writes(line: &str, path: &Path) -> v1::NewCall {
    call("c", "writes", json!({ "path": path, "line": line, "then_wait_ms": 0 }))
}

async fn approve(run: &Run) {
    let decision = Some(v1::call_decision::Decision::Approve(v1::CallApproval::default()));
    let decisions = vec![v1::CallDecision { call_id: "c".to_owned(), decision }];
    let request = v1::DecideCallsRequest { run_id: run.id.clone(), decisions };
    run.client.runs.clone().decide_calls(request).await.expect("it awaits approval");
}

/// The call of the run completes with one attempt, and one job for it was stored.
async fn runs_once(run: &Run, shards: &Shards) {
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::outcomes(&events)["c"].state(), CallState::Completed, "{}", run.id);
    let attempts = check::kinds(&events).into_iter().filter(|kind| matches!(kind, Event::AttemptStarted(_)));
    assert_eq!(attempts.count(), 1, "{events:#?}");
    assert_eq!(shards.entries(&format!("ty.run.*.{}.*.job.>", run.id)).await, 1, "jobs of {}", run.id);
}

#[tokio::test]
async fn carried_calls_that_are_approved_or_become_due_run_once_at_their_owner_and_at_the_next() {
    let mut yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_TAIL_SECONDS", 1)).await;
    let _worker = yard.worker().await;
    let shards = Shards::at(&yard.broker.url()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lines");
    let approval = Some(v1::ApprovalRequest { timeout: None, default: v1::ApprovalDefault::Reject.into() });
    let asks = |line: &str| vec![v1::NewCall { approval, ..writes(line, &path) }];
    let approvals = [yard.client.create(asks("approved")).await, yard.client.create(asks("approved later")).await];
    let mut delayed = Vec::new();
    for seconds in due_after() {
        let not_before = Some(ahead(Duration::from_secs(seconds)));
        let call = v1::NewCall { not_before, ..writes(&format!("due after {seconds} s"), &path) };
        delayed.push(yard.client.create(vec![call]).await);
    }
    let opened = log(&yard).await.last_sequence;
    until_first(&yard, opened + 1).await;

    let still_delayed = async || {
        let mut waiting = Vec::new();
        for run in &delayed {
            if run.get().await.calls[0].state() == CallState::Delayed {
                waiting.push(run);
            }
        }
        waiting
    };
    let waiting = still_delayed().await;
    runs_once(waiting.first().expect("they left the log in time"), &shards).await;
    approve(&approvals[0]).await;
    runs_once(&approvals[0], &shards).await;

    // The second of those that still wait is due 8 s after the first, when the owner is dead.
    let waiting = still_delayed().await;
    yard.coordinator.kill().await;
    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(next.address()).await;
    client.wait_for_tool("writes").await;
    let approved = approvals[1].through(&client);
    assert_eq!(approved.get().await.calls[0].state(), CallState::AwaitingApproval);
    runs_once(&waiting.get(1).expect("they left the log in time").through(&client), &shards).await;
    approve(&approved).await;
    runs_once(&approved, &shards).await;

    let written = std::fs::read_to_string(&path).expect("they ran");
    let lines: BTreeSet<&str> = written.lines().collect();
    assert_eq!(lines.len(), written.lines().count(), "a call ran twice: {written}");
    assert!(lines.contains("approved") && lines.contains("approved later"), "{written}");
}
