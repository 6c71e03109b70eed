//! Runs a shell command in the worker's sandbox, with an environment of its own: it is handed none of the worker's
//! secrets, and nothing of it is left when its call ends, unless it is to run in the background.

use schemars::JsonSchema;
use serde::Deserialize;

use super::jobs::{Jobs, TIME_MAX_S};
use super::root::Root;
use super::shell::{Order, Shell, about};
use sandbox::{Request, Sandbox};
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Runs commands of the shell.
#[derive(Debug)]
pub struct Bash {
    shell: Shell,
}

/// A command.
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
    /// The call ends at once with the id of a job, and the command goes on: see process_output and process
    #[serde(default)]
    run_in_background: bool,
}

impl Bash {
    /// Commands begin in `root`, or below.
    #[must_use]
    pub fn new(root: Root, sandbox: Sandbox) -> Self {
        Self { shell: Shell { root, sandbox, jobs: Jobs::default() } }
    }

    /// Background jobs are among these, so that other tools reach them.
    #[must_use]
    pub fn with_jobs(mut self, jobs: Jobs) -> Self {
        self.shell.jobs = jobs;
        self
    }
}

impl Tool for Bash {
    const NAME: &'static str = "bash";
    type Input = Script;

    fn about(&self) -> About {
        about(
            "Runs a shell command and streams what it writes to stdout and stderr. The result is its exit code, or \
             the signal that ended it. Standard input is empty, and processes that it leaves in the background end \
             with it; set run_in_background for a command that goes on. Programs that gain rights, such as sudo, do \
             not work.",
        )
    }

    async fn call(&self, context: &Context, input: Script) -> Result<Output, ToolError> {
        let Script { command, working_directory, timeout_s, run_in_background } = input;
        let order = Order { command, working_directory, timeout_s, run_in_background };
        self.shell.run(context, order, |command, folder| Request::shell(command, folder)).await
    }
}
