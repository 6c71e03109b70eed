//! What the tests ask, and of whom.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use run::{AttemptNumber, CallError, Content, ErrorKind, Fields};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use toolyard_hooks::{CallStage, Hook, HookError, HookRequest, Hooks, InvalidHooks, Reply};

/// A hook that answers what its function does.
pub(crate) struct By<F>(pub(crate) F);

pub(crate) fn by<F>(answers: F) -> By<F>
where
    F: Fn(&HookRequest) -> Result<Reply, HookError> + Send + Sync + 'static,
{
    By(answers)
}

impl<F> Hook for By<F>
where
    F: Fn(&HookRequest) -> Result<Reply, HookError> + Send + Sync + 'static,
{
    async fn ask(&self, question: &HookRequest) -> Result<Reply, HookError> {
        self.0(question)
    }
}

/// A hook that takes this long.
pub(crate) struct Slow(pub(crate) Duration);

impl Hook for Slow {
    async fn ask(&self, _: &HookRequest) -> Result<Reply, HookError> {
        tokio::time::sleep(self.0).await;
        Ok(Reply::Allow)
    }
}

pub(crate) fn about(tool: &str, happened: CallStage) -> HookRequest {
    // Its worker asks after an attempt.
    let attempt = matches!(happened, CallStage::Completed { .. } | CallStage::Failed { .. });
    HookRequest {
        run: "run_00_01890000000070008000000000000000".parse().expect("a run id"),
        call: Some("call".parse().expect("a call id")),
        tool: tool.parse().expect("a tool name"),
        alias_of: None,
        tenant: Some("acme".parse().expect("a tenant")),
        attempt: attempt.then_some(AttemptNumber(1)),
        metadata: BTreeMap::from([("whom".to_owned(), "Ada".to_owned())]),
        arguments: r#"{"amount":1.10000000000000000001}"#.into(),
        happened,
    }
}

pub(crate) fn asked(tool: &str) -> HookRequest {
    about(tool, CallStage::Asked)
}

pub(crate) fn completed(text: &str) -> HookRequest {
    let result = vec![Content::Text(text.to_owned())];
    about("pay", CallStage::Completed { result, extra_state: Fields::default(), output: None })
}

pub(crate) fn failed(message: &str) -> HookRequest {
    let error = CallError::new(ErrorKind::ToolFailed, message).retryable();
    about("pay", CallStage::Failed { error })
}

/// The hooks of a file with this text.
pub(crate) fn read(text: &str) -> Result<Hooks, InvalidHooks> {
    let folder = tempfile::tempdir().expect("a folder");
    let path: PathBuf = folder.path().join("hooks.toml");
    std::fs::write(&path, text).expect("it can be written");
    Hooks::read(&path)
}

/// A hook that runs this shell script before a call.
pub(crate) fn script(script: &str, timeout_ms: u64) -> Hooks {
    let command = serde_json::json!(["sh", "-c", script]);
    let text = format!(
        "[[hook]]\nname = \"script\"\non = [\"pre_tool_use\"]\ntimeout_ms = {timeout_ms}\ncommand = {command}\n"
    );
    read(&text).expect("the file is well formed")
}

/// A web service that answers every request so; and its address.
pub(crate) async fn service(response: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it listens");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 64 * 1024];
            drop(stream.read(&mut request).await);
            drop(stream.write_all(response.as_bytes()).await);
        }
    });
    format!("http://{address}/hook")
}
