//! Calls that are not executed before they are approved.

use std::path::Path;
use std::time::Duration;

use harness::{Run, Yard, call, reason};
use proto::v1::call_decision::Decision;
use proto::v1::run_event::Event;
use proto::v1::{self, ApprovalDefault, CallErrorKind, CallState, FloorPolicy, RunStatus};
use serde_json::json;
use tonic::Status;

use crate::{FIXTURE, check, count, question};

fn approval(call: v1::NewCall, timeout: Option<Duration>, default: ApprovalDefault) -> v1::NewCall {
    let timeout = timeout.map(proto::convert::duration);
    v1::NewCall { approval: Some(v1::ApprovalRequest { timeout, default: default.into() }), ..call }
}

fn unapproved(call: v1::NewCall) -> v1::NewCall {
    approval(call, None, ApprovalDefault::Reject)
}

fn writes(id: &str, path: &Path) -> v1::NewCall {
    call(id, "writes", json!({ "path": path, "line": id, "then_wait_ms": 0 }))
}

fn approve(call: &str) -> v1::CallDecision {
    decision(call, Decision::Approve(v1::CallApproval::default()))
}

fn approve_with(call: &str, arguments: &serde_json::Value) -> v1::CallDecision {
    decision(call, Decision::Approve(v1::CallApproval { arguments: Some(arguments.to_string()) }))
}

fn reject(call: &str, reason: &str) -> v1::CallDecision {
    decision(call, Decision::Reject(v1::CallRejection { reason: reason.to_owned() }))
}

fn decision(call: &str, decision: Decision) -> v1::CallDecision {
    v1::CallDecision { call_id: call.to_owned(), decision: Some(decision) }
}

async fn decide<const N: usize>(run: &Run, decisions: [v1::CallDecision; N]) -> Result<v1::Run, Status> {
    let request = v1::DecideCallsRequest { run_id: run.id.clone(), decisions: decisions.into() };
    let response = run.client.runs.clone().decide_calls(request).await?;
    Ok(response.into_inner().run.expect("the response has the run"))
}

async fn why(run: &Run, call: &str) -> String {
    let request = v1::ExplainCallRequest { run_id: run.id.clone(), call_id: call.to_owned() };
    run.client.runs.clone().explain_call(request).await.expect("the call is there").into_inner().why
}

#[tokio::test]
async fn nothing_runs_before_it_is_approved_and_then_with_the_arguments_that_were_approved() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (path, other) = (folder.path().join("asked"), folder.path().join("approved"));
    let calls = vec![unapproved(writes("first", &path)), unapproved(writes("second", &path)), count("free", 2, 0)];
    let run = yard.client.create(calls).await;
    let mut stream = run.watch(FloorPolicy::Submission).await;
    stream.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "free")).await;
    let asked = stream.seen.iter().filter(|event| matches!(&event.event, Some(Event::CallAwaitingApproval(_))));
    assert_eq!(asked.count(), 2);
    let state = run.get().await;
    assert_eq!((state.status(), state.calls[0].state()), (RunStatus::RequiresAction, CallState::AwaitingApproval));
    assert!(why(&run, "first").await.contains("without a decision it is rejected in 59 min"));
    assert!(!path.exists(), "nothing ran");

    let edited = json!({ "path": other, "line": "edited", "then_wait_ms": 0 });
    let decided = decide(&run, [approve_with("first", &edited), reject("second", "once is enough")]).await;
    assert!(decided.expect("they await approval").calls[0].decided.as_ref().is_some_and(|it| it.arguments_changed));
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert!(!path.exists(), "neither the call that was rejected nor the arguments that were replaced");
    assert_eq!(std::fs::read_to_string(&other).expect("it ran"), "edited\n");
    let outcomes = check::outcomes(&events);
    assert_eq!(outcomes["first"].state(), CallState::Completed);
    let error = outcomes["second"].error.clone().expect("it was rejected");
    assert_eq!(
        (error.kind(), error.message.as_str()),
        (CallErrorKind::Rejected, "the call was rejected: once is enough")
    );
    let approved = |event: &v1::RunEvent| match &event.event {
        Some(Event::CallApproved(approved)) => Some(approved.arguments.clone()),
        _ => None,
    };
    assert_eq!(events.iter().find_map(approved), Some(edited.to_string()));
    assert!(events.iter().any(|event| matches!(&event.event, Some(Event::CallRejected(it)) if !it.by_default)));
    assert!(why(&run, "second").await.contains("failed (REJECTED: the call was rejected: once is enough)"));
}

#[tokio::test]
async fn arguments_that_were_taken_away_are_told_from_those_that_were_left() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let note = json!({ "note": "dusk" });
    let calls = vec![unapproved(call("left", "annotates", note.clone())), unapproved(call("taken", "annotates", note))];
    let run = yard.client.create(calls).await;
    let nothing = Decision::Approve(v1::CallApproval { arguments: Some(String::new()) });
    decide(&run, [approve("left"), decision("taken", nothing)]).await.expect("they await approval");
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    let approved = |id: &str| {
        let told = events.iter().find_map(|event| match &event.event {
            Some(Event::CallApproved(approved)) if approved.call_id == id => Some(approved.arguments.clone()),
            _ => None,
        });
        told.expect("it is approved")
    };
    assert_eq!((approved("left"), approved("taken")), (String::new(), "{}".to_owned()));
    let outcomes = check::outcomes(&events);
    assert_eq!((check::text(&outcomes["left"]), check::text(&outcomes["taken"])), ("dusk".into(), "nothing".into()));
    let arguments = run.get().await.calls.into_iter().map(|call| call.arguments);
    assert_eq!(arguments.collect::<Vec<_>>(), [r#"{"note":"dusk"}"#, "{}"]);
}

#[tokio::test]
async fn a_tool_that_requires_confirmation_asks_for_it_whatever_its_caller_wants() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let careless = approval(
        call("a", "confirms", json!({ "text": "hello" })),
        Some(Duration::from_millis(300)),
        ApprovalDefault::Approve,
    );
    let events = yard.client.execute(vec![careless]).await.to_end().await;
    assert_eq!(check::outcomes(&events)["a"].error.clone().expect("it is rejected").kind(), CallErrorKind::Rejected);
    assert!(events.iter().any(|event| matches!(&event.event, Some(Event::CallRejected(it)) if it.by_default)));

    let run = yard.client.create(vec![call("a", "confirms", json!({ "text": "hello" }))]).await;
    assert_eq!(run.get().await.status(), RunStatus::RequiresAction);
    decide(&run, [approve("a")]).await.expect("it awaits approval");
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["a"]), "hello");
}

#[tokio::test]
async fn the_default_answer_may_be_to_approve() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let soon = Some(Duration::from_millis(300));
    let events =
        yard.client.execute(vec![approval(count("a", 1, 0), soon, ApprovalDefault::Approve)]).await.to_end().await;
    assert_eq!(check::outcomes(&events)["a"].state(), CallState::Completed);
    assert!(events.iter().any(|event| matches!(&event.event, Some(Event::CallApproved(it)) if it.by_default)));
}

#[tokio::test]
async fn a_decision_that_makes_no_sense_is_refused_and_changes_nothing() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![unapproved(count("a", 1, 0)), unapproved(count("b", 1, 0)), question("q")]).await;
    let nothing = v1::CallDecision { call_id: "a".to_owned(), decision: None };
    let table = [
        (vec![approve("a"), approve("nobody")], "CALL_NOT_FOUND"),
        (vec![approve("a"), approve("q")], "CALL_NOT_AWAITING_APPROVAL"),
        (vec![approve("a"), reject("a", "no")], "CALL_ALREADY_DECIDED"),
        (vec![approve("a"), approve_with("b", &json!({ "label": 1 }))], "ARGUMENTS_INVALID"),
        (vec![approve("a"), approve_with("b", &json!("no object"))], "ARGUMENTS_INVALID"),
        (vec![approve("a"), nothing], "MALFORMED"),
        (vec![approve("a"), reject("b", &"x".repeat(2000))], "MALFORMED"),
        (vec![], "NO_DECISIONS"),
    ];
    for (decisions, expected) in table {
        let request = v1::DecideCallsRequest { run_id: run.id.clone(), decisions };
        let refusal = yard.client.runs.clone().decide_calls(request).await.expect_err(expected);
        assert_eq!(reason(&refusal), expected, "{refusal}");
    }
    assert!(run.get().await.calls[..2].iter().all(|call| call.state() == CallState::AwaitingApproval));

    decide(&run, [reject("a", "no")]).await.expect("it awaits approval");
    decide(&run, [reject("a", "no")]).await.expect("the same again does no harm");
    let differs = decide(&run, [approve("a")]).await.expect_err("it was rejected");
    assert_eq!(reason(&differs), "CALL_ALREADY_DECIDED");
    run.cancel("enough").await;
    assert_eq!(reason(&decide(&run, [approve("b")]).await.expect_err("too late")), "CALL_NOT_AWAITING_APPROVAL");
}

#[tokio::test]
async fn approvals_outlive_the_coordinator_and_stand_in_the_inbox_beside_questions() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![unapproved(count("a", 1, 0)), unapproved(count("b", 1, 0)), question("q")]).await;
    decide(&run, [approve("a")]).await.expect("it awaits approval");
    yard.coordinator.kill().await;
    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = harness::Client::connect(next.address()).await;
    let run = run.through(&client);
    let mut stream = run.watch(FloorPolicy::Arrival).await;
    stream.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "a")).await;

    let list = |page_size, page_token| v1::ListCallsRequest {
        inbox: true,
        page_size,
        page_token,
        ..v1::ListCallsRequest::default()
    };
    let inbox = async {
        let mut index = client.index.clone();
        loop {
            let page = index.list_calls(list(0, String::new())).await.expect("the index answers").into_inner();
            if page.calls.len() == 2 {
                return page.calls;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let inbox = tokio::time::timeout(harness::PATIENCE, inbox).await.expect("two calls wait");
    let states = |calls: &[v1::ListedCall]| {
        calls.iter().filter_map(|listed| listed.call.as_ref()).map(v1::CallSummary::state).collect::<Vec<_>>()
    };
    assert_eq!(states(&inbox), [CallState::WaitingForClient, CallState::AwaitingApproval]);
    let first = client.index.clone().list_calls(list(1, String::new())).await.expect("a page").into_inner();
    let second = client.index.clone().list_calls(list(1, first.next_page_token)).await.expect("a page").into_inner();
    assert_eq!([first.calls, second.calls].concat(), inbox);

    decide(&run, [approve("b")]).await.expect("it still awaits approval");
    run.submit(vec![harness::client_answer("q", "blue")]).await.expect("it still waits");
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert!(check::outcomes(&events).values().all(|outcome| outcome.state() == CallState::Completed));
}

#[tokio::test]
async fn requests_that_race_to_approve_the_same_call_all_succeed_and_it_runs_once() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let other = yard.fixture.coordinator(&yard.broker.url()).await;
    let other = harness::Client::connect(other.address()).await;
    other.wait_for_tool("echo").await;
    let folder = tempfile::tempdir().expect("a folder");
    for round in 0..5 {
        let path = folder.path().join(format!("written-{round}"));
        let request = v1::CreateRunRequest {
            calls: vec![unapproved(writes("a", &path)), unapproved(writes("b", &path))],
            approve: vec!["_all".to_owned()],
            request_id: format!("race-{round}"),
            ..v1::CreateRunRequest::default()
        };
        // Both coordinators find the calls undecided, and one of them decides first.
        let created = (0..8).map(|number| {
            let client = if number % 2 == 0 { &yard.client } else { &other };
            let (mut runs, request) = (client.runs.clone(), request.clone());
            async move { runs.create_run(request).await }
        });
        let created = futures::future::join_all(created).await;
        let mut ids: Vec<String> = created
            .into_iter()
            .map(|created| created.expect("a lost race is no failure").into_inner().run.expect("a run").run_id)
            .collect();
        ids.dedup();
        let [id] = &ids[..] else { panic!("one run: {ids:?}") };
        let run = Run { client: yard.client.clone(), id: id.clone() };
        let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
        let approved = events.iter().filter(|event| matches!(event.event, Some(Event::CallApproved(_))));
        assert_eq!(approved.count(), 2, "each call is approved once");
        let mut lines: Vec<String> =
            std::fs::read_to_string(&path).expect("it ran").lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(lines, ["a", "b"]);
    }
}
