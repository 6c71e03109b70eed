//! The last moment at which an entry of a coordinator counts.
//!
//! A client library keeps messages while it has no connection, and a broker that stands still takes them in when it
//! goes on. So an entry may be stored long after its writer reported a failure, and its caller asked again or gave up.
//! For this reason each entry of a coordinator names the last moment at which it counts. The broker's time of storing
//! decides, so all readers and workers agree. An opening that comes too late makes a run that expired as it began; any
//! other event changes nothing.

use std::time::Duration;

use crate::event::{Entry, Event};
use crate::id::{RunId, Timestamp};
use crate::run::Run;

/// How long an entry counts after it was written. Longer than a coordinator tries to store it (15 s), and over when the
/// coordinator reports a failure. An election of the broker's leader takes 4-9 s.
pub const STORED_WITHIN: Duration = Duration::from_secs(16);
/// How long after its id was made a run can be opened. A request that is repeated with a request id opens the same run
/// until then. It is far below the time for which the log and request ids are kept beyond the longest run (1 h).
pub const OPENED_WITHIN: Duration = Duration::from_secs(5 * 60);
/// How long after its id was made a request that is repeated may still open the run: an opening counts as long as any
/// other entry.
pub const REOPENED_WITHIN: Duration = OPENED_WITHIN.saturating_sub(STORED_WITHIN);
/// How long after its id was made a run that is not in the log is known never to come. The time beyond
/// [`OPENED_WITHIN`] is by how much the clocks of the broker's nodes may differ, and how long a leader that was
/// replaced may not know it.
pub const NEVER_OPENED_AFTER: Duration = OPENED_WITHIN.saturating_add(Duration::from_secs(30));
/// How long the entries of a run that is erased stay after the last moment at which a copy of them would count. By how
/// much the clocks of the broker's nodes may differ.
pub(crate) const COPIES_MARGIN: Duration = Duration::from_secs(1);

/// The last moment at which events count that are written now.
#[must_use]
pub fn counts_until(run: RunId, events: &[Event], now: Timestamp) -> Timestamp {
    let until = now.after(STORED_WITHIN);
    match events.first() {
        Some(Event::RunOpened(_)) => until.min(run.created_at().after(OPENED_WITHIN)),
        _ => until,
    }
}

/// Whether an entry that was stored at `at` came too late to count.
#[must_use]
pub fn is_late(at: Timestamp, not_after: Option<Timestamp>) -> bool {
    not_after.is_some_and(|not_after| at > not_after)
}

impl Entry {
    /// Whether it was stored too late to count.
    #[must_use]
    pub fn is_late(&self) -> bool {
        is_late(self.at, self.not_after)
    }
}

impl Run {
    /// Notes until when a second copy of the entry would count if the first were erased: only these two expect that
    /// nothing is on their subject.
    pub(crate) fn note_copies(&mut self, entry: &Entry) {
        let Some(not_after) = entry.not_after else { return };
        if matches!(entry.events.first(), Some(Event::RunOpened(_) | Event::CallDispatched { .. })) {
            self.copies_until = self.copies_until.max(not_after.after(COPIES_MARGIN));
        }
    }

    /// An event that came too late changes nothing but what is last on its subject, which every command must know.
    pub(crate) fn pass_over(&mut self, event: &Event, sequence: u64) {
        match event {
            Event::CallsAppended { .. }
            | Event::RunClosed
            | Event::RunCancelRequested { .. }
            | Event::RunEraseRequested(_)
            | Event::RunExpired { .. } => {
                self.revision = sequence;
            }
            Event::CallCancelRequested { call, .. }
            | Event::CallCancelled { call }
            | Event::CallExpired { call, .. }
            | Event::CallFailed { call, .. }
            | Event::CallRedriven { call, .. }
            | Event::CallDropped { call }
            | Event::CallDelayEnded { call }
            | Event::CallDecided { call, .. }
            | Event::ClientAnswered { call, .. } => self.control(*call, sequence, |_| {}),
            // Nobody expects anything of workers' subjects, and what is last on a job's is not a part of the state.
            Event::RunOpened(_)
            | Event::CallDispatched { .. }
            | Event::AttemptStarted { .. }
            | Event::AttemptStopping { .. }
            | Event::Output { .. }
            | Event::AttemptEnded { .. } => {}
        }
    }
}
