//! Cancelling a call, and what its caller learns about the execution.
//!
//! `NotRunning` is reported only if no worker runs the call, now or later. A tool that is not repeatable is called
//! after its start is in the log and is known to count, so the log knows. A repeatable tool is called before its start
//! is in the log: a fresh job is executed at once. So once its job may be in the log, a worker may be running it.

use super::{Call, CallState, Cancelling};
use crate::event::{Entry, Event, Outcome, Stopped};
use crate::id::{CallIndex, Timestamp};
use crate::run::{Fact, Run};

impl Run {
    /// The calls whose jobs may be in the log behind this entry, although an event of the entry cancels them: their
    /// turn came before it. A call whose turn comes with the entry itself is cancelled before an owner can dispatch it.
    pub(crate) fn perhaps_dispatched(&self, entry: &Entry) -> Vec<CallIndex> {
        let cancels = |event: &Event| {
            matches!(
                event,
                Event::RunCancelRequested { .. } | Event::RunEraseRequested(_) | Event::CallCancelRequested { .. }
            )
        };
        match self.fail_fast || entry.events.iter().any(cancels) {
            true => self.turns().map(Call::index).collect(),
            false => Vec::new(),
        }
    }

    pub(crate) fn cancel_calls(&mut self, at: Timestamp, reason: &str, turns: &[CallIndex], heard: &mut Vec<Fact>) {
        self.calls.iter_mut().for_each(|call| call.cancel_requested_at(at, reason, turns, heard));
    }
}

impl Call {
    /// A call that is not running ends at once; a running one must stop. `turns` are the calls whose jobs may be
    /// dispatched.
    pub(crate) fn cancel_requested_at(
        &mut self,
        at: Timestamp,
        reason: &str,
        turns: &[CallIndex],
        heard: &mut Vec<Fact>,
    ) {
        let may_run = match &self.state {
            CallState::Ended(_) => return,
            CallState::Running(_) if self.cancel.is_some() => return,
            CallState::Running(_) => {
                let reason = reason.to_owned();
                let (delivered_at, acknowledged_at) = (None, None);
                self.cancel = Some(Cancelling { requested_at: at, reason, delivered_at, acknowledged_at });
                return heard.push(Fact::CancelRequested { call: self.index });
            }
            CallState::Accepted => self.is_repeatable() && turns.contains(&self.index),
            CallState::Queued { .. } => self.is_repeatable(),
            CallState::AwaitingApproval | CallState::Delayed | CallState::WaitingForClient => false,
        };
        let stopped = if may_run { Stopped::Unconfirmed } else { Stopped::NotRunning };
        self.end(Outcome::Cancelled { reason: reason.to_owned(), stopped }, at, heard);
    }

    /// The owner stops waiting for a report of the attempt that it asked to stop.
    pub(crate) fn cancelled(&mut self, at: Timestamp, heard: &mut Vec<Fact>) {
        self.without_its_word(|call| call.end_cancelled(Stopped::Unconfirmed, at, heard));
    }

    /// The attempt reports that it stopped. For `others`, earlier attempts that were lost, there is no report, which
    /// matters if the tool is not safe to repeat.
    pub(super) fn end_stopped(&mut self, others: u32, at: Timestamp, heard: &mut Vec<Fact>) {
        let sure = self.is_repeatable() || others == 0;
        self.end_cancelled(if sure { Stopped::Confirmed } else { Stopped::Unconfirmed }, at, heard);
    }

    pub(super) fn end_cancelled(&mut self, stopped: Stopped, at: Timestamp, heard: &mut Vec<Fact>) {
        let reason = self.cancel.as_ref().map_or_else(String::new, |cancel| cancel.reason.clone());
        self.end(Outcome::Cancelled { reason, stopped }, at, heard);
    }
}
