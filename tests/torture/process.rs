//! One coordinator or worker as a process, whose log goes to a file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// How long a process may take until it says that it is ready.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long an orderly end may take: a coordinator leaves after 20 s at the latest, a worker after its drain.
const END_LIMIT: Duration = Duration::from_secs(30);

/// How a process is started, and started again.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) log: PathBuf,
}

#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

impl Launch {
    pub(crate) async fn start(&self) -> anyhow::Result<Process> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C is for us; they end when we do.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let stdout = child.stdout.take().context("its output is ours")?;
        let mut lines = BufReader::new(stdout).lines();
        let said = tokio::time::timeout(START_LIMIT, lines.next_line()).await.context("it does not get ready")??;
        if said.is_none() {
            bail!("it ended before it was ready, see {}", self.log.display());
        }
        Ok(Process { child })
    }
}

impl Process {
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        kill_process(pid.context("it has ended")?, signal)?;
        Ok(())
    }

    /// SIGKILL; returns when it is gone.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// SIGTERM; how it ended, or why not.
    pub(crate) async fn terminate(&mut self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        // Waiting would close its input, at which it ends at once.
        let _input = self.child.stdin.take();
        Ok(tokio::time::timeout(END_LIMIT, self.child.wait()).await.context("it does not end")??)
    }

    /// How it ended by itself, if it did.
    pub(crate) fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }
}

/// Memory that a process holds, and the most that it ever held, in KiB.
pub(crate) fn memory_kib(pid: u32) -> Option<(u64, u64)> {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some((field("VmRSS:")?, field("VmHWM:")?))
}
