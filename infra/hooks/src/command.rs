//! Hook programs: started for each request, which the program reads from standard input; its standard output is the
//! answer. At its timeout the program is killed with its process group.

use std::io;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use crate::ANSWER_BYTES_MAX;
use crate::contract::HookError;

/// Programs of one hook or resolver that run at once; further ones wait, within their timeout.
const RUNNING_MAX: usize = 16;
/// Environment variables with these prefixes are not passed on, because they may hold credentials for the object store,
/// the broker, the index or a collector.
const OURS: [&str; 3] = ["AWS_", "OTEL_", "TOOLYARD_"];
/// Bytes of standard error that are logged.
const COMPLAINT_BYTES_MAX: usize = 2048;

pub(crate) struct Program {
    program: String,
    arguments: Vec<String>,
    room: Semaphore,
}

impl Program {
    pub(crate) fn new(program: String, arguments: Vec<String>) -> Self {
        Self { program, arguments, room: Semaphore::new(RUNNING_MAX) }
    }

    fn start(&self) -> io::Result<Group> {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            if OURS.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes())) {
                command.env_remove(name);
            }
        }
        let child = command
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let id = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        Ok(Group { child, id })
    }
}

/// A program and the processes that it started. Killed if it is dropped before it has ended.
struct Group {
    child: Child,
    /// `None` once the id may belong to another process.
    id: Option<Pid>,
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group's id cannot be reused before its leader has been waited for.
        if let Some(Err(error)) = self.id.map(|id| kill_process_group(id, Signal::KILL)) {
            tracing::debug!(%error, "the process group of a hook is gone");
        }
    }
}

impl Program {
    /// Its answer to a request, once a slot is free.
    pub(crate) async fn answer(&self, question: &[u8]) -> Result<Vec<u8>, HookError> {
        let _room = self.room.acquire().await.map_err(|error| HookError::new(error.to_string()))?;
        self.run(question).await
    }

    async fn run(&self, question: &[u8]) -> Result<Vec<u8>, HookError> {
        let failed = |what: &str, error: io::Error| HookError::new(format!("{what} {}: {error}", self.program));
        let mut group = self.start().map_err(|error| failed("cannot start", error))?;
        let (input, output, complaints) =
            (group.child.stdin.take(), group.child.stdout.take(), group.child.stderr.take());
        let (Some(mut input), Some(output), Some(complaints)) = (input, output, complaints) else {
            return Err(HookError::new("its pipes are missing"));
        };
        let write = async move {
            // A program that does not read the request may answer it all the same.
            drop(input.write_all(question).await);
            Ok(())
        };
        let read = async {
            let mut answer = Vec::new();
            let read = output.take(ANSWER_BYTES_MAX as u64 + 1).read_to_end(&mut answer).await;
            match read.map_err(|error| failed("cannot hear", error))? {
                size if size > ANSWER_BYTES_MAX => {
                    Err(HookError::new(format!("its answer is longer than {ANSWER_BYTES_MAX} bytes")))
                }
                _ => Ok(answer),
            }
        };
        let hear = async { complaint(complaints).await.map_err(|error| failed("cannot hear", error)) };
        let ((), answer, complaint) = tokio::try_join!(write, read, hear)?;
        let status = group.child.wait().await.map_err(|error| failed("cannot wait for", error))?;
        group.id = None;
        if !status.success() {
            let complaint = String::from_utf8_lossy(&complaint);
            // Standard error is for the operator's log, not for the model.
            tracing::warn!(program = self.program, %status, stderr = complaint.trim(), "a hook's program failed");
            return Err(HookError::new(format!("its program ended with {status}")));
        }
        Ok(answer)
    }
}

/// Reads standard error to its end, so that the program does not block, and keeps its beginning.
async fn complaint(mut pipe: impl AsyncRead + Unpin) -> io::Result<Vec<u8>> {
    let (mut kept, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        match pipe.read(&mut buffer).await? {
            0 => return Ok(kept),
            count => {
                let room = COMPLAINT_BYTES_MAX - kept.len();
                kept.extend_from_slice(&buffer[..count.min(room)]);
            }
        }
    }
}
