//! Runs whose opening this release cannot read, because a newer one wrote it. They are accepted all the same: they stand in
//! the shard's snapshot until an owner comes that can read them, and no worker is told that their jobs are nothing.

use std::collections::HashMap;

use proto::subject::Place;
use run::{RunId, Timestamp};

use crate::known::may_open;
use crate::nats::setup::RETENTION;

/// How many a shard may have: an upgrade of all coordinators takes minutes. The jobs of more come again when their queue is
/// made again, and are not lost; their runs end when somebody reads the log from its beginning.
const RUNS_MAX: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct Unread(HashMap<RunId, Known>);

#[derive(Debug, Clone, Copy)]
struct Known {
    /// The run's last entry.
    last: u64,
    /// When the log has nothing of it any more.
    gone_at: Timestamp,
}

impl Unread {
    pub(super) fn of(runs: Vec<(RunId, u64)>) -> Self {
        let mut unread = Self::default();
        runs.into_iter().for_each(|(run, last)| unread.insert(run, last));
        unread
    }

    pub(super) fn contains(&self, run: RunId) -> bool {
        self.0.contains_key(&run)
    }

    /// For a snapshot: the runs, each with its last entry.
    pub(super) fn list(&self) -> impl Iterator<Item = (RunId, u64)> {
        self.0.iter().map(|(run, known)| (*run, known.last))
    }

    /// An entry that cannot be read came for a run that is not open. Says whether it may open it, or came for one of these.
    pub(super) fn take(&mut self, run: RunId, place: &Place, sequence: u64) -> bool {
        if may_open(place) && !self.contains(run) {
            self.insert(run, sequence);
        }
        self.goes_on(run, sequence)
    }

    /// An entry came for a run. Says whether it is one of these.
    pub(super) fn goes_on(&mut self, run: RunId, sequence: u64) -> bool {
        let Some(known) = self.0.get_mut(&run) else { return false };
        known.last = known.last.max(sequence);
        known.gone_at = proto::now().after(RETENTION);
        true
    }

    /// Forgets those of which the log has nothing any more.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.0.retain(|_, known| known.gone_at > now);
    }

    pub(super) fn remove(&mut self, run: RunId) {
        self.0.remove(&run);
    }

    fn insert(&mut self, run: RunId, last: u64) {
        if self.0.len() < RUNS_MAX {
            self.0.insert(run, Known { last, gone_at: proto::now().after(RETENTION) });
        } else {
            tracing::error!(
                run.id = %run,
                "no more runs of a newer release can be kept for it: upgrade this coordinator now, or stop the newer ones"
            );
        }
    }
}
