//! The notifications that a deliverer has in memory, per run in their order. The first one of a run is tried until it
//! is delivered or parked.

use std::collections::{BTreeSet, HashMap, VecDeque};

use run::RunId;
use tokio::time::Instant;

use crate::nats::notifications::Arrived;

#[derive(Debug, Default)]
pub(super) struct PendingNotifications {
    runs: HashMap<RunId, VecDeque<Arrived>>,
    /// When the first notification of each run is tried; without those in progress.
    due: BTreeSet<(Instant, RunId)>,
    count: usize,
}

impl PendingNotifications {
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn put(&mut self, letter: Arrived, now: Instant) {
        let run = letter.run;
        let line = self.runs.entry(run).or_default();
        // It was queued once more: the later message is the one to remove from the queue.
        if let Some(known) = line.iter_mut().find(|known| known.noted == letter.noted) {
            *known = letter;
            return;
        }
        if line.is_empty() {
            self.due.insert((now, run));
        }
        line.push_back(letter);
        self.count += 1;
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// A notification that is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Arrived> {
        let (_, run) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.due.pop_first();
        self.runs.get(&run)?.front().cloned()
    }

    pub(super) fn first(&self, run: RunId) -> Option<&Arrived> {
        self.runs.get(&run)?.front()
    }

    /// The first notification of the run is retried later.
    pub(super) fn put_off(&mut self, run: RunId, until: Instant) {
        self.due.insert((until, run));
    }

    /// The first notification of the run is done, and the next one is returned.
    pub(super) fn finish(&mut self, run: RunId, now: Instant) -> Option<Arrived> {
        let line = self.runs.get_mut(&run)?;
        let done = line.pop_front()?;
        self.count -= 1;
        if line.is_empty() {
            self.runs.remove(&run);
        } else {
            self.due.insert((now, run));
        }
        Some(done)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use run::{Shard, Timestamp};

    use super::*;

    fn letter(run: RunId, noted: u64, sequence: u64) -> Arrived {
        Arrived { sequence, at: Timestamp(0), run, noted, body: Bytes::new() }
    }

    #[test]
    fn a_run_is_told_in_order_and_no_other_waits_for_it() {
        let [a, b] = [0, 0].map(|_| RunId::new(Shard(0), uuid::Uuid::now_v7()));
        let (mut bag, now) = (PendingNotifications::default(), Instant::now());
        for (run, noted) in [(a, 1), (a, 2), (b, 3)] {
            bag.put(letter(run, noted, noted), now);
        }
        let tried = |bag: &mut PendingNotifications, now| {
            std::iter::from_fn(|| bag.take_due(now)).map(|l| l.noted).collect::<Vec<_>>()
        };
        let mut first = tried(&mut bag, now);
        first.sort_unstable();
        assert_eq!(first, [1, 3]);
        let later = now + Duration::from_secs(5);
        bag.put_off(a, later);
        assert_eq!((bag.finish(b, now).map(|done| done.noted), bag.count()), (Some(3), 2));
        assert_eq!((tried(&mut bag, now), bag.next_due()), (vec![], Some(later)));
        assert_eq!(tried(&mut bag, later), [1]);
        bag.finish(a, later);
        assert_eq!(tried(&mut bag, later), [2]);
    }

    #[test]
    fn a_notice_that_comes_twice_is_carried_once() {
        let run = RunId::new(Shard(0), uuid::Uuid::now_v7());
        let (mut bag, now) = (PendingNotifications::default(), Instant::now());
        bag.put(letter(run, 1, 7), now);
        assert!(bag.take_due(now).is_some());
        bag.put(letter(run, 1, 9), now);
        assert_eq!((bag.count(), bag.next_due()), (1, None), "it is being tried");
        assert_eq!(bag.finish(run, now).map(|done| done.sequence), Some(9));
    }
}
