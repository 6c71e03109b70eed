//! What of the log may go: runs that have ended leave it with their age, or earlier if they fill it. Open runs stay,
//! and so does everything that an owner still needs. With a history, runs stay until it has them, as long as there is
//! room.

use std::time::Duration;

/// Younger entries stay whatever the log's size is. A copy of an entry counts for [`run::STORED_WITHIN`] after it was
/// written, and expects that nothing is on its subject: it must find the first one. The rest of the time is by how much
/// clocks of the broker's nodes may differ, and how long a server that was replaced may not know it. Younger entries
/// and younger runs are not carried either: most runs end before.
pub const SETTLED_AFTER: Duration = Duration::from_secs(30);
/// What an earlier owner carried counts at once if it was stored so long ago, because owners may change more often
/// than every [`SETTLED_AFTER`]. It is longer than that because the time in which the broker stood still passes too: a
/// server that was replaced may not know it for that time.
pub const SETTLED_BEFORE: Duration = Duration::from_secs(120);
/// Nothing is carried of runs that are younger: carried entries are at least twice as old, so clocks may differ by
/// this.
pub const UNCARRIED_AGE: Duration = Duration::from_secs(15);
/// Entries that are older than this are carried whatever the log's size is. The broker drops them after 25 h, also if
/// nobody could carry them. So coordinators may be stopped, or the bucket of carried runs full, for 13 h. Most runs are
/// over before, and cost nothing.
pub const CARRIED_AFTER: Duration = Duration::from_secs(12 * 3600);
/// The part of the log, in percent, above which the oldest go although the history does not have them. New work is
/// refused at 85 %, and losing the history must not stop it.
pub const UNWRITTEN_PERCENT: u8 = 80;
/// Entries of other shards after which a shard without entries of its own gets a barrier: its position is never further
/// behind the log.
pub const FALLS_BEHIND: u64 = 256;
/// For fewer entries a log that is too full is not cut, unless it is almost full.
const ENTRIES_MIN: u64 = 512;
/// A log that is too full is cut to three quarters of what ended runs may use, and a cut that would remove less than a
/// quarter of the entries waits for [`CUTS_APART`]. With each cut the broker rewrites its index of the stream, which
/// takes 0.9 s for a million entries however few are removed, and it stores no message until that is done.
const CUT_PART: u64 = 4;
/// How long after the last cut a small one is made.
pub const CUTS_APART: Duration = Duration::from_secs(60);

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
    /// A part of the limit.
    fn part(self, percent: u8) -> u64 {
        let part = u128::from(self.limit) * u128::from(percent) / 100;
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    fn is_above(self, percent: u8) -> bool {
        self.used > self.part(percent)
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

/// What leaves the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// The first entry that stays.
    pub from: u64,
    /// How many entries leave behind the first one that the history may lack. Those of open runs and of runs that it
    /// has are counted too, so it lacks at most so many.
    pub unwritten: u64,
}

/// The first entries that the log keeps for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The first entry that any shard needs.
    pub needed_from: u64,
    /// The first entry of runs that have ended and may not be in the history yet; `u64::MAX` without a history.
    pub unwritten_from: u64,
}

impl Kept {
    /// As if nothing needed the log.
    pub const NOTHING: Self = Self { needed_from: u64::MAX, unwritten_from: u64::MAX };
}

impl Tail {
    /// Whether anything is to go because the log is too full.
    #[must_use]
    pub fn is_exceeded(&self, bytes: Fill, messages: Fill) -> bool {
        bytes.is_above(self.percent) || messages.is_above(self.percent)
    }

    /// What leaves the log; `None` if nothing does now. `rested` is the time since the last cut.
    #[must_use]
    pub fn leaving(&self, log: &LogState, kept: Kept, rested: Duration) -> Option<Leaving> {
        let Kept { needed_from, unwritten_from } = kept;
        let excess_from = if self.is_exceeded(log.bytes, log.messages) {
            let target = |fill: Fill| fill.part(self.percent) - fill.part(self.percent) / CUT_PART;
            log.above(target)
        } else {
            0
        };
        let from = excess_from.max(log.young_from).min(log.settling_from).min(needed_from);
        let from = from.min(unwritten_from.max(log.above(|fill| fill.part(UNWRITTEN_PERCENT))));
        let leaving = from.checked_sub(log.first).filter(|leaving| *leaving > 0)?;
        let is_large = leaving >= log.entries() / CUT_PART;
        if !is_large && !log.is_almost_full() && rested < CUTS_APART {
            return None;
        }
        Some(Leaving { from, unwritten: from.saturating_sub(unwritten_from.max(log.first)) })
    }
}

impl LogState {
    fn entries(&self) -> u64 {
        (self.last + 1).saturating_sub(self.first)
    }

    /// Whether new work may soon be refused.
    fn is_almost_full(&self) -> bool {
        self.bytes.is_above(UNWRITTEN_PERCENT) || self.messages.is_above(UNWRITTEN_PERCENT)
    }

    /// The entry from which on the log takes no more than is allowed; 0 if it takes no more now.
    fn above(&self, allowed: impl Fn(Fill) -> u64) -> u64 {
        // As if all entries had the same size: the next decision corrects it.
        let share = |fill: Fill| {
            let above = fill.used.saturating_sub(allowed(fill));
            let part = u128::from(self.entries()) * u128::from(above) / u128::from(fill.used.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let excess = share(self.bytes).max(share(self.messages));
        if excess < ENTRIES_MIN && !self.is_almost_full() { 0 } else { self.first.saturating_add(excess) }
    }
}

/// The first entry that a shard's history still needs, as its owner tells it. A run that ended is read from its opening
/// on, which may be long before its end. What was told stays true, so the next owner goes on with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unwritten {
    /// The first entry that the history needs; 0 if that is not known.
    pub from: u64,
    /// That holds for a history with all that ended up to this entry.
    pub through: u64,
    /// Later moments, until which the history may not have all that ended; oldest first.
    pub waiting: Vec<Moment>,
}

/// A shard at some moment. Once the history has all that ended until then, it needs nothing before the runs that were
/// open: those that end later are among them, or begin later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The last entry of the shard.
    pub last: u64,
    /// The first entry of the runs that were open.
    pub open_from: u64,
}

/// Moments that are kept. If there are more, the one is dropped whose neighbours are closest to each other.
const MOMENTS_MAX: usize = 16;

impl Unwritten {
    /// What an earlier owner told, for the next one. An older release did not tell how far its history went, and is not
    /// believed: the history may be another one by now.
    #[must_use]
    pub fn of_earlier(told: Self) -> Self {
        if told.through == 0 { Self { from: 0, ..told } } else { told }
    }

    /// The first entry that the history needs; 0 if that is not known. `through` is the entry up to which runs that
    /// ended are in the history; `None` if that is not known.
    pub fn tell(&mut self, now: Moment, through: Option<u64>) -> u64 {
        // Another history than the one that was told of, or an older copy of it.
        if through.is_some_and(|through| through < self.through) {
            (self.from, self.through) = (0, 0);
        }
        let done = self.waiting.partition_point(|moment| through.is_some_and(|through| moment.last <= through));
        for Moment { last, open_from } in self.waiting.drain(..done) {
            (self.from, self.through) = (self.from.max(open_from), last);
        }
        match self.waiting.last_mut() {
            Some(newest) if newest.last >= now.last => newest.open_from = newest.open_from.max(now.open_from),
            _ => self.waiting.push(now),
        }
        if self.waiting.len() > MOMENTS_MAX {
            let gap = |three: &[Moment]| {
                three.last().map_or(0, |last| last.last) - three.first().map_or(0, |first| first.last)
            };
            let closest = self.waiting.windows(3).enumerate().min_by_key(|(_, three)| gap(three));
            let middle = closest.map_or(0, |(index, _)| index + 1);
            self.waiting.remove(middle);
        }
        self.from
    }
}

/// Counts entries that leave the log by their age although the history may lack them: the broker removes them.
#[derive(Debug, Default)]
pub struct Aged {
    /// The log's first entry as it was seen last.
    first: Option<u64>,
}

impl Aged {
    /// Whether entries have left since the last look.
    #[must_use]
    pub fn is_moved(&self, first: u64) -> bool {
        self.first != Some(first)
    }

    /// How many have left since the last look. `unwritten_from` is what it was then or is now: it only grows.
    pub fn handle_look(&mut self, first: u64, unwritten_from: u64) -> u64 {
        let before = self.first.replace(first);
        before.map_or(0, |before| first.saturating_sub(unwritten_from.max(before)))
    }

    /// We removed everything before this entry, and counted what the history lacks.
    pub fn handle_removed(&mut self, from: u64) {
        self.first = Some(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_EMPTY: Fill = Fill { used: 40, limit: 100 };
    const FULL: Fill = Fill { used: 100, limit: 100 };

    fn leaves(tail: &Tail, log: &LogState, needed_from: u64) -> Option<u64> {
        let leaving = tail.leaving(log, Kept { needed_from, unwritten_from: u64::MAX }, CUTS_APART)?;
        assert_eq!(leaving.unwritten, 0, "there is no history");
        Some(leaving.from)
    }

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
        assert_eq!(leaves(&tail, &log(), u64::MAX), None, "all of it is young, and there is room");
        let aged = LogState { young_from: 15_000, ..log() };
        assert_eq!(leaves(&tail, &aged, u64::MAX), Some(15_000));
        assert_eq!(leaves(&tail, &aged, 12_000), Some(12_000), "an open run begins there");
        assert_eq!(leaves(&tail, &aged, 10_001), Some(10_001), "a single one that is old leaves");
        assert_eq!(leaves(&tail, &aged, 0), None, "a shard has told nothing");
    }

    #[test]
    fn a_log_that_is_too_full_loses_its_oldest_entries_until_it_is_not_and_none_that_a_copy_may_look_for() {
        let tail = Tail::default();
        for full in [LogState { bytes: FULL, ..log() }, LogState { messages: FULL, ..log() }] {
            assert_eq!(leaves(&tail, &full, u64::MAX), Some(16_200), "to three quarters of what ended runs may take");
            let settling = LogState { settling_from: 13_000, ..full };
            assert_eq!(leaves(&tail, &settling, u64::MAX), Some(13_000));
            assert_eq!(leaves(&tail, &LogState { settling_from: 10_000, ..full }, u64::MAX), None);
        }
        let filling = |used| LogState { bytes: Fill { used, limit: 100 }, ..log() };
        assert_eq!(leaves(&tail, &filling(50), u64::MAX), None, "it is no fuller than it may be");
        assert_eq!(leaves(&tail, &filling(51), u64::MAX), Some(12_549));
        let small = LogState { last: 10_999, ..filling(51) };
        assert_eq!(leaves(&tail, &small, u64::MAX), None, "not worth a cut");
        let all = Tail { percent: 0, ..tail };
        assert_eq!(leaves(&all, &log(), u64::MAX), Some(20_000));
        assert_eq!(leaves(&all, &LogState { last: 9_999, ..log() }, u64::MAX), None, "it is empty");
    }

    #[test]
    fn less_than_a_quarter_waits_until_nothing_was_cut_for_a_minute_unless_the_log_is_almost_full() {
        let (tail, soon) = (Tail::default(), CUTS_APART / 2);
        let needed = |needed_from| Kept { needed_from, unwritten_from: u64::MAX };
        let cut = |log: &LogState, needed_from, rested| {
            tail.leaving(log, needed(needed_from), rested).map(|leaving| leaving.from)
        };
        let exceeded = LogState { bytes: Fill { used: 60, limit: 100 }, ..log() };
        assert_eq!(cut(&exceeded, u64::MAX, Duration::ZERO), Some(13_666));
        assert_eq!(cut(&exceeded, 12_499, soon), None, "an open run begins there");
        assert_eq!(cut(&exceeded, 12_500, soon), Some(12_500));
        assert_eq!(cut(&exceeded, 12_499, CUTS_APART), Some(12_499));
        assert_eq!(cut(&LogState { young_from: 10_001, ..log() }, u64::MAX, soon), None);
        let almost = LogState { bytes: Fill { used: 81, limit: 100 }, ..log() };
        assert_eq!(cut(&almost, 10_001, Duration::ZERO), Some(10_001));
    }

    #[test]
    fn no_state_of_the_log_makes_it_overflow() {
        for first in [0, 1, u64::MAX / 2] {
            for used in [0, 1, u64::MAX] {
                let fill = Fill { used, limit: 1 };
                let log = LogState { first, last: u64::MAX / 2, bytes: fill, messages: fill, ..log() };
                let from = leaves(&Tail::default(), &log, u64::MAX);
                assert!(from.is_none_or(|from| from > first && from <= log.settling_from), "{from:?}");
            }
        }
    }

    #[test]
    fn what_the_history_lacks_stays_until_the_log_is_almost_full_and_then_as_little_of_it_goes_as_must() {
        let tail = Tail { percent: 50, age: None };
        let leaving = |log: &LogState, kept| tail.leaving(log, kept, CUTS_APART);
        let lacks = |unwritten_from| Kept { needed_from: u64::MAX, unwritten_from };
        let fuller = LogState { bytes: Fill { used: 80, limit: 100 }, ..log() };
        assert_eq!(leaving(&fuller, lacks(0)), None, "the history has nothing, and there is room");
        assert_eq!(leaving(&fuller, lacks(11_000)), Some(Leaving { from: 11_000, unwritten: 0 }));
        assert_eq!(leaving(&fuller, lacks(19_000)), Some(Leaving { from: 15_250, unwritten: 0 }));
        let full = LogState { bytes: Fill { used: 90, limit: 100 }, ..log() };
        assert_eq!(leaving(&full, lacks(0)), Some(Leaving { from: 11_111, unwritten: 1_111 }));
        assert_eq!(leaving(&full, lacks(11_000)), Some(Leaving { from: 11_111, unwritten: 111 }));
        let open = Kept { needed_from: 10_500, unwritten_from: 0 };
        assert_eq!(leaving(&full, open), Some(Leaving { from: 10_500, unwritten: 500 }), "an open run stays");
        let aged = LogState { young_from: 15_000, ..log() };
        assert_eq!(leaving(&aged, lacks(12_000)), Some(Leaving { from: 12_000, unwritten: 0 }));
    }

    #[test]
    fn a_log_of_few_entries_loses_the_oldest_before_it_refuses_new_work() {
        let tail = Tail { percent: 50, age: None };
        let few = |used| LogState { last: 10_999, bytes: Fill { used, limit: 100 }, ..log() };
        let leaving = |used, unwritten_from| {
            tail.leaving(&few(used), Kept { needed_from: u64::MAX, unwritten_from }, Duration::ZERO)
        };
        assert_eq!(leaving(70, u64::MAX), None, "not worth a cut");
        assert_eq!(leaving(85, u64::MAX), Some(Leaving { from: 10_552, unwritten: 0 }));
        assert_eq!(leaving(85, 0), Some(Leaving { from: 10_058, unwritten: 58 }));
    }

    #[test]
    fn the_history_needs_what_was_open_when_the_last_run_ended_that_it_has() {
        let mut unwritten = Unwritten::default();
        let tell =
            |unwritten: &mut Unwritten, last, open_from, through| unwritten.tell(Moment { last, open_from }, through);
        assert_eq!(tell(&mut unwritten, 100, 40, None), 0, "the history is away");
        assert_eq!(tell(&mut unwritten, 150, 60, Some(99)), 0, "a run that ended at 100 may have begun at 1");
        assert_eq!(tell(&mut unwritten, 200, 70, Some(100)), 40, "those that end later began at 40 or later");
        assert_eq!(tell(&mut unwritten, 300, 250, Some(199)), 60, "one that ended at 200 may have begun at 60");
        assert_eq!(tell(&mut unwritten, 300, 301, None), 60, "what was told stays true");
        assert_eq!(tell(&mut unwritten, 300, 301, Some(200)), 70);
        assert_eq!(tell(&mut unwritten, 400, 380, Some(300)), 301, "the runs at 250 were carried meanwhile");
    }

    #[test]
    fn the_next_owner_goes_on_with_what_was_told_if_it_has_the_same_history() {
        let now = Moment { last: 500, open_from: 450 };
        let told = Unwritten { from: 250, through: 300, waiting: vec![Moment { last: 400, open_from: 350 }] };
        let mut next = Unwritten::of_earlier(told.clone());
        assert_eq!(next.tell(now, None), 250, "its history is not open yet");
        assert_eq!(next.tell(now, Some(300)), 250);
        assert_eq!(next.tell(now, Some(400)), 350, "a moment of the earlier owner");
        assert_eq!((next.tell(now, Some(500)), next.through), (450, 500));
        let mut of_another = Unwritten::of_earlier(told.clone());
        assert_eq!(of_another.tell(now, Some(299)), 0, "it is not the history that was told of");
        assert_eq!((of_another.tell(now, Some(399)), of_another.tell(now, Some(400))), (0, 350));
        let mut of_older_release = Unwritten::of_earlier(Unwritten { through: 0, waiting: Vec::new(), ..told });
        assert_eq!(of_older_release.tell(now, None), 0);
    }

    #[test]
    fn few_moments_are_kept_from_the_first_to_the_last_however_long_the_history_is_away() {
        let mut unwritten = Unwritten::default();
        for number in 1..=10_000 {
            unwritten.tell(Moment { last: 10 * number, open_from: 10 * number - 5 }, None);
            assert!(unwritten.waiting.len() <= MOMENTS_MAX);
        }
        let first_and_last = (unwritten.waiting[0].last, unwritten.waiting[unwritten.waiting.len() - 1].last);
        assert!(first_and_last.0 == 10 && first_and_last.1 > 80_000, "{first_and_last:?}");
        let now = Moment { last: 100_001, open_from: 100_000 };
        assert!(unwritten.tell(now, Some(50_000)) > 30_000, "{unwritten:?}");
    }

    #[test]
    fn entries_that_the_broker_removes_before_the_history_has_them_are_counted_once() {
        let mut aged = Aged::default();
        assert_eq!(aged.handle_look(500, 100), 0, "what left before this process began is not known");
        assert_eq!(aged.handle_look(500, 100), 0);
        assert!(aged.is_moved(520) && !aged.is_moved(500));
        assert_eq!(aged.handle_look(520, 100), 20);
        assert_eq!(aged.handle_look(530, 525), 5, "the history has the others");
        assert_eq!(aged.handle_look(600, u64::MAX), 0, "there is no history");
        aged.handle_removed(700);
        assert_eq!(aged.handle_look(700, 600), 0, "these were counted");
        assert_eq!(aged.handle_look(701, 600), 1);
    }
}
