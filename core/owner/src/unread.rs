//! Runs whose opening this release cannot read, because a newer one wrote it. They are accepted all the same: they stay
//! in the shard's snapshot until an owner comes that can read them, and workers are not told to drop their jobs.

use std::collections::BTreeMap;

use run::{RunId, Timestamp};

use crate::SubjectKind;

/// How many a shard may have: an upgrade of all coordinators takes minutes. The jobs of further runs come again when
/// their queue is made again, and are not lost; such runs end when the log is read from its beginning.
const RUNS_MAX: usize = 65_536;

#[derive(Debug, Clone, Default)]
pub(crate) struct Unread(BTreeMap<RunId, Last>);

#[derive(Debug, Clone, Copy)]
struct Last {
    sequence: u64,
    /// When the entry was seen: the log drops it some time later.
    seen: Timestamp,
}

/// The result of noting an entry that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// The shard's runs are not folded now, or the entry was taken before.
    Ignored,
    /// Its run is open, or may be: its place is known.
    Kept,
    /// It belongs to no open run.
    Stray,
    /// It may open a run, and there is no room to remember it.
    NoRoom,
}

impl Unread {
    pub(crate) fn of(runs: Vec<(RunId, u64)>, now: Timestamp) -> Self {
        let last = |(run, sequence)| (run, Last { sequence, seen: now });
        Self(runs.into_iter().take(RUNS_MAX).map(last).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, run: RunId) -> bool {
        self.0.contains_key(&run)
    }

    /// The runs, each with its last entry.
    pub(crate) fn list(&self) -> impl Iterator<Item = (RunId, u64)> {
        self.0.iter().map(|(run, last)| (*run, last.sequence))
    }

    /// Takes an entry that cannot be read, of a run that is not open.
    pub(crate) fn take(&mut self, run: RunId, place: &SubjectKind, sequence: u64, now: Timestamp) -> Noted {
        if self.goes_on(run, sequence, now) {
            Noted::Kept
        } else if !place.may_open() {
            Noted::Stray
        } else if self.0.len() >= RUNS_MAX {
            Noted::NoRoom
        } else {
            self.0.insert(run, Last { sequence, seen: now });
            Noted::Kept
        }
    }

    /// Takes an entry of a run. Returns whether the run is one of these.
    pub(crate) fn goes_on(&mut self, run: RunId, sequence: u64, now: Timestamp) -> bool {
        let Some(last) = self.0.get_mut(&run) else { return false };
        *last = Last { sequence: last.sequence.max(sequence), seen: now };
        true
    }

    /// Forgets runs whose last entry was seen before a moment, because the log has dropped it.
    pub(crate) fn forget_before(&mut self, oldest: Timestamp) {
        self.0.retain(|_, last| last.seen > oldest);
    }

    pub(crate) fn remove(&mut self, run: RunId) {
        self.0.remove(&run);
    }
}
