//! Deadlines of a call: for its start, its answer and its end.

use super::{Call, CallState};
use crate::event::{CallError, DeadlineKind, ErrorKind, Outcome, Stopped};
use crate::id::Timestamp;
use crate::limit::{CANCEL_GRACE, EXECUTION_MAX, OVERRUN_GRACE};
use crate::retry::Retry;
use crate::run::Fact;
use crate::why::expiry;

impl Call {
    /// An owner that lagged behind must not end more than it saw. A timeout of an attempt counts only while that
    /// attempt runs, an idle timeout only while there is no output, and a queue deadline only while no attempt has
    /// begun. An attempt that exceeded its timeout has failed: another one follows if the policy allows it.
    pub(crate) fn expired(&mut self, deadline: DeadlineKind, at: Timestamp, heard: &mut Vec<Fact>) {
        if let DeadlineKind::Attempt(number) = deadline {
            // Its worker is lost, so nobody will report that the tool is gone.
            self.unsettled.take_if(|running| running.attempt.number == number);
        }
        self.without_its_word(|call| call.expire(deadline, at, heard));
    }

    fn expire(&mut self, deadline: DeadlineKind, at: Timestamp, heard: &mut Vec<Fact>) {
        let stands = match deadline {
            DeadlineKind::Attempt(overran) => {
                matches!(&self.state, CallState::Running(running) if running.attempt.number == overran)
            }
            DeadlineKind::Idle(silent) => match (&self.state, self.idle_until()) {
                (CallState::Running(running), Some(until)) => running.attempt.number == silent && until <= at,
                _ => false,
            },
            DeadlineKind::Queue => {
                matches!(self.state, CallState::Accepted | CallState::Delayed | CallState::Queued { .. })
                    && self.is_untried()
            }
            DeadlineKind::Call | DeadlineKind::Client | DeadlineKind::Run | DeadlineKind::Opening => true,
        };
        if !stands {
            return;
        }
        let (error, attempt) = match (deadline, &self.state) {
            (DeadlineKind::Attempt(_), CallState::Running(running)) => (ErrorKind::AttemptTimeout, running.attempt),
            (DeadlineKind::Idle(_), CallState::Running(running)) => (ErrorKind::IdleTimeout, running.attempt),
            (_, _) => return self.end(Outcome::Expired(deadline), at, heard),
        };
        let error = CallError::new(error, expiry(deadline));
        match self.retry(&error) {
            Retry::GiveUp => self.end(Outcome::Expired(deadline), at, heard),
            Retry::Again { .. } if self.cancel.is_some() => self.end_cancelled(Stopped::Unconfirmed, at, heard),
            Retry::Again { .. } => self.try_again(attempt, error, at, heard),
        }
    }

    /// By when the call has ended.
    #[must_use]
    pub fn deadline(&self) -> Timestamp {
        self.dispatched_at.map_or(self.spec.deadline, |at| at.after(EXECUTION_MAX).min(self.spec.deadline))
    }

    /// Deadline for the start of an attempt, while none runs. Calls that wait for their client or for approval are not
    /// in the queue; an approved call has its whole queue time after the approval, and a delayed one from the time
    /// before which it may not begin.
    #[must_use]
    pub fn start_by(&self) -> Timestamp {
        let queues = self.policy().is_some() && self.is_untried() && self.state != CallState::AwaitingApproval;
        let queue = self.spec.queue_deadline.filter(|_| queues);
        let queue = queue.map(|queue| queue.after(self.in_turn_since.since(self.begins())));
        queue.map_or(self.deadline(), |queue| queue.min(self.deadline()))
    }

    /// When the owner ends a running attempt whose worker sends nothing, and with which outcome. `None` while it waits
    /// for the client's answer to a question: then only the call's deadline counts.
    pub(crate) fn overrun(&self) -> Option<(Timestamp, DeadlineKind)> {
        let (CallState::Running(running), Some((_, policy))) = (&self.state, self.policy()) else { return None };
        if running.asking_since.is_some() {
            return None;
        }
        let number = running.attempt.number;
        let whole = (running.since.after(policy.attempt_timeout).after(running.asked), DeadlineKind::Attempt(number));
        let idle = self.idle_until().map(|until| (until, DeadlineKind::Idle(number)));
        let (at, kind) = idle.filter(|idle| idle.0 < whole.0).unwrap_or(whole);
        Some((at.after(OVERRUN_GRACE), kind))
    }

    /// When the running attempt exceeds its idle timeout.
    pub(super) fn idle_until(&self) -> Option<Timestamp> {
        let (CallState::Running(running), Some((_, policy))) = (&self.state, self.policy()) else { return None };
        policy.idle_timeout.filter(|_| running.asking_since.is_none()).map(|idle| running.heard_at.after(idle))
    }

    /// When the owner stops waiting for a report of a cancelled attempt.
    pub(crate) fn cancel_overdue(&self) -> Option<Timestamp> {
        self.cancel.as_ref().map(|cancel| cancel.requested_at.after(CANCEL_GRACE).after(OVERRUN_GRACE))
    }
}
