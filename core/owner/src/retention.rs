//! What of the log may go: runs that have ended leave it with their age, or earlier if they fill it. Open runs stay,
//! and so does everything that an owner still needs.

use std::time::Duration;

/// Younger entries stay whatever the log's size is. A copy of an entry counts for [`run::STORED_WITHIN`] after it was
/// written, and expects that nothing is on its subject: it must find the first one. The rest of the time is by how much
/// clocks of the broker's nodes may differ, and how long a server that was replaced may not know it. Younger entries and
/// younger runs are not carried either: most runs end before.
pub const SETTLED_AFTER: Duration = Duration::from_secs(30);
/// Nothing is carried of runs that are younger: carried entries are at least twice as old, so clocks may differ by this.
pub const UNCARRIED_AGE: Duration = Duration::from_secs(15);
/// Entries that are older than this are carried whatever the log's size is, because the broker drops them at an age that
/// is not much higher.
pub const CARRIED_AFTER: Duration = Duration::from_secs(20 * 3600);
/// For fewer entries a log that is too full is not cut: each cut makes the broker look at all its consumers.
const ENTRIES_MIN: u64 = 512;

/// How much of runs that have ended the log keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// The longest time; `None`: as long as the broker keeps entries.
    pub age: Option<Duration>,
    /// The part of the log, in percent, above which the oldest go before their time.
    pub percent: u8,
}

impl Default for Tail {
    fn default() -> Self {
        Self { age: None, percent: 50 }
    }
}

/// How full the log is in one measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    pub used: u64,
    pub limit: u64,
}

impl Fill {
    /// How much is above a part of the limit.
    fn above(self, percent: u8) -> u64 {
        let allowed = u128::from(self.limit) * u128::from(percent) / 100;
        self.used.saturating_sub(u64::try_from(allowed).unwrap_or(u64::MAX))
    }
}

/// The log as the decision needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogState {
    pub first: u64,
    pub last: u64,
    /// The first entry that is younger than [`Tail::age`]; 0 without one.
    pub young_from: u64,
    /// The first entry that is younger than [`SETTLED_AFTER`].
    pub settling_from: u64,
    pub bytes: Fill,
    pub messages: Fill,
}

impl Tail {
    /// Whether anything is to go because the log is too full.
    #[must_use]
    pub fn is_exceeded(&self, bytes: Fill, messages: Fill) -> bool {
        bytes.above(self.percent) > 0 || messages.above(self.percent) > 0
    }

    /// The entry before which everything leaves the log; `None` if nothing does now. `needed_from` is the first entry
    /// that any shard needs.
    #[must_use]
    pub fn keep_from(&self, log: &LogState, needed_from: u64) -> Option<u64> {
        let entries = (log.last + 1).saturating_sub(log.first);
        // As if all entries had the same size: the next decision corrects it.
        let share = |fill: Fill| {
            let part = u128::from(entries) * u128::from(fill.above(self.percent)) / u128::from(fill.used.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let excess = share(log.bytes).max(share(log.messages));
        let by_size = if excess < ENTRIES_MIN { 0 } else { log.first.saturating_add(excess) };
        let from = by_size.max(log.young_from).min(log.settling_from).min(needed_from);
        (from > log.first).then_some(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_EMPTY: Fill = Fill { used: 40, limit: 100 };
    const FULL: Fill = Fill { used: 100, limit: 100 };

    fn log() -> LogState {
        LogState {
            first: 10_000,
            last: 19_999,
            young_from: 10_000,
            settling_from: 20_000,
            bytes: HALF_EMPTY,
            messages: HALF_EMPTY,
        }
    }

    #[test]
    fn what_is_old_leaves_and_what_is_needed_stays() {
        let tail = Tail::default();
        assert_eq!(tail.keep_from(&log(), u64::MAX), None, "all of it is young, and there is room");
        let aged = LogState { young_from: 15_000, ..log() };
        assert_eq!(tail.keep_from(&aged, u64::MAX), Some(15_000));
        assert_eq!(tail.keep_from(&aged, 12_000), Some(12_000), "an open run begins there");
        assert_eq!(tail.keep_from(&aged, 10_001), Some(10_001), "a single one that is old leaves");
        assert_eq!(tail.keep_from(&aged, 0), None, "a shard has told nothing");
    }

    #[test]
    fn a_log_that_is_too_full_loses_its_oldest_entries_until_it_is_not_and_none_that_a_copy_may_look_for() {
        let tail = Tail::default();
        for full in [LogState { bytes: FULL, ..log() }, LogState { messages: FULL, ..log() }] {
            assert_eq!(tail.keep_from(&full, u64::MAX), Some(15_000), "half of it is above the limit");
            let settling = LogState { settling_from: 13_000, ..full };
            assert_eq!(tail.keep_from(&settling, u64::MAX), Some(13_000));
            assert_eq!(tail.keep_from(&LogState { settling_from: 10_000, ..full }, u64::MAX), None);
        }
        let filling = Fill { used: 52, limit: 100 };
        assert_eq!(tail.keep_from(&LogState { bytes: filling, ..log() }, u64::MAX), None, "not worth a cut");
        let all = Tail { percent: 0, ..tail };
        assert_eq!(all.keep_from(&log(), u64::MAX), Some(20_000));
        assert_eq!(all.keep_from(&LogState { last: 9_999, ..log() }, u64::MAX), None, "it is empty");
    }

    #[test]
    fn no_state_of_the_log_makes_it_overflow() {
        for first in [0, 1, u64::MAX / 2] {
            for used in [0, 1, u64::MAX] {
                let fill = Fill { used, limit: 1 };
                let log = LogState { first, last: u64::MAX / 2, bytes: fill, messages: fill, ..log() };
                let from = Tail::default().keep_from(&log, u64::MAX);
                assert!(from.is_none_or(|from| from > first && from <= log.settling_from), "{from:?}");
            }
        }
    }
}
