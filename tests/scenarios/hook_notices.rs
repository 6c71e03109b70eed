//! Hooks in the coordinator beyond admission: they decide about answers of clients, and are notified of ends that no
//! worker reports.

use std::path::PathBuf;
use std::time::Duration;

use harness::{Admin, Run, Yard, call, client_answer, reason};
use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, FloorPolicy};
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use crate::hooks::{File, error, everything_stored};
use crate::{check, count};

/// What hooks are told: their scripts write each request to a pipe.
struct Told {
    path: PathBuf,
    pipe: pipe::Receiver,
    text: String,
}

impl Told {
    fn new(path: PathBuf) -> Self {
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo is there");
        assert!(made.success(), "{}", path.display());
        // Also open for writing, so that it does not end between two scripts.
        let pipe = pipe::OpenOptions::new().read_write(true).open_receiver(&path).expect("it is a pipe");
        Self { path, pipe, text: String::new() }
    }

    fn script(&self) -> String {
        format!(r#"(cat; echo) > {}; echo '{{"decision":"allow"}}'"#, self.path.display())
    }

    /// All that hooks were told, once it has all of this.
    async fn has(&mut self, all: &[&str]) -> &str {
        while !all.iter().all(|part| self.text.contains(part)) {
            let mut bytes = [0; 4096];
            let read = tokio::time::timeout(harness::PATIENCE, self.pipe.read(&mut bytes)).await;
            let read = read.unwrap_or_else(|_| panic!("hooks were not told of all: {}", self.text));
            self.text.push_str(&String::from_utf8_lossy(&bytes[..read.expect("it can be read")]));
        }
        &self.text
    }
}

/// A run whose calls its client answers.
async fn left_to_client(yard: &Yard, calls: Vec<v1::NewCall>) -> Run {
    let request = v1::CreateRunRequest { calls, execute: Some(false), ..v1::CreateRunRequest::default() };
    let created = yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    Run { client: yard.client.clone(), id: created.run.expect("the response has the run").run_id }
}

fn client_error(id: &str, error: &str) -> v1::ToolOutput {
    v1::ToolOutput { call_id: id.to_owned(), result: Vec::new(), error: error.to_owned() }
}

#[tokio::test]
async fn what_a_hook_redacts_of_a_clients_answer_is_nowhere() {
    let redact = r#"sed 's/.*"result":\(.*\)/{"decision":"modify_result","result":\1/; s/s3cret/…/g'"#;
    let withhold = r#"cat >/dev/null; echo '{"decision":"deny","reason":"it failed"}'"#;
    let deny = r#"cat >/dev/null; echo '{"decision":"deny","reason":"not for models"}'"#;
    let file = File::new()
        .hook("redacts", "post_tool_use", "echo", redact)
        .hook("denies", "post_tool_use", "count", deny)
        .hook("crashes", "post_tool_use", "sleep", "kill -9 $$")
        .hook("withholds", "tool_error", "echo", withhold);
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let echo = |id: &str| call(id, "echo", json!({ "text": "x" }));
    let sleep = call("crashed", "sleep", json!({ "ms": 0, "text": "x" }));
    let run = left_to_client(&yard, vec![echo("redacted"), count("denied", 1, 0), sleep, echo("failed")]).await;
    let said = |id: &str| client_answer(id, "it is s3cret");
    let answers = vec![said("redacted"), said("denied"), said("crashed"), client_error("failed", "s3cret")];
    run.submit(answers.clone()).await.expect("they wait for it");
    run.submit(answers).await.expect("the same answers are the same after hooks, too");
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    let outcomes = check::outcomes(&events);
    assert_eq!(check::text(&outcomes["redacted"]), "it is …");
    let (kind, message) = error(&outcomes["denied"]);
    let why = "the client answered, and its answer was withheld: not for models";
    assert_eq!((kind, message.as_str()), (CallErrorKind::Denied, why));
    let (kind, message) = error(&outcomes["crashed"]);
    assert_eq!(kind, CallErrorKind::HookFailed, "{message}");
    assert_eq!(error(&outcomes["failed"]), (CallErrorKind::ClientFailed, "it failed".to_owned()));
    let log = String::from_utf8_lossy(&everything_stored(&yard).await).into_owned();
    assert!(log.contains("it is …") && !log.contains("s3cret"), "a secret was stored");
}

#[tokio::test]
async fn hooks_are_asked_once_about_an_answer_and_only_about_one_that_can_be_stored() {
    let file = File::new();
    let mut told = Told::new(file.path("told"));
    let file = file.hook("notes", "post_tool_use", "echo", &told.script());
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let echo = |id: &str| call(id, "echo", json!({ "text": "x" }));
    let run = left_to_client(&yard, vec![echo("a"), echo("b")]).await;
    let huge = client_answer("a", &"x".repeat(run::limit::RESULT_BYTES_MAX + 1));
    let refused = run.submit(vec![huge]).await.expect_err("it is too large");
    assert_eq!(reason(&refused), "PAYLOAD_TOO_LARGE");
    for _ in 0..2 {
        run.submit(vec![client_answer("a", "it fits")]).await.expect("it waits, or has this answer");
    }
    let text = told.has(&["it fits"]).await;
    assert_eq!(text.matches("post_tool_use").count(), 1, "no hook was asked about the other one: {text}");
    let waits = yard.client.create(vec![count("c", 1, 0)]).await;
    let refused = waits.submit(vec![client_answer("c", "unasked")]).await.expect_err("a worker executes it");
    assert_eq!(reason(&refused), "CALL_NOT_WAITING");
}

#[tokio::test]
async fn hooks_are_not_asked_about_calls_beyond_the_limit_of_their_tool() {
    let file = File::new();
    let mut told = Told::new(file.path("told"));
    let file = file.hook("notes", "pre_tool_use", "count", &told.script());
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let rules = Some(v1::RunRules { calls_max_of_tool: 1, ..v1::RunRules::default() });
    let calls = vec![count("within", 1, 0), count("beyond", 1, 0)];
    let run = Some(v1::CreateRunRequest { calls, rules, ..v1::CreateRunRequest::default() });
    let request = v1::ExecuteRunRequest { run, ..v1::ExecuteRunRequest::default() };
    let events = yard.client.execute_request(request).await.expect("it is accepted").to_end().await;
    assert_eq!(error(&check::outcomes(&events)["beyond"]).0, CallErrorKind::LimitExceeded);
    let text = told.has(&["within"]).await;
    assert!(!text.contains("beyond"), "{text}");
}

async fn cancelled(yard: &Yard) {
    let mut stream = yard.client.execute(vec![count("cancelled", 1000, 50)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    stream.run(&yard.client).cancel("not needed").await;
    stream.to_end().await;
}

async fn expired(yard: &Yard) {
    let timeout = Some(Duration::from_millis(500).try_into().expect("it is short"));
    let call = v1::NewCall { timeout, ..count("expired", 1000, 50) };
    yard.client.execute(vec![call]).await.to_end().await;
}

async fn undecided(yard: &Yard) {
    let timeout = Some(Duration::from_millis(200).try_into().expect("it is short"));
    let approval = Some(v1::ApprovalRequest { timeout, default: 0 });
    yard.client.execute(vec![v1::NewCall { approval, ..count("undecided", 1, 0) }]).await.to_end().await;
}

async fn repeated(yard: &Yard) {
    let (calls, request_id) = (vec![count("repeated", 1, 0)], "the-same".to_owned());
    let request = v1::CreateRunRequest { calls, request_id, ..v1::CreateRunRequest::default() };
    for _ in 0..2 {
        yard.client.runs.clone().create_run(request.clone()).await.expect("it is accepted");
    }
}

#[tokio::test]
async fn hooks_are_notified_of_every_end_that_no_worker_asks_about() {
    let file = File::new();
    let (mut errors, mut skips) = (Told::new(file.path("errors")), Told::new(file.path("skips")));
    let file =
        file.hook("errors", "tool_error", "*", &errors.script()).hook("skips", "tool_skip", "*", &skips.script());
    let admin = Admin::anywhere();
    let fixture = file.fixture();
    let yard = Yard::start_with(admin.of(&fixture)).await;
    let mut worker = fixture.worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("echo").await;
    cancelled(&yard).await;
    expired(&yard).await;
    undecided(&yard).await;
    repeated(&yard).await;
    let lost = call("lost", "writes", json!({ "path": file.path("x"), "line": "x", "then_wait_ms": 600_000 }));
    let mut stream = yard.client.execute(vec![lost]).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    worker.kill().await;
    stream.to_end().await;
    let of_errors = [r#""kind":"CANCELLED""#, r#""kind":"EXPIRED""#, r#""kind":"INTERRUPTED""#];
    let text = errors.has(&of_errors).await;
    assert!(text.lines().all(|line| line.contains(r#""event":"tool_error""#)), "{text}");
    skips.has(&[r#""kind":"REJECTED""#, r#""kind":"REPEATED""#]).await;
    for line in [
        r#"toolyard_hooks_total{hook="errors",moment="tool_error",decision="notified"} 3"#,
        r#"toolyard_hooks_total{hook="skips",moment="tool_skip",decision="notified"} 2"#,
        r#"toolyard_hook_seconds_count{hook="errors",moment="tool_error"} 3"#,
    ] {
        admin.until("/metrics", |_, text| text.lines().any(|found| found == line)).await;
    }
    let stranded = v1::NewCall { without_worker: v1::WithoutWorker::Fail.into(), ..count("stranded", 1, 0) };
    yard.client.execute(vec![stranded]).await.to_end().await;
    skips.has(&[r#""kind":"NO_WORKER""#]).await;
}
