//! Runs a shell command in the worker's sandbox, with an environment of its own: it is handed none of the worker's
//! secrets, and nothing of it is left when its call ends.

mod relay;

use std::time::Duration;

use futures::FutureExt as _;
use run::{CallError, ErrorKind};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::{Instant, sleep, sleep_until};

use self::relay::Relay;
use super::root::Root;
use sandbox::{Exit, Guarded, Order, Report, Request, Sandbox};
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Builds and test suites take minutes; longer jobs belong elsewhere.
const ATTEMPT_TIMEOUT_S: u32 = 600;
/// Bytes of a command. Linux takes no argument of 128 KiB or more.
const COMMAND_BYTES_MAX: usize = 128 * 1024 - 1;
/// How long a command may take to end after SIGTERM before it gets SIGKILL: less than a worker gives a cancelled tool.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long the pipes may stay open after the shell has ended. Processes that it left behind hold them, maybe for ever.
const PIPES_GRACE: Duration = Duration::from_secs(1);
/// How long killed processes may take to end. A process that waits for a device or a network folder cannot be killed:
/// then the call ends without it, reports that, and its slot stays taken.
const GONE_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Bash {
    root: Root,
    sandbox: Sandbox,
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

impl Bash {
    /// Commands begin in `root`, or below.
    #[must_use]
    pub const fn new(root: Root, sandbox: Sandbox) -> Self {
        Self { root, sandbox }
    }
}

impl Tool for Bash {
    const NAME: &'static str = "bash";
    type Input = Script;

    fn about(&self) -> About {
        let text = "Runs a shell command and streams what it writes to stdout and stderr. The result is its exit code, \
                    or the signal that ended it. Standard input is empty, and processes that it leaves in the \
                    background end with it. Programs that gain rights, such as sudo, do not work.";
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
        let command = self.sandbox.start(Request::shell(input.command, folder), context.left()).await?;
        Output::json(&follow(context, command, stopped(context, input.timeout_s)).await?)
    }
}

/// Waits until the command has to stop, and returns the reason.
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

/// Takes the output of a command to its call until all of the command has ended.
async fn follow(
    context: &Context,
    mut command: Guarded,
    stopped: impl Future<Output = ToolError>,
) -> Result<Exit, ToolError> {
    let (stdout, stderr) = command.pipes();
    let relay = Relay::new(context);
    let mut pumps = std::pin::pin!(relay.pump(stdout, stderr).fuse());
    let mut stopped = std::pin::pin!(stopped.fuse());
    let (mut exited, mut wrong, mut closed) = (None, None, false);
    // When it is killed, and then when it is given up.
    let (mut due, mut killed): (Option<Instant>, bool) = (None, false);
    loop {
        if !killed && (wrong.is_some() && due.is_none() || exited.is_some() && closed) {
            due = Some(Instant::now());
        }
        let overdue = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            report = command.report() => match report {
                Some(Report::Exited(exit)) => {
                    exited = Some(exit);
                    due = due.or_else(|| Some(Instant::now() + PIPES_GRACE));
                }
                Some(Report::Failed(error)) => {
                    return Err(ToolError::new(format!("the command cannot be run: {error}")));
                }
                Some(Report::Gone | Report::PerhapsGone) => break,
                None => {
                    let lost = "the guard of the command was killed: what the command started may still run";
                    wrong = wrong.or_else(|| Some(ToolError::of_call(CallError::new(ErrorKind::Interrupted, lost))));
                    break;
                }
            },
            pumped = &mut pumps, if !closed => {
                closed = true;
                wrong = wrong.or(pumped.err());
            }
            why = &mut stopped, if exited.is_none() && wrong.is_none() => {
                wrong = Some(why);
                command.order(Order::Terminate);
                due = Some(Instant::now() + TERM_GRACE);
            }
            () = overdue => {
                if killed {
                    tracing::warn!("a command cannot be killed; its slot is kept until it is gone");
                    break;
                }
                command.order(Order::Kill);
                (killed, due) = (true, Some(Instant::now() + GONE_LIMIT));
            }
        }
    }
    // All output is in the pipes. A process that inherited them may still hold them open.
    relay.let_go();
    if !closed {
        wrong = wrong.or(pumps.await.err());
    }
    match (wrong, exited) {
        (Some(wrong), _) => Err(wrong),
        (None, Some(exit)) => Ok(exit),
        (None, None) => Err(ToolError::new("the shell ended in an unknown way")),
    }
}

/// The error of a command with more output than a call may have.
fn too_much(limit: usize) -> ToolError {
    let message = format!(
        "the command wrote more than {limit} bytes and was ended: write to a file and read the parts that matter"
    );
    ToolError::of_call(CallError::new(ErrorKind::OutputTooLarge, message))
}
