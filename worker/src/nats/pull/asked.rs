//! How many jobs are requested from which queue: one for each partition of the log. It does no IO.
//!
//! A job that is requested takes a slot until it comes or the request ends. With one queue that is all. With several, a
//! queue without jobs must not keep slots from one that has some: a request that brings nothing for [`IDLE`] takes no
//! slot any more. If it brings jobs after all when the slots are taken, they are given back.

use std::time::Duration;

use tokio::time::Instant;

use super::LOST;

/// After this time without a job a request takes no slot from other queues.
const IDLE: Duration = Duration::from_millis(50);
/// Requests are made when none is open, or when so many times as many slots are free as open ones may bring jobs. The
/// broker looks at all open requests of a pool for nearly every job, so a worker has one or two at a queue, whatever
/// its slots.
const REFILL: u32 = 3;

#[derive(Debug)]
pub(super) struct Asked {
    slots: u32,
    queues: Vec<Queue>,
    /// The queue that is asked first next time.
    turn: usize,
}

#[derive(Debug)]
struct Queue {
    /// Jobs that open requests may still bring. One sum: the broker serves open requests in turn, not in order.
    asked: u32,
    /// When it was asked last, or gave a job.
    active: Instant,
    heard: Instant,
    not_before: Instant,
}

impl Queue {
    fn new(now: Instant) -> Self {
        Self { asked: 0, active: now, heard: now, not_before: now }
    }

    /// Slots that its requests take, as other queues see it.
    fn takes(&self, now: Instant) -> u32 {
        if now.saturating_duration_since(self.active) < IDLE { self.asked } else { 0 }
    }
}

impl Asked {
    pub(super) fn new(slots: u32, now: Instant) -> Self {
        Self { slots, queues: vec![Queue::new(now)], turn: 0 }
    }

    /// There are so many queues.
    pub(super) fn grow(&mut self, queues: usize, now: Instant) {
        if queues > self.queues.len() {
            self.queues.resize_with(queues, || Queue::new(now));
        }
    }

    pub(super) fn has_several(&self) -> bool {
        self.queues.len() > 1
    }

    /// The queue to request jobs from now, and how many.
    pub(super) fn next_request(&mut self, running: u32, now: Instant) -> Option<(usize, u32)> {
        let count = self.queues.len();
        let queue = (0..count).map(|offset| (self.turn + offset) % count).find(|queue| {
            let free = self.free_for(*queue, running, now);
            now >= self.queues[*queue].not_before && is_worth_asking(free, self.queues[*queue].asked)
        })?;
        // Queues that are not asked yet share the slots.
        let unasked = self.queues.iter().filter(|queue| queue.asked == 0).count().max(1);
        let share = self.free_for(queue, running, now).div_ceil(u32::try_from(unasked).unwrap_or(u32::MAX));
        self.turn = (queue + 1) % count;
        Some((queue, share))
    }

    fn free_for(&self, queue: usize, running: u32, now: Instant) -> u32 {
        let others = self.queues.iter().enumerate().filter(|(other, _)| *other != queue);
        let taken: u32 = others.map(|(_, other)| other.takes(now)).sum();
        self.slots.saturating_sub(running).saturating_sub(self.queues[queue].asked).saturating_sub(taken)
    }

    pub(super) fn note_request(&mut self, queue: usize, batch: u32, now: Instant) {
        let queue = &mut self.queues[queue];
        queue.asked += batch;
        (queue.active, queue.heard) = (now, now);
    }

    /// A queue sent something.
    pub(super) fn note_message(&mut self, queue: usize, now: Instant) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.heard = now;
        }
    }

    /// A queue sent a job. Returns whether there is a slot for it.
    pub(super) fn note_job(&mut self, queue: usize, running: u32, now: Instant) -> bool {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.asked = queue.asked.saturating_sub(1);
            queue.active = now;
        }
        self.has_slot(running)
    }

    /// Whether there is a slot for one more job. A single queue gives no more than was requested.
    pub(super) fn has_slot(&self, running: u32) -> bool {
        !self.has_several() || running < self.slots
    }

    /// So many jobs that a queue was asked for will not come.
    pub(super) fn note_missing(&mut self, queue: usize, missing: u32) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.asked = queue.asked.saturating_sub(missing);
        }
    }

    /// Asks a queue for nothing before a moment.
    pub(super) fn pause(&mut self, queue: usize, until: Instant) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.not_before = until;
        }
    }

    /// How many queues were silent about their requests for too long. If all have, or the only one, the
    /// connection is to blame; otherwise those requests are forgotten here.
    pub(super) fn forget_lost(&mut self, now: Instant) -> usize {
        let is_lost = |queue: &Queue| queue.asked > 0 && now.saturating_duration_since(queue.heard) >= LOST;
        let open = self.queues.iter().filter(|queue| queue.asked > 0).count();
        let lost = self.queues.iter().filter(|queue| is_lost(queue)).count();
        if lost < open {
            self.queues.iter_mut().filter(|queue| is_lost(queue)).for_each(|queue| queue.asked = 0);
            return 0;
        }
        lost
    }

    /// No request is open any more.
    pub(super) fn begin_again(&mut self, now: Instant) {
        self.queues.iter_mut().for_each(|queue| (queue.asked, queue.heard) = (0, now));
    }

    /// When to look again although no message has come.
    pub(super) fn wake(&self, running: u32, now: Instant) -> Instant {
        let far = now + LOST;
        let mut wake = far;
        for (place, queue) in self.queues.iter().enumerate() {
            if queue.asked > 0 {
                wake = wake.min(queue.heard + LOST);
            }
            if queue.not_before > now {
                wake = wake.min(queue.not_before);
            }
            // Slots that another queue keeps may become free for this one.
            if running < self.slots && queue.asked == 0 {
                let others = self.queues.iter().enumerate().filter(|(other, _)| *other != place);
                let idle = others.filter(|(_, other)| other.takes(now) > 0).map(|(_, other)| other.active + IDLE);
                wake = wake.min(idle.min().unwrap_or(far));
            }
        }
        wake
    }
}

/// Whether to request jobs for so many `free` slots, while open requests may bring so many others.
fn is_worth_asking(free: u32, asked: u32) -> bool {
    free > 0 && free >= asked.saturating_mul(REFILL)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// The most open requests and all requests of a worker that takes short jobs, one or two of them at a time. The
    /// broker serves open requests in turn.
    fn requests(slots: u32, jobs: u32) -> (usize, u32) {
        let now = Instant::now();
        let (mut asked, mut open, mut most, mut made) = (Asked::new(slots, now), VecDeque::<u32>::new(), 0, 0);
        for job in 0..jobs {
            while let Some((queue, batch)) = asked.next_request(job % 2, now) {
                asked.note_request(queue, batch, now);
                open.push_back(batch);
                (most, made) = (most.max(open.len()), made + 1);
            }
            let left = open.pop_front().expect("a job comes by an open request") - 1;
            assert!(asked.note_job(0, job % 2, now), "there is a slot for every job that was requested");
            if left > 0 {
                open.push_back(left);
            }
        }
        (most, made)
    }

    #[test]
    fn a_worker_has_at_most_two_open_requests_whatever_its_slots() {
        for slots in 2..=600 {
            let (most, made) = requests(slots, 10_000);
            assert!(most <= 2, "{slots} slots: {most} open requests");
            assert!(made <= 10_000 / (slots * 5 / 8).max(1) + 1, "{slots} slots: {made} requests for 10,000 jobs");
        }
    }

    #[test]
    fn a_worker_without_open_requests_asks_for_each_free_slot() {
        assert!(is_worth_asking(1, 0));
        assert!(!is_worth_asking(0, 0), "it is full");
        assert!(!is_worth_asking(2, 1) && is_worth_asking(3, 1));
    }

    /// Makes all requests that are due: the jobs that each queue is asked for.
    fn refill(asked: &mut Asked, running: u32, now: Instant) -> Vec<(usize, u32)> {
        let made = std::iter::from_fn(|| {
            let (queue, batch) = asked.next_request(running, now)?;
            asked.note_request(queue, batch, now);
            Some((queue, batch))
        });
        made.collect()
    }

    fn several(slots: u32, queues: usize, now: Instant) -> Asked {
        let mut asked = Asked::new(slots, now);
        asked.grow(queues, now);
        asked
    }

    #[test]
    fn queues_share_the_slots_at_first_and_a_queue_without_jobs_gives_its_share_away() {
        let begin = Instant::now();
        let mut asked = several(8, 4, begin);
        assert_eq!(refill(&mut asked, 0, begin), [(0, 2), (1, 2), (2, 2), (3, 2)]);
        // One of them has many jobs.
        assert!(asked.note_job(2, 0, begin) && asked.note_job(2, 1, begin));
        assert_eq!(refill(&mut asked, 2, begin), [], "the others may have jobs as well");
        assert_eq!(asked.wake(2, begin), begin + IDLE);
        assert_eq!(refill(&mut asked, 2, begin + IDLE), [(2, 6)], "they have none");
    }

    #[test]
    fn a_worker_with_fewer_slots_than_queues_asks_each_in_turn() {
        let begin = Instant::now();
        let mut asked = several(1, 3, begin);
        let mut now = begin;
        for queue in [0, 1, 2] {
            assert_eq!(refill(&mut asked, 0, now), [(queue, 1)]);
            now += IDLE;
        }
        assert_eq!(refill(&mut asked, 0, now), [], "all are asked");
        assert!(asked.note_job(1, 0, now));
        assert!(!asked.note_job(2, 1, now), "its slot is taken: the job goes back");
        assert_eq!(refill(&mut asked, 1, now), []);
        // Under load every slot that becomes free is asked for once.
        now += Duration::from_millis(1);
        assert_eq!(refill(&mut asked, 0, now).len(), 1);
    }

    #[test]
    fn a_queue_whose_broker_is_silent_is_asked_again_and_the_others_are_left_alone() {
        let begin = Instant::now();
        let mut asked = several(4, 2, begin);
        refill(&mut asked, 0, begin);
        let later = begin + LOST;
        asked.note_message(0, later);
        assert_eq!(asked.forget_lost(later), 0);
        assert_eq!(refill(&mut asked, 0, later), [(1, 4)]);
        assert_eq!(asked.forget_lost(later + LOST), 2, "nothing is heard at all");
    }
}
