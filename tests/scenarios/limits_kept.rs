//! Limits are the log's: a coordinator that takes over knows what was used of them, and places come free however calls
//! end.

use std::path::Path;

use harness::{Client, PATIENCE, Run, Yard, call};
use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy};
use serde_json::json;

use crate::{FIXTURE, check, count, counted};

fn echo(id: &str) -> v1::NewCall {
    call(id, "echo", json!({ "text": id }))
}

async fn opened(yard: &Yard, rules: v1::RunRules, calls: Vec<v1::NewCall>) -> Run {
    let request =
        v1::CreateRunRequest { calls, keep_open: true, rules: Some(rules), ..v1::CreateRunRequest::default() };
    let created = yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    Run { client: yard.client.clone(), id: created.run.expect("the response has the run").run_id }
}

async fn append_last(run: &Run, calls: Vec<v1::NewCall>) {
    let (runs, run_id) = (&run.client.runs, run.id.clone());
    let request = v1::AppendCallsRequest { run_id: run_id.clone(), calls, ..v1::AppendCallsRequest::default() };
    runs.clone().append_calls(request).await.expect("they are taken in");
    runs.clone().close_run(v1::CloseRunRequest { run_id }).await.expect("it is open");
}

async fn until_ended(run: &Run, id: &str) {
    let mut stream = run.watch(FloorPolicy::Interleaved).await;
    stream.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == id)).await;
}

/// Kills the coordinator and starts another one at its address.
async fn replaced(yard: &mut Yard) -> Client {
    yard.coordinator.kill().await;
    let address = yard.coordinator.address();
    yard.coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
    let client = Client::connect(address).await;
    client.wait_for_tool("echo").await;
    client
}

fn exceeded(outcome: &v1::CallOutcome) -> String {
    let error = outcome.error.clone().unwrap_or_else(|| panic!("it is within its limit: {outcome:?}"));
    assert_eq!(error.kind(), CallErrorKind::LimitExceeded, "{error:?}");
    error.message
}

#[tokio::test]
async fn limits_of_calls_count_those_from_before_the_coordinator_was_killed() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let rules = v1::RunRules {
        calls_max_of_tool: 2,
        calls_max_of: [("count".to_owned(), 1)].into(),
        ..v1::RunRules::default()
    };
    let run = opened(&yard, rules, vec![echo("a"), count("b", 1, 0), echo("c")]).await;
    for id in ["a", "b", "c"] {
        until_ended(&run, id).await;
    }
    let run = run.through(&replaced(&mut yard).await);
    let nap = call("other", "sleep", json!({ "ms": 0, "text": "" }));
    append_last(&run, vec![echo("d"), count("e", 1, 0), nap]).await;
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    for id in ["a", "b", "c", "other"] {
        assert_eq!(outcomes[id].state(), CallState::Completed, "{id}");
    }
    assert!(exceeded(&outcomes["d"]).contains("2 calls of echo"), "{outcomes:?}");
    assert!(exceeded(&outcomes["e"]).contains("1 calls of count"), "{outcomes:?}");
}

#[tokio::test]
async fn bytes_that_were_used_before_the_coordinator_was_killed_count_after_it() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    // Each call alone is far within the limit.
    let rules = v1::RunRules { output_bytes_max: 1000, ..v1::RunRules::default() };
    let text = |id: &str| call(id, "echo", json!({ "text": id.repeat(600) }));
    let run = opened(&yard, rules, vec![text("a")]).await;
    until_ended(&run, "a").await;
    let run = run.through(&replaced(&mut yard).await);
    append_last(&run, vec![text("b")]).await;
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    let outcomes = check::outcomes(&events);
    assert_eq!(check::text(&outcomes["a"]), "a".repeat(600));
    assert!(exceeded(&outcomes["b"]).contains("its limit of 1000 bytes of output and results"), "{outcomes:?}");
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await);
}

#[tokio::test]
async fn a_call_that_streams_through_a_kill_of_the_coordinator_is_stopped_at_its_limit_of_bytes() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let rules = Some(v1::RunRules { output_bytes_max: 600, ..v1::RunRules::default() });
    let calls = vec![count("chatty", 100_000, 40)];
    let request = v1::CreateRunRequest { calls, rules, ..v1::CreateRunRequest::default() };
    let mut stream = yard.client.execute_request(request).await.expect("it is accepted");
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let run = stream.run(&yard.client);
    let run = run.through(&replaced(&mut yard).await);
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    exceeded(&check::outcomes(&events)["chatty"]);
    // It could not be stopped until another coordinator owned the run. Then it was, long before its own end.
    let said = &check::said(&events)["chatty"];
    let whole = counted("chatty", 1000);
    assert!(said.len() > 600 && whole.starts_with(said.as_str()), "{} bytes", said.len());
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await);
}

/// A call that takes its time. Two calls of its tool may run at once in the whole fleet.
fn scarce(id: &str, path: &Path, for_ms: u64) -> v1::NewCall {
    let call = call(id, "scarce", json!({ "path": path, "name": id, "for_ms": for_ms }));
    v1::NewCall { concurrency: v1::ToolConcurrency::Parallel.into(), ..call }
}

/// Waits until the tool has written a line.
async fn until_written(path: &Path, line: &str) {
    let written = async {
        while !std::fs::read_to_string(path).unwrap_or_default().lines().any(|found| found == line) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, written).await.unwrap_or_else(|_| panic!("{line} is never written"));
}

#[tokio::test]
async fn both_places_of_a_tool_are_free_again_after_lost_cancelled_and_expired_calls() {
    let yard = Yard::start(FIXTURE).await;
    let mut first = yard.worker().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("edits");
    let state =
        async |run: &Run, id: &str| check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await)[id].state();
    let lost = yard.client.create(vec![scarce("lost", &path, 600_000), scarce("lost too", &path, 600_000)]).await;
    until_written(&path, "begin lost").await;
    until_written(&path, "begin lost too").await;
    first.kill().await;
    let _second = yard.worker().await;
    assert_eq!(state(&lost, "lost").await, CallState::Failed, "it may have had its effect");

    let timeout = Some(proto::convert::duration(std::time::Duration::from_secs(2)));
    let expires = v1::NewCall { timeout, ..scarce("expires", &path, 600_000) };
    let (expires, cancelled) =
        tokio::join!(yard.client.create(vec![expires]), yard.client.create(vec![scarce("cancelled", &path, 600_000)]));
    until_written(&path, "begin cancelled").await;
    // A third waits for a place, and is cancelled without ever having had one.
    let waits = yard.client.create(vec![scarce("waits", &path, 0)]).await;
    waits.cancel("enough").await;
    cancelled.cancel("enough").await;
    assert_eq!(state(&waits, "waits").await, CallState::Cancelled);
    assert_eq!(state(&cancelled, "cancelled").await, CallState::Cancelled);
    assert_eq!(state(&expires, "expires").await, CallState::Expired);

    // Both begin before either ends.
    let last = yard.client.create(vec![scarce("last", &path, 3000), scarce("last too", &path, 3000)]).await;
    until_written(&path, "begin last").await;
    until_written(&path, "begin last too").await;
    let written = std::fs::read_to_string(&path).expect("the tool writes");
    assert!(!written.contains("end last"), "{written}");
    assert!(!written.contains("begin waits"), "{written}");
    assert_eq!(state(&last, "last").await, CallState::Completed);
}
