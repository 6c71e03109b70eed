//! One call: its states, and how each event changes them.
//!
//! ```text
//! awaiting approval ──▶ delayed ──▶ accepted ──▶ queued ──▶ running ──▶ ended        waiting for client ──▶ ended
//!                                                   ▲──────────┘ retry, given back
//! ```

mod cancel;
mod deadlines;
mod delay;
mod hooked;
mod limited;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::approval::Decided;
use crate::chunks::{ChunkOrder, Span};
use crate::event::{
    AttemptId, AttemptOutcome, CallError, CallSpec, Completion, Content, DeadlineKind, ErrorKind, Outcome, Route,
    StopStage, Stopped,
};
use crate::fields::Fields;
use crate::id::{AttemptNumber, CallIndex, ChunkIndex, PoolId, RunId, Timestamp, WorkerId};
use crate::limit::{ATTEMPTS_SKIPPED_MAX, FAILURES_KEPT_MAX};
use crate::retry::{Retry, after_failure};
use crate::run::{ByteBudget, Fact};
use crate::tool::{AfterPartialOutput, Policy};
use crate::why::no_worker;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub(crate) index: CallIndex,
    pub(crate) spec: Arc<CallSpec>,
    pub(crate) state: CallState,
    accepted_at: Timestamp,
    /// When it was accepted or approved, or when its delay was to end, whichever was last.
    pub(crate) in_turn_since: Timestamp,
    /// The log position of its job; 0 while there is none.
    job: u64,
    /// When its job was stored.
    dispatched_at: Option<Timestamp>,
    /// Attempts that counted and were not returned by their worker.
    pub(crate) attempts_used: u32,
    /// The newest attempt, which is the fence: events of older ones are ignored.
    pub(crate) newest: Option<AttemptId>,
    pub(crate) chunks: ChunkOrder,
    /// Output of the newest attempt that is shown when the call ends; only used if output is buffered.
    buffered: Vec<Span>,
    pub(crate) cancel: Option<Cancelling>,
    /// The attempt that was running when the owner ended the call without its report. Its tool may still run: until it
    /// is known to be gone, calls that may not run concurrently with it wait.
    unsettled: Option<Box<Running>>,
    /// Attempts that failed or were lost while another one could follow: the latest of them, oldest first.
    failures: Vec<FailedAttempt>,
    pub(crate) decided: Option<Decided>,
    pub(crate) fate: Option<Disposition>,
    /// The extra state that it returned beside its result.
    pub(crate) extra_state: Fields,
    /// The error with which it ends unless it fails otherwise, because it exceeded a limit.
    over_limit: Option<Box<CallError>>,
    /// The last entry on the call's control subject. A command appends on condition that it is still the last.
    pub(crate) revision: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CallState {
    /// It waits for its turn: its job is not in the log yet.
    Accepted,
    /// It waits for an approval.
    AwaitingApproval,
    /// It waits for the time before which it may not begin.
    Delayed,
    /// It waits for the client, which alone can answer it.
    WaitingForClient,
    Queued {
        since: Timestamp,
    },
    Running(Running),
    Ended(Ended),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    pub attempt: AttemptId,
    pub since: Timestamp,
    /// When its last event was stored.
    pub heard_at: Timestamp,
    /// Since when it has been waiting for the client's answer to a question; `None` if it has no open question.
    pub asking_since: Option<Timestamp>,
    /// How long it waited for earlier answers.
    pub asked: Duration,
    /// Known once the attempt's start is in the log; output may come before it.
    pub worker: Option<(WorkerId, Bytes)>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub at: Timestamp,
    pub outcome: Outcome,
}

/// The stages of cancelling a running call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelling {
    pub requested_at: Timestamp,
    pub reason: String,
    pub delivered_at: Option<Timestamp>,
    pub acknowledged_at: Option<Timestamp>,
}

/// An attempt that did not end its call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedAttempt {
    pub number: AttemptNumber,
    pub at: Timestamp,
    pub error: CallError,
}

/// What happened to a parked call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Disposition {
    /// Executed again, as the only call of this run.
    Redriven { into: RunId },
    /// Dropped for good.
    Dropped,
}

/// Where an event of an attempt comes from, and when it was stored.
pub(crate) struct Report<'a> {
    pub(crate) attempt: AttemptId,
    /// The pool on whose subject it was stored, which the broker vouches for.
    pub(crate) pool: &'a PoolId,
    pub(crate) at: Timestamp,
    /// Its worker runs the hooks that the call requires.
    pub(crate) hooked: bool,
}

/// Whether an event of an attempt counts.
enum Hearing {
    Counted,
    Ignored,
}

impl Running {
    fn new(attempt: AttemptId, at: Timestamp) -> Self {
        Self { attempt, since: at, heard_at: at, asking_since: None, asked: Duration::ZERO, worker: None }
    }
}

/// Whether a call in the [state](Call::state_name) of this name has ended.
pub(crate) fn is_end(state: &str) -> bool {
    matches!(state, "completed" | "failed" | "cancelled" | "expired")
}

impl Call {
    pub(crate) fn accept(index: CallIndex, spec: Arc<CallSpec>, at: Timestamp, heard: &mut Vec<Fact>) -> Self {
        let state = match &spec.route {
            Route::Pool { .. } if spec.approval.is_some() => CallState::AwaitingApproval,
            Route::Pool { .. } => delay::next_state(&spec, at),
            Route::Client => CallState::WaitingForClient,
            Route::Refused(error) => CallState::Ended(Ended { at, outcome: Outcome::Failed(error.clone()) }),
            Route::Answered(answer) => {
                CallState::Ended(Ended { at, outcome: Outcome::Completed(answer.result.clone()) })
            }
        };
        match &state {
            CallState::AwaitingApproval => heard.push(Fact::ApprovalAsked { call: index }),
            CallState::Delayed => heard.push(Fact::Delayed { call: index }),
            CallState::WaitingForClient if spec.asked_by.is_some() => heard.push(Fact::QuestionAsked { call: index }),
            CallState::WaitingForClient => heard.push(Fact::CallWaits { call: index }),
            CallState::Ended(_) => heard.push(Fact::CallEnded { call: index }),
            CallState::Accepted | CallState::Queued { .. } | CallState::Running(_) => {}
        }
        Self {
            index,
            spec,
            state,
            accepted_at: at,
            in_turn_since: at,
            job: 0,
            dispatched_at: None,
            attempts_used: 0,
            newest: None,
            chunks: ChunkOrder::default(),
            buffered: Vec::new(),
            cancel: None,
            unsettled: None,
            failures: Vec::new(),
            decided: None,
            fate: None,
            extra_state: Fields::default(),
            over_limit: None,
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
    pub fn newest_attempt(&self) -> Option<AttemptNumber> {
        self.newest.map(|newest| newest.number)
    }

    #[must_use]
    pub fn attempts_used(&self) -> u32 {
        self.attempts_used
    }

    /// When the call was stored.
    #[must_use]
    pub fn accepted_at(&self) -> Timestamp {
        self.accepted_at
    }

    /// Attempts that failed or were lost while another one could follow, oldest first; at most the latest 8.
    #[must_use]
    pub fn failures(&self) -> &[FailedAttempt] {
        &self.failures
    }

    /// While no worker has stored a start: the log position of its job, and the time from which workers can receive it.
    #[must_use]
    pub fn unclaimed(&self) -> Option<(u64, Timestamp)> {
        let CallState::Queued { since } = &self.state else { return None };
        let (_, policy) = self.policy()?;
        let wait = self.last_failure().map(|error| policy.backoff.wait_after(error, self.attempts_used, 1.0));
        (self.job > 0).then(|| (self.job, since.after(wait.unwrap_or_default())))
    }

    /// The log position of its job, while a worker executes it or will, or may still execute it after its end.
    #[must_use]
    pub fn job_in_use(&self) -> Option<u64> {
        let is_out = matches!(self.state, CallState::Queued { .. } | CallState::Running(_)) || self.unsettled.is_some();
        (is_out && self.job > 0).then_some(self.job)
    }

    /// The error of the last failed attempt.
    #[must_use]
    pub fn last_failure(&self) -> Option<&CallError> {
        self.failures.last().map(|failure| &failure.error)
    }

    #[must_use]
    pub fn cancelling(&self) -> Option<&Cancelling> {
        self.cancel.as_ref()
    }

    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.state {
            CallState::Ended(ended) => Some(&ended.outcome),
            CallState::Accepted
            | CallState::AwaitingApproval
            | CallState::Delayed
            | CallState::WaitingForClient
            | CallState::Queued { .. }
            | CallState::Running(_) => None,
        }
    }

    #[must_use]
    pub fn cancel_requested(&self) -> bool {
        self.cancel.is_some()
    }

    /// The attempt whose tool may still run although the call has ended.
    #[must_use]
    pub fn unsettled(&self) -> Option<&Running> {
        self.unsettled.as_deref()
    }

    /// The state in one word, for messages.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match &self.state {
            CallState::Accepted => "accepted",
            CallState::AwaitingApproval => "awaiting approval",
            CallState::Delayed => "delayed",
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

    /// When it was accepted or approved, or when its delay was to end, whichever was last.
    #[must_use]
    pub fn in_turn_since(&self) -> Timestamp {
        self.in_turn_since
    }

    /// When its job was first stored.
    #[must_use]
    pub fn dispatched_at(&self) -> Option<Timestamp> {
        self.dispatched_at
    }

    /// No attempt has counted yet.
    #[must_use]
    pub fn is_untried(&self) -> bool {
        self.newest.is_none()
    }

    pub(crate) fn policy(&self) -> Option<(&PoolId, &Policy)> {
        match &self.spec.route {
            Route::Pool { pool, policy, .. } => Some((pool, policy)),
            Route::Client | Route::Refused(_) | Route::Answered(_) => None,
        }
    }

    pub(crate) fn dispatched(&mut self, at: Timestamp, job: u64) {
        if self.state == CallState::Accepted {
            self.state = CallState::Queued { since: at };
            (self.job, self.dispatched_at) = (job, Some(at));
        }
    }

    /// Any event of an attempt may be the first one, because its output may be stored before its start. `from` is the
    /// chunk at which the attempt continues, if that is known.
    ///
    /// If an attempt does not continue exactly at the end of the output (its start was not stored right behind the last
    /// output, as it should be), it counts as one that starts over. Missing chunks are then detected at its end, and no
    /// output is doubled or lost unnoticed.
    fn hear(&mut self, report: &Report, from: ChunkIndex, heard: &mut Vec<Fact>) -> Hearing {
        let &Report { attempt, pool, at, .. } = report;
        let Some((own, policy)) = self.policy() else { return Hearing::Ignored };
        if own != pool {
            return Hearing::Ignored;
        }
        let mode = policy.after_partial_output;
        let latest = self.newest.map_or(0, |newest| newest.number.0);
        let is_newer = attempt.number.0 > latest && attempt.number.0 - latest <= ATTEMPTS_SKIPPED_MAX;
        match &mut self.state {
            CallState::Running(running) if running.attempt == attempt => {
                running.heard_at = running.heard_at.max(at);
                return Hearing::Counted;
            }
            CallState::Running(running) if is_newer => {
                let lost = CallError::new(ErrorKind::WorkerLost, "the attempt was lost with its worker").retryable();
                let number = running.attempt.number;
                self.note_failure(number, lost, at);
            }
            CallState::Queued { .. } if is_newer => {}
            CallState::Running(_)
            | CallState::Queued { .. }
            | CallState::Accepted
            | CallState::AwaitingApproval
            | CallState::Delayed
            | CallState::WaitingForClient
            | CallState::Ended(_) => return Hearing::Ignored,
        }
        self.newest = Some(attempt);
        self.attempts_used += 1;
        self.buffered.clear();
        if let Some(cancel) = &mut self.cancel {
            (cancel.delivered_at, cancel.acknowledged_at) = (None, None);
        }
        let continues = mode == AfterPartialOutput::Continue && from.0 > 0 && from.0 == self.chunks.next();
        if continues {
            self.chunks.forget_early();
        } else {
            self.chunks = ChunkOrder::default();
        }
        self.state = CallState::Running(Running::new(attempt, at));
        heard.push(Fact::AttemptStarted { attempt, continues });
        Hearing::Counted
    }

    fn note_failure(&mut self, number: AttemptNumber, error: CallError, at: Timestamp) {
        if self.failures.len() >= FAILURES_KEPT_MAX {
            self.failures.remove(0);
        }
        self.failures.push(FailedAttempt { number, at, error });
    }

    /// `from`: the chunk at which the attempt continues.
    pub(crate) fn started(
        &mut self,
        report: &Report,
        worker: &WorkerId,
        lease: &Bytes,
        from: ChunkIndex,
        heard: &mut Vec<Fact>,
    ) {
        if let Hearing::Counted = self.hear(report, from, heard)
            && let CallState::Running(running) = &mut self.state
        {
            running.worker = Some((worker.clone(), lease.clone()));
        }
    }

    /// `span`: the chunks that the event holds. `count` gets the parts of it that are new and are kept.
    pub(crate) fn output(&mut self, report: &Report, span: Span, heard: &mut Vec<Fact>, count: impl FnMut(Span)) {
        if let Hearing::Ignored = self.hear(report, ChunkIndex(0), heard) {
            return;
        }
        if self.lacks_hooks(report.hooked) {
            return;
        }
        let attempt = report.attempt;
        let is_buffered =
            self.policy().is_some_and(|(_, policy)| policy.after_partial_output == AfterPartialOutput::Buffer);
        let Self { chunks, buffered, .. } = self;
        let hand_on = |span| match is_buffered {
            true => buffered.push(span),
            false => heard.push(Fact::Output { attempt, span }),
        };
        chunks.insert(span, hand_on, count);
    }

    /// A stage of stopping counts for the running attempt, once, and only if stopping was requested.
    pub(crate) fn stopping(&mut self, report: &Report, stage: StopStage, heard: &mut Vec<Fact>) {
        let &Report { attempt, pool, at, .. } = report;
        let is_own = self.policy().is_some_and(|(own, _)| own == pool);
        let runs = matches!(&self.state, CallState::Running(running) if running.attempt == attempt);
        let Some(cancel) = self.cancel.as_mut().filter(|_| is_own && runs) else { return };
        let reached = match stage {
            StopStage::Delivered => &mut cancel.delivered_at,
            StopStage::Acknowledged => &mut cancel.acknowledged_at,
        };
        if reached.is_none() {
            *reached = Some(at);
            heard.push(Fact::AttemptStopping { attempt, stage });
        }
    }

    /// `chunks`: the number that the attempt's next chunk would have. `budget`: counts the result, if it is kept.
    pub(crate) fn attempt_ended(
        &mut self,
        report: &Report,
        chunks: u32,
        outcome: &AttemptOutcome,
        budget: &mut ByteBudget,
        heard: &mut Vec<Fact>,
    ) {
        let &Report { attempt, pool, at, .. } = report;
        // The worker appends the end when the tool is gone, however late that is.
        let is_own = self.policy().is_some_and(|(own, _)| own == pool);
        self.unsettled.take_if(|running| is_own && running.attempt == attempt);
        if let Hearing::Ignored = self.hear(report, ChunkIndex(0), heard) {
            return;
        }
        let withheld = self.lacks_hooks(report.hooked).then(|| self.withheld(outcome));
        let outcome = withheld.as_ref().unwrap_or(outcome);
        match outcome {
            AttemptOutcome::Failed(error)
                if self.cancel.is_some() && matches!(error.kind, ErrorKind::Interrupted | ErrorKind::WorkerLost) =>
            {
                self.end_cancelled(Stopped::Unconfirmed, at, heard);
            }
            AttemptOutcome::Completed(_) if chunks != self.chunks.next() => {
                let message = format!("{} of {chunks} chunks of output reached the log", self.chunks.next());
                // The worker has acknowledged the job, so there is none left for another attempt.
                self.end(Outcome::Failed(CallError::new(ErrorKind::OutputIncomplete, message)), at, heard);
            }
            AttemptOutcome::Completed(Completion { result, extra_state }) => {
                self.count_result(result, budget);
                self.extra_state.clone_from(extra_state);
                self.end(Outcome::Completed(result.clone()), at, heard);
            }
            AttemptOutcome::Failed(error) => self.failed(attempt, error.clone(), at, heard),
            AttemptOutcome::Cancelled => self.end_stopped(self.attempts_used.saturating_sub(1), at, heard),
            AttemptOutcome::Expired => self.end(Outcome::Expired(DeadlineKind::Call), at, heard),
            AttemptOutcome::Returned => {
                self.attempts_used = self.attempts_used.saturating_sub(1);
                self.given_back(attempt, at, heard);
            }
        }
    }

    /// An attempt that its worker returned had no effect, but an earlier one that was lost may have had one.
    fn given_back(&mut self, attempt: AttemptId, at: Timestamp, heard: &mut Vec<Fact>) {
        if self.cancel.is_some() {
            self.end_stopped(self.attempts_used, at, heard);
        } else if self.is_repeatable() || self.attempts_used == 0 {
            self.back_to_queue(attempt, at, heard);
        } else {
            self.end(Outcome::Failed(self.interrupted()), at, heard);
        }
    }

    fn failed(&mut self, attempt: AttemptId, error: CallError, at: Timestamp, heard: &mut Vec<Fact>) {
        match self.retry(&error) {
            // A call that is being cancelled does not get another attempt.
            Retry::Again { .. } if self.cancel.is_some() => self.end_stopped(0, at, heard),
            Retry::Again { .. } => self.try_again(attempt, error, at, heard),
            Retry::GiveUp => self.end(Outcome::Failed(error), at, heard),
        }
    }

    fn retry(&self, error: &CallError) -> Retry {
        self.policy().map_or(Retry::GiveUp, |(_, policy)| after_failure(policy, self.attempts_used, error))
    }

    fn try_again(&mut self, attempt: AttemptId, error: CallError, at: Timestamp, heard: &mut Vec<Fact>) {
        self.note_failure(attempt.number, error, at);
        self.back_to_queue(attempt, at, heard);
    }

    fn back_to_queue(&mut self, attempt: AttemptId, at: Timestamp, heard: &mut Vec<Fact>) {
        self.state = CallState::Queued { since: at };
        heard.push(Fact::AttemptEnded { attempt });
    }

    fn is_repeatable(&self) -> bool {
        self.policy().is_some_and(|(_, policy)| policy.repeatable)
    }

    /// The owner ends the call. Whether a running tool has stopped is not known then.
    fn without_its_word(&mut self, end: impl FnOnce(&mut Self)) {
        let running = match &self.state {
            // Without a worker nobody could report it later.
            CallState::Running(running) if running.worker.is_some() => Some(Box::new(running.clone())),
            CallState::Running(_)
            | CallState::Accepted
            | CallState::AwaitingApproval
            | CallState::Delayed
            | CallState::WaitingForClient
            | CallState::Queued { .. }
            | CallState::Ended(_) => None,
        };
        end(self);
        if running.is_some() && matches!(self.state, CallState::Ended(_)) {
            self.unsettled = running;
        }
    }

    /// The owner found that the call cannot be executed. If a worker has begun meanwhile, the event has no effect.
    pub(crate) fn refused(&mut self, error: &CallError, at: Timestamp, heard: &mut Vec<Fact>) {
        if matches!(self.state, CallState::Accepted | CallState::Queued { .. }) {
            self.end(Outcome::Failed(error.clone()), at, heard);
        }
    }

    /// Its run's deadline passed, and no worker that hosts its tool was alive.
    pub(crate) fn found_no_worker(&mut self, at: Timestamp, heard: &mut Vec<Fact>) {
        if let Route::Pool { pool, .. } = &self.spec.route {
            let error = no_worker(&self.spec.tool, pool, &self.spec.required_hooks);
            self.refused(&error, at, heard);
        }
    }

    pub(crate) fn answered(&mut self, answer: &Result<Vec<Content>, CallError>, at: Timestamp, heard: &mut Vec<Fact>) {
        if self.state == CallState::WaitingForClient {
            let outcome = match answer {
                Ok(result) => Outcome::Completed(result.clone()),
                Err(error) => Outcome::Failed(error.clone()),
            };
            self.end(outcome, at, heard);
        }
    }

    /// The only transition into the final state; there is none out of it.
    pub(crate) fn end(&mut self, outcome: Outcome, at: Timestamp, heard: &mut Vec<Fact>) {
        if !matches!(self.state, CallState::Ended(_)) {
            let outcome = self.within_limit(outcome);
            if let Some(attempt) = self.newest {
                heard.extend(std::mem::take(&mut self.buffered).into_iter().map(|span| Fact::Output { attempt, span }));
            }
            self.state = CallState::Ended(Ended { at, outcome });
            self.chunks = ChunkOrder::default();
            heard.push(Fact::CallEnded { call: self.index });
        }
    }
}
