//! Some calls of a run, as if they were a run of their own: several requests may share a run, and each is answered for
//! its calls. Output of one request does not wait for the floor of another's, and the status is that of its own calls.

use std::ops::Range;

use crate::call::{Call, CallState};
use crate::event::Outcome;
use crate::id::CallIndex;
use crate::run::{Fact, Run, RunStatus};

/// The calls that are shown, and their status so far.
#[derive(Debug, Clone)]
pub struct Section {
    calls: Range<u16>,
    status: RunStatus,
}

impl Section {
    /// The calls at these places of a run, and the questions that they ask.
    #[must_use]
    pub fn new(calls: Range<u16>) -> Self {
        Self { calls, status: RunStatus::InProgress }
    }

    /// Leaves of the facts of an entry those about these calls, and replaces the run's status by theirs. `run` is the
    /// state after the entry.
    pub fn narrow(&mut self, run: &Run, heard: &mut Vec<Fact>) {
        if self.status.is_final() {
            // A question may be stored after its call has ended.
            return heard.clear();
        }
        heard.retain(|fact| self.has(run, fact));
        let status = run.status_of(self.calls.clone());
        if status != self.status {
            self.status = status;
            heard.push(Fact::StatusChanged(status));
        }
    }

    fn has(&self, run: &Run, fact: &Fact) -> bool {
        let call = match fact {
            Fact::RunOpened | Fact::CallsAppended { .. } => return true,
            Fact::RunClosed | Fact::StatusChanged(_) => return false,
            Fact::ApprovalAsked { call }
            | Fact::Decided { call }
            | Fact::Delayed { call }
            | Fact::DelayEnded { call }
            | Fact::CallWaits { call }
            | Fact::QuestionAsked { call }
            | Fact::CancelRequested { call }
            | Fact::CallEnded { call } => *call,
            Fact::AttemptStarted { attempt, .. }
            | Fact::Output { attempt, .. }
            | Fact::AttemptEnded { attempt }
            | Fact::AttemptStopping { attempt, .. } => attempt.call,
        };
        let asked_by = run.call(call).and_then(|call| call.spec().asked_by.as_ref());
        self.calls.contains(&asked_by.map_or(call, |asked| asked.attempt.call).0)
    }
}

impl Run {
    /// The status of these calls: as that of a run that has no others. They are cancelled or expired if all of them
    /// are, because it is not known why a single one was.
    #[must_use]
    pub fn status_of(&self, calls: Range<u16>) -> RunStatus {
        if self.calls().len() < usize::from(calls.end) {
            return RunStatus::InProgress;
        }
        let own = || {
            let all = calls.clone().filter_map(|call| self.call(CallIndex(call)));
            all.filter(|call| call.spec().asked_by.is_none())
        };
        let all_ended = |is_so: fn(&Outcome) -> bool| own().all(|call| call.outcome().is_some_and(is_so));
        if own().any(|call| call.outcome().is_none()) {
            let all_wait = own().all(|call| call.outcome().is_some() || waits(call));
            return if all_wait { RunStatus::RequiresAction } else { RunStatus::InProgress };
        }
        match (
            all_ended(|it| matches!(it, Outcome::Cancelled { .. })),
            all_ended(|it| matches!(it, Outcome::Expired(_))),
        ) {
            (true, _) => RunStatus::Cancelled,
            (false, _) if self.fails_with_a_call() && own().any(has_failed) => RunStatus::Failed,
            (false, true) => RunStatus::Expired,
            (false, false) => RunStatus::Completed,
        }
    }
}

fn has_failed(call: &Call) -> bool {
    matches!(call.outcome(), Some(Outcome::Failed(_) | Outcome::Expired(_)))
}

fn waits(call: &Call) -> bool {
    match call.state() {
        CallState::AwaitingApproval | CallState::WaitingForClient => true,
        CallState::Running(_) => call.is_asking(),
        CallState::Accepted | CallState::Delayed | CallState::Queued { .. } | CallState::Ended(_) => false,
    }
}
