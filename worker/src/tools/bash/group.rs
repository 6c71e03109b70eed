//! A process group that ends with us, also when we are killed with SIGKILL: its leader (`guard.sh`) holds a pipe of ours.
//!
//! The leader is not reaped while the group is in use, so the group's id cannot come to mean another one. A process that
//! leaves the group, as `setsid` does, escapes.

use std::io;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use super::TERM_GRACE;

const GUARD: &str = include_str!("guard.sh");

/// What a command sees of the worker's environment. Everything else may be a secret.
const ENVIRONMENT: [&str; 8] = ["PATH", "HOME", "LANG", "LC_ALL", "TERM", "TZ", "USER", "TMPDIR"];

/// Dropping it kills whatever still runs in it.
#[derive(Debug)]
pub(super) struct Group {
    id: Pid,
    /// Holds the pipe to the leader, and keeps it from being reaped.
    _leader: Child,
}

impl Group {
    pub(super) fn lead() -> io::Result<Self> {
        let leader = clean(Command::new("/bin/sh").args(["-c", GUARD, "toolyard-guard"]))
            .arg(TERM_GRACE.as_secs().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let id = leader.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let id = id.ok_or_else(|| io::Error::other("the leader of the process group has no id"))?;
        Ok(Self { id, _leader: leader })
    }

    /// Starts a shell in the group: bash, or `sh` where there is none.
    pub(super) fn shell(&self, command: &str, folder: &Path) -> io::Result<Child> {
        match self.spawn("bash", command, folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.spawn("sh", command, folder),
            spawned => spawned,
        }
    }

    fn spawn(&self, shell: &str, command: &str, folder: &Path) -> io::Result<Child> {
        // Without the dashes a command that begins with one would be taken for an option.
        clean(Command::new(shell).args(["-c", "--", command]))
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(self.id.as_raw_nonzero().get())
            .spawn()
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Err(error) = kill_process_group(self.id, signal) {
            tracing::debug!(%error, ?signal, "the process group is gone");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

fn clean(command: &mut Command) -> &mut Command {
    let kept = ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    command.env_clear().envs(kept)
}
