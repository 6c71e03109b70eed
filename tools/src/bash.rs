//! Runs a shell command in the worker's sandbox, with an environment of its own: it is handed none of the worker's
//! secrets, and nothing of it is left when its call ends.

mod relay;

use std::time::Duration;

use futures::stream;
use run::{CallError, ErrorKind};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::relay::Relay;
use super::jobs::{Jobs, TIME, TIME_MAX_S};
use super::root::Root;
use super::running::follow;
use super::scope;
use sandbox::{Request, Sandbox};
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Builds and test suites take minutes; longer jobs belong elsewhere.
const ATTEMPT_TIMEOUT_S: u32 = 600;
/// Bytes of a command. Linux takes no argument of 128 KiB or more.
const COMMAND_BYTES_MAX: usize = 128 * 1024 - 1;

#[derive(Debug)]
pub struct Bash {
    root: Root,
    sandbox: Sandbox,
    jobs: Jobs,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The command, as after `bash -c`
    #[schemars(length(min = 1))]
    command: String,
    /// The folder to run it in, relative to the root; the root unless given
    working_directory: Option<String>,
    /// After how many seconds to end the command: up to 600, or a day in the background
    #[schemars(range(min = 1, max = TIME_MAX_S))]
    timeout_s: Option<u32>,
    /// The call ends at once with the id of a job, and the command goes on: see the tool process
    #[serde(default)]
    run_in_background: bool,
}

impl Bash {
    /// Commands begin in `root`, or below.
    #[must_use]
    pub fn new(root: Root, sandbox: Sandbox) -> Self {
        Self { root, sandbox, jobs: Jobs::default() }
    }

    /// Background jobs are among these, so that other tools reach them.
    #[must_use]
    pub fn with_jobs(mut self, jobs: Jobs) -> Self {
        self.jobs = jobs;
        self
    }
}

impl Tool for Bash {
    const NAME: &'static str = "bash";
    type Input = Script;

    fn about(&self) -> About {
        let text = "Runs a shell command and streams what it writes to stdout and stderr. The result is its exit code, \
                    or the signal that ended it. Standard input is empty, and processes that it leaves in the \
                    background end with it; set run_in_background for a command that goes on. Programs that gain rights, such as sudo, do not work.";
        let timeout = Duration::from_secs(ATTEMPT_TIMEOUT_S.into());
        let about = About::new(text).destructive().open_world().streaming().idle_timeout(None).attempt_timeout(timeout);
        about.uses_machine().category("shell").side_effect_scope(scope::NETWORK)
    }

    async fn call(&self, context: &Context, input: Script) -> Result<Output, ToolError> {
        let folder =
            self.root.folder(input.working_directory.as_deref()).map_err(|error| error.at("/working_directory"))?;
        if input.command.len() > COMMAND_BYTES_MAX {
            let message = format!("the command is longer than {COMMAND_BYTES_MAX} bytes: write a file and run that");
            return Err(ToolError::bad_input("/command", message));
        }
        if input.run_in_background {
            let time = input.timeout_s.map_or(TIME, |seconds| Duration::from_secs(seconds.into()));
            let request = Request::shell(&input.command, folder);
            return Output::json(&self.jobs.start(context, &self.sandbox, request, &input.command, time).await?);
        }
        if input.timeout_s.is_some_and(|seconds| seconds > ATTEMPT_TIMEOUT_S) {
            let message = format!("it is more than {ATTEMPT_TIMEOUT_S}: set run_in_background for a longer command");
            return Err(ToolError::bad_input("/timeout_s", message));
        }
        let mut command = self.sandbox.start(Request::shell(input.command, folder), context.left()).await?;
        let (stdout, stderr) = command.pipes();
        let let_go = CancellationToken::new();
        let relay = Relay::new(context, &let_go);
        let pumps = relay.pump(stdout, stderr);
        Output::json(&follow(command, pumps, &let_go, stopped(context, input.timeout_s), stream::pending()).await?)
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

/// The error of a command with more output than a call may have.
fn too_much(limit: usize) -> ToolError {
    let message = format!(
        "the command wrote more than {limit} bytes and was ended: write to a file and read the parts that matter"
    );
    ToolError::of_call(CallError::new(ErrorKind::OutputTooLarge, message))
}
