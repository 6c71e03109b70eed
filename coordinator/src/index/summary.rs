//! A small copy of a run for the index, made from the fold, with the log position up to which it is valid.

use proto::convert::api;
use proto::names;
use proto::v1::{CallErrorKind, CallState, RunStatus};
use run::{Call, CallId, Entry, Event, Fact, PoolId, Route, Run, RunId, TenantId, Timestamp, ToolName};

/// The longest id of a schedule that is kept: clients may write any text into metadata.
const SCHEDULE_ID_BYTES_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) id: RunId,
    /// The last entry of the log that changed it. Of two summaries of a run the one with the higher number wins.
    pub(crate) sequence: u64,
    pub(crate) status: RunStatus,
    pub(crate) open: bool,
    pub(crate) created: Timestamp,
    pub(crate) deadline: Timestamp,
    pub(crate) tenant: Option<TenantId>,
    /// The schedule that created it.
    pub(crate) schedule: Option<String>,
    pub(crate) calls: Vec<CallSummary>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallSummary {
    pub(crate) id: CallId,
    pub(crate) tool: ToolName,
    pub(crate) pool: Option<PoolId>,
    pub(crate) state: CallState,
    pub(crate) attempts: u32,
    pub(crate) parked: bool,
    pub(crate) ended: Option<Timestamp>,
    pub(crate) not_before: Option<Timestamp>,
    /// Unspecified if no error ended it.
    pub(crate) error: CallErrorKind,
    /// The call that asks, if it is a question.
    pub(crate) asked_by: Option<CallId>,
}

impl Summary {
    /// When the last of its calls ended.
    pub(super) fn last_end(&self) -> Option<Timestamp> {
        self.calls.iter().filter_map(|call| call.ended).max()
    }

    pub(crate) fn of(run: &Run, sequence: u64) -> Self {
        let mut summary = Self {
            id: run.id(),
            sequence,
            status: RunStatus::Unspecified,
            open: false,
            created: run.opened_at().unwrap_or_default(),
            deadline: run.deadline(),
            tenant: run.tenant().cloned(),
            schedule: run.calls().first().and_then(schedule_of),
            calls: Vec::with_capacity(run.calls().len()),
        };
        summary.update(run, sequence);
        summary
    }

    /// Brings it up to date. A run that changes often is copied once and then only corrected.
    pub(crate) fn update(&mut self, run: &Run, sequence: u64) {
        self.sequence = sequence;
        self.status = api::status(run.status());
        self.open = run.is_open();
        let known = self.calls.len();
        self.calls.iter_mut().zip(run.calls()).for_each(|(summary, call)| summary.update(call));
        self.calls.extend(run.calls().iter().skip(known).map(|call| CallSummary::of(run, call)));
    }

    pub(crate) fn has_ended(&self) -> bool {
        is_final(self.status)
    }
}

/// The schedule in the metadata of a call, where each firing puts it.
fn schedule_of(call: &Call) -> Option<String> {
    let id = call.spec().metadata.get(names::SCHEDULE_ID)?;
    Some(id.clone()).filter(|id| id.len() <= SCHEDULE_ID_BYTES_MAX)
}

/// Whether a run with this status has ended.
pub(crate) fn is_final(status: RunStatus) -> bool {
    match status {
        RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled | RunStatus::Expired => true,
        RunStatus::Unspecified | RunStatus::InProgress | RunStatus::RequiresAction => false,
    }
}

/// Whether a call in this state has ended.
pub(crate) fn is_over(state: CallState) -> bool {
    match state {
        CallState::Completed | CallState::Failed | CallState::Cancelled | CallState::Expired => true,
        CallState::Unspecified
        | CallState::Accepted
        | CallState::WaitingForClient
        | CallState::AwaitingApproval
        | CallState::Delayed
        | CallState::Queued
        | CallState::Running => false,
    }
}

impl CallSummary {
    fn of(run: &Run, call: &Call) -> Self {
        let spec = call.spec();
        let pool = match &spec.route {
            Route::Pool { pool, .. } => Some(pool.clone()),
            Route::Client | Route::Refused(_) | Route::Answered(_) => None,
        };
        let mut summary = Self {
            id: spec.id.clone(),
            tool: spec.tool.clone(),
            pool,
            state: CallState::Unspecified,
            attempts: 0,
            parked: false,
            ended: None,
            not_before: spec.not_before,
            error: CallErrorKind::Unspecified,
            asked_by: run.asker(call).map(|asks| asks.spec().id.clone()),
        };
        summary.update(call);
        summary
    }

    fn update(&mut self, call: &Call) {
        self.state = api::state(call);
        self.attempts = call.attempts_used();
        self.parked = call.is_parked();
        self.ended = match call.state() {
            run::CallState::Ended(ended) => Some(ended.at),
            run::CallState::Accepted
            | run::CallState::WaitingForClient
            | run::CallState::AwaitingApproval
            | run::CallState::Delayed
            | run::CallState::Queued { .. }
            | run::CallState::Running(_) => None,
        };
        self.error = api::error_kind(call);
    }
}

/// Whether an entry that an open run accepted may have changed its summary. Everyone who folds for the index uses this
/// rule, so that all get the same sequence.
pub(crate) fn changes(entry: &Entry, heard: &[Fact]) -> bool {
    entry.events.iter().any(|event| !matches!(event, Event::Output { .. }))
        || heard.iter().any(|heard| !matches!(heard, Fact::Output { .. }))
}

/// Whether an entry changes a run that has ended: only the disposition of a parked call does.
pub(crate) fn changes_ended(entry: &Entry) -> bool {
    entry.events.iter().any(|event| matches!(event, Event::CallRedriven { .. } | Event::CallDropped { .. }))
}
