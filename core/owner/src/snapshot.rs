//! When the snapshot of a shard is written.

use std::time::{Duration, Instant};

/// The highest rate of writing a shard's snapshots, so that many open runs or pending erasures do not overload the
/// broker: one snapshot of 1 MiB every 4 s.
const BYTES_PER_S: u64 = 256 * 1024;

/// The state of writing a shard's snapshot.
#[derive(Debug, Clone, Default)]
pub struct SnapshotSchedule {
    /// The log position of the stored snapshot.
    through: u64,
    /// A large snapshot is not written again before this time.
    pause: Option<Instant>,
    writing: bool,
    /// It names runs that were erased since, or the last attempt to write it failed.
    outdated: bool,
}

impl SnapshotSchedule {
    /// A shard whose stored snapshot is of this log position.
    #[must_use]
    pub fn at(through: u64) -> Self {
        Self { through, ..Self::default() }
    }

    /// The log position of the stored snapshot.
    #[must_use]
    pub fn through(&self) -> u64 {
        self.through
    }

    /// The stored snapshot differs from the shard's state at the same log position.
    pub fn outdate(&mut self) {
        self.outdated = true;
    }

    /// Whether the stored snapshot is that of log position `applied`, and no other is being written.
    #[must_use]
    pub fn is_current(&self, applied: u64) -> bool {
        !self.writing && applied == self.through && !self.outdated
    }

    /// Whether the regular writing of snapshots should write one now.
    #[must_use]
    pub fn is_due(&self, applied: u64, now: Instant) -> bool {
        (applied != self.through || self.outdated) && self.pause.is_none_or(|pause| pause <= now)
    }

    /// Begins to write a snapshot. Returns `false` if one is being written.
    pub fn begin(&mut self) -> bool {
        if self.writing {
            return false;
        }
        (self.writing, self.outdated) = (true, false);
        true
    }

    /// The snapshot was stored, with this size.
    pub fn handle_written(&mut self, through: u64, bytes: u64, now: Instant) {
        (self.writing, self.through) = (false, through);
        self.pause = Some(now + Duration::from_secs(bytes / BYTES_PER_S));
    }

    /// The snapshot was not stored, or this is not known.
    pub fn handle_failed(&mut self) {
        (self.writing, self.outdated) = (false, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_written_if_there_is_news_and_a_large_one_not_too_often() {
        let now = Instant::now();
        let mut schedule = SnapshotSchedule::at(5);
        assert!(schedule.is_current(5) && !schedule.is_due(5, now) && schedule.is_due(6, now));
        assert!(schedule.begin() && !schedule.begin());
        assert!(!schedule.is_current(5), "another one is being written");
        schedule.handle_written(6, 1024 * 1024, now);
        assert!(schedule.is_current(6) && schedule.through() == 6);
        schedule.outdate();
        assert!(!schedule.is_current(6) && !schedule.is_due(6, now + Duration::from_secs(3)));
        assert!(schedule.is_due(6, now + Duration::from_secs(4)));
    }

    #[test]
    fn a_snapshot_that_may_not_be_stored_is_written_again() {
        let now = Instant::now();
        let mut schedule = SnapshotSchedule::at(5);
        assert!(schedule.begin());
        schedule.handle_failed();
        assert!(schedule.through() == 5 && schedule.is_due(5, now) && !schedule.is_current(5));
    }
}
