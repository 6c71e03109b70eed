//! What is asked of a run, and why it may be refused.

use std::sync::Arc;

use crate::approval::Decision;
use crate::call::is_end;
use crate::erasure::Erasure;
use crate::event::{CallError, CallSpec, Content};
use crate::fields::Fields;
use crate::id::{CallId, CallerName, RunId, TenantId, Timestamp, ToolName};
use crate::rules::Rules;

/// What a run begins with.
#[derive(Debug, Clone, Default)]
pub struct Opening {
    pub calls: Vec<Arc<CallSpec>>,
    pub deadline: Timestamp,
    /// Leave the run open for more calls.
    pub open: bool,
    /// When a call fails or expires, cancel the others.
    pub fail_fast: bool,
    /// Nothing of it is executed here: what a pool would execute waits for the client.
    pub client_only: bool,
    pub tenant: Option<TenantId>,
    /// Who asks for it, where callers are known.
    pub caller: Option<CallerName>,
    /// The tools that its calls may name; empty for all that are listed.
    pub tools: Vec<ToolName>,
    pub rules: Rules,
    /// What its calls are given, where they do not say otherwise. It is in their own already; kept for those that are added.
    pub context: Fields,
    /// `None`: it is kept for as long as the log.
    pub erasure: Option<Erasure>,
    /// The opening is an entry of its own, on the run's subject, even where it could hold the only call's job: so that
    /// whoever opens the same run expects the same subject to be empty.
    pub apart: bool,
}

#[derive(Debug, Clone)]
pub enum Command {
    AppendCalls {
        calls: Vec<Arc<CallSpec>>,
    },
    Close,
    /// Answers to client calls; all are accepted or none.
    SubmitOutputs {
        answers: Vec<Answer>,
        /// None are accepted unless they answer every call that waits for the client.
        all_required: bool,
    },
    /// Decisions on calls that await approval; all are taken or none.
    Decide {
        decisions: Vec<(CallId, Decision)>,
    },
    CancelRun {
        reason: String,
    },
    /// Cancel the run, if it has not ended, and erase it.
    EraseRun {
        reason: String,
        /// Bytes of the run's entries in the log.
        bytes: u64,
    },
    CancelCall {
        call: CallId,
        reason: String,
    },
    /// Take note that a parked call was asked for once more, in the run `into`.
    Redrive {
        call: CallId,
        into: RunId,
    },
    /// Put a parked call aside for good.
    Drop {
        call: CallId,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub call: CallId,
    pub output: Result<Vec<Content>, CallError>,
}

/// The caller is wrong, and how. Nothing was stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    #[error("a run needs at least one call, unless it is left open for more")]
    NoCalls,
    #[error("a run holds at most {limit} calls, this would make it {count}")]
    TooManyCalls { count: usize, limit: usize },
    #[error("call id {call} stands twice in the run: every call needs an id of its own")]
    DuplicateCallId { call: CallId },
    #[error("the arguments of call {call} are {size} bytes, at most {limit} are taken: put large input in a file")]
    ArgumentsTooLarge { call: CallId, size: usize, limit: usize },
    #[error("the metadata of call {call} is {size} bytes, at most {limit} are taken")]
    MetadataTooLarge { call: CallId, size: usize, limit: usize },
    #[error(
        "the context of {} is {size} bytes, at most {limit} are taken: give a reference to what is large, or to a secret",
        call.as_ref().map_or_else(|| "the run".to_owned(), |call| format!("call {call}"))
    )]
    ContextTooLarge {
        /// `None`: the run's own.
        call: Option<CallId>,
        size: usize,
        limit: usize,
    },
    #[error(
        "the arguments, metadata and contexts of the calls are {size} bytes together, at most {limit} are taken in one request"
    )]
    RequestTooLarge { size: usize, limit: usize },
    #[error("the deadline has already passed")]
    DeadlinePassed,
    #[error("the deadline lies too far ahead: a run lives at most {limit_s} s")]
    DeadlineTooFar { limit_s: u64 },
    #[error("the run is closed to further calls")]
    RunClosed,
    #[error("the run has ended")]
    RunEnded,
    #[error("the run has no call {call}")]
    UnknownCall { call: CallId },
    #[error("call {call} does not wait for the client: it is {state}")]
    CallNotWaiting { call: CallId, state: &'static str },
    #[error("call {call} was already answered, and differently")]
    AlreadyAnswered { call: CallId },
    #[error("the output for call {call} is {size} bytes, at most {limit} are taken")]
    OutputTooLarge { call: CallId, size: usize, limit: usize },
    #[error("the request answers no call")]
    NoAnswers,
    #[error("all answers are required at once, and those of {} are missing", listed(calls))]
    AnswersMissing { calls: Vec<CallId> },
    #[error("the request decides on no call")]
    NoDecisions,
    #[error("call {call} does not await approval: it is {state}")]
    NotAwaitingApproval { call: CallId, state: &'static str },
    #[error("call {call} was already {decision}, and not in the same words")]
    AlreadyDecided { call: CallId, decision: &'static str },
    #[error("call {call} is not parked: it is {state}")]
    NotParked { call: CallId, state: &'static str },
    #[error("call {call} was parked and is {fate}")]
    NotParkedAnyMore { call: CallId, fate: String },
}

impl Rejection {
    /// Whether it goes on to be true, whatever happens to the run: then it may rest on an older state.
    #[must_use]
    pub fn lasts(&self) -> bool {
        match self {
            // The call may have joined, or been answered by others.
            Self::UnknownCall { .. } | Self::AnswersMissing { .. } => false,
            // The call may have begun to wait, or have failed. One that has ended stays as it is.
            Self::CallNotWaiting { state, .. }
            | Self::NotAwaitingApproval { state, .. }
            | Self::NotParked { state, .. } => is_end(state),
            Self::NoCalls
            | Self::TooManyCalls { .. }
            | Self::DuplicateCallId { .. }
            | Self::ArgumentsTooLarge { .. }
            | Self::MetadataTooLarge { .. }
            | Self::ContextTooLarge { .. }
            | Self::RequestTooLarge { .. }
            | Self::DeadlinePassed
            | Self::DeadlineTooFar { .. }
            | Self::RunClosed
            | Self::RunEnded
            | Self::AlreadyAnswered { .. }
            | Self::OutputTooLarge { .. }
            | Self::NoAnswers
            | Self::NoDecisions
            | Self::AlreadyDecided { .. }
            | Self::NotParkedAnyMore { .. } => true,
        }
    }
}

fn listed(calls: &[CallId]) -> String {
    calls.iter().map(CallId::as_str).collect::<Vec<_>>().join(", ")
}
