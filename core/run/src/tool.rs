//! A tool's manifest, and the part of it that is stored with each call.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::{InvalidId, ToolName};
use crate::limit::VERSION_BYTES_MAX;
use crate::retry::Backoff;

/// The description of a tool: a function that can be called by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub name: ToolName,
    pub description: String,
    /// JSON Schema (2020-12) of the arguments, as JSON text.
    pub input_schema: String,
    /// JSON Schema of the result, as JSON text; empty if the tool declares none.
    pub output_schema: String,
    pub effects: Effects,
    pub policy: Policy,
    /// The tool is never executed here: the client answers its calls.
    pub definition_only: bool,
    /// The tool sends output while it runs.
    pub streaming: bool,
    /// A category such as `filesystem` or `web`; empty if none.
    pub category: String,
    pub permission: Permission,
    /// The scope of its effects, in the tool's own words: `workspace`, `payments-api`; empty if none.
    pub side_effect_scope: String,
    /// A person must approve each call before it runs.
    pub requires_confirmation: bool,
    pub tags: Vec<String>,
    pub result_use: ResultUse,
    pub concurrency: Concurrency,
    /// Distinguishes manifests of one name: if live ones have different schemas, the newest version applies.
    pub version: Option<Version>,
    pub aliases: Vec<Alias>,
    /// How many of its calls one worker executes at once; `None` for as many as the worker has slots.
    pub max_concurrent: Option<u32>,
    /// How many of its calls may be queued or running at once, in all runs and on all workers; `None` for no limit.
    pub running_max: Option<u32>,
    /// JSON Schema of the arguments with which a call runs alone, as JSON text; empty if `concurrency` applies to all
    /// calls.
    pub exclusive_when: String,
    /// As [`Self::exclusive_when`], for calls that may run concurrently with others.
    pub parallel_when: String,
    /// The keys of a call's context that it receives; no other key is passed.
    pub context_keys: Vec<String>,
    pub origin: Origin,
    /// A name for people; empty if the tool has none.
    pub title: String,
}

/// What executes the calls of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Origin {
    /// Code of its worker.
    #[default]
    BuiltIn,
    /// An HTTP endpoint.
    External,
    /// An MCP server.
    Mcp,
    /// A program that its worker starts.
    Plugin,
}

/// Use of calls and results beside passing them to the model. The three are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct ResultUse {
    /// The result is part of the assistant's message to the user. The model receives it too, and continues.
    pub is_final: bool,
    /// The result may be the answer: if this is set for all calls of a run and all complete, the model need not be
    /// asked again.
    pub return_direct: bool,
    /// The tool is not listed, can be called only by runs that attach it, and its calls are not shown to users.
    pub hidden: bool,
}

/// The permission class that a caller needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Permission {
    Read,
    Write,
    /// It reaches beyond this system.
    External,
}

impl Permission {
    /// The default class, derived from the tool's effects.
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

/// Whether a call may run concurrently with other calls of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Concurrency {
    Parallel,
    /// It begins when all calls ahead of it in turn order have ended; calls behind it wait for its end.
    Exclusive,
}

impl Concurrency {
    /// The default, derived from the permission: calls that write do not run concurrently.
    #[must_use]
    pub fn of(permission: Permission) -> Self {
        match permission {
            Permission::Read => Self::Parallel,
            Permission::Write | Permission::External => Self::Exclusive,
        }
    }
}

/// Another name by which a tool can be called, with its own description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    pub name: ToolName,
    /// Empty: the tool's.
    pub description: String,
}

/// Numbers separated by dots, the first is the most significant: `3`, `1.4.2`, `2026.11.21`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Version {
    numbers: Vec<u64>,
    /// As it was written, with leading zeros.
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

/// Effects of a call, as in MCP's annotations. All false if the tool declares none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effects {
    pub read_only: bool,
    pub idempotent: bool,
    pub destructive: bool,
    pub open_world: bool,
    /// It reads or writes files or starts processes on its worker's machine, which other calls of the pool can see.
    pub uses_machine: bool,
}

impl Effects {
    /// Whether a second execution does no harm. If neither is declared, a call is not repeated once its start is
    /// recorded.
    #[must_use]
    pub fn repeatable(self) -> bool {
        self.read_only || self.idempotent
    }
}

/// How a call is attempted. Copied into the call when it is accepted, so that a later manifest does not change it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    pub repeatable: bool,
    /// Attempts that a call may use; attempts that a worker returned on shutdown do not count.
    pub attempts_max: u32,
    /// How long one attempt may take.
    pub attempt_timeout: Duration,
    /// How long a running attempt may send neither output nor progress; `None` for no limit.
    pub idle_timeout: Option<Duration>,
    pub backoff: Backoff,
    pub retry_on: RetryOn,
    pub after_partial_output: AfterPartialOutput,
}

/// Which outcomes of an attempt lead to another attempt, if the policy allows one at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryOn {
    /// Errors that the tool marks as worth another attempt.
    pub retryable: bool,
    /// The attempt exceeded its timeout or its idle timeout.
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

/// What happens to an attempt's output if another attempt follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum AfterPartialOutput {
    /// It is withdrawn by one explicit event, and the next attempt starts over.
    #[default]
    Restart,
    /// It remains; the next attempt is given the chunk number at which to continue.
    Continue,
    /// No output is shown before the call ends, and then only that of the last attempt.
    Buffer,
}

impl Policy {
    pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(300);
    pub const ATTEMPTS_MAX: u32 = 3;
    /// The idle timeout of a tool that sends output while it runs.
    pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

    /// The default policy, derived from the tool's effects.
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
