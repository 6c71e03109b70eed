//! Runs a shell command, with an environment and a process group of its own: it is handed none of the worker's secrets,
//! and nothing of it is left when its call ends.

mod group;
mod relay;

use std::os::unix::process::ExitStatusExt as _;
use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use run::{CallError, ErrorKind};
use rustix::process::Signal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::process::Child;
use tokio::time::{sleep, timeout};

use self::group::Group;
use self::relay::Relay;
use super::root::Root;
use crate::tool::{About, Context, Output, Tool, ToolError};

/// Builds and test suites take minutes; who needs more than ten starts a job elsewhere.
const ATTEMPT_TIMEOUT_S: u32 = 600;
/// Bytes of a command. Linux takes no argument of 128 KiB or more.
const COMMAND_BYTES_MAX: usize = 128 * 1024 - 1;
/// How long a group may take to end after SIGTERM before it gets SIGKILL: less than a worker gives a cancelled tool.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long the pipes may stay open once the shell has ended. What it left behind holds them, and may never let go.
const PIPES_GRACE: Duration = Duration::from_secs(1);
/// By then what a killed group had said is there to be read.
const SETTLED: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Bash {
    root: Root,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The command, as after `bash -c`
    #[schemars(length(min = 1))]
    command: String,
    /// The folder to run it in, relative to the root; the root unless given
    working_directory: Option<String>,
    /// After how many seconds to end the command
    #[schemars(range(min = 1, max = ATTEMPT_TIMEOUT_S))]
    timeout_s: Option<u32>,
}

/// How a shell ended.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Exit {
    ExitCode(i32),
    Signal(i32),
}

impl Bash {
    #[must_use]
    pub fn new(root: Root) -> Self {
        Self { root }
    }
}

impl Tool for Bash {
    const NAME: &'static str = "bash";
    type Input = Script;

    fn about(&self) -> About {
        let text = "Runs a shell command and streams what it writes to stdout and stderr. The result is its exit code, or \
                    the signal that ended it. Standard input is empty, and processes that it leaves in the background \
                    end with it.";
        let timeout = Duration::from_secs(ATTEMPT_TIMEOUT_S.into());
        let about = About::new(text).destructive().open_world().streaming().idle_timeout(None).attempt_timeout(timeout);
        about.uses_machine().category("shell").side_effect_scope("whatever the worker's user may change")
    }

    async fn call(&self, context: &Context, input: Script) -> Result<Output, ToolError> {
        let folder = self.root.folder(input.working_directory.as_deref())?;
        if input.command.len() > COMMAND_BYTES_MAX {
            let message = format!("the command is longer than {COMMAND_BYTES_MAX} bytes: write a file and run that");
            return Err(ToolError::new(message));
        }
        let group = Group::lead()?;
        let mut shell = group.shell(&input.command, &folder)?;
        let mut exit = pin!(follow(context, &group, &mut shell));
        let stopped = tokio::select! {
            exit = &mut exit => return Output::json(&exit?),
            stopped = stopped(context, input.timeout_s) => stopped,
        };
        group.signal(Signal::TERM);
        // What it says until it ends is heard. How it ends is not: it was made to. Then the group is dropped, which kills.
        drop(timeout(TERM_GRACE, exit).await);
        Err(stopped)
    }
}

/// Waits until the command has to stop, and says why.
async fn stopped(context: &Context, timeout_s: Option<u32>) -> ToolError {
    let overdue = async {
        match timeout_s {
            Some(seconds) => sleep(Duration::from_secs(seconds.into())).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = context.cancelled() => ToolError::new("the call was cancelled"),
        () = overdue => {
            let seconds = timeout_s.unwrap_or(ATTEMPT_TIMEOUT_S);
            ToolError::new(format!("the command took longer than timeout_s, {seconds} s, and was ended"))
        }
    }
}

/// Takes the shell's output to the call until both have ended.
async fn follow(context: &Context, group: &Group, shell: &mut Child) -> Result<Exit, ToolError> {
    let relay = Relay::new(context);
    let mut pumps = pin!(relay.pump(shell.stdout.take(), shell.stderr.take()));
    let mut closed = false;
    let status = loop {
        tokio::select! {
            status = shell.wait() => break status?,
            pumped = &mut pumps, if !closed => {
                pumped?;
                closed = true;
            }
        }
    };
    if !closed {
        let release = async {
            sleep(PIPES_GRACE).await;
            group.signal(Signal::KILL);
            sleep(SETTLED).await;
            // A process that left the group may hold the pipes still.
            relay.let_go();
            std::future::pending().await
        };
        tokio::select! {
            pumped = &mut pumps => pumped?,
            () = release => {}
        }
    }
    exit(status)
}

fn exit(status: ExitStatus) -> Result<Exit, ToolError> {
    let code = status.code().map(Exit::ExitCode);
    code.or_else(|| status.signal().map(Exit::Signal))
        .ok_or_else(|| ToolError::new(format!("the shell ended in an unknown way: {status}")))
}

/// A command that says more than a call may.
fn too_much(limit: usize) -> ToolError {
    let message = format!(
        "the command wrote more than {limit} bytes and was ended: write to a file and read the parts that matter"
    );
    ToolError(CallError::new(ErrorKind::OutputTooLarge, message))
}
