//! When an attempt must have ended.

use std::time::Duration;

use proto::convert::log::Job;
use run::{AttemptOutcome, CallError, ErrorKind, Policy};
use tokio::time::Instant;
use toolyard_tool::runtime::Waits;

use super::Stopping;

/// The time by which the attempt must have ended, and its outcome if it has not.
pub(super) struct Deadline {
    pub(super) at: Instant,
    /// The attempt's own timeout, if it ends first.
    own: Option<Duration>,
    /// The call's deadline.
    pub(super) of_call: Instant,
    pub(super) idle: Option<Duration>,
    /// The time in which it waits for the client's answers, which is none of its own.
    pub(super) waits: Waits,
}

impl Deadline {
    /// The attempt's own time, or the call's if that is sooner. `None` when the call's has come already.
    pub(super) fn new(job: &Job, policy: &Policy, waits: Waits) -> Option<Self> {
        let (own, rest) = (policy.attempt_timeout, job.spec.deadline.since(::nats::now()));
        if rest.is_zero() {
            return None;
        }
        let now = Instant::now();
        let (at, of_call) = (now + own.min(rest), now + rest);
        Some(Self { at, own: (own <= rest).then_some(own), of_call, idle: policy.idle_timeout, waits })
    }

    /// When the attempt must end if it sends output until then, and why.
    pub(super) fn due(&self) -> (Instant, Stopping) {
        let waited = self.waits.now();
        let own = self.at + waited.total();
        if self.own.is_none() || waited.is_waiting() || own >= self.of_call {
            (self.of_call, Stopping::CallOverdue)
        } else {
            (own, Stopping::Overdue)
        }
    }

    /// When it has sent nothing for too long, if it sent something at `said`.
    pub(super) fn silent(&self, said: Instant) -> Option<Instant> {
        self.idle.filter(|_| !self.waits.now().is_waiting()).map(|idle| said + idle)
    }

    pub(super) fn overdue(&self) -> AttemptOutcome {
        let Some(own) = self.own else { return AttemptOutcome::Expired };
        let message = format!("the attempt took longer than {own:?}");
        AttemptOutcome::Failed(CallError::new(ErrorKind::AttemptTimeout, message).retryable())
    }
}
