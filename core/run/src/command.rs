//! Commands to a run, and the reasons for which they are rejected.

use std::sync::Arc;

use crate::approval::Decision;
use crate::call::is_end;
use crate::erasure::Erasure;
use crate::event::{CallError, CallSpec, Content, ParentCall};
use crate::fields::Fields;
use crate::id::{CallId, CallerName, RunId, TenantId, Timestamp, ToolName};
use crate::requester::Roles;
use crate::rules::Rules;

/// Seconds of a day.
const DAY_S: u64 = 24 * 3600;

/// The contents of a new run.
#[derive(Debug, Clone, Default)]
pub struct Opening {
    pub calls: Vec<Arc<CallSpec>>,
    pub deadline: Timestamp,
    /// The run stays open for more calls.
    pub open: bool,
    /// If a call fails or expires, the others are cancelled.
    pub fail_fast: bool,
    /// No call is executed here: calls that a pool would execute wait for the client.
    pub client_only: bool,
    pub tenant: Option<TenantId>,
    /// The caller; `None` if no callers are configured.
    pub caller: Option<CallerName>,
    /// The roles of the caller.
    pub roles: Roles,
    /// The tools that its calls may use; empty for all listed tools.
    pub tools: Vec<ToolName>,
    pub rules: Rules,
    /// The context of its calls, unless they have their own. It is merged into theirs already; kept for calls that are
    /// added.
    pub context: Fields,
    /// `None`: the run is kept for as long as the log.
    pub erasure: Option<Erasure>,
    /// The call that made the run.
    pub parent: Option<Box<ParentCall>>,
    /// The opening is an entry of its own, on the run's subject, even if it could hold the only call's job. Then two
    /// requests that open the same run expect the same subject to be empty, and one of them conflicts.
    pub apart: bool,
}

#[derive(Debug, Clone)]
pub enum Command {
    AppendCalls {
        calls: Vec<Arc<CallSpec>>,
    },
    Close,
    /// Answers client calls; all answers are accepted or none.
    SubmitOutputs {
        answers: Vec<Answer>,
        /// Rejected unless every call that waits for the client is answered.
        all_required: bool,
    },
    /// Decides on calls that await approval; all decisions are accepted or none.
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
    /// Records that a parked call is executed again, in the run `into`.
    Redrive {
        call: CallId,
        into: RunId,
    },
    /// Drops a parked call for good.
    Drop {
        call: CallId,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub call: CallId,
    pub output: Result<Vec<Content>, CallError>,
}

/// Why a command is rejected. Nothing was stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("a run needs at least one call, unless `keep_open` is set")]
    NoCalls,
    #[error("a run holds at most {limit} calls, and would have {count}: open another run")]
    TooManyCalls { count: usize, limit: usize },
    #[error("call id {call} is used twice in the run: give every call its own id")]
    DuplicateCallId { call: CallId },
    #[error("the arguments of call {call} are {size} bytes, the limit is {limit}: put large input in a file")]
    ArgumentsTooLarge { call: CallId, size: usize, limit: usize },
    #[error("the metadata of call {call} is {size} bytes, the limit is {limit}")]
    MetadataTooLarge { call: CallId, size: usize, limit: usize },
    #[error(
        "the context of {} is {size} bytes, the limit is {limit}: pass a reference to large values and secrets",
        call.as_ref().map_or_else(|| "the run".to_owned(), |call| format!("call {call}"))
    )]
    ContextTooLarge {
        /// `None`: the run's own.
        call: Option<CallId>,
        size: usize,
        limit: usize,
    },
    #[error(
        "the arguments, metadata and contexts of the calls are {size} bytes together, the limit of one request is {limit}"
    )]
    RequestTooLarge { size: usize, limit: usize },
    #[error("the deadline has already passed")]
    DeadlinePassed,
    #[error("the deadline is too far in the future: a run may last at most {} days", .limit_s / DAY_S)]
    DeadlineTooFar { limit_s: u64 },
    #[error(
        "call {call} is delayed (`not_before`), but its client answers it: only calls that workers execute have a delay"
    )]
    ClientCallDelayed { call: CallId },
    #[error(
        "call {call} is delayed for {delay_s} s, but must end within {left_s} s: choose an earlier `not_before`, or a \
        later deadline of the run, at most {} days ahead; a schedule starts calls that are later than that",
        .limit_s / DAY_S
    )]
    DelayTooLong {
        call: CallId,
        delay_s: u64,
        /// Until the deadline of the call.
        left_s: u64,
        limit_s: u64,
    },
    #[error("the run is closed to further calls")]
    RunClosed,
    #[error("the run has ended")]
    RunEnded,
    #[error("the run has no call {call}")]
    UnknownCall { call: CallId },
    #[error("call {call} does not wait for the client: it is {state}")]
    CallNotWaiting { call: CallId, state: &'static str },
    #[error("call {call} was already answered, with a different answer")]
    AlreadyAnswered { call: CallId },
    #[error("the output for call {call} is {size} bytes, the limit is {limit}: upload large output as an object")]
    OutputTooLarge { call: CallId, size: usize, limit: usize },
    #[error("the request answers no call")]
    NoAnswers,
    #[error("all answers are required at once (`all_required`), and those of {} are missing", listed(calls))]
    AnswersMissing { calls: Vec<CallId> },
    #[error("the request decides on no call")]
    NoDecisions,
    #[error("call {call} does not await approval: it is {state}")]
    NotAwaitingApproval { call: CallId, state: &'static str },
    #[error("call {call} was already {decision} with a different reason or arguments")]
    AlreadyDecided { call: CallId, decision: &'static str },
    #[error("call {call} is not parked: it is {state}")]
    NotParked { call: CallId, state: &'static str },
    #[error("call {call} is not parked any more: it was {fate}")]
    NotParkedAnyMore { call: CallId, fate: String },
}

impl CommandError {
    /// Whether the reason stays true whatever happens to the run. Then it may be based on an older state.
    #[must_use]
    pub fn lasts(&self) -> bool {
        match self {
            // Meanwhile the call may have been added, or answered by another client.
            Self::UnknownCall { .. } | Self::AnswersMissing { .. } => false,
            // Meanwhile the call may have begun to wait, or have failed. One that has ended stays as it is.
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
            | Self::ClientCallDelayed { .. }
            | Self::DelayTooLong { .. }
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
