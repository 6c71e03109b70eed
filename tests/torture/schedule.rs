//! The faults: target, time and kind, derived from the seed alone before the start.
//!
//! Faults come in lanes that run beside each other. Within a lane the next fault waits until the one before it was
//! recovered from, so that a lane never has two parts down, and the whole never has more down than there are lanes.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::seed::Seed;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub(crate) enum Part {
    /// A worker of any language, as a target. As a part that was struck, one in Rust.
    Worker,
    #[value(skip)]
    PythonWorker,
    #[value(skip)]
    NodeWorker,
    Coordinator,
    Broker,
    Store,
    /// The connections of one coordinator to all nodes of the broker.
    CoordinatorLink,
    /// The connections of one worker to all nodes of the broker.
    WorkerLink,
    /// The connections of all clients to one coordinator.
    ClientLink,
    /// The store of the history, with `--history`.
    History,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Blow {
    /// SIGKILL.
    Kill,
    /// SIGSTOP for longer than a lease, then SIGCONT: a zombie comes back. The store of the history is taken away.
    Pause,
    /// SIGTERM, an orderly end, and a new one in its place.
    Terminate,
    /// FLUSHALL.
    Flush,
    /// SIGSTOP of every node of the broker, then SIGCONT: nothing can be stored meanwhile, and what was sent is read
    /// late.
    Stall,
    /// A link delivers nothing to its server, without breaking.
    HoldRequests,
    /// A link delivers nothing to its client, without breaking.
    HoldAnswers,
    /// A link delivers nothing in either direction, without breaking.
    HoldBoth,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// How long the lane is quiet before it.
    pub(crate) after: Duration,
    pub(crate) part: Part,
    pub(crate) blow: Blow,
    /// Which one of its part: taken modulo as many as there are.
    pub(crate) pick: usize,
    /// How long the part stays down.
    pub(crate) lasts: Duration,
    /// A link that was held is cut, so that what it held is lost; otherwise it is healed, and what it held is delivered
    /// late.
    pub(crate) cut: bool,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, part, blow, pick, lasts, cut } = self;
        let end = if *cut { ", then cut" } else { "" };
        write!(f, "after {after:?} {blow:?} {part:?} {pick} for {lasts:?}{end}")
    }
}

/// The faults of one lane, without end.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) name: &'static str,
    part: Part,
    /// Each round has these, in an order of its own.
    round: &'static [Blow],
    gap_ms: Range<u64>,
    down_ms: Range<u64>,
    seed: Seed,
    left: Vec<Blow>,
    struck: u64,
    /// How long it is quiet between faults, in percent of the usual.
    quiet: u32,
}

/// The longest quiet before the first fault of a lane, but for 2 s.
const FIRST_GAP_MS: u64 = 10_000;
/// Longer than a worker may be silent (6 s) and than a shard's lease (6 s).
const PAUSE_MS: Range<u64> = 7_000..12_000;
/// Longer than the lease of a job (30 s), with which a worker comes back as a zombie.
const LONG_PAUSE_MS: Range<u64> = 31_000..36_000;
/// How many of a hundred pauses of a worker are long, and of pauses of one broker, and of holds of a link.
const LONG_PAUSES: u64 = 30;
/// Longer than the journal tries an append for (15 s, and 5 s for the last try): requests are refused whose openings
/// are stored afterwards.
const STALL_MS: Range<u64> = 22_000..48_000;
/// The first stall comes and goes early, so that a short run has seen it.
const FIRST_STALL_MS: Range<u64> = 24_000..26_000;
/// Of a link between a process and the broker. Shorter and longer than the leases of workers and shards.
const HOLD_MS: Range<u64> = 2_000..12_000;

/// All lanes that strike one of `parts`. The node of a broker that has only one is not paused alone: it is stalled.
pub(crate) fn lanes(seed: &Seed, parts: &[Part], brokers: usize) -> Vec<Lane> {
    use Blow::{Flush, HoldAnswers, HoldBoth, HoldRequests, Kill, Pause, Stall, Terminate};
    let holds = &[HoldRequests, HoldAnswers, HoldBoth][..];
    let lane = |name, part, round, gap_ms, down_ms| Lane {
        name,
        part,
        round,
        gap_ms,
        down_ms,
        seed: seed.clone(),
        left: Vec::new(),
        struck: 0,
        quiet: 100,
    };
    let brokers: &'static [Blow] = if brokers == 1 { &[Kill] } else { &[Kill, Kill, Pause] };
    let lanes = [
        lane("workers", Part::Worker, &[Kill, Kill, Kill, Terminate][..], 500..4_000, 100..2_000),
        lane("paused workers", Part::Worker, &[Pause], 2_000..10_000, PAUSE_MS),
        lane("coordinators", Part::Coordinator, &[Kill, Kill, Terminate], 3_000..9_000, 100..3_000),
        lane("paused coordinators", Part::Coordinator, &[Pause], 6_000..25_000, PAUSE_MS),
        lane("brokers", Part::Broker, brokers, 10_000..25_000, 200..4_000),
        lane("stores", Part::Store, &[Kill, Flush], 4_000..12_000, 100..2_000),
        lane("stalled brokers", Part::Broker, &[Stall], 90_000..240_000, STALL_MS),
        lane("links of coordinators", Part::CoordinatorLink, holds, 5_000..20_000, HOLD_MS),
        lane("links of workers", Part::WorkerLink, holds, 5_000..20_000, HOLD_MS),
        lane("links of clients", Part::ClientLink, holds, 5_000..20_000, 1_000..8_000),
        lane("history", Part::History, &[Pause], 10_000..40_000, PAUSE_MS),
    ];
    let lanes = lanes.into_iter().zip(0..).map(|(lane, number)| Lane { seed: seed.of(number), ..lane });
    lanes.filter(|lane| parts.contains(&lane.part)).collect()
}

impl Lane {
    /// The same faults, with other pauses between them.
    pub(crate) fn quiet(self, percent: u32) -> Self {
        Self { quiet: percent, ..self }
    }
}

impl Iterator for Lane {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        if self.left.is_empty() {
            self.left = self.round.to_vec();
        }
        let blow = self.left.swap_remove(self.seed.index(self.left.len()));
        // The first of every lane comes early, so that a short run has seen each.
        let is_first = self.struck == 0;
        let gap_ms = if is_first { 1_000..self.gap_ms.start.min(FIRST_GAP_MS) + 2_000 } else { self.gap_ms.clone() };
        let is_long = !is_first && self.seed.chance(LONG_PAUSES);
        let down_ms = match (blow, self.part) {
            (Blow::Pause, Part::Worker) if is_long => LONG_PAUSE_MS,
            (Blow::Pause, Part::Broker | Part::History) if is_long => STALL_MS,
            (Blow::Pause, _) => PAUSE_MS,
            (Blow::Stall, _) if is_first => FIRST_STALL_MS,
            (_, Part::CoordinatorLink | Part::WorkerLink) if is_long => STALL_MS,
            _ => self.down_ms.clone(),
        };
        self.struck += 1;
        Some(Fault {
            after: self.seed.ms(gap_ms) * self.quiet / 100,
            part: self.part,
            blow,
            pick: self.seed.index(1 << 16),
            lasts: self.seed.ms(down_ms),
            cut: self.seed.chance(50),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Part; 8] = [
        Part::Worker,
        Part::Coordinator,
        Part::Broker,
        Part::Store,
        Part::CoordinatorLink,
        Part::WorkerLink,
        Part::ClientLink,
        Part::History,
    ];

    fn first(seed: u64, count: usize) -> Vec<Vec<Fault>> {
        lanes(&Seed::new(seed), &ALL, 3).into_iter().map(|lane| lane.take(count).collect()).collect()
    }

    #[test]
    fn a_seed_always_gives_the_same_schedule() {
        assert_eq!(first(3, 50), first(3, 50));
        assert_ne!(first(3, 50), first(4, 50));
    }

    #[test]
    fn every_kind_of_fault_comes_within_a_few_rounds() {
        let faults = first(1, 4).concat();
        for (part, blow) in [
            (Part::Worker, Blow::Kill),
            (Part::Worker, Blow::Pause),
            (Part::Worker, Blow::Terminate),
            (Part::Coordinator, Blow::Kill),
            (Part::Coordinator, Blow::Pause),
            (Part::Coordinator, Blow::Terminate),
            (Part::Broker, Blow::Kill),
            (Part::Store, Blow::Kill),
            (Part::Store, Blow::Flush),
            (Part::Broker, Blow::Stall),
            (Part::CoordinatorLink, Blow::HoldRequests),
            (Part::CoordinatorLink, Blow::HoldAnswers),
            (Part::CoordinatorLink, Blow::HoldBoth),
            (Part::WorkerLink, Blow::HoldAnswers),
            (Part::ClientLink, Blow::HoldAnswers),
            (Part::History, Blow::Pause),
        ] {
            assert!(faults.iter().any(|fault| fault.part == part && fault.blow == blow), "{blow:?} {part:?}");
        }
    }

    #[test]
    fn a_quarter_of_an_hour_has_more_than_two_hundred_kills() {
        let kills = lanes(&Seed::new(1), &ALL, 3).into_iter().map(|lane| {
            let mut left = Duration::from_secs(900);
            // Coming back takes some seconds more than being down.
            let back = Duration::from_secs(2);
            let fits = lane.take_while(|fault| {
                let took = fault.after + fault.lasts + back;
                let fits = left >= took;
                left = left.saturating_sub(took);
                fits
            });
            fits.filter(|fault| fault.blow == Blow::Kill).count()
        });
        let kills: usize = kills.sum();
        assert!(kills > 200, "{kills}");
    }

    #[test]
    fn stalls_are_longer_than_an_append_is_tried_for_and_links_are_both_cut_and_healed() {
        let faults = first(1, 40).concat();
        for fault in faults.iter().filter(|fault| fault.blow == Blow::Stall) {
            assert!(fault.lasts > Duration::from_secs(16), "{fault}");
        }
        for cut in [true, false] {
            let is_long = |fault: &&Fault| fault.part == Part::CoordinatorLink && fault.lasts > Duration::from_secs(16);
            assert!(faults.iter().filter(is_long).any(|fault| fault.cut == cut), "{cut}");
        }
    }

    #[test]
    fn pauses_are_longer_than_the_lease_that_they_break() {
        for fault in first(1, 40).concat().into_iter().filter(|fault| fault.blow == Blow::Pause) {
            assert!(fault.lasts > Duration::from_secs(6), "{fault}");
        }
    }
}
