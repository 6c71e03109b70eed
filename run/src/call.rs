//! One call: its states, and what each event makes of them.
//!
//! ```text
//! accepted ──▶ queued ──▶ running ──▶ ended        waiting for client ──▶ ended
//!                 ▲──────────┘ retry, given back
//! ```

use std::sync::Arc;

use bytes::Bytes;

use crate::chunks::{ChunkOrder, Span};
use crate::event::{
    AttemptId, AttemptOutcome, CallError, CallSpec, Content, DeadlineKind, ErrorKind, Outcome, Position, Route,
};
use crate::id::{AttemptNumber, CallIndex, ChunkIndex, PoolId, Timestamp, WorkerId};
use crate::limit::{CANCEL_GRACE, OVERRUN_GRACE};
use crate::retry::{Retry, after_failure};
use crate::run::Heard;
use crate::tool::Policy;

#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub(crate) index: CallIndex,
    pub(crate) spec: Arc<CallSpec>,
    pub(crate) state: CallState,
    /// Attempts that were heard and not given back.
    attempts_used: u32,
    /// The attempt that is heard, or was the last to be. Older ones are not.
    newest: Option<AttemptId>,
    chunks: ChunkOrder,
    cancel: Option<CancelRequested>,
    /// Why the last attempt that failed did.
    last_failure: Option<CallError>,
    /// The last entry on the call's control subject: what a command expects to be the last when it appends.
    pub(crate) revision: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum CallState {
    /// Held for its turn: its job is not in the log yet.
    Accepted,
    /// Held for the client, who alone can answer it.
    WaitingForClient,
    Queued {
        since: Timestamp,
    },
    Running(Running),
    Ended(Ended),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    pub attempt: AttemptId,
    pub since: Timestamp,
    /// Known once the attempt's start is in the log; output may come before it.
    pub worker: Option<(WorkerId, Bytes)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    pub at: Timestamp,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct CancelRequested {
    at: Timestamp,
    reason: String,
}

/// What a worker that was handed a call's job should do with it.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Execute it, as this attempt. `used` counts the attempts before it.
    Go { number: AttemptNumber, used: u32 },
    /// Do not execute it: append this end.
    End { attempt: AttemptId, outcome: AttemptOutcome },
    /// Nothing is left to do.
    Drop,
}

/// Whether an attempt is heard.
enum Hearing {
    Heard,
    Ignored,
}

impl Call {
    pub(crate) fn accept(index: CallIndex, spec: Arc<CallSpec>, at: Timestamp, heard: &mut Vec<Heard>) -> Self {
        let state = match &spec.route {
            Route::Pool { .. } => CallState::Accepted,
            Route::Client => CallState::WaitingForClient,
            Route::Refused(error) => CallState::Ended(Ended { at, outcome: Outcome::Failed(error.clone()) }),
        };
        match &state {
            CallState::WaitingForClient => heard.push(Heard::CallWaits { call: index }),
            CallState::Ended(_) => heard.push(Heard::CallEnded { call: index }),
            CallState::Accepted | CallState::Queued { .. } | CallState::Running(_) => {}
        }
        Self {
            index,
            spec,
            state,
            attempts_used: 0,
            newest: None,
            chunks: ChunkOrder::default(),
            cancel: None,
            last_failure: None,
            revision: 0,
        }
    }

    #[must_use]
    pub fn index(&self) -> CallIndex {
        self.index
    }

    #[must_use]
    pub fn spec(&self) -> &Arc<CallSpec> {
        &self.spec
    }

    #[must_use]
    pub fn state(&self) -> &CallState {
        &self.state
    }

    #[must_use]
    pub fn attempts_used(&self) -> u32 {
        self.attempts_used
    }

    #[must_use]
    pub fn last_failure(&self) -> Option<&CallError> {
        self.last_failure.as_ref()
    }

    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.state {
            CallState::Ended(ended) => Some(&ended.outcome),
            CallState::Accepted | CallState::WaitingForClient | CallState::Queued { .. } | CallState::Running(_) => {
                None
            }
        }
    }

    #[must_use]
    pub fn cancel_requested(&self) -> bool {
        self.cancel.is_some()
    }

    /// The state in one word, for messages.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match &self.state {
            CallState::Accepted => "accepted",
            CallState::WaitingForClient => "waiting for the client",
            CallState::Queued { .. } => "queued",
            CallState::Running(_) => "running",
            CallState::Ended(Ended { outcome, .. }) => match outcome {
                Outcome::Completed(_) => "completed",
                Outcome::Failed(_) => "failed",
                Outcome::Cancelled { .. } => "cancelled",
                Outcome::Expired(_) => "expired",
            },
        }
    }

    pub(crate) fn policy(&self) -> Option<(&PoolId, &Policy)> {
        match &self.spec.route {
            Route::Pool { pool, policy } => Some((pool, policy)),
            Route::Client | Route::Refused(_) => None,
        }
    }

    /// What to do with the call's job, delivered for the `delivered`-th time.
    #[must_use]
    pub fn verdict(&self, delivered: u32) -> Verdict {
        let Some((_, policy)) = self.policy() else { return Verdict::Drop };
        match &self.state {
            CallState::Ended(_) | CallState::WaitingForClient => Verdict::Drop,
            CallState::Running(running) => self.verdict_on_lost(running.attempt, policy, delivered),
            // The worker holds the job, so it is in the log even where this fold has not come to it yet.
            CallState::Queued { .. } | CallState::Accepted => self.go(delivered),
        }
    }

    /// The job comes again while an attempt is on record: its worker is taken for lost.
    fn verdict_on_lost(&self, lost: AttemptId, policy: &Policy, delivered: u32) -> Verdict {
        let end = |outcome| Verdict::End { attempt: lost, outcome };
        if self.cancel.is_some() {
            return end(AttemptOutcome::Cancelled);
        }
        if !policy.repeatable {
            return end(AttemptOutcome::Failed(self.interrupted()));
        }
        if self.attempts_used >= policy.attempts_max {
            let message = format!("{} attempts were lost with their workers", self.attempts_used);
            return end(AttemptOutcome::Failed(CallError::new(ErrorKind::WorkerLost, message)));
        }
        self.go(delivered)
    }

    fn interrupted(&self) -> CallError {
        let tool = &self.spec.tool;
        let message = format!(
            "the worker was lost while it ran {tool}, which is not safe to repeat: its effect may have happened"
        );
        CallError::new(ErrorKind::Interrupted, message)
    }

    fn go(&self, delivered: u32) -> Verdict {
        let above = self.newest.map_or(1, |newest| newest.number.0.saturating_add(1));
        Verdict::Go { number: AttemptNumber(above.max(delivered)), used: self.attempts_used }
    }

    // ---- what events make of it ----

    pub(crate) fn dispatched(&mut self, at: Timestamp) {
        if self.state == CallState::Accepted {
            self.state = CallState::Queued { since: at };
        }
    }

    /// Any word of an attempt introduces it: its start may have been overtaken by its output.
    fn hear(&mut self, attempt: AttemptId, pool: &PoolId, at: Timestamp, heard: &mut Vec<Heard>) -> Hearing {
        if self.policy().is_none_or(|(own, _)| own != pool) {
            return Hearing::Ignored;
        }
        let is_newer = self.newest.is_none_or(|newest| attempt.number > newest.number);
        match &self.state {
            CallState::Running(running) if running.attempt == attempt => return Hearing::Heard,
            CallState::Running(_) | CallState::Queued { .. } if is_newer => {}
            CallState::Running(_)
            | CallState::Queued { .. }
            | CallState::Accepted
            | CallState::WaitingForClient
            | CallState::Ended(_) => return Hearing::Ignored,
        }
        self.newest = Some(attempt);
        self.attempts_used += 1;
        self.chunks = ChunkOrder::default();
        self.state = CallState::Running(Running { attempt, since: at, worker: None });
        heard.push(Heard::AttemptStarted { attempt });
        Hearing::Heard
    }

    pub(crate) fn started(
        &mut self,
        attempt: AttemptId,
        pool: &PoolId,
        worker: (&WorkerId, &Bytes),
        at: Timestamp,
        heard: &mut Vec<Heard>,
    ) {
        if let Hearing::Heard = self.hear(attempt, pool, at, heard)
            && let CallState::Running(running) = &mut self.state
        {
            running.worker = Some((worker.0.clone(), worker.1.clone()));
        }
    }

    pub(crate) fn output(
        &mut self,
        attempt: AttemptId,
        pool: &PoolId,
        (first, count): (ChunkIndex, u32),
        position: Position,
        at: Timestamp,
        heard: &mut Vec<Heard>,
    ) {
        if let Hearing::Heard = self.hear(attempt, pool, at, heard) {
            let span = Span { position, skip: 0, first, count };
            self.chunks.insert(span, |span| heard.push(Heard::Output { attempt, span }));
        }
    }

    pub(crate) fn attempt_ended(
        &mut self,
        attempt: AttemptId,
        pool: &PoolId,
        (chunks, outcome): (u32, &AttemptOutcome),
        at: Timestamp,
        heard: &mut Vec<Heard>,
    ) {
        if let Hearing::Ignored = self.hear(attempt, pool, at, heard) {
            return;
        }
        match outcome {
            AttemptOutcome::Completed(_) if chunks != self.chunks.next() => {
                let message = format!("{} of {chunks} chunks of output reached the log", self.chunks.next());
                // The worker believes that the call is done and has acknowledged its job: nothing is left to try again.
                self.end(Outcome::Failed(CallError::new(ErrorKind::OutputIncomplete, message)), at, heard);
            }
            AttemptOutcome::Completed(result) => self.end(Outcome::Completed(result.clone()), at, heard),
            AttemptOutcome::Failed(error) => self.failed(attempt, error.clone(), at, heard),
            AttemptOutcome::Cancelled => {
                let reason = self.cancel.as_ref().map_or_else(String::new, |cancel| cancel.reason.clone());
                self.end(Outcome::Cancelled { reason }, at, heard);
            }
            AttemptOutcome::Expired => self.end(Outcome::Expired(DeadlineKind::Call), at, heard),
            AttemptOutcome::Returned => {
                self.attempts_used = self.attempts_used.saturating_sub(1);
                self.given_back(attempt, at, heard);
            }
        }
    }

    /// An attempt that was given back leaves nothing behind, but one before it, lost, may have.
    fn given_back(&mut self, attempt: AttemptId, at: Timestamp, heard: &mut Vec<Heard>) {
        let repeatable = self.policy().is_some_and(|(_, policy)| policy.repeatable);
        if repeatable || self.attempts_used == 0 || self.cancel.is_some() {
            self.back_to_queue(attempt, at, heard);
        } else {
            self.end(Outcome::Failed(self.interrupted()), at, heard);
        }
    }

    fn failed(&mut self, attempt: AttemptId, error: CallError, at: Timestamp, heard: &mut Vec<Heard>) {
        let retry =
            self.policy().map_or(Retry::GiveUp, |(_, policy)| after_failure(policy, self.attempts_used, &error));
        match retry {
            Retry::Again { .. } => {
                self.last_failure = Some(error);
                self.back_to_queue(attempt, at, heard);
            }
            Retry::GiveUp => self.end(Outcome::Failed(error), at, heard),
        }
    }

    /// A call whose cancellation was asked for does not get another attempt.
    fn back_to_queue(&mut self, attempt: AttemptId, at: Timestamp, heard: &mut Vec<Heard>) {
        if let Some(cancel) = &self.cancel {
            let reason = cancel.reason.clone();
            return self.end(Outcome::Cancelled { reason }, at, heard);
        }
        self.state = CallState::Queued { since: at };
        heard.push(Heard::AttemptEnded { attempt });
    }

    /// A call that is not running ends at once; a running one is told to stop.
    pub(crate) fn cancel_requested_at(&mut self, at: Timestamp, reason: &str, heard: &mut Vec<Heard>) {
        match &self.state {
            CallState::Ended(_) => {}
            CallState::Running(_) if self.cancel.is_some() => {}
            CallState::Running(_) => {
                self.cancel = Some(CancelRequested { at, reason: reason.to_owned() });
                heard.push(Heard::CancelRequested { call: self.index });
            }
            CallState::Accepted | CallState::WaitingForClient | CallState::Queued { .. } => {
                self.end(Outcome::Cancelled { reason: reason.to_owned() }, at, heard);
            }
        }
    }

    pub(crate) fn cancelled(&mut self, at: Timestamp, heard: &mut Vec<Heard>) {
        let reason = self.cancel.as_ref().map_or_else(String::new, |cancel| cancel.reason.clone());
        self.end(Outcome::Cancelled { reason }, at, heard);
    }

    /// The overrun of an attempt ends the call only while that attempt is the one that runs: an owner that lagged behind
    /// must not end a newer one.
    pub(crate) fn expired(&mut self, deadline: DeadlineKind, at: Timestamp, heard: &mut Vec<Heard>) {
        if let DeadlineKind::Attempt(overran) = deadline
            && !matches!(&self.state, CallState::Running(running) if running.attempt.number == overran)
        {
            return;
        }
        self.end(Outcome::Expired(deadline), at, heard);
    }

    pub(crate) fn answered(&mut self, answer: &Result<Vec<Content>, CallError>, at: Timestamp, heard: &mut Vec<Heard>) {
        if self.state == CallState::WaitingForClient {
            let outcome = match answer {
                Ok(result) => Outcome::Completed(result.clone()),
                Err(error) => Outcome::Failed(error.clone()),
            };
            self.end(outcome, at, heard);
        }
    }

    /// The only way into the last state, and there is none out of it.
    fn end(&mut self, outcome: Outcome, at: Timestamp, heard: &mut Vec<Heard>) {
        if !matches!(self.state, CallState::Ended(_)) {
            self.state = CallState::Ended(Ended { at, outcome });
            self.chunks = ChunkOrder::default();
            heard.push(Heard::CallEnded { call: self.index });
        }
    }

    // ---- what time makes of it ----

    /// When the owner ends a running attempt whose worker is silent, and as what.
    pub(crate) fn overrun(&self) -> Option<Timestamp> {
        match (&self.state, self.policy()) {
            (CallState::Running(running), Some((_, policy))) => {
                Some(running.since.after(policy.attempt_timeout).after(OVERRUN_GRACE))
            }
            _ => None,
        }
    }

    /// When the owner stops waiting for a cancelled attempt's own word.
    pub(crate) fn cancel_overdue(&self) -> Option<Timestamp> {
        self.cancel.as_ref().map(|cancel| cancel.at.after(CANCEL_GRACE).after(OVERRUN_GRACE))
    }
}
