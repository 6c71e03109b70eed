//! Servers at an address: a small one over real HTTP.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use origins::mcp::Host;
use origins::mcp::config::{Reach, ServerConfig, Token};
use run::{Chunk, ErrorKind};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use toolyard_tool::testkit::{Called, call_answered, call_in, start_in};
use toolyard_tool::{Elicitation, Reply, Table};

/// Longer than anything here should take.
const SOON: Duration = Duration::from_secs(60);

/// A server and its host.
struct Hosted {
    server: Child,
    url: String,
    table: Arc<Table>,
    folder: tempfile::TempDir,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

async fn serve() -> (Child, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/http_server.py");
    let mut server = Command::new("python3").arg(script).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let port = timeout(SOON, lines.next_line()).await.unwrap().unwrap().unwrap();
    (server, format!("http://127.0.0.1:{port}/mcp"))
}

/// A server at an address, with the token of a file.
fn config(url: &str, token: &Path) -> ServerConfig {
    let reach = Reach::Http { url: url.to_owned(), headers: Vec::new(), token: Some(Token::File(token.to_owned())) };
    ServerConfig { start_timeout: Duration::from_secs(20), ..ServerConfig::new("web", reach).unwrap() }
}

fn token_in(folder: &Path, token: &str) -> PathBuf {
    let file = folder.join(token.trim());
    std::fs::write(&file, token).unwrap();
    file
}

async fn host() -> Hosted {
    let (server, url) = serve().await;
    let folder = tempfile::tempdir().unwrap();
    let stop = CancellationToken::new();
    let servers = vec![config(&url, &token_in(folder.path(), "t0ken\n"))];
    let (tables, tasks) = timeout(SOON, Host::new(servers, Table::new(), None, 4).start(stop.clone())).await.unwrap();
    let table = Arc::clone(&tables.borrow());
    Hosted { server, url, table, folder, stop, tasks }
}

impl Hosted {
    async fn call(&self, tool: &str, arguments: Value) -> Called {
        timeout(SOON, call_in(&self.table, tool, arguments)).await.unwrap()
    }

    async fn stop(mut self) {
        self.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        timeout(SOON, ended).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_of_the_new_era_is_called_with_its_token() {
    let hosted = host().await;
    assert_eq!(hosted.call("echo", json!({"text": "hi"})).await.answer(), "hi");
    let meta: Value = serde_json::from_str(&hosted.call("meta", json!({})).await.answer()).unwrap();
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28", "{meta}");
    hosted.stop().await;
}

#[tokio::test]
async fn a_wrong_token_and_a_missing_server_are_reported_and_harm_no_other() {
    let (_server, url) = serve().await;
    let folder = tempfile::tempdir().unwrap();
    let servers = vec![
        config(&url, &token_in(folder.path(), "wrong")),
        config("http://127.0.0.1:1/mcp", &token_in(folder.path(), "t0ken")),
        config(&url, &folder.path().join("no such file")),
        config(&url, &token_in(folder.path(), "t0ken")),
    ];
    let stop = CancellationToken::new();
    let (tables, _tasks) = timeout(SOON, Host::new(servers, Table::new(), None, 4).start(stop)).await.unwrap();
    let table = Arc::clone(&tables.borrow());
    assert_eq!(call_in(&table, "echo", json!({"text": "hi"})).await.answer(), "hi");
}

#[tokio::test]
async fn a_server_that_takes_no_more_calls_is_called_again_when_it_says() {
    let hosted = host().await;
    let error = hosted.call("busy", json!({})).await.result.unwrap_err();
    assert_eq!((error.kind, error.retry_after), (ErrorKind::RateLimited, Some(Duration::from_secs(7))), "{error:?}");
    hosted.stop().await;
}

#[tokio::test]
async fn a_result_of_a_hundred_megabytes_fails_its_call_and_nothing_else() {
    let hosted = host().await;
    // Of a stream of events the client's library does not tell why it ended.
    let cases =
        [("hundred_megabytes", ErrorKind::ResultTooLarge), ("hundred_megabytes_of_events", ErrorKind::ToolFailed)];
    for (tool, kind) in cases {
        let error = hosted.call(tool, json!({})).await.result.unwrap_err();
        assert_eq!(error.kind, kind, "{tool}: {error:?}");
        assert_eq!(hosted.call("echo", json!({"text": "hi"})).await.answer(), "hi");
    }
    hosted.stop().await;
}

#[tokio::test]
async fn a_cancellation_ends_the_request_within_a_second() {
    let hosted = host().await;
    let note = hosted.folder.path().join("note");
    let mut call = start_in(&hosted.table, "sleep", json!({"note": note}));
    let Some(Chunk::Progress(_)) = timeout(SOON, call.chunk()).await.unwrap() else { panic!("no progress") };
    let asked = Instant::now();
    call.cancel();
    assert_eq!(timeout(SOON, call.end()).await.unwrap().error(), "the call was cancelled");
    let noted = async {
        while !note.exists() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(SOON, noted).await.is_ok(), "the server sees the end of the request");
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    hosted.stop().await;
}

#[tokio::test]
async fn a_task_is_followed_to_its_end() {
    let hosted = host().await;
    let called = hosted.call("task", json!({})).await;
    assert_eq!(called.answer(), "the task is done");
    assert!(matches!(&called.output[..], [Chunk::Progress(first), ..] if first.message == "poll 1"), "{called:?}");
    hosted.stop().await;
}

#[tokio::test]
async fn a_server_that_needs_input_is_answered_and_gets_its_state_back() {
    let hosted = host().await;
    let replies = |question: &Elicitation| {
        assert_eq!(question.message, "Who are you?");
        Reply::Accept(Map::from_iter([("name".to_owned(), json!("Ada"))]))
    };
    let called = timeout(SOON, call_answered(&hosted.table, "input", json!({}), replies)).await.unwrap();
    let answer: Value = serde_json::from_str(&called.answer()).unwrap();
    assert_eq!(answer["state"], "sealed", "{answer}");
    assert_eq!(answer["answers"]["who"], json!({ "action": "accept", "content": { "name": "Ada" } }));
    hosted.stop().await;
}

#[tokio::test]
async fn a_server_that_is_gone_fails_its_calls_in_a_way_that_may_be_retried() {
    let mut hosted = host().await;
    hosted.server.kill().await.unwrap();
    let error = hosted.call("echo", json!({"text": "hi"})).await.result.unwrap_err();
    assert!(error.retryable && error.kind == ErrorKind::ToolFailed, "{} {error:?}", hosted.url);
    hosted.stop().await;
}
