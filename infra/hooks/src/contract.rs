//! Requests to hooks, and their answers.

use std::collections::BTreeMap;

use bytes::Bytes;
use run::{
    AttemptNumber, CallError, CallId, Chunk, Completion, Content, Fields, HookAnswer, RunId, TenantId, ToolName,
};
use serde::{Deserialize, Serialize};

/// The point at which a hook is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookPoint {
    /// Before a call is accepted, by the coordinator.
    PreToolUse,
    /// After an execution completed and before its result is stored, by the worker.
    PostToolUse,
    /// After an execution failed and before its error is stored, by the worker; after any other end without a result,
    /// by the coordinator.
    ToolError,
    /// After it was clear that a call will not be executed, by the coordinator.
    ToolSkip,
}

impl HookPoint {
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

/// A request to a hook.
#[derive(Debug, Clone)]
pub struct HookRequest {
    pub run: RunId,
    /// `None` if the caller gave none and none has been generated yet.
    pub call: Option<CallId>,
    /// The name by which it is called.
    pub tool: ToolName,
    /// The tool whose alias that name is.
    pub alias_of: Option<ToolName>,
    /// The run's tenant, if it has one.
    pub tenant: Option<TenantId>,
    /// The attempt; `None` before there is one.
    pub attempt: Option<AttemptNumber>,
    /// The call's metadata.
    pub metadata: BTreeMap<String, String>,
    /// The arguments: a JSON object as text, or the plain text of a request tool that takes text.
    pub arguments: Bytes,
    pub happened: CallStage,
}

/// The stage of the call.
#[derive(Debug, Clone)]
pub enum CallStage {
    /// It was submitted.
    Asked,
    /// `output` is the output of the execution, if it is held back.
    Completed {
        result: Vec<Content>,
        extra_state: Fields,
        output: Option<Vec<Chunk>>,
    },
    Failed {
        error: CallError,
    },
    /// It ended without an execution about which hooks decide, or will not be executed. Hooks are notified.
    Ended {
        /// Which hooks: [`HookPoint::ToolError`] or [`HookPoint::ToolSkip`].
        point: HookPoint,
        /// The name of an [`ErrorKind`](run::ErrorKind), or `CANCELLED`, `EXPIRED` or `REPEATED`.
        kind: &'static str,
        message: String,
    },
}

impl HookRequest {
    #[must_use]
    pub fn moment(&self) -> HookPoint {
        match self.happened {
            CallStage::Asked => HookPoint::PreToolUse,
            CallStage::Completed { .. } => HookPoint::PostToolUse,
            CallStage::Failed { .. } => HookPoint::ToolError,
            CallStage::Ended { point, .. } => point,
        }
    }
}

/// A hook's decision.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Allow,
    /// Before a call: it is not executed. After a call: its result is withheld, or its error message is replaced by
    /// this.
    Deny {
        reason: String,
    },
    /// Before a call: these arguments replace its own, and are checked like them.
    Modify {
        arguments: Bytes,
    },
    /// Before a call: it is accepted and not executed; its client answers it.
    LeaveToClient,
    /// Before a call: it completes with this result and is not executed. The hooks behind are not asked.
    Answer {
        result: Vec<Content>,
    },
    /// After a call: this replaces its result or error, its extra state, and its output. `None` leaves it unchanged.
    ModifyResult {
        result: Option<Vec<Content>>,
        extra_state: Option<Fields>,
        output: Option<Vec<Chunk>>,
    },
}

/// The decision of all hooks about a call that is accepted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Admitted {
    /// Arguments that replace the call's own, if a hook changed them.
    pub arguments: Option<Bytes>,
    /// It is not executed; its client answers it.
    pub left_to_client: bool,
    /// It is not executed; a hook answered it. The hooks before that one have been asked about the result.
    pub answer: Option<HookAnswer>,
}

/// A hook did not answer, or its answer is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HookError(String);

impl HookError {
    #[must_use]
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }

    pub(crate) fn misplaced(decision: &str) -> Self {
        Self(format!("it decided {decision}, which cannot be done now"))
    }
}

/// The outcome of an execution after all hooks.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    pub outcome: Result<Completion, CallError>,
    /// The output that replaces the output which was held back.
    pub output: Option<Vec<Chunk>>,
}

impl Ended {
    pub(crate) fn of(happened: CallStage) -> Self {
        match happened {
            CallStage::Completed { result, extra_state, output } => {
                Self { outcome: Ok(Completion { result, extra_state }), output }
            }
            CallStage::Failed { error } => Self { outcome: Err(error), output: None },
            CallStage::Asked | CallStage::Ended { .. } => Self { outcome: Ok(Completion::default()), output: None },
        }
    }
}
