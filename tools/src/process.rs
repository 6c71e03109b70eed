//! Starts programs that outlive their call, and reads, signals and stops them and the background jobs of `bash`.

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

/// Bytes of output that a read returns by default, and at most.
const BYTES: u32 = 32 * 1024;
const BYTES_MAX: u32 = 128 * 1024;
/// How long a read may wait for output.
const WAIT_MAX_S: u32 = 240;
/// Arguments and variables of a program.
const ARGUMENTS_MAX: u32 = 1_000;
const VARIABLES_MAX: usize = 100;

/// The calls that only look.
const READS: &str = r#"{"properties": {"action": {"enum": ["list", "read"]}}}"#;

/// Starts and reaches background jobs.
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
    /// For all but list and start: the id of the job
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
    /// For read: where in the output to begin: 0, or `next_offset` of the last read
    #[serde(default)]
    offset: u64,
    /// For read: how many bytes at most
    #[serde(default = "bytes")]
    #[schemars(range(min = 4, max = BYTES_MAX))]
    bytes: u32,
    /// For read: how many seconds to wait for output if there is none yet
    #[serde(default)]
    #[schemars(range(max = WAIT_MAX_S))]
    wait_s: u32,
    /// For signal: its name, such as SIGINT
    signal: Option<String>,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// The jobs that this run started.
    List,
    /// Starts a program as a job.
    Start,
    /// Reads output of a job, and how it ended.
    Read,
    /// Sends a signal to a job.
    Signal,
    /// Ends a job.
    Stop,
}

fn bytes() -> u32 {
    BYTES
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
        let text = "Starts a program that goes on after the call, and lists, reads, signals and stops such jobs, \
                    those of bash with run_in_background too. A job ends at its timeout, and with its worker. The \
                    latest MiB of its output is kept, for an hour after its end.";
        let about = About::new(text).destructive().open_world().uses_machine().idle_timeout(None);
        about.parallel_when(READS).category("shell").side_effect_scope(scope::NETWORK)
    }

    async fn call(&self, context: &Context, wish: Wish) -> Result<Output, ToolError> {
        let job = |deed| needed(wish.job.as_deref(), "/job", deed);
        match wish.action {
            Deed::List => Output::json(&self.jobs.list(context)),
            Deed::Start => self.start(context, wish).await,
            Deed::Read => {
                let wait = Duration::from_secs(wish.wait_s.into());
                let part = self.jobs.read(context, job("read")?, wish.offset, wish.bytes as usize, wait).await?;
                let text = if part.text.is_empty() { "No new output\n".to_owned() } else { part.text.clone() };
                Ok(Output::from(text).and(Output::json(&part)?))
            }
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
