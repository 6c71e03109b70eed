//! Notifications of a shard's runs that are not in the queue of webhooks yet. Until they are, they are a part of the
//! shard's snapshot, and those for later entries follow from the log again.

use std::collections::VecDeque;
use std::time::Duration;

use run::{Entry, Fact, Run, RunStatus, Timestamp};

/// The most notifications put into the queue together.
const BATCH_MAX: usize = 256;
/// The most notifications of a shard that wait while the queue does not accept any. Beyond that, the newest are lost,
/// because a queue that is unavailable while the log is available needs an operator.
const WAITING_MAX: usize = 16_384;

/// Without a snapshot, the notifications for entries of so long are posted again.
const REPEATED: Duration = Duration::from_secs(5 * 60);

/// The new statuses that are sent to webhooks. A void run has none: it may be a copy of an erased run, whose end was
/// sent already.
pub fn notified<'a>(run: &Run, heard: &'a [Fact]) -> impl Iterator<Item = RunStatus> + 'a {
    let heard = if run.is_void() { &[] } else { heard };
    heard.iter().filter_map(|fact| match fact {
        Fact::StatusChanged(status) => Some(*status),
        _ => None,
    })
}

/// Notifications of a shard, in their order.
#[derive(Debug, Clone)]
pub struct Outbox<T> {
    waiting: VecDeque<T>,
    posting: Posting,
    /// The notifications for entries up to here are waiting, or were posted by an earlier owner.
    through: u64,
    /// Those for entries that were stored before this time were posted by an earlier owner.
    since: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Posting {
    #[default]
    Idle,
    UnderWay,
    /// The queue accepted nothing. The next sweep retries, not the next entry.
    PutOff,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), posting: Posting::Idle, through: 0, since: Timestamp(0) }
    }
}

impl<T: Clone> Outbox<T> {
    /// The notifications of a snapshot of this log position.
    #[must_use]
    pub fn of(waiting: Vec<T>, through: u64) -> Self {
        Self { waiting: waiting.into(), through, ..Self::default() }
    }

    /// Without a snapshot it is not known which notifications were posted. Those for older entries were, unless there
    /// was no owner or the queue did not accept them for so long. Without this bound, those of a whole day would be
    /// posted again.
    #[must_use]
    pub fn unknown(now: Timestamp) -> Self {
        Self { since: now.before(REPEATED), ..Self::default() }
    }

    /// The waiting notifications, for a snapshot.
    pub fn list(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter()
    }

    /// Whether the notifications for an entry are still to be added.
    #[must_use]
    pub fn lacks(&self, entry: &Entry) -> bool {
        entry.sequence > self.through && entry.at >= self.since
    }

    /// Adds notifications. Returns `false` if there is no room; then they are dropped.
    pub fn add(&mut self, notifications: Vec<T>) -> bool {
        let fits = self.waiting.len() + notifications.len() <= WAITING_MAX;
        if fits {
            self.waiting.extend(notifications);
        }
        fits
    }

    /// Begins to put the first notifications into the queue. `None` if there are none, others are on their way, or the
    /// queue accepted nothing since the last [`Self::retry`].
    pub fn begin(&mut self) -> Option<Vec<T>> {
        if self.posting != Posting::Idle || self.waiting.is_empty() {
            return None;
        }
        self.posting = Posting::UnderWay;
        Some(self.waiting.iter().take(BATCH_MAX).cloned().collect())
    }

    /// So many of the notifications that were begun are in the queue; `is_accepting` if it did not refuse the others.
    pub fn handle_posted(&mut self, count: usize, is_accepting: bool) {
        self.posting = if is_accepting { Posting::Idle } else { Posting::PutOff };
        self.waiting.drain(..count.min(self.waiting.len()));
    }

    /// Lets notifications be put into the queue again after it accepted nothing.
    pub fn retry(&mut self) {
        if self.posting == Posting::PutOff {
            self.posting = Posting::Idle;
        }
    }
}

#[cfg(test)]
mod tests {
    use run::{Event, Opening, RunId};

    use super::*;

    #[test]
    fn webhooks_are_notified_of_a_run_that_ends_and_not_of_one_that_was_opened_too_late() {
        let id: RunId = "run_00_018bcfe5000070008000000000000000".parse().expect("a run id");
        let now = id.created_at();
        let opening = Opening { deadline: Timestamp(now.0 + 60_000), open: true, ..Opening::default() };
        let events = Run::open(opening, now).expect("it is valid");
        for (not_after, expected) in [(Some(now), vec![RunStatus::Completed]), (Some(Timestamp(now.0 - 1)), vec![])] {
            let (mut run, mut heard) = (Run::new(id), Vec::new());
            run.apply(&Entry { sequence: 1, at: now, not_after, hooked: false, events: events.clone() }, &mut heard);
            let closed = vec![Event::RunClosed];
            run.apply(&Entry { sequence: 2, at: now, not_after: None, hooked: false, events: closed }, &mut heard);
            assert!(heard.iter().any(|fact| matches!(fact, Fact::StatusChanged(status) if status.is_final())));
            let sent: Vec<RunStatus> = notified(&run, &heard).filter(|status| status.is_final()).collect();
            assert_eq!(sent, expected);
        }
    }

    fn entry(sequence: u64, at: u64) -> Entry {
        Entry { sequence, at: Timestamp(at), not_after: None, hooked: false, events: Vec::new() }
    }

    #[test]
    fn without_a_snapshot_only_what_is_young_is_posted_again() {
        let now = Timestamp(86_400_000);
        let outbox = Outbox::<()>::unknown(now);
        assert!(
            outbox.lacks(&entry(9, now.before(REPEATED).0)) && !outbox.lacks(&entry(8, now.before(REPEATED).0 - 1))
        );
    }

    #[test]
    fn notifications_are_posted_in_order_and_stay_until_the_queue_has_them() {
        let mut outbox = Outbox::of(vec![1, 2], 7);
        assert!(!outbox.lacks(&entry(7, 0)) && outbox.lacks(&entry(8, 0)));
        assert_eq!(outbox.begin(), Some(vec![1, 2]));
        assert!(outbox.add(vec![3]));
        assert_eq!(outbox.begin(), None, "others are on their way");
        outbox.handle_posted(1, false);
        assert_eq!((outbox.begin(), outbox.list().copied().collect::<Vec<_>>()), (None, vec![2, 3]));
        outbox.retry();
        assert_eq!(outbox.begin(), Some(vec![2, 3]));
        outbox.handle_posted(2, true);
        assert_eq!(outbox.begin(), None);
    }

    #[test]
    fn an_outbox_has_a_limit_beyond_which_the_newest_are_dropped() {
        let mut outbox = Outbox::default();
        assert!(outbox.add((0..WAITING_MAX).collect()) && !outbox.add(vec![0]));
        let begun = outbox.begin().expect("some wait");
        assert_eq!((begun.len(), outbox.list().count()), (BATCH_MAX, WAITING_MAX));
    }
}
