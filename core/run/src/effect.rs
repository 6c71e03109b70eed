//! Pending effects: what the owner's driver must do now. Derived from state alone, and safe to repeat.

use crate::call::{Call, CallState};
use crate::event::{AttemptId, DeadlineKind};
use crate::id::{CallIndex, Timestamp};
use crate::run::Run;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// Append the call's job. The first append to its subject wins.
    Dispatch { call: CallIndex },
    /// Ask the pool to stop the attempt, until the log shows that it stopped.
    Stop { attempt: AttemptId },
    /// Append that the call was cancelled although its attempt did not confirm that it stopped.
    Cancel { call: CallIndex },
    /// Append the default decision on the call.
    Decide { call: CallIndex },
    /// Append that the call's delay has ended.
    EndDelay { call: CallIndex },
    /// Append that the call expired.
    Expire { call: CallIndex, deadline: DeadlineKind },
    /// Append that no worker of the call's pool is alive. State alone never yields this effect, because only the owner
    /// knows the live workers.
    Refuse { call: CallIndex },
    /// Append that the run is closed: it fails, and takes no further calls.
    Close,
    /// Append that the run expired.
    ExpireRun,
    /// Append that the run is cancelled, because the call that made it has ended. The run's own state never yields this
    /// effect, because it does not have that call.
    CancelRun,
}

impl Run {
    /// The effects that are pending now, from state alone.
    #[must_use]
    pub fn outstanding(&self, now: Timestamp) -> Vec<Effect> {
        if self.opened_at().is_none() || self.status().is_final() {
            return Vec::new();
        }
        if self.deadline() <= now {
            return vec![Effect::ExpireRun];
        }
        let close = (self.failed && self.is_open()).then_some(Effect::Close);
        let own = self.calls().iter().filter_map(|call| outstanding_for(call, now));
        let in_time = self.turns().filter(|call| call.start_by() > now);
        let dispatches = in_time.map(|call| Effect::Dispatch { call: call.index });
        close.into_iter().chain(own).chain(dispatches).collect()
    }

    /// The earliest time at which [`Self::outstanding`] may return something else without a new event. `None` once the
    /// run has ended: every other state has a deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.opened_at().is_none() || self.status().is_final() {
            return None;
        }
        let calls = self.calls().iter().filter(|call| call.outcome().is_none());
        // An attempt that overruns while it is being stopped is ended when its grace is over, not before.
        let times = calls.flat_map(|call| {
            let by = if call.is_untried() { call.start_by() } else { call.deadline() };
            let due = call.default_due().or_else(|| call.delayed_until());
            let by = due.map_or(by, |due| due.min(by));
            let overrun = || call.overrun().map(|(at, _)| at);
            [Some(by), call.cancel_overdue().or_else(overrun)].into_iter().flatten()
        });
        times.chain([self.deadline()]).min()
    }
}

fn outstanding_for(call: &Call, now: Timestamp) -> Option<Effect> {
    let index = call.index;
    match &call.state {
        CallState::Ended(_) => None,
        CallState::AwaitingApproval if call.default_due().is_some_and(|due| due <= now) => {
            Some(Effect::Decide { call: index })
        }
        CallState::WaitingForClient if call.deadline() <= now => {
            Some(Effect::Expire { call: index, deadline: DeadlineKind::Client })
        }
        _ if call.deadline() <= now => Some(Effect::Expire { call: index, deadline: DeadlineKind::Call }),
        CallState::Accepted | CallState::Delayed | CallState::Queued { .. } if call.start_by() <= now => {
            Some(Effect::Expire { call: index, deadline: DeadlineKind::Queue })
        }
        CallState::Delayed if call.delayed_until().is_none_or(|until| until <= now) => {
            Some(Effect::EndDelay { call: index })
        }
        CallState::Accepted
        | CallState::AwaitingApproval
        | CallState::Delayed
        | CallState::WaitingForClient
        | CallState::Queued { .. } => None,
        CallState::Running(running) => match (call.cancel_overdue(), call.overrun()) {
            (Some(overdue), _) if overdue <= now => Some(Effect::Cancel { call: index }),
            (Some(_), _) => Some(Effect::Stop { attempt: running.attempt }),
            (None, Some((overrun, deadline))) if overrun <= now => Some(Effect::Expire { call: index, deadline }),
            (None, _) => None,
        },
    }
}
