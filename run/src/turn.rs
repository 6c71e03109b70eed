//! Turns: which calls may begin. Those that a pool executes stand in one line, in the order in which they joined it. An
//! exclusive one begins when all that is ahead of it has ended; what is behind it waits for its end. A call that awaits
//! approval holds nobody up: it joins the line when it is approved.
//!
//! Only what is ahead of a call holds it up, and whatever joins the line later is behind it. So a turn that has come stays:
//! an owner that has not read the whole log dispatches a call too late at worst, never too early.

use crate::call::{Call, CallState};
use crate::id::CallIndex;
use crate::run::Run;
use crate::tool::Concurrency;

impl Run {
    /// The calls whose turn has come, and whose jobs are still to be appended.
    pub(crate) fn turns(&self) -> impl Iterator<Item = &Call> {
        self.line().filter(|(call, ahead)| call.state == CallState::Accepted && ahead.is_none()).map(|(call, _)| call)
    }

    /// The first of the calls for whose end the call waits before it begins; `None` where its turn has come, or it needs
    /// none.
    #[must_use]
    pub fn waits_for(&self, call: &Call) -> Option<&Call> {
        self.line().find(|(in_line, _)| in_line.index == call.index).and_then(|(_, ahead)| ahead)
    }

    /// A call that may be executed joins the line, once.
    pub(crate) fn line_up(&mut self, index: CallIndex) {
        let joins = self.call(index).is_some_and(|call| call.state == CallState::Accepted);
        if joins && !self.line.contains(&index) {
            self.line.push(index);
        }
    }

    /// The calls in line that have not ended, each with the first of those that hold it up.
    fn line(&self) -> impl Iterator<Item = (&Call, Option<&Call>)> {
        let (mut first, mut first_exclusive) = (None, None);
        let calls = self.line.iter().filter_map(|index| self.call(*index));
        calls.filter(|call| call.outcome().is_none()).map(move |call| {
            let is_exclusive = call.spec.concurrency == Concurrency::Exclusive;
            let ahead = if is_exclusive { first } else { first_exclusive };
            first = first.or(Some(call));
            first_exclusive = first_exclusive.or(is_exclusive.then_some(call));
            (call, ahead)
        })
    }
}
