//! Starts programs that outlive their call, and signals and stops them and the background jobs of `bash`.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::jobs::{Jobs, TIME, TIME_MAX_S};
use super::root::Root;
use super::running::find;
use super::scope;
use sandbox::{Request, Sandbox, Signal};
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Arguments and variables of a program.
const ARGUMENTS_MAX: u32 = 1_000;
const VARIABLES_MAX: usize = 100;

/// Starts, signals and stops background jobs. `ProcessOutput` lists and reads them.
#[derive(Debug)]
pub struct Process {
    root: Root,
    sandbox: Sandbox,
    jobs: Jobs,
}

/// What to do with a job.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// What to do
    action: Deed,
    /// For signal and stop: the id of the job
    job: Option<String>,
    /// For start: the program, found as a shell finds it
    program: Option<String>,
    /// For start: its arguments. No shell reads them
    #[serde(default)]
    #[schemars(length(max = ARGUMENTS_MAX))]
    arguments: Vec<String>,
    /// For start: environment variables beside the usual ones
    #[serde(default)]
    environment: BTreeMap<String, String>,
    /// For start: the folder to run it in, relative to the root; the root unless given
    working_directory: Option<String>,
    /// For start: after how many seconds to end it; an hour unless given
    #[schemars(range(min = 1, max = TIME_MAX_S))]
    timeout_s: Option<u32>,
    /// For signal: its name, such as SIGINT
    signal: Option<String>,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// Starts a program as a job.
    Start,
    /// Sends a signal to a job.
    Signal,
    /// Ends a job.
    Stop,
}

impl Process {
    /// Programs begin in `root` or below, and are started in `sandbox`. `jobs` are those that calls reach.
    #[must_use]
    pub const fn new(root: Root, sandbox: Sandbox, jobs: Jobs) -> Self {
        Self { root, sandbox, jobs }
    }

    async fn start(&self, context: &Context, wish: Wish) -> Result<Output, ToolError> {
        let folder = self.root.folder(wish.working_directory.as_deref());
        let folder = folder.map_err(|error| error.at("/working_directory"))?;
        let program = needed(wish.program.as_deref(), "/program", "start")?;
        if wish.environment.len() > VARIABLES_MAX {
            let message = format!("there are more than {VARIABLES_MAX} variables");
            return Err(ToolError::bad_input("/environment", message));
        }
        let is_here = if program.contains('/') { find(&folder.join(program).to_string_lossy()) } else { find(program) };
        if is_here.is_none() {
            let message = format!("there is no program {program:?} on this worker: install it, or give its path");
            return Err(ToolError::bad_input("/program", message));
        }
        let label = std::iter::once(program).chain(wish.arguments.iter().map(String::as_str));
        let label = label.collect::<Vec<_>>().join(" ");
        let mut request = Request::run(program, wish.arguments, folder);
        request.environment = wish.environment;
        let time = wish.timeout_s.map_or(TIME, |seconds| Duration::from_secs(seconds.into()));
        Output::json(&self.jobs.start(context, &self.sandbox, request, &label, time).await?)
    }
}

impl Tool for Process {
    const NAME: &'static str = "process";
    type Input = Wish;

    fn about(&self) -> About {
        let text = "Starts a program that goes on after the call, and signals and stops such jobs, those of bash with \
                    run_in_background too. A job ends at its timeout, and with its worker. process_output lists and \
                    reads jobs.";
        let about = About::new(text).destructive().open_world().uses_machine().idle_timeout(None);
        about.category("shell").side_effect_scope(scope::NETWORK)
    }

    async fn call(&self, context: &Context, wish: Wish) -> Result<Output, ToolError> {
        let job = |deed| needed(wish.job.as_deref(), "/job", deed);
        match wish.action {
            Deed::Start => self.start(context, wish).await,
            Deed::Signal => {
                let signal = needed(wish.signal.as_deref(), "/signal", "signal")?;
                let signal: Signal =
                    signal.parse().map_err(|error| ToolError::bad_input("/signal", format!("{error}")))?;
                Output::json(&self.jobs.signal(context, job("signal")?, signal)?)
            }
            Deed::Stop => Output::json(&self.jobs.stop(context, job("stop")?).await?),
        }
    }
}

fn needed<'a>(value: Option<&'a str>, pointer: &str, deed: &str) -> Result<&'a str, ToolError> {
    value.ok_or_else(|| ToolError::bad_input(pointer, format!("it is missing: {deed} needs it")))
}
