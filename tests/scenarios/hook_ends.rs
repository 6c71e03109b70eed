//! Each end of a call is notified to hooks once, under its kind, by the coordinator or the worker that ends it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use harness::{Admin, Run, Yard, call};
use proto::v1::run_event::Event;
use proto::v1::{self, FloorPolicy};
use serde_json::{Value, json};

use crate::hooks::File;
use crate::{check, count};

/// A script that writes each request to a file, in one piece.
fn noting(told: &Path) -> String {
    format!(r#"told=$(cat); printf '%s\n' "$told" >> {}; echo '{{"decision":"allow"}}'"#, told.display())
}

/// How often hooks were notified of each kind of end of each call.
fn told(file: &Path) -> BTreeMap<(String, String), usize> {
    let mut told = BTreeMap::new();
    for line in std::fs::read_to_string(file).unwrap_or_default().lines() {
        let request: Value = serde_json::from_str(line).expect("a request is JSON");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        *told.entry((text(&request["error"]["kind"]), text(&request["call_id"]))).or_default() += 1;
    }
    told
}

fn once(ends: &[(&str, &str)]) -> BTreeMap<(String, String), usize> {
    ends.iter().map(|(kind, call)| (((*kind).to_owned(), (*call).to_owned()), 1)).collect()
}

/// Waits until hooks were notified of as many ends; none may follow.
async fn all_told(file: &Path, expected: &[(&str, &str)]) {
    let all = async {
        while told(file).values().sum::<usize>() < expected.len() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    drop(tokio::time::timeout(harness::PATIENCE / 2, all).await);
    assert_eq!(told(file), once(expected));
}

fn ms(ms: u64) -> Option<prost_types::Duration> {
    Some(proto::convert::duration(Duration::from_millis(ms)))
}

async fn execute(yard: &Yard, call: v1::NewCall) {
    yard.client.execute(vec![call]).await.to_end().await;
}

/// A call whose worker is killed while it runs.
async fn lost(yard: &Yard, worker: &mut harness::Worker, path: &Path) {
    let lost = call("lost", "writes", json!({ "path": path, "line": "x", "then_wait_ms": 600_000 }));
    let mut stream = yard.client.execute(vec![lost]).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    worker.kill().await;
    stream.to_end().await;
}

async fn decided(run: &Run, id: &str, decision: v1::call_decision::Decision) {
    let decisions = vec![v1::CallDecision { call_id: id.to_owned(), decision: Some(decision) }];
    let request = v1::DecideCallsRequest { run_id: run.id.clone(), decisions };
    run.client.runs.clone().decide_calls(request).await.expect("it awaits approval");
}

/// Ends of calls that no worker executes.
async fn never_begun(yard: &Yard) {
    let approval = |timeout| Some(v1::ApprovalRequest { timeout, default: 0 });
    execute(yard, v1::NewCall { approval: approval(ms(200)), ..count("undecided", 1, 0) }).await;
    let run = yard.client.create(vec![v1::NewCall { approval: approval(None), ..count("rejected", 1, 0) }]).await;
    decided(&run, "rejected", v1::call_decision::Decision::Reject(v1::CallRejection { reason: "no".to_owned() })).await;
    let (calls, request_id) = (vec![count("repeated", 1, 0)], "the-same".to_owned());
    let request = v1::CreateRunRequest { calls, request_id, ..v1::CreateRunRequest::default() };
    for _ in 0..2 {
        let created = yard.client.runs.clone().create_run(request.clone()).await.expect("it is accepted");
        let id = created.into_inner().run.expect("the response has the run").run_id;
        Run { client: yard.client.clone(), id }.watch(FloorPolicy::Arrival).await.to_end().await;
    }
    execute(yard, call("unknown", "nowhere", json!({}))).await;
}

/// Ends that the coordinator decides while a worker executes the call, or would.
async fn cut_short(yard: &Yard) {
    let mut stream = yard.client.execute(vec![count("cancelled", 1000, 50)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    stream.run(&yard.client).cancel("not needed").await;
    stream.to_end().await;
    execute(yard, v1::NewCall { timeout: ms(500), ..count("late", 1000, 50) }).await;
    // At the deadline of its run, and in the queue, which the others keep busy.
    let request = v1::CreateRunRequest {
        calls: vec![count("late run", 1000, 50)],
        timeout: ms(1000),
        ..v1::CreateRunRequest::default()
    };
    yard.client.execute_request(request).await.expect("it is accepted").to_end().await;
    let mut busy = yard.client.execute((0..2).map(|id| count(&format!("busy {id}"), 30, 100)).collect()).await;
    busy.until(|event| matches!(event, Event::CallOutput(_))).await;
    execute(yard, v1::NewCall { queue_timeout: ms(500), ..count("queued", 1, 0) }).await;
    check::whole(&busy.to_end().await, true);
}

#[tokio::test]
async fn every_end_is_notified_once_and_under_its_kind() {
    let file = File::new();
    let (errors, skips) = (file.path("errors"), file.path("skips"));
    let file =
        file.hook("errors", "tool_error", "*", &noting(&errors)).hook("skips", "tool_skip", "*", &noting(&skips));
    let admin = Admin::anywhere();
    let fixture = file.fixture();
    let yard = Yard::start_with(admin.of(&fixture)).await;
    let mut worker = fixture.worker(&yard.broker.url(), "main", 2).await;
    yard.client.wait_for_tool("echo").await;
    never_begun(&yard).await;
    cut_short(&yard).await;
    execute(&yard, call("fails", "panics", json!({}))).await;
    lost(&yard, &mut worker, &file.path("x")).await;
    let stranded = v1::NewCall { without_worker: v1::WithoutWorker::Fail.into(), ..count("stranded", 1, 0) };
    execute(&yard, stranded).await;
    let of_errors = [
        ("CANCELLED", "cancelled"),
        ("EXPIRED", "late"),
        ("EXPIRED", "late run"),
        ("EXPIRED", "queued"),
        ("INTERRUPTED", "lost"),
        ("TOOL_PANICKED", "fails"),
    ];
    let of_skips = [
        ("REJECTED", "undecided"),
        ("REJECTED", "rejected"),
        ("REPEATED", "repeated"),
        ("UNKNOWN_TOOL", "unknown"),
        ("NO_WORKER", "stranded"),
    ];
    all_told(&skips, &of_skips).await;
    all_told(&errors, &of_errors).await;
    // The coordinator counts what it sends; the worker asked about the panic itself.
    let line = |hook: &str, moment: &str, count: usize| {
        format!("toolyard_hooks_total{{hook=\"{hook}\",moment=\"{moment}\",decision=\"notified\"}} {count}")
    };
    for line in [line("errors", "tool_error", of_errors.len() - 1), line("skips", "tool_skip", of_skips.len())] {
        admin.until("/metrics", |_, text| text.lines().any(|found| found == line)).await;
    }
}
