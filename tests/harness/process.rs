//! Processes of ours, killed when dropped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::PATIENCE;

/// The program that the scenarios start.
#[derive(Debug, Clone)]
pub struct Fixture(PathBuf);

impl Fixture {
    #[must_use]
    pub fn new(program: &str) -> Self {
        Self(program.into())
    }

    pub async fn coordinator(&self, nats_url: &str) -> Coordinator {
        self.coordinator_at(nats_url, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// A coordinator on a known port, as one that is started again has.
    pub async fn coordinator_at(&self, nats_url: &str, listen: SocketAddr) -> Coordinator {
        let (child, ready) = self.start(&["coordinator", nats_url, &listen.to_string()]).await;
        Coordinator { child, address: ready.parse().expect("a coordinator says where it listens") }
    }

    pub async fn worker(&self, nats_url: &str, pool: &str, slots: u32) -> Worker {
        let (child, id) = self.start(&["worker", nats_url, pool, &slots.to_string()]).await;
        Worker { child, id }
    }

    async fn start(&self, arguments: &[&str]) -> (Child, String) {
        let mut child = Command::new(&self.0)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the fixture starts");
        let stdout = child.stdout.take().expect("its output is ours");
        let mut lines = BufReader::new(stdout).lines();
        let ready = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("it gets ready in time");
        (child, ready.expect("its output is text").expect("it does not end before it is ready"))
    }
}

#[derive(Debug)]
pub struct Coordinator {
    child: Child,
    address: SocketAddr,
}

impl Coordinator {
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// SIGKILL.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("it was running");
    }
}

#[derive(Debug)]
pub struct Worker {
    child: Child,
    id: String,
}

impl Worker {
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// SIGKILL.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("it was running");
    }
}
