//! Servers of the tests, hosted as a worker hosts them.

#![allow(dead_code, unreachable_pub, reason = "each test file needs a part of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use origins::mcp::config::{Reach, ServerConfig};
use origins::mcp::{Host, Programs, Selection};
use sandbox::{Sandbox, Settings};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use toolyard_tool::Table;
use toolyard_tool::testkit::{Called, call_in};

/// Longer than anything here should take.
pub const SOON: Duration = Duration::from_secs(60);

/// Servers that are hosted; they end with it.
pub struct Hosted {
    pub tables: watch::Receiver<Arc<Table>>,
    pub stop: CancellationToken,
    pub tasks: JoinSet<()>,
    pub folder: tempfile::TempDir,
}

/// A server that behaves in a way.
pub fn server(mode: &str) -> ServerConfig {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/server.py");
    let arguments = vec![script.to_string_lossy().into_owned(), mode.to_owned()];
    let reach = Reach::Program { program: "python3".to_owned(), arguments, environment: Vec::new(), folder: None };
    ServerConfig::new(mode, reach).unwrap()
}

pub async fn host(servers: Vec<ServerConfig>) -> Hosted {
    host_with(servers, Table::new(), Selection::default()).await
}

pub async fn host_with(servers: Vec<ServerConfig>, own: Table, selection: Selection) -> Hosted {
    start(servers, own, |host| host.selecting(selection)).await
}

/// Servers that are hosted as a test sets it.
pub async fn start(servers: Vec<ServerConfig>, own: Table, set: impl FnOnce(Host) -> Host) -> Hosted {
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-mcp-tests").into());
    let folder = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::new(Settings::default()).unwrap();
    let programs = Programs::new(sandbox, folder.path().to_owned()).unwrap();
    let stop = CancellationToken::new();
    let host = set(Host::new(servers, own, Some(&programs), 4));
    let (tables, tasks) = timeout(SOON, host.start(stop.clone())).await.unwrap();
    Hosted { tables, stop, tasks, folder }
}

impl Hosted {
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.tables.borrow())
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Called {
        timeout(SOON, call_in(&self.table(), tool, arguments)).await.unwrap()
    }

    /// Calls the echo, which answers when all is well.
    pub async fn is_well(&self) {
        assert_eq!(self.call("echo", json!({"text": "hi"})).await.answer(), "hi");
    }

    pub fn note(&self) -> PathBuf {
        self.folder.path().join("note")
    }

    pub fn noted(&self) -> String {
        std::fs::read_to_string(self.note()).unwrap_or_default()
    }

    pub async fn stop(mut self) {
        self.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        timeout(SOON, ended).await.unwrap();
    }
}
