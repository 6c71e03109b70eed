//! A tool as its worker describes it, and the part of that description which a call takes along into the log.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::id::{InvalidId, ToolName};
use crate::limit::VERSION_BYTES_MAX;
use crate::retry::Backoff;

/// Something callable by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub name: ToolName,
    pub description: String,
    /// JSON Schema (2020-12) of the arguments, as JSON text.
    pub input_schema: String,
    /// JSON Schema of the result, as JSON text; empty when the tool does not say.
    pub output_schema: String,
    pub effects: Effects,
    pub policy: Policy,
    /// The tool is never executed here: the client answers its calls.
    pub definition_only: bool,
    /// The tool sends output while it runs.
    pub streaming: bool,
    /// A word for what it belongs with: `filesystem`, `web`. Empty when its author did not say.
    pub category: String,
    pub permission: Permission,
    /// What its effects reach, in the tool's own words: `workspace`, `payments-api`. Empty when its author did not say.
    pub side_effect_scope: String,
    /// A person must approve each call before it runs.
    pub requires_confirmation: bool,
    pub tags: Vec<String>,
    pub result_use: ResultUse,
    pub concurrency: Concurrency,
    /// Tells manifests of one name apart: among live ones with different schemas the newest counts.
    pub version: Option<Version>,
    pub aliases: Vec<Alias>,
    /// Calls of it that one worker executes at once; `None` for as many as it has slots.
    pub max_concurrent: Option<u32>,
    /// Calls of it that may be queued or running at once, in all runs and on all workers; `None` for no limit.
    pub running_max: Option<u32>,
    /// JSON Schema of the arguments with which a call runs alone, as JSON text; empty where `concurrency` holds for all.
    pub exclusive_when: String,
    /// As [`Self::exclusive_when`], for calls that may run beside others.
    pub parallel_when: String,
    /// What of a call's context it is given; no other key.
    pub context_keys: Vec<String>,
}

/// What becomes of calls and their results beside being given to the model. Three things that do not hang together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ResultUse {
    /// It is a part of what the assistant says to the user. The model is given it all the same, and goes on.
    pub is_final: bool,
    /// It may be the answer: where that holds for all calls of a run and all complete, the model need not be asked again.
    pub return_direct: bool,
    /// The tool is not listed, can be called only where it is attached, and its calls are nothing that users are shown.
    pub hidden: bool,
}

/// The class of permission that a caller needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Permission {
    Read,
    Write,
    /// It reaches beyond this system.
    External,
}

impl Permission {
    /// The class of a tool whose author only said what it does to the world.
    #[must_use]
    pub fn of(effects: Effects) -> Self {
        if effects.read_only {
            Self::Read
        } else if effects.open_world {
            Self::External
        } else {
            Self::Write
        }
    }
}

/// Whether a call may run beside other calls of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Concurrency {
    Parallel,
    /// It begins when all that is ahead of it in line has ended, and what is behind it waits for its end.
    Exclusive,
}

impl Concurrency {
    /// What holds where a tool's author did not say: nothing that writes runs beside others.
    #[must_use]
    pub fn of(permission: Permission) -> Self {
        match permission {
            Permission::Read => Self::Parallel,
            Permission::Write | Permission::External => Self::Exclusive,
        }
    }
}

/// Another name by which a tool can be called, with a description of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    pub name: ToolName,
    /// Empty: the tool's.
    pub description: String,
}

/// Numbers with dots between them, the first weighing most: `3`, `1.4.2`, `2026.11.21`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version {
    numbers: Vec<u64>,
    /// As it was written, leading zeros and all.
    text: Box<str>,
}

impl FromStr for Version {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        const EXPECTED: &str = "1 to 64 characters: numbers with dots between them, as 1.4.2";
        let numbers =
            text.split('.').map(|part| part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok())?);
        match numbers.collect::<Option<Vec<u64>>>() {
            Some(numbers) if text.len() <= VERSION_BYTES_MAX => Ok(Self { numbers, text: text.into() }),
            Some(_) | None => Err(InvalidId::new("version", text, EXPECTED)),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| self.text.cmp(&other.text))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// What a call of the tool does to the world, in the words of MCP's annotations. All false when the author did not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effects {
    pub read_only: bool,
    pub idempotent: bool,
    pub destructive: bool,
    pub open_world: bool,
    /// It reads or writes files or starts processes on its worker's machine, where other calls of the pool find them.
    pub uses_machine: bool,
}

impl Effects {
    /// Whether a second execution does no harm. A tool that does not say is not repeated once its start is on record.
    #[must_use]
    pub fn repeatable(self) -> bool {
        self.read_only || self.idempotent
    }
}

/// How a call is attempted. Copied into the call when it is accepted, so that a later manifest cannot change its fate.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub repeatable: bool,
    /// Attempts that a call may use up; those that a worker gave back on shutdown do not count.
    pub attempts_max: u32,
    /// How long one attempt may take.
    pub attempt_timeout: Duration,
    /// How long a running attempt may say nothing, not even progress; `None` for a tool that need not speak.
    pub idle_timeout: Option<Duration>,
    pub backoff: Backoff,
    pub retry_on: RetryOn,
    pub after_partial_output: AfterPartialOutput,
}

/// Which ends of an attempt lead to another one, where the policy allows one at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryOn {
    /// Errors that the tool marks as worth another attempt.
    pub retryable: bool,
    /// The attempt took too long, or was silent for too long.
    pub timeout: bool,
    pub panic: bool,
    /// The attempt was lost with its worker.
    pub lost: bool,
    /// Any other error.
    pub other: bool,
}

impl Default for RetryOn {
    fn default() -> Self {
        Self { retryable: true, timeout: true, panic: false, lost: true, other: false }
    }
}

/// What becomes of the output of an attempt when another one follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterPartialOutput {
    /// It is withdrawn by one explicit event, and the new attempt speaks from its beginning.
    #[default]
    Restart,
    /// It stands; the new attempt is told with which chunk to go on.
    Continue,
    /// Nothing is shown before the call ends, and then only what the last attempt said.
    Buffer,
}

impl Policy {
    pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(300);
    pub const ATTEMPTS_MAX: u32 = 3;
    /// The idle timeout of a tool that sends output while it runs.
    pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

    /// The policy of a tool whose author only said what it does to the world.
    #[must_use]
    pub fn of(effects: Effects) -> Self {
        let repeatable = effects.repeatable();
        Self {
            repeatable,
            attempts_max: if repeatable { Self::ATTEMPTS_MAX } else { 1 },
            attempt_timeout: Self::ATTEMPT_TIMEOUT,
            idle_timeout: None,
            backoff: Backoff::default(),
            retry_on: RetryOn::default(),
            after_partial_output: AfterPartialOutput::default(),
        }
    }
}
