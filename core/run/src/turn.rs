//! Turns: which calls may begin. Those that a pool executes stand in one line, in the order in which they joined it. An
//! exclusive one begins when all that is ahead of it has ended; what is behind it waits for its end. A call that its owner
//! ended without its attempt's word stays in line until its tool is gone, as its worker reports, or its worker is lost. A
//! call that waits for that still ends by its own deadline. A call that awaits approval holds nobody up: it joins the line when it is approved. Where a run has a limit of calls at once, a call begins
//! when fewer than that are ahead of it.
//!
//! Only what is ahead of a call holds it up, and whatever joins the line later is behind it. So a turn that has come stays:
//! an owner that has not read the whole log dispatches a call too late at worst, never too early.

use crate::call::{Call, CallState};
use crate::id::CallIndex;
use crate::run::Run;
use crate::tool::Concurrency;

/// Why a call waits for one that is ahead of it in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// One of the two runs alone.
    Alone,
    /// The run has as many calls at once as it may.
    Full,
}

impl Run {
    /// The calls whose turn has come, and whose jobs are still to be appended.
    pub(crate) fn turns(&self) -> impl Iterator<Item = &Call> {
        self.line().filter(|(call, held)| call.state == CallState::Accepted && held.is_none()).map(|(call, _)| call)
    }

    /// The first of the calls for whose end the call waits before it begins; `None` where its turn has come, or it needs
    /// none.
    #[must_use]
    pub fn waits_for(&self, call: &Call) -> Option<&Call> {
        self.held_by(call).map(|(ahead, _)| ahead)
    }

    /// As [`Self::waits_for`], with what makes it wait.
    pub(crate) fn held_by(&self, call: &Call) -> Option<(&Call, Held)> {
        self.line().find(|(in_line, _)| in_line.index == call.index).and_then(|(_, held)| held)
    }

    /// A call that may be executed joins the line, once.
    pub(crate) fn line_up(&mut self, index: CallIndex) {
        let joins = self.call(index).is_some_and(|call| call.state == CallState::Accepted);
        if joins && !self.line.contains(&index) {
            self.line.push(index);
        }
    }

    /// The calls in line that have not ended, or of which something may still run, each with the first of those that hold it up.
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
