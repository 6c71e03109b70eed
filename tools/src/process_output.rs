//! Lists background jobs and reads their output. It is a tool of its own because approvals look at the tool: `process`
//! may do anything, and reading does nothing.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::jobs::Jobs;
use super::scope;
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Bytes of output that a read returns by default, and at most.
const BYTES: u32 = 32 * 1024;
const BYTES_MAX: u32 = 128 * 1024;
/// How long a read may wait for output.
const WAIT_MAX_S: u32 = 240;

/// Lists and reads background jobs.
#[derive(Debug)]
pub struct ProcessOutput {
    jobs: Jobs,
}

/// What to read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// The id of the job to read; without it the jobs that this run started are listed
    job: Option<String>,
    /// Where in the output to begin: 0, or `next_offset` of the last read
    #[serde(default)]
    offset: u64,
    /// How many bytes at most
    #[serde(default = "bytes")]
    #[schemars(range(min = 4, max = BYTES_MAX))]
    bytes: u32,
    /// How many seconds to wait for output if there is none yet
    #[serde(default)]
    #[schemars(range(max = WAIT_MAX_S))]
    wait_s: u32,
}

fn bytes() -> u32 {
    BYTES
}

impl ProcessOutput {
    /// `jobs` are those that calls reach.
    #[must_use]
    pub const fn new(jobs: Jobs) -> Self {
        Self { jobs }
    }
}

impl Tool for ProcessOutput {
    const NAME: &'static str = "process_output";
    type Input = Read;

    fn about(&self) -> About {
        let text = "Lists the background jobs of bash and process, or reads the output of one, and how it ended. The \
                    latest MiB of the output is kept, for an hour after the job's end.";
        let about = About::new(text).read_only().uses_machine().idle_timeout(None);
        about.category("shell").side_effect_scope(scope::NONE)
    }

    async fn call(&self, context: &Context, read: Read) -> Result<Output, ToolError> {
        let Read { job, offset, bytes, wait_s } = read;
        let Some(job) = job else { return Output::json(&self.jobs.list(context)) };
        let wait = Duration::from_secs(wait_s.into());
        let part = self.jobs.read(context, &job, offset, bytes as usize, wait).await?;
        let text = if part.text.is_empty() { "No new output\n".to_owned() } else { part.text.clone() };
        Ok(Output::from(text).and(Output::json(&part)?))
    }
}
