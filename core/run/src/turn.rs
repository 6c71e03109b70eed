//! Turn order: which calls may begin. The calls that a pool executes have one order, in which they were accepted or
//! approved, or in which their delays ended.
//!
//! - An exclusive call begins when all calls ahead of it have ended; calls behind it wait for its end.
//! - If the owner ended a call without a report of its attempt, the call keeps its place until its worker reports that the tool
//!   is gone, or is lost. A call that waits for that still ends by its own deadline.
//! - A call that awaits approval or is delayed blocks no other call: it joins the order when it is approved, and when
//!   its delay ends.
//! - If the run limits concurrent calls, a call begins when fewer than that are ahead of it.
//!
//! Only calls ahead of a call can block it, and every call that joins later is behind it. So once a call's turn has
//! come, it stays: an owner that has not read the whole log dispatches a call too late at worst, never too early.

use crate::call::{Call, CallState};
use crate::id::CallIndex;
use crate::run::Run;
use crate::tool::Concurrency;

/// Why a call waits for one ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// One of the two is exclusive.
    Alone,
    /// The run has reached its limit of concurrent calls.
    Full,
}

impl Run {
    /// The calls whose turn has come, and whose jobs must still be appended.
    pub(crate) fn turns(&self) -> impl Iterator<Item = &Call> {
        self.line().filter(|(call, held)| call.state == CallState::Accepted && held.is_none()).map(|(call, _)| call)
    }

    /// The first call for whose end the call waits; `None` if its turn has come, or it needs none.
    #[must_use]
    pub fn waits_for(&self, call: &Call) -> Option<&Call> {
        self.held_by(call).map(|(ahead, _)| ahead)
    }

    /// As [`Self::waits_for`], with the reason.
    pub(crate) fn held_by(&self, call: &Call) -> Option<(&Call, Held)> {
        self.line().find(|(in_line, _)| in_line.index == call.index).and_then(|(_, held)| held)
    }

    /// A call that may be executed joins the turn order, once.
    pub(crate) fn join_turns(&mut self, index: CallIndex) {
        let joins = self.call(index).is_some_and(|call| call.state == CallState::Accepted);
        if joins && !self.line.contains(&index) {
            self.line.push(index);
        }
    }

    /// The calls in turn order that have not ended, or whose tool may still run, each with the first call that blocks
    /// it.
    fn line(&self) -> impl Iterator<Item = (&Call, Option<(&Call, Held)>)> {
        let (mut first, mut first_exclusive) = (None, None);
        let mut room = self.rules.running_max.map_or(usize::MAX, |max| usize::from(max.max(1)));
        let calls = self.line.iter().filter_map(|index| self.call(*index));
        let occupies = |call: &&Call| call.outcome().is_none() || call.unsettled().is_some();
        calls.filter(occupies).map(move |call| {
            let is_exclusive = call.spec.concurrency == Concurrency::Exclusive;
            let alone = if is_exclusive { first } else { first_exclusive };
            let full = first.filter(|_| room == 0).map(|first| (first, Held::Full));
            let held = alone.map(|ahead| (ahead, Held::Alone)).or(full);
            first = first.or(Some(call));
            first_exclusive = first_exclusive.or(is_exclusive.then_some(call));
            room = room.saturating_sub(1);
            (call, held)
        })
    }
}
