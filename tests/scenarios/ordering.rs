//! Calls that must not run beside others of their run.

use std::collections::BTreeMap;
use std::path::Path;

use harness::{Yard, call};
use proto::v1::run_event::Event;
use proto::v1::{self, RunEvent, ToolConcurrency};
use serde_json::json;

use crate::FIXTURE;

fn edit(name: &str, path: &Path, for_ms: u64) -> v1::NewCall {
    call(name, "edits", json!({ "path": path, "name": name, "for_ms": for_ms }))
}

fn beside_others(call: v1::NewCall) -> v1::NewCall {
    v1::NewCall { concurrency: ToolConcurrency::Parallel.into(), ..call }
}

fn alone(call: v1::NewCall) -> v1::NewCall {
    v1::NewCall { concurrency: ToolConcurrency::Exclusive.into(), ..call }
}

fn sleep(name: &str, ms: u64) -> v1::NewCall {
    call(name, "sleep", json!({ "ms": ms, "text": name }))
}

/// From when to when each call ran, in milliseconds, as the log has it.
fn times(events: &[RunEvent]) -> BTreeMap<String, (i64, i64)> {
    let mut times = BTreeMap::new();
    for event in events {
        let at = event.time.as_ref().expect("an event has its time");
        let at = at.seconds * 1000 + i64::from(at.nanos) / 1_000_000;
        match event.event.as_ref().expect("an event has a kind") {
            Event::AttemptStarted(started) => {
                times.insert(started.call_id.clone(), (at, at));
            }
            Event::CallEnded(ended) => {
                times.entry(ended.call_id.clone()).and_modify(|time: &mut (i64, i64)| time.1 = at);
            }
            _ => {}
        }
    }
    times
}

#[tokio::test]
async fn two_that_read_run_together_then_one_that_writes_then_one_that_reads() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let calls = vec![sleep("a", 400), sleep("b", 400), alone(sleep("c", 400)), sleep("d", 400)];
    let run = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
    let request = v1::ExecuteRunRequest {
        run: Some(run),
        floor_policy: v1::FloorPolicy::Interleaved.into(),
        ..Default::default()
    };
    let stream = yard.client.execute_request(request).await.expect("the run is accepted");
    let times = times(&stream.to_end().await);
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| times[name]);
    assert!(a.0 < b.1 && b.0 < a.1, "two at once: {times:?}");
    assert!(c.0 >= a.1 && c.0 >= b.1, "then one: {times:?}");
    assert!(d.0 >= c.1, "then the last: {times:?}");
}

#[tokio::test]
async fn calls_of_a_tool_that_does_not_say_run_one_at_a_time_unless_their_caller_says_so() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("edits");
    yard.client.execute(vec![edit("a", &path, 200), edit("b", &path, 0), edit("c", &path, 0)]).await.to_end().await;
    let written = std::fs::read_to_string(&path).expect("the tool writes");
    assert_eq!(written, "begin a\nend a\nbegin b\nend b\nbegin c\nend c\n");

    let path = folder.path().join("beside");
    let calls = [edit("a", &path, 1000), edit("b", &path, 1000)].map(beside_others);
    yard.client.execute(calls.into()).await.to_end().await;
    let written = std::fs::read_to_string(&path).expect("the tool writes");
    assert!(written.starts_with("begin a\nbegin b\n") || written.starts_with("begin b\nbegin a\n"), "{written}");
}

#[tokio::test]
async fn a_tool_says_by_the_input_which_of_its_calls_run_alone() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("edits");
    let calls = ["beside a", "beside b", "beside nobody", "alone"].map(|name| edit(name, &path, 700));
    yard.client.execute(calls.into()).await.to_end().await;
    let written = std::fs::read_to_string(&path).expect("the tool writes");
    let lines: Vec<&str> = written.lines().collect();
    assert!(lines[..2].iter().all(|line| line.starts_with("begin beside ")), "two at once: {lines:?}");
    assert_eq!(lines[4..], ["begin beside nobody", "end beside nobody", "begin alone", "end alone"]);
}

#[tokio::test]
async fn turns_are_kept_when_the_coordinator_is_killed() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("edits");
    let names: Vec<String> = (0..6).map(|number| format!("call-{number}")).collect();
    let run = yard.client.create(names.iter().map(|name| edit(name, &path, 300)).collect()).await;
    let begun = async {
        while !std::fs::read_to_string(&path).is_ok_and(|text| text.contains("call-1")) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, begun).await.expect("the second begins");
    yard.coordinator.kill().await;
    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let run = run.through(&harness::Client::connect(next.address()).await);
    let events = run.watch(v1::FloorPolicy::Interleaved).await.to_end().await;
    assert_eq!(times(&events).len(), names.len());
    let expected: String = names.iter().map(|name| format!("begin {name}\nend {name}\n")).collect();
    assert_eq!(std::fs::read_to_string(&path).expect("the tool writes"), expected);
}

#[tokio::test]
async fn why_says_behind_whom_a_call_waits() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![sleep("first", 30_000), alone(sleep("second", 1))]).await;
    let mut stream = run.watch(v1::FloorPolicy::Interleaved).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    let request = v1::ExplainCallRequest { run_id: run.id.clone(), call_id: "second".to_owned() };
    let why = yard.client.runs.clone().explain_call(request).await.expect("the call is there").into_inner().why;
    assert!(why.contains("call first is ahead of it and running, and this call is exclusive"), "{why}");
    run.cancel("enough").await;
    stream.to_end().await;
}
