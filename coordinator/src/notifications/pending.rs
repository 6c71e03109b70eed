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

    pub(super) fn put(&mut self, notification: Arrived, now: Instant) {
        let run = notification.run;
        let queue = self.runs.entry(run).or_default();
        // It was queued once more: the later message is the one to remove from the queue.
        if let Some(known) = queue.iter_mut().find(|known| known.noted == notification.noted) {
            *known = notification;
            return;
        }
        if queue.is_empty() {
            self.due.insert((now, run));
        }
        queue.push_back(notification);
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
        let queue = self.runs.get_mut(&run)?;
        let done = queue.pop_front()?;
        self.count -= 1;
        if queue.is_empty() {
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

    fn notification(run: RunId, noted: u64, sequence: u64) -> Arrived {
        Arrived { sequence, at: Timestamp(0), run, noted, body: Bytes::new() }
    }

    #[test]
    fn a_run_is_told_in_order_and_no_other_waits_for_it() {
        let [a, b] = [0, 0].map(|_| RunId::new(Shard(0), uuid::Uuid::now_v7()));
        let (mut pending, now) = (PendingNotifications::default(), Instant::now());
        for (run, noted) in [(a, 1), (a, 2), (b, 3)] {
            pending.put(notification(run, noted, noted), now);
        }
        let tried = |pending: &mut PendingNotifications, now| {
            std::iter::from_fn(|| pending.take_due(now)).map(|l| l.noted).collect::<Vec<_>>()
        };
        let mut first = tried(&mut pending, now);
        first.sort_unstable();
        assert_eq!(first, [1, 3]);
        let later = now + Duration::from_secs(5);
        pending.put_off(a, later);
        assert_eq!((pending.finish(b, now).map(|done| done.noted), pending.count()), (Some(3), 2));
        assert_eq!((tried(&mut pending, now), pending.next_due()), (vec![], Some(later)));
        assert_eq!(tried(&mut pending, later), [1]);
        pending.finish(a, later);
        assert_eq!(tried(&mut pending, later), [2]);
    }

    #[test]
    fn a_notice_that_comes_twice_is_carried_once() {
        let run = RunId::new(Shard(0), uuid::Uuid::now_v7());
        let (mut pending, now) = (PendingNotifications::default(), Instant::now());
        pending.put(notification(run, 1, 7), now);
        assert!(pending.take_due(now).is_some());
        pending.put(notification(run, 1, 9), now);
        assert_eq!((pending.count(), pending.next_due()), (1, None), "it is being tried");
        assert_eq!(pending.finish(run, now).map(|done| done.sequence), Some(9));
    }
}
