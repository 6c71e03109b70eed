//! Deadlines of a call: for its start, its answer and its end.

use super::{Call, CallState};
use crate::event::DeadlineKind;
use crate::id::Timestamp;
use crate::limit::{CANCEL_GRACE, OVERRUN_GRACE};

impl Call {
    /// Deadline for the start of an attempt, while none runs. Calls that wait for their client or for approval are not
    /// in the queue; an approved call has its whole queue time after the approval, and a delayed one from the time
    /// before which it may not begin.
    #[must_use]
    pub fn start_by(&self) -> Timestamp {
        let queues = self.policy().is_some() && self.is_untried() && self.state != CallState::AwaitingApproval;
        let queue = self.spec.queue_deadline.filter(|_| queues);
        let queue = queue.map(|queue| queue.after(self.in_turn_since.since(self.begins())));
        queue.map_or(self.spec.deadline, |queue| queue.min(self.spec.deadline))
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
