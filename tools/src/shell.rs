//! What the tools for shells have in common: a command streams its output and ends with its call, or becomes a job.

pub(super) mod relay;

use std::path::PathBuf;
use std::time::Duration;

use futures::stream;
use run::{CallError, ErrorKind};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::relay::Relay;
use super::jobs::{Jobs, TIME};
use super::root::Root;
use super::running::follow;
use super::scope;
use sandbox::{Request, Sandbox};
use toolyard_tool::{About, Context, Output, ToolError};

/// Builds and test suites take minutes; longer jobs go to the background.
pub(super) const ATTEMPT_TIMEOUT_S: u32 = 600;
/// Bytes of a command. Linux takes no argument of 128 KiB or more.
const COMMAND_BYTES_MAX: usize = 128 * 1024 - 1;

/// Where commands run.
#[derive(Debug)]
pub(super) struct Shell {
    pub(super) root: Root,
    pub(super) sandbox: Sandbox,
    pub(super) jobs: Jobs,
}

/// A command, and how it is to run.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) command: String,
    pub(super) working_directory: Option<String>,
    pub(super) timeout_s: Option<u32>,
    pub(super) run_in_background: bool,
}

/// The description of a tool for a shell.
pub(super) fn about(text: &str) -> About {
    let timeout = Duration::from_secs(ATTEMPT_TIMEOUT_S.into());
    let about = About::new(text).destructive().open_world().streaming().idle_timeout(None).attempt_timeout(timeout);
    about.uses_machine().category("shell").side_effect_scope(scope::NETWORK)
}

impl Shell {
    /// Runs a command. `request` makes the program of it that is started in a folder.
    pub(super) async fn run(
        &self,
        context: &Context,
        order: Order,
        request: impl FnOnce(&str, PathBuf) -> Request,
    ) -> Result<Output, ToolError> {
        let folder = self.root.folder(order.working_directory.as_deref());
        let folder = folder.map_err(|error| error.at("/working_directory"))?;
        if order.command.len() > COMMAND_BYTES_MAX {
            let message = format!("the command is longer than {COMMAND_BYTES_MAX} bytes: write a file and run that");
            return Err(ToolError::bad_input("/command", message));
        }
        let request = request(&order.command, folder);
        if order.run_in_background {
            let time = order.timeout_s.map_or(TIME, |seconds| Duration::from_secs(seconds.into()));
            return Output::json(&self.jobs.start(context, &self.sandbox, request, &order.command, time).await?);
        }
        if order.timeout_s.is_some_and(|seconds| seconds > ATTEMPT_TIMEOUT_S) {
            let message = format!("it is more than {ATTEMPT_TIMEOUT_S}: set run_in_background for a longer command");
            return Err(ToolError::bad_input("/timeout_s", message));
        }
        let mut command = self.sandbox.start(request, context.left()).await?;
        let (stdout, stderr) = command.pipes();
        let let_go = CancellationToken::new();
        let relay = Relay::new(context, &let_go);
        let pumps = relay.pump(stdout, stderr);
        Output::json(&follow(command, pumps, &let_go, stopped(context, order.timeout_s), stream::pending()).await?)
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
