//! Calls that may not begin before a time that their caller chose.

use std::path::Path;
use std::time::Duration;

use harness::{Client, Run, Shards, Yard, call, reason};
use prost_types::Timestamp;
use proto::v1::run_event::Event;
use proto::v1::{self, ApprovalDefault, CallErrorKind, CallState, FloorPolicy, RunStatus, Stopped};
use serde_json::{Value, json};
use tonic::Status;

use crate::{FIXTURE, check, count, question};

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn ahead(delay: Duration) -> Timestamp {
    proto::convert::api::timestamp(nats::now().after(delay))
}

fn delayed(call: v1::NewCall, not_before: Timestamp) -> v1::NewCall {
    v1::NewCall { not_before: Some(not_before), ..call }
}

fn writes(id: &str, path: &Path) -> v1::NewCall {
    call(id, "writes", json!({ "path": path, "line": id, "then_wait_ms": 0 }))
}

/// When the log has the start of a call's attempts.
fn starts(events: &[v1::RunEvent], call: &str) -> Vec<Timestamp> {
    let start = |event: &v1::RunEvent| match &event.event {
        Some(Event::AttemptStarted(started)) if started.call_id == call => event.time,
        _ => None,
    };
    events.iter().filter_map(start).collect()
}

fn is_before(a: Timestamp, b: Timestamp) -> bool {
    (a.seconds, a.nanos) < (b.seconds, b.nanos)
}

async fn create(client: &Client, request: v1::CreateRunRequest) -> Result<Run, Status> {
    let created = client.runs.clone().create_run(request).await?.into_inner();
    Ok(Run { client: client.clone(), id: created.run.expect("the response has the run").run_id })
}

async fn why(run: &Run, call: &str) -> String {
    let request = v1::ExplainCallRequest { run_id: run.id.clone(), call_id: call.to_owned() };
    run.client.runs.clone().explain_call(request).await.expect("the call is there").into_inner().why
}

/// Until the index lists a call of the run in a state.
async fn listed(run: &Run, state: CallState) -> v1::CallSummary {
    let request = v1::ListCallsRequest { state: state.into(), ..v1::ListCallsRequest::default() };
    let search = async {
        loop {
            let page = run.client.index.clone().list_calls(request.clone()).await.expect("it is listed").into_inner();
            if let Some(found) = page.calls.into_iter().find(|listed| listed.run_id == run.id) {
                return found.call.expect("it names the call");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, search).await.expect("the index has the call")
}

#[tokio::test]
async fn delayed_calls_outlive_their_owner_and_run_once_and_not_before_their_time() {
    let mut yard = Yard::start(FIXTURE).await;
    let other = yard.fixture.coordinator(&yard.broker.url()).await;
    let other_client = Client::connect(other.address()).await;
    let shards = Shards::at(&yard.broker.url()).await;
    shards.until(&[8, 8]).await;
    let _worker = yard.worker().await;
    other_client.wait_for_tool("writes").await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lines");

    // One is due while nobody owns the run, the other long after the next owner came.
    let (soon, later) = (ahead(Duration::from_secs(2)), ahead(Duration::from_secs(15)));
    let calls = vec![delayed(writes("soon", &path), soon), delayed(writes("later", &path), later)];
    let run = yard.client.create(calls).await;
    yard.coordinator.kill().await;
    let run = run.through(&other_client);
    let accepted = run.get().await;
    assert_eq!(accepted.status(), RunStatus::InProgress);
    for (call, until) in accepted.calls.iter().zip([soon, later]) {
        let shown = call.not_before.expect("it is shown");
        assert!(call.state() == CallState::Delayed && !is_before(shown, until), "{call:?}");
    }
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    for (call, until) in [("soon", soon), ("later", later)] {
        assert_eq!(check::outcomes(&events)[call].state(), CallState::Completed);
        let starts = starts(&events, call);
        assert!(starts.len() == 1 && !is_before(starts[0], until), "{call} began at {starts:?}, not before {until}");
    }
    assert_eq!(std::fs::read_to_string(&path).expect("they ran"), "soon\nlater\n", "each ran once");
}

#[tokio::test]
async fn a_delayed_call_is_shown_blocks_no_other_call_and_is_cancelled_at_once() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let until = ahead(HOUR);
    let alone = v1::NewCall { concurrency: v1::ToolConcurrency::Exclusive.into(), ..count("alone", 2, 0) };
    let timeout = Some(proto::convert::duration(Duration::from_secs(60)));
    let calls = vec![v1::NewCall { timeout, ..delayed(alone, until) }, count("free", 2, 0)];
    let rules = Some(v1::RunRules { running_max: 1, ..v1::RunRules::default() });
    let request = v1::CreateRunRequest { calls, rules, keep_open: true, ..v1::CreateRunRequest::default() };
    let run = create(&yard.client, request).await.expect("it is accepted");
    let append =
        v1::AppendCallsRequest { run_id: run.id.clone(), calls: vec![count("more", 2, 0)], ..Default::default() };
    yard.client.runs.clone().append_calls(append).await.expect("an open run takes calls");
    let mut stream = run.watch(FloorPolicy::Submission).await;
    stream.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "more")).await;
    let opened = stream.seen.iter().find_map(|event| match &event.event {
        Some(Event::RunOpened(opened)) => Some(opened.calls.clone()),
        _ => None,
    });
    let opened: Vec<bool> = opened.expect("it opens").iter().map(|call| call.not_before.is_some()).collect();
    assert_eq!(opened, [true, false]);

    let state = run.get().await.calls.remove(0);
    let (deadline, begins) = (state.deadline.expect("it has one"), state.not_before.expect("it is delayed"));
    assert_eq!((state.state(), deadline.seconds - begins.seconds), (CallState::Delayed, 60), "its time begins then");
    let told = why(&run, "alone").await;
    assert!(told.contains("is delayed: it begins in 59 min") || told.contains("in 1 h 0 min"), "{told}");
    assert_eq!(listed(&run, CallState::Delayed).await.not_before, Some(begins));

    let cancel = v1::CancelCallRequest { run_id: run.id.clone(), call_id: "alone".into(), reason: "enough".into() };
    yard.client.runs.clone().cancel_call(cancel).await.expect("it can be cancelled");
    stream.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "alone")).await;
    let outcome = check::outcomes(&stream.seen)["alone"].clone();
    assert_eq!((outcome.state(), outcome.stopped()), (CallState::Cancelled, Stopped::NotRunning));
}

#[tokio::test]
async fn a_call_waits_for_its_approval_and_for_its_time_and_then_for_a_worker() {
    let yard = Yard::start(FIXTURE).await;
    let worker = yard.worker().await;
    let approval = Some(v1::ApprovalRequest { timeout: None, default: ApprovalDefault::Reject.into() });
    let until = ahead(Duration::from_secs(2));
    let call = v1::NewCall { approval, ..delayed(count("a", 2, 0), until) };
    let run = yard.client.create(vec![call]).await;
    assert_eq!(run.get().await.calls[0].state(), CallState::AwaitingApproval);
    let approve = v1::call_decision::Decision::Approve(v1::CallApproval::default());
    let decisions = vec![v1::CallDecision { call_id: "a".to_owned(), decision: Some(approve) }];
    let request = v1::DecideCallsRequest { run_id: run.id.clone(), decisions };
    let decided = yard.client.runs.clone().decide_calls(request).await.expect("it awaits approval").into_inner();
    assert_eq!(decided.run.expect("the response has the run").calls[0].state(), CallState::Delayed);
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::outcomes(&events)["a"].state(), CallState::Completed);
    assert!(!is_before(starts(&events, "a")[0], until));

    // A call that waits for no worker is accepted without one, and fails when its time has come.
    drop(worker);
    let fails = v1::NewCall { without_worker: v1::WithoutWorker::Fail.into(), ..count("b", 1, 0) };
    let run = yard.client.create(vec![delayed(fails, ahead(Duration::from_secs(1)))]).await;
    assert_eq!(run.get().await.calls[0].state(), CallState::Delayed);
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    let error = check::outcomes(&events)["b"].error.clone().expect("it failed");
    assert_eq!(error.kind(), CallErrorKind::NoWorker);
}

#[tokio::test]
async fn a_time_that_has_passed_is_no_delay_and_one_that_means_nothing_is_refused() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let past = Timestamp { seconds: 1, nanos: 999_999_999 };
    let events = yard.client.execute(vec![delayed(count("a", 2, 0), past)]).await.to_end().await;
    assert_eq!(check::outcomes(&events)["a"].state(), CallState::Completed);

    let request = |call| v1::CreateRunRequest { calls: vec![call], ..v1::CreateRunRequest::default() };
    let at = |seconds, nanos| request(delayed(count("a", 1, 0), Timestamp { seconds, nanos }));
    let minute = Some(proto::convert::duration(Duration::from_secs(60)));
    let table = [
        (at(-1, 0), "MALFORMED"),
        (at(1, -1), "MALFORMED"),
        (at(1, 1_000_000_000), "MALFORMED"),
        (at(i64::MAX, 0), "MALFORMED"),
        (request(delayed(count("a", 1, 0), ahead(HOUR * 25))), "DELAY_TOO_LONG"),
        (v1::CreateRunRequest { timeout: minute, ..request(delayed(count("a", 1, 0), ahead(HOUR))) }, "DELAY_TOO_LONG"),
        (request(delayed(question("a"), ahead(HOUR))), "CLIENT_CALL_DELAYED"),
        (
            v1::CreateRunRequest { execute: Some(false), ..request(delayed(count("a", 1, 0), past)) },
            "CLIENT_CALL_DELAYED",
        ),
    ];
    for (request, expected) in table {
        let refused = create(&yard.client, request.clone()).await.expect_err("it is refused");
        assert_eq!(reason(&refused), expected, "{request:?}: {refused:?}");
    }
    let spec = v1::ScheduleSpec {
        timing: Some(v1::schedule_spec::Timing::OnceAt(ahead(HOUR))),
        run: Some(request(delayed(count("a", 1, 0), ahead(HOUR)))),
        ..v1::ScheduleSpec::default()
    };
    let create = v1::CreateScheduleRequest { spec: Some(spec), ..v1::CreateScheduleRequest::default() };
    let refused = yard.client.schedules.clone().create_schedule(create).await.expect_err("the schedule has times");
    assert!(reason(&refused) == "MALFORMED" && refused.message().contains("not_before"), "{refused:?}");
}

#[tokio::test]
async fn http_takes_a_time_for_a_call_and_for_a_whole_turn() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let arguments = json!({ "text": "hi" }).to_string();
    let call = |until: &str| json!({ "tool": "echo", "arguments": arguments, "not_before": until });
    let body = |until: &str| json!({ "calls": [call(until)] });
    let created = http.post("/v1/runs", &body(&ahead(HOUR).to_string())).await.json();
    assert_eq!(created.pointer("/run/calls/0/state"), Some(&json!("CALL_STATE_DELAYED")), "{created}");
    for wrong in ["tomorrow", "1969-12-31T23:59:59Z"] {
        let (status, reason) = http.post("/v1/runs", &body(wrong)).await.problem();
        assert_eq!((status, reason.as_str()), (400, "MALFORMED"), "{wrong}");
    }
    let (status, reason) = http.post("/v1/runs", &body(&ahead(HOUR * 25).to_string())).await.problem();
    assert_eq!((status, reason.as_str()), (400, "DELAY_TOO_LONG"));

    let turn = json!({ "role": "assistant", "content": [
        { "type": "tool_use", "id": "t", "name": "echo", "input": { "text": "hi" } },
    ] });
    let until = ahead(Duration::from_secs(2));
    let path = format!("/v1/tool_calls:batch?not_before={until}");
    let answer: Value = http.post(&path, &turn).await.json();
    assert_eq!(answer.pointer("/messages/0/content/0/content/0/text"), Some(&json!("hi")), "{answer}");
    assert!(!is_before(ahead(Duration::ZERO), until), "it waited");
    let (status, reason) = http.post("/v1/tool_calls:batch?not_before=5m", &turn).await.problem();
    assert_eq!((status, reason.as_str()), (400, "MALFORMED"));
}
