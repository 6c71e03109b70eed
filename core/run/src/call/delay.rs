//! Delayed calls: accepted now, and not dispatched before a time that the caller chose.
//!
//! A delayed call is not in the turn order, so it blocks no other call. When its time has come, its owner appends that
//! the delay ended, and the call joins the order behind the calls that are in it.

use crate::call::{Call, CallState};
use crate::event::CallSpec;
use crate::id::Timestamp;
use crate::run::Fact;

/// The state at `at` of a call that needs no approval, or not any more.
pub(super) fn next_state(spec: &CallSpec, at: Timestamp) -> CallState {
    if spec.not_before.is_some_and(|until| at < until) { CallState::Delayed } else { CallState::Accepted }
}

impl Call {
    /// Until when the call is delayed; `None` if it is not, or not any more.
    #[must_use]
    pub fn delayed_until(&self) -> Option<Timestamp> {
        self.spec.not_before.filter(|_| self.state == CallState::Delayed)
    }

    /// The earliest time at which it could begin, as far as that was known when it was accepted: the time in the queue
    /// counts from there.
    #[must_use]
    pub fn begins(&self) -> Timestamp {
        self.spec.not_before.map_or(self.accepted_at, |until| until.max(self.accepted_at))
    }

    /// An event that was stored before the time has come changes nothing: the clock of the owner that appended it is
    /// ahead of the broker's, which counts.
    pub(crate) fn delay_ended(&mut self, at: Timestamp, heard: &mut Vec<Fact>) {
        if self.state == CallState::Delayed && next_state(&self.spec, at) == CallState::Accepted {
            self.in_turn_since = self.in_turn_since.max(self.begins());
            self.state = CallState::Accepted;
            heard.push(Fact::DelayEnded { call: self.index });
        }
    }

    /// The call was approved.
    pub(crate) fn approved(&mut self, at: Timestamp, heard: &mut Vec<Fact>) {
        self.in_turn_since = at;
        self.state = next_state(&self.spec, at);
        if self.state == CallState::Delayed {
            heard.push(Fact::Delayed { call: self.index });
        }
    }
}
