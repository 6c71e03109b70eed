//! Which runs the log does not hold any more. Each partition of it removes its oldest entries by itself.

use std::time::Duration;

use run::{RunId, Timestamp};

use crate::nats::journal::Journals;
use crate::nats::setup::RETENTION;

/// For each partition the moment before which its runs were created that have left it.
#[derive(Debug, Clone)]
pub(crate) struct Expired(Vec<Timestamp>);

impl Expired {
    /// As the log is now.
    pub(super) fn now(journals: &Journals) -> Self {
        let kept_from = ::nats::now().before(RETENTION);
        let left = |partition| journals.of_partition(partition).oldest().before(run::NEVER_OPENED_AFTER);
        Self(journals.partitions().map(|partition| kept_from.max(left(partition))).collect())
    }

    pub(super) fn after(mut self, span: Duration) -> Self {
        self.0.iter_mut().for_each(|moment| *moment = moment.after(span));
        self
    }

    /// The moment for the partition of a run. A partition that is not known yet has removed nothing.
    pub(super) fn of(&self, run: RunId) -> Timestamp {
        self.0.get(run.shard().partition().as_usize()).copied().unwrap_or_default()
    }

    pub(super) fn has(&self, run: RunId) -> bool {
        run.created_at() < self.of(run)
    }

    /// From the first partition on.
    pub(super) fn moments(&self) -> impl Iterator<Item = Timestamp> {
        self.0.iter().copied()
    }

    /// The moments of the partitions that have removed least and most.
    pub(super) fn bounds(&self) -> (Timestamp, Timestamp) {
        (self.moments().min().unwrap_or_default(), self.moments().max().unwrap_or_default())
    }

    #[cfg(test)]
    pub(super) fn at(moments: &[Timestamp]) -> Self {
        Self(moments.to_vec())
    }
}
