//! What hooks are asked, and what they may answer.

use std::collections::BTreeMap;

use bytes::Bytes;
use run::{AttemptNumber, CallError, CallId, Chunk, Completion, Content, Fields, RunId, TenantId, ToolName};
use serde::{Deserialize, Serialize};

/// When a hook is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// Before a call is accepted, by the coordinator.
    PreToolUse,
    /// After an execution gave a result and before it is stored, by the worker.
    PostToolUse,
    /// After an execution failed and before that is stored, by the worker.
    ToolError,
    /// After a call was accepted that is not executed, by the coordinator.
    ToolSkip,
}

impl Moment {
    pub const NAMES: [&str; 4] = ["pre_tool_use", "post_tool_use", "tool_error", "tool_skip"];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PreToolUse => Self::NAMES[0],
            Self::PostToolUse => Self::NAMES[1],
            Self::ToolError => Self::NAMES[2],
            Self::ToolSkip => Self::NAMES[3],
        }
    }
}

/// What a hook is asked about.
#[derive(Debug, Clone)]
pub struct Question {
    pub run: RunId,
    /// `None` where the caller gave none and none is made yet.
    pub call: Option<CallId>,
    /// As it is called.
    pub tool: ToolName,
    /// The tool of which that is another name.
    pub alias_of: Option<ToolName>,
    /// Whose run it is, where that is known: not by workers.
    pub tenant: Option<TenantId>,
    /// Which execution it is; `None` before there is one.
    pub attempt: Option<AttemptNumber>,
    /// What the caller wants the tool to know.
    pub metadata: BTreeMap<String, String>,
    /// A JSON object as text; for a tool of the request that takes text, that text.
    pub arguments: Bytes,
    pub happened: Happened,
}

/// What has happened to the call so far.
#[derive(Debug, Clone)]
pub enum Happened {
    /// It was asked for.
    Asked,
    /// `output` is what it said while it ran, where that is held back.
    Completed {
        result: Vec<Content>,
        extra_state: Fields,
        output: Option<Vec<Chunk>>,
    },
    Failed {
        error: CallError,
    },
    /// It is not executed.
    Skipped {
        why: CallError,
    },
}

impl Question {
    #[must_use]
    pub fn moment(&self) -> Moment {
        match self.happened {
            Happened::Asked => Moment::PreToolUse,
            Happened::Completed { .. } => Moment::PostToolUse,
            Happened::Failed { .. } => Moment::ToolError,
            Happened::Skipped { .. } => Moment::ToolSkip,
        }
    }
}

/// What a hook decides.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Allow,
    /// Before a call: it is not executed. After one: its result is withheld, or its error says this instead.
    Deny {
        reason: String,
    },
    /// Before a call: these arguments take the place of its own, and are checked as those were.
    Modify {
        arguments: Bytes,
    },
    /// After a call: this takes the place of its result or its error, of the state beside it, and of what it said. `None`
    /// leaves it as it is.
    ModifyResult {
        result: Option<Vec<Content>>,
        extra_state: Option<Fields>,
        output: Option<Vec<Chunk>>,
    },
}

/// A hook did not answer, or not so that it could be understood.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unanswered(String);

impl Unanswered {
    #[must_use]
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }

    pub(crate) fn misplaced(decision: &str) -> Self {
        Self(format!("it decided {decision}, which cannot be done now"))
    }
}

/// How an execution ended, once all were asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    pub outcome: Result<Completion, CallError>,
    /// What is said of what was held back.
    pub output: Option<Vec<Chunk>>,
}

impl Ended {
    pub(crate) fn of(happened: Happened) -> Self {
        match happened {
            Happened::Completed { result, extra_state, output } => {
                Self { outcome: Ok(Completion { result, extra_state }), output }
            }
            Happened::Failed { error } | Happened::Skipped { why: error } => Self { outcome: Err(error), output: None },
            Happened::Asked => Self { outcome: Ok(Completion::default()), output: None },
        }
    }
}
