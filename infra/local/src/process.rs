//! One operating system process that ends with us, also when we are killed with SIGKILL. `unsafe` is forbidden here, so
//! nothing can be set between fork and exec; a small shell script (`supervise.sh`) holds a pipe of ours instead.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use crate::error::Error;

/// How long a server may take to end after SIGTERM before it gets SIGKILL. Both kinds need some milliseconds.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(3);
/// How much longer than the grace the wrapper may take; only a machine that hangs needs it.
const REAP_LIMIT: Duration = Duration::from_secs(5);
/// The shell starts in a millisecond or two.
const SPAWN_LIMIT: Duration = Duration::from_secs(10);
/// How long a drop may block for a killed server to disappear.
const DROP_LIMIT: Duration = Duration::from_secs(1);
/// How long the threads of a server may take to stand still after SIGSTOP, and how often they are looked at. It takes
/// less than a millisecond, unless the machine has too much to do or a thread waits for its disk.
const STILL_LIMIT: Duration = Duration::from_secs(1);
const STILL_POLL: Duration = Duration::from_millis(1);

const WRAPPER: &str = include_str!("supervise.sh");

/// A running server under its wrapper. Dropping it closes the pipe, and the wrapper ends the server.
#[derive(Debug)]
pub(crate) struct Process {
    wrapper: Child,
    /// The write end of the wrapper's standard input. Nothing is ever written.
    lifeline: ChildStdin,
    server: Pid,
}

impl Process {
    /// Starts `binary` with its output appended to `log`. A binary that cannot run ends at once, its reason in the log.
    pub(crate) async fn spawn(binary: &Path, args: &[OsString], log: &File) -> Result<Self, Error> {
        Self::spawn_wrapper(binary, args, log).await.map_err(|source| Error::Spawn { source })
    }

    async fn spawn_wrapper(binary: &Path, args: &[OsString], log: &File) -> io::Result<Self> {
        let mut wrapper = Command::new("/bin/sh")
            .args(["-c", WRAPPER, "toolyard-supervise"])
            .arg(STOP_GRACE.as_secs().to_string())
            .arg(binary)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.try_clone()?)
            // Ctrl-C in a terminal reaches the whole foreground group; the parent drains first, then lets go of us.
            .process_group(0)
            .spawn()?;
        let (Some(lifeline), Some(output)) = (wrapper.stdin.take(), wrapper.stdout.take()) else {
            return Err(io::Error::other("the shell has no pipes"));
        };
        let server = timeout(SPAWN_LIMIT, read_pid(output)).await??;
        Ok(Self { wrapper, lifeline, server })
    }

    /// The server's process id, not the wrapper's.
    pub(crate) fn pid(&self) -> u32 {
        self.server.as_raw_nonzero().get().unsigned_abs()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.wrapper.try_wait(), Ok(None))
    }

    /// SIGTERM, after [`STOP_GRACE`] SIGKILL; returns when the server is gone.
    pub(crate) async fn end(self) {
        drop(self.lifeline);
        wait(self.wrapper, self.server).await;
    }

    /// SIGKILL; returns when the server is gone.
    pub(crate) async fn kill(mut self) {
        self.send_kill();
        wait(self.wrapper, self.server).await;
    }

    /// SIGKILL; returns when the server is gone, for places that cannot await. Blocks some milliseconds, at most 1 s.
    pub(crate) fn kill_blocking(&mut self) {
        self.send_kill();
        let deadline = Instant::now() + DROP_LIMIT;
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn send_kill(&mut self) {
        // While the wrapper lives it has not reaped the server, so the id cannot mean another process.
        if !self.has_ended() {
            self.send(Signal::KILL);
        }
    }

    /// SIGSTOP; returns when all its threads have stopped. Until then the server may still accept messages.
    pub(crate) fn stop_still(&self) {
        self.send(Signal::STOP);
        let give_up = Instant::now() + STILL_LIMIT;
        while self.moves() && Instant::now() < give_up {
            std::thread::sleep(STILL_POLL);
        }
    }

    /// Whether a thread of it still runs, if the system reports that.
    fn moves(&self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.pid())) else { return false };
        threads.flatten().any(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The name may hold spaces; it ends with the last parenthesis.
            stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['T', 't']))
        })
    }

    pub(crate) fn send(&self, signal: Signal) {
        if let Err(error) = kill_process(self.server, signal) {
            tracing::debug!(%error, ?signal, pid = self.pid(), "server was gone before it got a signal");
        }
    }
}

async fn read_pid(output: impl AsyncRead + Unpin) -> io::Result<Pid> {
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).await?;
    line.trim()
        .parse()
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other(format!("the shell said {line:?} in place of a process id")))
}

async fn wait(mut wrapper: Child, server: Pid) {
    match timeout(STOP_GRACE + REAP_LIMIT, wrapper.wait()).await {
        Ok(Ok(status)) => tracing::debug!(%status, pid = %server.as_raw_nonzero(), "server has ended"),
        Ok(Err(error)) => tracing::warn!(%error, pid = %server.as_raw_nonzero(), "cannot wait for the server"),
        Err(_) => tracing::warn!(pid = %server.as_raw_nonzero(), "server did not end in time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn shell(script: &str, log: &File) -> Process {
        let args = ["-c".into(), script.into()];
        Process::spawn(Path::new("/bin/sh"), &args, log).await.expect("sh starts")
    }

    #[tokio::test]
    async fn a_server_that_ends_takes_its_wrapper_along_with_its_status() {
        let log = tempfile::tempfile().expect("a temporary file");
        let mut process = shell("exit 7", &log).await;
        let status = process.wrapper.wait().await.expect("the wrapper ends");
        assert_eq!(status.code(), Some(7));
    }

    #[tokio::test]
    async fn a_server_that_ignores_sigterm_is_killed_after_the_grace() {
        let log = tempfile::tempfile().expect("a temporary file");
        // The exec keeps the ignored signal and makes the process id that of the sleep.
        let process = shell("trap '' TERM; echo deaf; exec sleep 60", &log).await;
        let pid = process.server;
        let started = Instant::now();
        while log.metadata().expect("a file").len() == 0 {
            assert!(started.elapsed() < SPAWN_LIMIT, "the shell says nothing");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let asked = Instant::now();
        process.end().await;
        assert!(asked.elapsed() >= STOP_GRACE, "it was given its time");
        assert!(asked.elapsed() < STOP_GRACE + REAP_LIMIT, "the wrapper did not wait for more");
        assert!(rustix::process::test_kill_process(pid).is_err(), "the process is gone");
    }
}
