//! Runs a command of PowerShell, as `bash` runs one of the shell. Where PowerShell is not installed, calls are refused
//! with the reason.

use schemars::JsonSchema;
use serde::Deserialize;

use super::jobs::{Jobs, TIME_MAX_S};
use super::root::Root;
use super::running::find;
use super::shell::{Order, Shell, about};
use sandbox::{Request, Sandbox};
use toolyard_tool::{About, Context, Output, Tool, ToolError};

const PROGRAM: &str = "pwsh";
/// Without a profile, questions and a greeting.
const ARGUMENTS: [&str; 4] = ["-NoLogo", "-NoProfile", "-NonInteractive", "-Command"];
/// It sends nothing home, and writes no colors.
const VARIABLES: [(&str, &str); 3] =
    [("POWERSHELL_TELEMETRY_OPTOUT", "1"), ("POWERSHELL_UPDATECHECK", "Off"), ("NO_COLOR", "1")];

/// Runs commands of PowerShell.
#[derive(Debug)]
pub struct PowerShell {
    shell: Shell,
}

/// A command.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PowerShellScript {
    /// The command, as after `pwsh -Command`
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

impl PowerShell {
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

impl Tool for PowerShell {
    const NAME: &'static str = "powershell";
    type Input = PowerShellScript;

    fn about(&self) -> About {
        about(
            "Runs a command of PowerShell (pwsh) and streams what it writes. The result is its exit code, or the \
             signal that ended it. Standard input is empty, and processes that it leaves in the background end with \
             it; set run_in_background for a command that goes on. Use it only where PowerShell is wanted; bash is \
             there too.",
        )
    }

    async fn call(&self, context: &Context, input: PowerShellScript) -> Result<Output, ToolError> {
        let PowerShellScript { command, working_directory, timeout_s, run_in_background } = input;
        let order = Order { command, working_directory, timeout_s, run_in_background };
        if find(PROGRAM).is_none() {
            return Err(ToolError::needs(
                "PowerShell (the program pwsh), which is not installed on this worker: install the package powershell \
                 from packages.microsoft.com, or use bash",
            ));
        }
        let request = |command: &str, folder| {
            let request = Request::run(PROGRAM, ARGUMENTS.into_iter().chain([command]), folder);
            VARIABLES.into_iter().fold(request, |request, (name, value)| request.with(name, value))
        };
        self.shell.run(context, order, request).await
    }
}
