//! Which firings are due, and what becomes of those that were missed.

use std::time::Duration;

use run::Timestamp;

use crate::timing::Timing;

/// A firing that is later than this is never made up for. It must be less than the time for which request ids are kept
/// (25 hours), because they alone keep a firing from creating a second run.
pub const LATE_MAX: Duration = Duration::from_secs(24 * 3600);
/// A firing that is later than this counts as missed under [`MissedPolicy::Skip`]. It is longer than another
/// coordinator takes to notice that the shard's owner died.
pub const ON_TIME: Duration = Duration::from_secs(30);
/// The most missed firings that [`MissedPolicy::All`] makes up for.
pub const MADE_UP_MAX: usize = 100;
/// The most firings that one decision goes through, so that it takes milliseconds. The next decision goes on.
const DECIDED_MAX: usize = 1000;

/// What happens to missed firings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissedPolicy {
    /// None is made up for.
    Skip,
    /// Only the latest is made up for.
    Latest,
    /// The latest [`MADE_UP_MAX`] are made up for.
    All,
}

/// When a schedule fires, with its rules.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its times.
    pub timing: Timing,
    /// A number that differs between schedules: the jitter follows from it.
    pub seed: u64,
    /// Firings are delayed by up to this.
    pub jitter: Duration,
    /// Later times do not fire.
    pub end: Option<Timestamp>,
    /// How many firings there may be.
    pub firings_max: Option<u64>,
    /// What happens to missed firings.
    pub missed: MissedPolicy,
}

/// How far a schedule has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Every time up to this one is decided.
    pub decided_until: Timestamp,
    /// Firings so far that count for the limit.
    pub fired: u64,
}

/// What to do with a schedule now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing is due before this moment.
    Wait(Timestamp),
    /// Firings are due.
    Due(Due),
    /// It never fires again.
    Over,
}

/// Firings that are due.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Due {
    /// Missed firings that are not made up for, which come before those that fire.
    pub missed: u64,
    /// The first and the latest of them.
    pub missed_between: Option<(Timestamp, Timestamp)>,
    /// The times that fire now, in their order.
    pub fire: Vec<Timestamp>,
}

impl Due {
    fn miss(&mut self, times: &[Timestamp]) {
        if let (Some(first), Some(last)) = (times.first(), times.last()) {
            self.missed += times.len() as u64;
            self.missed_between = Some((self.missed_between.map_or(*first, |(first, _)| first), *last));
        }
    }
}

impl Plan {
    /// The moment at which the firing of a time is due.
    #[must_use]
    pub fn due_at(&self, time: Timestamp) -> Timestamp {
        let range = u64::try_from(self.jitter.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        time.after(Duration::from_millis(mixed(self.seed ^ mixed(time.0)) % range))
    }

    /// The next time after this one at which the schedule fires, if nothing but its end keeps it from it.
    fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        self.timing.next_after(after).filter(|next| self.end.is_none_or(|end| *next <= end))
    }

    /// Decides on the firings that are due. They are due in the order of their times: a firing with a long delay holds
    /// up those behind it.
    #[must_use]
    pub fn decide(&self, progress: Progress, now: Timestamp) -> Decision {
        let left =
            self.firings_max.map(|max| usize::try_from(max.saturating_sub(progress.fired)).unwrap_or(usize::MAX));
        if left == Some(0) {
            return Decision::Over;
        }
        let too_late = now.before(LATE_MAX);
        let (mut due, mut times, mut last) = (Due::default(), Vec::new(), progress.decided_until);
        if let Some(oldest) = self.next_after(last).filter(|oldest| *oldest < too_late) {
            // Those behind it that are too late are not even counted: there may be millions.
            due.miss(&[oldest]);
            last = Timestamp(too_late.0.saturating_sub(1));
        }
        let next = loop {
            let Some(time) = self.next_after(last) else { break None };
            if self.due_at(time) > now || times.len() >= DECIDED_MAX {
                break Some(time);
            }
            last = time;
            times.push(time);
        };
        match (times.is_empty(), next) {
            (true, Some(next)) if due.missed == 0 => return Decision::Wait(self.due_at(next)),
            (true, None) if due.missed == 0 => return Decision::Over,
            _ => {}
        }
        // If more are due than one decision goes through, the later ones fire, and not these.
        let has_more = next.is_some_and(|next| self.due_at(next) <= now);
        let kept = match self.missed {
            MissedPolicy::All => MADE_UP_MAX,
            MissedPolicy::Latest => usize::from(!has_more),
            MissedPolicy::Skip => {
                let is_on_time = times.last().is_some_and(|time| now.since(self.due_at(*time)) <= ON_TIME);
                usize::from(is_on_time && !has_more)
            }
        };
        let (missed, kept) = times.split_at(times.len().saturating_sub(kept));
        due.miss(missed);
        if !has_more {
            due.fire = kept.iter().take(left.unwrap_or(usize::MAX)).copied().collect();
        }
        Decision::Due(due)
    }

    /// The next moments at which the schedule fires, at most so many.
    #[must_use]
    pub fn upcoming(&self, progress: Progress, count: usize) -> Vec<Timestamp> {
        let left = self.firings_max.map_or(u64::MAX, |max| max.saturating_sub(progress.fired));
        let count = count.min(usize::try_from(left).unwrap_or(usize::MAX));
        let times = std::iter::successors(self.next_after(progress.decided_until), |time| self.next_after(*time));
        let mut latest = Timestamp::default();
        let due = times.take(count).map(|time| {
            latest = latest.max(self.due_at(time));
            latest
        });
        due.collect()
    }
}

/// A fixed mixing of bits (SplitMix64), the same in every process of every version.
fn mixed(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
