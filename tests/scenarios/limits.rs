//! How many calls there may be, at once and in all.

use std::path::Path;

use harness::{Fixture, Pools, Yard, call};
use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy};
use serde_json::json;

use crate::{FIXTURE, check, count};

fn sleep(id: &str, ms: u64) -> v1::NewCall {
    call(id, "sleep", json!({ "ms": ms, "text": id }))
}

/// How many ran at once at most, as the log has it.
fn at_once(events: &[v1::RunEvent]) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for kind in check::kinds(events) {
        match kind {
            Event::AttemptStarted(_) => now += 1,
            Event::CallEnded(_) => now = now.saturating_sub(1),
            _ => {}
        }
        most = most.max(now);
    }
    most
}

#[tokio::test]
async fn a_run_has_no_more_calls_at_once_than_it_may_and_all_come_through() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let calls: Vec<v1::NewCall> = (0..7).map(|number| sleep(&format!("call-{number}"), 200)).collect();
    let request = |running_max| {
        let rules = Some(v1::RunRules { running_max, ..v1::RunRules::default() });
        let run = v1::CreateRunRequest { calls: calls.clone(), rules, ..v1::CreateRunRequest::default() };
        v1::ExecuteRunRequest { run: Some(run), floor_policy: FloorPolicy::Interleaved.into(), ..Default::default() }
    };
    for (running_max, expected) in [(2, 2..=2), (0, 3..=7)] {
        let stream = yard.client.execute_request(request(running_max)).await.expect("the run is accepted");
        let events = stream.to_end().await;
        check::whole(&events, false);
        assert!(expected.contains(&at_once(&events)), "{} at once, {running_max} may be", at_once(&events));
        let outcomes = check::outcomes(&events);
        assert!(outcomes.len() == 7 && outcomes.values().all(|outcome| outcome.state() == CallState::Completed));
    }
}

#[tokio::test]
async fn calls_beyond_those_that_a_run_may_have_are_refused_and_the_others_kept() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let request = v1::CreateRunRequest {
        calls: vec![count("a", 1, 0), count("b", 1, 0)],
        keep_open: true,
        rules: Some(v1::RunRules { calls_max: 3, ..v1::RunRules::default() }),
        ..v1::CreateRunRequest::default()
    };
    let created = yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    let run_id = created.run.expect("the response has the run").run_id;
    let calls = vec![count("c", 1, 0), count("d", 1, 0), count("e", 1, 0)];
    let request = v1::AppendCallsRequest { run_id: run_id.clone(), calls, ..v1::AppendCallsRequest::default() };
    yard.client.runs.clone().append_calls(request).await.expect("they are taken in");
    yard.client.runs.clone().close_run(v1::CloseRunRequest { run_id: run_id.clone() }).await.expect("it is open");
    let run = harness::Run { client: yard.client.clone(), id: run_id };
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    for (id, state) in [("a", CallState::Completed), ("b", CallState::Completed), ("c", CallState::Completed)] {
        assert_eq!(outcomes[id].state(), state, "{id}");
    }
    for id in ["d", "e"] {
        let error = outcomes[id].error.clone().expect("it is refused");
        assert_eq!(error.kind(), CallErrorKind::LimitExceeded, "{error:?}");
        assert!(error.message.contains("the run has reached its limit of 3 calls"), "{error:?}");
    }
}

fn edit(id: &str, path: &Path) -> v1::NewCall {
    let edit = call(id, "single", json!({ "path": path, "name": id, "for_ms": 150 }));
    v1::NewCall { concurrency: v1::ToolConcurrency::Parallel.into(), ..edit }
}

#[tokio::test]
async fn a_worker_executes_no_more_calls_of_a_tool_at_once_than_the_tool_says() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("edits");
    let calls = (0..4).map(|number| edit(&format!("call-{number}"), &path)).chain([sleep("beside", 1)]);
    let events = yard.client.execute(calls.collect()).await.to_end().await;
    let written = std::fs::read_to_string(&path).expect("the tool writes");
    let lines: Vec<&str> = written.lines().collect();
    assert_eq!(lines.len(), 8);
    for pair in lines.chunks(2) {
        assert_eq!(pair[0].strip_prefix("begin "), pair[1].strip_prefix("end "), "one at a time: {lines:?}");
    }
    assert!(check::outcomes(&events).values().all(|outcome| outcome.state() == CallState::Completed));
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_it_waits_in_its_worker_is_not_executed() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("edits");
    let long = call("long", "single", json!({ "path": path, "name": "long", "for_ms": 2000 }));
    let mut stream = yard.client.execute(vec![long]).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    let run = yard.client.create(vec![edit("waits", &path)]).await;
    run.cancel("enough").await;
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(outcomes["waits"].state(), CallState::Cancelled, "it ends before its turn comes");
    stream.to_end().await;
    // The slot is free again, and there was no entry in between.
    yard.client.execute(vec![edit("last", &path)]).await.to_end().await;
    let written = std::fs::read_to_string(&path).expect("the tool writes");
    assert_eq!(written, "begin long\nend long\nbegin last\nend last\n");
}

/// How many calls wrote that they had begun and not that they had ended, at most.
fn begun_at_once(path: &Path) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for line in std::fs::read_to_string(path).expect("the tool writes").lines() {
        now = if line.starts_with("begin") { now + 1 } else { now.saturating_sub(1) };
        most = most.max(now);
    }
    most
}

fn scarce(id: &str, path: &Path) -> v1::NewCall {
    let tool = if id.ends_with('1') { "scarce_too" } else { "scarce" };
    let call = call(id, tool, json!({ "path": path, "name": id, "for_ms": 150 }));
    v1::NewCall { concurrency: v1::ToolConcurrency::Parallel.into(), ..call }
}

#[tokio::test]
async fn all_workers_together_execute_no_more_calls_of_a_tool_at_once_than_the_tool_says() {
    let pools = Pools::new("[pools.main]\ntools = [\"*\"]\n[pools.other]\ntools = [\"*\"]\n");
    let yard = Yard::start_with(pools.of(&Fixture::new(FIXTURE))).await;
    let _workers = [yard.worker().await, yard.fixture.worker(&yard.broker.url(), "other", 8).await];
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("edits");
    let mut runs = Vec::new();
    for run in 0..4 {
        runs.push(yard.client.create(vec![scarce(&format!("run-{run}-0"), &path)]).await);
    }
    let calls = (0..4).map(|number| scarce(&format!("call-{number}"), &path)).chain([sleep("beside", 1)]);
    runs.push(yard.client.create(calls.collect()).await);
    let waiting = yard.client.create(vec![v1::NewCall {
        queue_timeout: Some(prost_types::Duration { seconds: 0, nanos: 50_000_000 }),
        ..scarce("impatient", &path)
    }]);
    let waiting = waiting.await;
    for run in runs {
        let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
        assert!(outcomes.values().all(|outcome| outcome.state() == CallState::Completed), "{outcomes:?}");
    }
    let outcomes = check::outcomes(&waiting.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(outcomes["impatient"].state(), CallState::Expired);
    let written = std::fs::read_to_string(&path).expect("the tool writes");
    assert_eq!((written.lines().count(), begun_at_once(&path)), (16, 2), "{written}");
    // Every place is free again.
    let again = yard.client.execute((0..2).map(|number| scarce(&format!("last-{number}"), &path)).collect()).await;
    let outcomes = check::outcomes(&again.to_end().await);
    assert!(outcomes.values().all(|outcome| outcome.state() == CallState::Completed), "{outcomes:?}");
}

#[tokio::test]
async fn places_are_counted_from_the_log_by_whoever_owns_the_calls() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("edits");
    let long = |id: &str| call(id, "scarce", json!({ "path": path, "name": id, "for_ms": 12_000 }));
    let mut streams = Vec::new();
    for id in ["a", "b"] {
        let mut stream = yard.client.create(vec![long(id)]).await.watch(FloorPolicy::Arrival).await;
        stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;
        streams.push(stream);
    }
    let third = yard.client.create(vec![scarce("third", &path)]).await;
    let explained = async |client: &harness::Client| {
        let request = v1::ExplainCallRequest { run_id: third.id.clone(), call_id: "third".to_owned() };
        client.runs.clone().explain_call(request).await.expect("it is known").into_inner().why
    };
    let why = explained(&yard.client).await;
    assert!(why.contains("one of the 2 places that calls of its tool have"), "{why}");
    // The next owner finds both slots taken.
    drop(yard.coordinator);
    let other = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = harness::Client::connect(other.address()).await;
    let events = third.through(&client).watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::outcomes(&events)["third"].state(), CallState::Completed);
    assert_eq!(begun_at_once(&path), 2, "{}", std::fs::read_to_string(&path).expect("the tool writes"));
}

fn limit_error(outcome: &v1::CallOutcome) -> String {
    let error = outcome.error.clone().expect("it is refused");
    assert_eq!(error.kind(), CallErrorKind::LimitExceeded, "{error:?}");
    error.message
}

/// An open run of these calls.
async fn opened(yard: &Yard, rules: v1::RunRules, calls: Vec<v1::NewCall>) -> harness::Run {
    let request =
        v1::CreateRunRequest { calls, keep_open: true, rules: Some(rules), ..v1::CreateRunRequest::default() };
    let created = yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    harness::Run { client: yard.client.clone(), id: created.run.expect("the response has the run").run_id }
}

/// Adds the last calls of a run.
async fn append(run: &harness::Run, calls: Vec<v1::NewCall>) {
    let (runs, run_id) = (&run.client.runs, run.id.clone());
    let request = v1::AppendCallsRequest { run_id: run_id.clone(), calls, ..v1::AppendCallsRequest::default() };
    runs.clone().append_calls(request).await.expect("they are taken in");
    runs.clone().close_run(v1::CloseRunRequest { run_id }).await.expect("it is open");
}

#[tokio::test]
async fn calls_of_one_tool_beyond_its_limit_are_refused_and_other_tools_go_on() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let rules = v1::RunRules {
        calls_max_of_tool: 1,
        calls_max_of: [("sleep".to_owned(), 2), ("echo".to_owned(), 0)].into(),
        ..v1::RunRules::default()
    };
    let echo = |id: &str| call(id, "echo", json!({ "text": id }));
    let calls = vec![count("a", 1, 0), count("b", 1, 0), sleep("c", 0), echo("d"), echo("e"), echo("f")];
    let run = opened(&yard, rules.clone(), calls).await;
    append(&run, vec![sleep("g", 0), sleep("h", 0), count("i", 1, 0)]).await;
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    for id in ["a", "c", "d", "e", "f", "g"] {
        assert_eq!(outcomes[id].state(), CallState::Completed, "{id}");
    }
    for (id, limit) in [("b", "1 calls of count"), ("h", "2 calls of sleep"), ("i", "1 calls of count")] {
        assert!(limit_error(&outcomes[id]).contains(limit), "{id}");
    }
    let nameless = v1::RunRules { calls_max_of: [("no tool".to_owned(), 1)].into(), ..rules };
    let request =
        v1::CreateRunRequest { calls: vec![echo("x")], rules: Some(nameless), ..v1::CreateRunRequest::default() };
    let refusal = yard.client.runs.clone().create_run(request).await.expect_err("a tool has no such name");
    assert!(refusal.message().contains("rules.calls_max_of"), "{refusal}");
}

#[tokio::test]
async fn calls_under_an_alias_count_for_its_tool_and_so_does_a_limit_of_the_alias() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = crate::registry::worker(&yard, "main", "callable").await;
    yard.client.wait_for_tool("described_otherwise").await;
    for limited in ["described", "described_otherwise"] {
        let rules = v1::RunRules { calls_max_of: [(limited.to_owned(), 1)].into(), ..v1::RunRules::default() };
        let calls = vec![call("a", "described_otherwise", json!({})), call("b", "described", json!({}))];
        let run = opened(&yard, rules, calls).await;
        append(&run, vec![call("c", "described_otherwise", json!({}))]).await;
        let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
        assert_eq!(outcomes["a"].state(), CallState::Completed, "{limited}");
        for id in ["b", "c"] {
            assert!(limit_error(&outcomes[id]).contains("1 calls of described:"), "{limited} {id}");
        }
    }
}

#[tokio::test]
async fn a_call_whose_output_exceeds_the_bytes_of_its_run_is_stopped_and_results_from_before_are_kept() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let rules = v1::RunRules { output_bytes_max: 500, ..v1::RunRules::default() };
    let run = opened(&yard, rules, vec![call("small", "echo", json!({ "text": "kept" }))]).await;
    let mut stream = run.watch(FloorPolicy::Interleaved).await;
    stream.until(|event| matches!(event, Event::CallEnded(_))).await;
    append(&run, vec![count("chatty", 10_000, 5), call("large", "makes", json!({ "bytes": 1000 }))]).await;
    let outcomes = check::outcomes(&stream.to_end().await);
    assert_eq!(check::text(&outcomes["small"]), "kept");
    for id in ["chatty", "large"] {
        assert!(limit_error(&outcomes[id]).contains("its limit of 500 bytes of output and results"), "{id}");
        assert!(outcomes[id].result.is_empty(), "{id}");
    }
}
