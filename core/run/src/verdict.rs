//! The owner's verdict on a job that a worker received.

use crate::call::{Call, CallState};
use crate::event::{AttemptId, AttemptOutcome, CallError, ErrorKind};
use crate::id::{AttemptNumber, ChunkIndex, Timestamp, WorkerId};
use crate::limit::ATTEMPTS_SKIPPED_MAX;
use crate::run::Run;
use crate::tool::{AfterPartialOutput, Policy};

/// What a worker should do with a job that it received.
///
/// A verdict is as old as the fold behind it. If a worker must end an attempt, execute a tool that is not safe to
/// repeat, or continue from a chunk other than the first, it appends on condition that the call's last output is still
/// the one that the owner saw. If that fails, it asks again.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Execute it, as this attempt. `used` counts the attempts before it; `from` is the first chunk to send.
    Go { number: AttemptNumber, used: u32, from: ChunkIndex },
    /// Do not execute it: append this end.
    End { attempt: AttemptId, outcome: AttemptOutcome },
    /// Acknowledge it without executing it.
    Drop,
    /// Neither execute nor acknowledge it: another, live worker has it. State alone never yields this verdict.
    Leave,
}

impl Call {
    /// The verdict on the call's job, delivered for the `delivered`-th time. A call that is past its deadline never
    /// starts.
    #[must_use]
    pub fn verdict(&self, delivered: u32, now: Timestamp) -> Verdict {
        let Some((_, policy)) = self.policy() else { return Verdict::Drop };
        match &self.state {
            CallState::Ended(_) | CallState::AwaitingApproval | CallState::Delayed | CallState::WaitingForClient => {
                Verdict::Drop
            }
            CallState::Running(running) => self.verdict_on_lost(running.attempt, policy, delivered, now),
            CallState::Queued { .. } | CallState::Accepted if self.start_by() <= now => Verdict::Drop,
            // The worker has the job, so it is in the log even if this fold has not applied it yet.
            CallState::Queued { .. } | CallState::Accepted => self.go(policy, delivered),
        }
    }

    /// The job was redelivered while an attempt is recorded: its worker counts as lost.
    fn verdict_on_lost(&self, lost: AttemptId, policy: &Policy, delivered: u32, now: Timestamp) -> Verdict {
        let end = |error| Verdict::End { attempt: lost, outcome: AttemptOutcome::Failed(error) };
        if !policy.repeatable {
            return end(self.interrupted());
        }
        if self.cancel.is_some() || !policy.retry_on.lost || self.attempts_used >= policy.attempts_max {
            let attempts = if self.attempts_used == 1 { "attempt was" } else { "attempts were" };
            let message = format!("{} {attempts} made, the last one was lost with its worker", self.attempts_used);
            return end(CallError::new(ErrorKind::WorkerLost, message));
        }
        if self.start_by() <= now {
            return Verdict::Drop;
        }
        self.go(policy, delivered)
    }

    pub(crate) fn interrupted(&self) -> CallError {
        let tool = &self.spec.tool;
        let message = format!(
            "the worker was lost while it ran {tool}, which is not safe to repeat: its effect may have happened"
        );
        CallError::new(ErrorKind::Interrupted, message)
    }

    fn go(&self, policy: &Policy, delivered: u32) -> Verdict {
        let latest = self.newest.map_or(0, |newest| newest.number.0);
        let above = latest.saturating_add(1);
        let number = AttemptNumber(delivered.clamp(above, latest.saturating_add(ATTEMPTS_SKIPPED_MAX)));
        let from = match policy.after_partial_output {
            AfterPartialOutput::Continue => ChunkIndex(self.chunks.next()),
            AfterPartialOutput::Restart | AfterPartialOutput::Buffer => ChunkIndex(0),
        };
        Verdict::Go { number, used: self.attempts_used, from }
    }
}

impl Run {
    /// The recorded attempts that `worker` was running, each with the lease that returns its job to the queue.
    pub fn running_on(&self, worker: &WorkerId) -> impl Iterator<Item = (AttemptId, &bytes::Bytes)> {
        self.calls.iter().filter_map(move |call| match &call.state {
            CallState::Running(running) => {
                running.worker.as_ref().filter(|(on, _)| on == worker).map(|(_, lease)| (running.attempt, lease))
            }
            CallState::Accepted
            | CallState::AwaitingApproval
            | CallState::Delayed
            | CallState::WaitingForClient
            | CallState::Queued { .. }
            | CallState::Ended(_) => None,
        })
    }
}
