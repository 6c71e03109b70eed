//! How much later than its deadline a call may end, and how long shards had no owner, both seen from outside.

use crate::load::Lateness;
use crate::schedule::{Blow, Part};
use crate::world::Struck;

/// The time that an owner's timers, the append and a busy machine may take.
const CALM_MS: u64 = 2_000;
/// With a coordinator that was struck: another, through which the run is watched, ends it; where that one is struck
/// too, the lease must lapse first.
const OWNER_MS: u64 = 6_000;
/// How long its shards may have no owner: two leases.
const OWNERLESS_MS: u64 = 12_000;
/// For each fault of the broker: an election takes 4 to 9 s, and clients must come back.
const BROKER_MS: u64 = 15_000;

#[derive(Debug)]
pub(crate) struct Late {
    pub(crate) run_id: String,
    pub(crate) late: Lateness,
}

/// What excuses a late end. If a coordinator and a broker were struck, an owner can be found only when the broker has
/// found its leader: one comes after the other. If nobody could end a call at all, the time counts from when somebody
/// could again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowed {
    owner: bool,
    /// How often the broker was struck.
    broker: u64,
    /// How long no process could end the call, as far as that was after its deadline.
    blocked_ms: u64,
}

impl Allowed {
    /// The excuses among the faults that were going on when the call should have ended, or shortly before.
    /// `coordinators` is how many there are in all.
    pub(crate) fn of(late: &Lateness, faults: &[Struck], coordinators: usize) -> Self {
        let window = |excused: u64| (late.deadline.saturating_sub(excused), late.ended);
        let struck = |is_struck: fn(&Struck) -> bool, (from, until): (u64, u64)| {
            faults.iter().any(|fault| is_struck(fault) && fault.from <= until && fault.until >= from)
        };
        let (from, until) = window(BROKER_MS);
        let of_broker = |fault: &&Struck| fault.part == Part::Broker && fault.from <= until && fault.until >= from;
        let broker = faults.iter().filter(of_broker).count() as u64;
        let ownerless_ms = OWNERLESS_MS + if broker > 0 { BROKER_MS } else { 0 };
        let owner = struck(leaves_ownerless, window(ownerless_ms));
        let mut allowed = Self { owner, broker, blocked_ms: 0 };
        let base = allowed.ms();
        let mut limit = late.deadline + base;
        for (from, until) in blocked(faults, coordinators, window(0)) {
            if from <= limit && until > late.deadline {
                limit = limit.max(until + base);
            }
        }
        allowed.blocked_ms = limit - late.deadline - base;
        allowed
    }

    /// A broker was struck.
    pub(crate) fn by_broker(self) -> bool {
        self.broker > 0
    }

    pub(crate) fn ms(self) -> u64 {
        let owner = if self.owner { OWNER_MS } else { 0 };
        CALM_MS + owner + self.broker * BROKER_MS + self.blocked_ms
    }
}

/// The shards of a coordinator that is struck, or cut off from the broker, are nobody's for a while. So are those of
/// all coordinators after a stall of the broker, in which no lease could be renewed.
fn leaves_ownerless(fault: &Struck) -> bool {
    matches!(fault.part, Part::Coordinator | Part::CoordinatorLink) || fault.blow == Blow::Stall
}

/// When nobody could end a call, in order: the broker stood still, or every coordinator was struck or cut off at once.
/// Only faults of the window are looked at.
fn blocked(faults: &[Struck], coordinators: usize, (from, until): (u64, u64)) -> Vec<(u64, u64)> {
    let around: Vec<&Struck> = faults.iter().filter(|fault| fault.from <= until && fault.until >= from).collect();
    let stalls = around.iter().filter(|fault| fault.blow == Blow::Stall).map(|fault| (fault.from, fault.until));
    let mut blocked: Vec<(u64, u64)> = stalls.collect();
    let of_coordinators = |part| matches!(part, Part::Coordinator | Part::CoordinatorLink);
    let struck: Vec<&&Struck> = around.iter().filter(|fault| of_coordinators(fault.part)).collect();
    // All of them are struck from the beginning of some fault to the first end among those that go on then.
    for fault in &struck {
        let at = fault.from;
        let mut untils = std::collections::BTreeMap::new();
        for other in struck.iter().filter(|other| other.from <= at && other.until > at) {
            let longest: &mut u64 = untils.entry(other.index).or_default();
            *longest = other.until.max(*longest);
        }
        if untils.len() >= coordinators.max(1) {
            blocked.extend(untils.values().min().map(|until| (at, *until)));
        }
    }
    blocked.sort_unstable();
    blocked
}

/// For each shard of each coordinator that was killed, the time until a run could be opened in it again. A coordinator
/// opens runs in shards that it owns, so the last one through which a run of the shard was opened is taken for its
/// owner. And whether a broker was struck meanwhile, or shortly before.
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

    fn allowed(late: &Lateness, faults: &[Struck]) -> u64 {
        Allowed::of(late, faults, 2).ms()
    }

    #[test]
    fn only_a_fault_around_the_deadline_excuses_a_late_end() {
        let faults = [struck(Part::Broker, 0, 100_000, 101_000), struck(Part::Worker, 0, 0, 1_000_000)];
        assert_eq!(allowed(&late(102_000, 110_000), &faults), 17_000);
        assert_eq!(allowed(&late(50_000, 51_000), &faults), 2_000);
        assert_eq!(allowed(&late(200_000, 201_000), &faults), 2_000);
        let owner = struck(Part::Coordinator, 0, 100_000, 101_000);
        assert_eq!(allowed(&late(105_000, 106_000), std::slice::from_ref(&owner)), 8_000);
        let broker = struck(Part::Broker, 0, 101_000, 102_000);
        assert_eq!(allowed(&late(105_000, 106_000), &[owner.clone(), broker.clone()]), 23_000);
        // Each time it is struck its leader may be gone.
        let again = struck(Part::Broker, 1, 110_000, 111_000);
        assert_eq!(allowed(&late(105_000, 120_000), &[owner.clone(), broker.clone(), again.clone()]), 38_000);
        assert_eq!(allowed(&late(105_000, 109_000), &[owner, broker, again]), 23_000, "it came after the end");
    }

    #[test]
    fn links_of_workers_and_clients_excuse_nothing_and_those_of_coordinators_a_lease() {
        let call = late(105_000, 110_000);
        for part in [Part::WorkerLink, Part::ClientLink] {
            assert_eq!(allowed(&call, &[struck(part, 0, 100_000, 140_000)]), 2_000, "{part:?}");
        }
        assert_eq!(allowed(&call, &[struck(Part::CoordinatorLink, 0, 100_000, 140_000)]), 8_000);
    }

    #[test]
    fn a_stall_of_the_broker_excuses_its_own_length_and_what_comes_back_after_it() {
        let stall = Struck { blow: Blow::Stall, ..struck(Part::Broker, 0, 100_000, 140_000) };
        let stalls = std::slice::from_ref(&stall);
        assert_eq!(allowed(&late(110_000, 141_000), stalls), 30_000 + 23_000);
        // The deadline came just before it.
        assert_eq!(allowed(&late(99_000, 141_000), stalls), 41_000 + 23_000);
        assert_eq!(allowed(&late(50_000, 60_000), stalls), 2_000);
        assert_eq!(allowed(&late(150_000, 160_000), stalls), 23_000);
        assert_eq!(allowed(&late(50_000, 141_000), stalls), 23_000, "it was late before the stall began");
    }

    #[test]
    fn time_without_any_coordinator_counts_from_when_one_is_back() {
        let one = struck(Part::Coordinator, 0, 100_000, 120_000);
        let other = struck(Part::CoordinatorLink, 1, 105_000, 130_000);
        assert_eq!(allowed(&late(106_000, 121_000), &[one.clone(), other.clone()]), 14_000 + 8_000);
        assert_eq!(allowed(&late(124_000, 131_000), &[one.clone(), other]), 8_000);
        // Twice the same one is not everybody.
        let again = struck(Part::CoordinatorLink, 0, 105_000, 130_000);
        assert_eq!(allowed(&late(106_000, 121_000), &[one, again]), 8_000);
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
