//! Processes of ours, killed when dropped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::PATIENCE;

/// Cargo, without the variables that it sets for the package of this process: with them it builds dependencies again
/// that look at them.
#[must_use]
pub fn cargo() -> std::process::Command {
    let mut cargo = std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|begin| name.to_string_lossy().starts_with(begin)) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// The program that the scenarios start.
#[derive(Debug, Clone)]
pub struct Fixture {
    program: PathBuf,
    environment: Vec<(&'static str, String)>,
    log: Option<PathBuf>,
}

impl Fixture {
    #[must_use]
    pub fn new(program: &str) -> Self {
        Self { program: program.into(), environment: Vec::new(), log: None }
    }

    /// The same program with a variable of its environment set.
    #[must_use]
    pub fn with(&self, name: &'static str, value: impl std::fmt::Display) -> Self {
        let mut fixture = self.clone();
        fixture.environment.push((name, value.to_string()));
        fixture
    }

    /// The same program with its log in a file.
    #[must_use]
    pub fn logging_to(&self, file: &std::path::Path) -> Self {
        Self { log: Some(file.to_owned()), ..self.clone() }
    }

    /// Its coordinators share an index in this store.
    #[must_use]
    pub fn with_redis(&self, url: &str) -> Self {
        self.with("TOOLYARD_REDIS_URL", url)
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
        self.worker_with_drain(nats_url, pool, slots, 120).await
    }

    /// A worker that gives its calls back some seconds after a stop was requested.
    pub async fn worker_with_drain(&self, nats_url: &str, pool: &str, slots: u32, drain_s: u64) -> Worker {
        let (child, id) = self.start(&["worker", nats_url, pool, &slots.to_string(), &drain_s.to_string()]).await;
        Worker { child, id }
    }

    /// Builds an example of the workspace, as `cargo test` does before, and returns its path.
    ///
    /// # Panics
    /// When it does not build.
    #[must_use]
    pub fn example(name: &str) -> PathBuf {
        // With the features of the whole workspace, so that nothing is built twice.
        let built = cargo().args(["build", "--quiet", "--workspace", "--example", name]).status();
        assert!(built.is_ok_and(|status| status.success()), "the example builds");
        let test = std::env::current_exe().expect("a test has a path");
        test.ancestors().nth(2).expect("a test lies in the target folder").join("examples").join(name)
    }

    /// Another worker program, which reports on stderr that it is ready.
    pub async fn program(program: &std::path::Path, nats_url: &str) -> Child {
        let mut child = Command::new(program)
            .env("TOOLYARD_NATS_URL", nats_url)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        let stderr = child.stderr.take().expect("its output is ours");
        let mut lines = BufReader::new(stderr).lines();
        let ready = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("it gets ready in time");
        assert!(ready.is_ok_and(|line| line.is_some()), "it does not end before it is ready");
        child
    }

    async fn start(&self, arguments: &[&str]) -> (Child, String) {
        let mut command = Command::new(&self.program);
        if let Some(log) = &self.log {
            command.stderr(std::fs::File::create(log).expect("a file can be made"));
        }
        let mut child = command
            .args(arguments)
            .env_remove("TOOLYARD_REDIS_URL")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
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

    /// The most memory that it has had, in bytes.
    ///
    /// # Panics
    /// Where the system does not tell: on Linux it does.
    #[must_use]
    pub fn memory_peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().expect("it is running")));
        let status = status.expect("the system tells of its processes");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak.and_then(|kib| kib.parse::<u64>().ok()).expect("it has memory") * 1024
    }

    /// The processor time that it has taken.
    ///
    /// # Panics
    /// Where the system does not tell: on Linux it does.
    #[must_use]
    pub fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id().expect("it is running")));
        let stat = stat.expect("the system tells of its processes");
        // The name of the program, in parentheses, may hold anything. The times are hundredths of a second.
        let (_, rest) = stat.rsplit_once(')').expect("a line of stat");
        let times = rest.split_whitespace().skip(11).take(2).map(|time| time.parse::<u64>().expect("a time"));
        Duration::from_millis(times.sum::<u64>() * 10)
    }

    /// SIGKILL.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("it was running");
    }

    /// SIGSTOP: it stops, and no other process is notified.
    pub fn pause(&self) {
        pause(&self.child);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        signal(&self.child, rustix::process::Signal::CONT);
    }

    /// SIGTERM, and its orderly end.
    pub async fn terminate(&mut self) {
        terminate(&mut self.child).await;
    }
}

/// Sends a signal to a process of ours that runs.
fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.expect("it is running"), signal).expect("it is running");
}

/// SIGSTOP, and waits until every thread of the process has stopped. The signal alone stops one thread first: on a busy
/// machine the others go on for a while.
fn pause(child: &Child) {
    use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw).expect("it is running");
    signal(child, Signal::STOP);
    let stops = std::time::Instant::now() + PATIENCE;
    while let Ok(None) = waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG) {
        assert!(std::time::Instant::now() < stops, "process {pid:?} did not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// SIGTERM; then its end, which must be an orderly one.
async fn terminate(child: &mut Child) {
    signal(child, rustix::process::Signal::TERM);
    ended(child).await;
}

async fn ended(child: &mut Child) {
    // Waiting would close its input, at which it ends at once.
    let _input = child.stdin.take();
    let ended = tokio::time::timeout(PATIENCE, child.wait()).await.expect("it ends in time").expect("it was ours");
    assert!(ended.success(), "{ended}");
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

    /// SIGTERM, and its orderly end.
    pub async fn terminate(&mut self) {
        terminate(&mut self.child).await;
    }

    /// Its orderly end, which another process requested.
    pub async fn ended(&mut self) {
        ended(&mut self.child).await;
    }

    /// SIGSTOP: it stands still, and nobody is told.
    pub fn pause(&self) {
        pause(&self.child);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        signal(&self.child, rustix::process::Signal::CONT);
    }

    /// SIGKILL.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("it was running");
    }
}
