//! The subject of an entry within its run, which determines its writers.

use run::{CallIndex, Event, PoolId};

/// The place of an entry within its run. Each place is a subject of its own in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubjectKind {
    /// Entries about the run as a whole; written by coordinators.
    Run,
    /// The job of a call; written by coordinators.
    Job { call: CallIndex, pool: PoolId },
    /// Output of a call; written by workers of the pool.
    Output { call: CallIndex, pool: PoolId },
    /// Entries about a call; written by coordinators.
    Control { call: CallIndex },
}

impl SubjectKind {
    /// The place of events that are stored together; `None` if there are no events.
    #[must_use]
    pub fn of(events: &[Event]) -> Option<Self> {
        let place = match events.first()? {
            Event::RunOpened(_) => match events.get(1) {
                Some(Event::CallDispatched { call, pool }) => Self::Job { call: *call, pool: pool.clone() },
                _ => Self::Run,
            },
            Event::CallsAppended { .. }
            | Event::RunClosed
            | Event::RunCancelRequested { .. }
            | Event::RunEraseRequested(_)
            | Event::RunExpired { .. } => Self::Run,
            Event::CallDispatched { call, pool } => Self::Job { call: *call, pool: pool.clone() },
            Event::CallCancelRequested { call, .. }
            | Event::CallCancelled { call }
            | Event::CallExpired { call, .. }
            | Event::CallFailed { call, .. }
            | Event::CallRedriven { call, .. }
            | Event::CallDropped { call }
            | Event::CallDelayEnded { call }
            | Event::CallDecided { call, .. }
            | Event::ClientAnswered { call, .. } => Self::Control { call: *call },
            Event::AttemptStarted { attempt, pool, .. }
            | Event::AttemptStopping { attempt, pool, .. }
            | Event::Output { attempt, pool, .. }
            | Event::AttemptEnded { attempt, pool, .. } => Self::Output { call: attempt.call, pool: pool.clone() },
        };
        Some(place)
    }

    /// Whether an entry at this place may open its run.
    #[must_use]
    pub fn may_open(&self) -> bool {
        match self {
            Self::Run | Self::Job { .. } => true,
            Self::Control { .. } | Self::Output { .. } => false,
        }
    }
}
