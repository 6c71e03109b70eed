//! Runs of which nothing is kept: when one is to be erased.

use std::time::Duration;

use crate::id::Timestamp;
use crate::run::Run;

/// That nothing of a run is kept. Chosen when it is opened, for all of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Erasure {
    /// How long after its end it can still be read.
    pub after: Duration,
    /// The digest under which the id of its request was taken, where it had one: it leads to the run.
    pub request: Option<[u8; 32]>,
}

impl Run {
    /// That nothing of it is kept, where its caller asked for that.
    #[must_use]
    pub fn erasure(&self) -> Option<Erasure> {
        self.erasure
    }

    /// From when on it is to be erased; `None` for a run that is kept, and for one that has not ended. Not before any late copy
    /// of its opening and its jobs is void, because a copy would find their subjects empty and be stored.
    #[must_use]
    pub fn erase_at(&self) -> Option<Timestamp> {
        Some(self.ended_at?.after(self.erasure?.after).max(self.copies_until))
    }
}
