//! How much later than its deadline a call may end, and how long shards were nobody's, both from outside.

use crate::load::Lateness;
use crate::schedule::{Blow, Part};
use crate::world::Struck;

/// What an owner's timers, the append and a busy machine may take.
const CALM_MS: u64 = 2_000;
/// With a coordinator that was struck: another, through which the run is watched, ends it; where that one is struck too, the
/// lease must lapse first.
const OWNER_MS: u64 = 6_000;
/// For how long its shards may be nobody's: two leases.
const OWNERLESS_MS: u64 = 12_000;
/// With a broker that was struck: an election takes 4 to 9 s, and clients must come back.
const BROKER_MS: u64 = 15_000;

#[derive(Debug)]
pub(crate) struct Late {
    pub(crate) run_id: String,
    pub(crate) late: Lateness,
}

/// What excuses a late end. Where a coordinator and a broker were struck, an owner can be found only when the broker has
/// found its leader: one comes after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowed {
    owner: bool,
    broker: bool,
}

impl Allowed {
    /// The excuses among the faults that were going on when the call should have ended, or shortly before.
    pub(crate) fn of(late: &Lateness, faults: &[Struck]) -> Self {
        let struck = |part, excused| {
            let struck = faults.iter().filter(|fault| fault.part == part);
            struck.into_iter().any(|fault| fault.from <= late.ended && fault.until + excused >= late.deadline)
        };
        let broker = struck(Part::Broker, BROKER_MS);
        let owner = struck(Part::Coordinator, OWNERLESS_MS + if broker { BROKER_MS } else { 0 });
        Self { owner, broker }
    }

    /// A broker was struck.
    pub(crate) fn by_broker(self) -> bool {
        self.broker
    }

    pub(crate) fn ms(self) -> u64 {
        let owner = if self.owner { OWNER_MS } else { 0 };
        let broker = if self.broker { BROKER_MS } else { 0 };
        CALM_MS + owner + broker
    }
}

/// For each shard of each coordinator that was killed, the time until a run could be opened in it again. A coordinator
/// opens runs in shards that it owns, so the last one through which a run of the shard was opened is taken for its owner.
/// And whether a broker was struck meanwhile, or shortly before.
pub(crate) fn takeovers(faults: &[Struck], openings: &[(String, usize, u64, u64)]) -> Vec<(u64, bool)> {
    let mut by_shard: std::collections::BTreeMap<&str, Vec<(usize, u64, u64)>> = std::collections::BTreeMap::new();
    for (shard, replica, began, done) in openings {
        by_shard.entry(shard).or_default().push((*replica, *began, *done));
    }
    by_shard.values_mut().for_each(|openings| openings.sort_unstable_by_key(|(_, began, _)| *began));
    let kills = faults.iter().filter(|fault| fault.part == Part::Coordinator && fault.blow == Blow::Kill);
    let shards = kills.flat_map(|kill| by_shard.values().map(move |openings| (kill, openings)));
    let taken = shards.filter_map(|(kill, openings)| {
        let after = openings.partition_point(|(_, began, _)| *began < kill.from);
        let (owner, ..) = after.checked_sub(1).and_then(|last| openings.get(last))?;
        let (_, _, done) = openings.get(after).filter(|_| *owner == kill.index)?;
        let brokers = faults.iter().filter(|fault| fault.part == Part::Broker);
        let by_broker = brokers.into_iter().any(|fault| fault.from <= *done && fault.until + BROKER_MS >= kill.from);
        Some((done.saturating_sub(kill.from), by_broker))
    });
    taken.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn struck(part: Part, index: usize, from: u64, until: u64) -> Struck {
        Struck { part, blow: Blow::Kill, index, from, until }
    }

    fn late(deadline: u64, ended: u64) -> Lateness {
        Lateness { call_id: "c0".to_owned(), deadline, ended }
    }

    #[test]
    fn only_a_fault_around_the_deadline_excuses_a_late_end() {
        let faults = [struck(Part::Broker, 0, 100_000, 101_000), struck(Part::Worker, 0, 0, 1_000_000)];
        assert_eq!(Allowed::of(&late(102_000, 110_000), &faults).ms(), 17_000);
        assert_eq!(Allowed::of(&late(50_000, 51_000), &faults).ms(), 2_000);
        assert_eq!(Allowed::of(&late(200_000, 201_000), &faults).ms(), 2_000);
        let owner = struck(Part::Coordinator, 0, 100_000, 101_000);
        assert_eq!(Allowed::of(&late(105_000, 106_000), std::slice::from_ref(&owner)).ms(), 8_000);
        let broker = struck(Part::Broker, 0, 101_000, 102_000);
        assert_eq!(Allowed::of(&late(105_000, 106_000), &[owner, broker]).ms(), 23_000);
    }

    #[test]
    fn a_takeover_is_timed_from_the_kill_to_the_next_opening_in_the_shard() {
        let opening = |shard: &str, replica, began, done| (shard.to_owned(), replica, began, done);
        let openings = [
            opening("01", 0, 900, 910),
            opening("02", 1, 950, 960),
            opening("01", 1, 7_000, 7_010),
            opening("02", 1, 1_100, 1_110),
        ];
        let kill = struck(Part::Coordinator, 0, 1_000, 2_000);
        assert_eq!(takeovers(std::slice::from_ref(&kill), &openings), [(6_010, false)]);
        let broker = struck(Part::Broker, 0, 5_000, 6_000);
        assert_eq!(takeovers(&[kill, broker], &openings), [(6_010, true)]);
    }
}
