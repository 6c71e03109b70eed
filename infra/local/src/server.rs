//! The life of a server, whichever it is: come up, be killed, come back on the same port and folder, end.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::error::Error;
use crate::folder::Folder;
use crate::process::Process;
use crate::program::Program;
use crate::ready;

/// How long a restart waits for its port to become free again.
const PORT_LIMIT: Duration = Duration::from_secs(10);
/// A server gives no event that we could wait for when it is up, so we look: often, because tests start many.
const READY_POLL: Duration = Duration::from_millis(5);
const PORT_POLL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Server {
    program: Program,
    binary: PathBuf,
    folder: Folder,
    process: Option<Process>,
}

impl Server {
    /// A server that does not run yet.
    pub(crate) fn new(program: Program, binary: PathBuf, folder: Folder) -> Self {
        Self { program, binary, folder, process: None }
    }

    /// Starts the server and waits until it serves. `port` is 0 when the server picks it. Gives the port it listens on.
    pub(crate) async fn come_up(&mut self, port: u16, args: &[OsString]) -> Result<u16, Error> {
        self.end().await;
        ready::forget(self.folder.path());
        let log_start = self.folder.log_len();
        let process = Process::spawn(&self.binary, args, self.folder.log()).await?;
        let pid = process.pid();
        let process = self.process.insert(process);

        let limit = self.program.start_limit();
        let deadline = Instant::now() + limit;
        loop {
            if let Some(port) = ready::port(self.program, self.folder.path(), port, pid).await {
                tracing::debug!(program = %self.program, port, pid, "server is up");
                return Ok(port);
            }
            if process.has_ended() {
                let log = self.folder.log_end(log_start);
                self.process = None;
                return Err(why_it_ended(self.program, port, log));
            }
            if Instant::now() >= deadline {
                let log = self.folder.log_end(log_start);
                self.kill().await;
                return Err(Error::Slow { program: self.program, limit, log });
            }
            sleep(READY_POLL).await;
        }
    }

    /// Starts the server again on the port it had.
    pub(crate) async fn come_back(&mut self, port: u16, args: &[OsString]) -> Result<(), Error> {
        let deadline = Instant::now() + PORT_LIMIT;
        loop {
            // A client that kept connecting while the server was away may hold this very port as its own end.
            match self.come_up(port, args).await {
                Ok(_) => return Ok(()),
                Err(Error::PortTaken { .. }) if Instant::now() < deadline => sleep(PORT_POLL).await,
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// SIGSTOP: it stops, and no client is notified.
    pub(crate) fn pause(&self) {
        self.process.iter().for_each(Process::stop_still);
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        self.process.iter().for_each(|process| process.send(Signal::CONT));
    }

    /// The last lines of its log, for an error's text.
    pub(crate) fn log_end(&self) -> String {
        self.folder.log_end(0)
    }

    /// SIGKILL; returns when the process is gone.
    pub(crate) async fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill().await;
        }
    }

    /// SIGTERM, SIGKILL when that is not enough; returns when the process is gone.
    pub(crate) async fn end(&mut self) {
        if let Some(process) = self.process.take() {
            process.end().await;
        }
    }
}

impl Drop for Server {
    /// Otherwise the wrapper ends the server, but a folder can only be removed when no process writes into it.
    fn drop(&mut self) {
        if self.folder.is_temporary()
            && let Some(process) = &mut self.process
        {
            process.kill_blocking();
        }
    }
}

fn why_it_ended(program: Program, port: u16, log: String) -> Error {
    if log.to_lowercase().contains("address already in use") {
        Error::PortTaken { program, port }
    } else {
        Error::Ended { program, log }
    }
}
