//! One lane: how much of it is handed out, and which calls wait.

use std::time::Duration;

use run::Timestamp;

use super::fair::FairQueue;

/// A lane has room for the calls that workers began within this time, if those are more than its slots: the owner needs
/// about so long to hand out the next ones.
const BEGUN_WITHIN: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(super) struct LaneState {
    /// Calls that may be handed out and not begun.
    pub(super) room: u32,
    pub(super) handed_out: u32,
    pub(super) begun: Begun,
    pub(super) queue: FairQueue,
}

impl LaneState {
    pub(super) fn new(room: u32) -> Self {
        Self { room, ..Self::default() }
    }

    pub(super) fn has_room(&self, now: Timestamp) -> bool {
        self.handed_out < self.room.max(self.begun.recent(now))
    }

    pub(super) fn expected_wait(&self, now: Timestamp) -> Option<Duration> {
        let begun = self.begun.recent(now);
        let waiting = u32::try_from(self.queue.len()).ok()?;
        (begun > 0).then(|| BEGUN_WITHIN * waiting / begun)
    }
}

/// Counts the calls that were begun, in steps of [`BEGUN_WITHIN`].
#[derive(Debug, Default)]
pub(super) struct Begun {
    step: u64,
    /// In this step, and in the one before it.
    counts: [u32; 2],
}

impl Begun {
    pub(super) fn note(&mut self, now: Timestamp) {
        let step = step(now);
        self.counts = self.counts_at(step);
        self.step = self.step.max(step);
        self.counts[0] += 1;
    }

    /// How many were begun in a recent step.
    fn recent(&self, now: Timestamp) -> u32 {
        let [present, before] = self.counts_at(step(now));
        present.max(before)
    }

    fn counts_at(&self, step: u64) -> [u32; 2] {
        match step.saturating_sub(self.step) {
            0 => self.counts,
            1 => [0, self.counts[0]],
            2.. => [0, 0],
        }
    }
}

fn step(now: Timestamp) -> u64 {
    now.0 / BEGUN_WITHIN.as_millis() as u64
}
