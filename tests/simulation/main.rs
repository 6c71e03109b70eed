//! The protocol of the product in a virtual world: one broker, several coordinators, workers and clients, one thread,
//! no IO, no real time. Everything that happens follows from a seed, and so does everything that goes wrong: messages
//! that are late, lost or repeated, processes that crash, or stand still and act later on what they knew, links that
//! are cut, a broker that is away or forgets its delivery counts, clocks that disagree, operators who pause tools and
//! pools. Running tools ask their clients, who answer once, twice, late or never.
//!
//! The core is the product's own: runs (`core/run`), and the owner of a shard, the membership of coordinators and the
//! job protocol of workers (`core/owner`), with its snapshots, erasures and notifications. The drivers around it are
//! written here a second time, simply: `coordinator.rs`, `shard.rs` and `work.rs` name the files that they follow. Left
//! out: bytes on the wire, several brokers, requests by id, rights, the counting of concurrency slots that coordinators
//! share, erase requests that do not fit into memory. `Flaw` lists the rules that keep the promises; each is broken
//! here in turn, to see that the checks notice it.
//!
//! After every entry of the log and every piece that a client reads the promises are checked (`promises.rs`); in the
//! end everybody leaves but one coordinator, and every call has to end by its deadline.
//!
//! `TOOLYARD_SEED=7 cargo test -p toolyard-tests --test simulation` plays one world, `TOOLYARD_SEEDS=10000` so many.
//! `TOOLYARD_STEPS=10000000` plays world after world until they have taken so many steps, from `TOOLYARD_SEED` on, and
//! prints how far it is. `tests/nightly` does that every night, from another seed each time.

mod broker;
mod chance;
mod client;
mod coordinator;
mod fleet;
mod member;
mod net;
mod promises;
mod questions;
mod rim;
mod shard;
mod work;
mod worker;
mod world;

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use net::Flaw;
use run::{RunId, Shard, Timestamp};
use world::{Report, play};

const SHARDS: u8 = 2;
const COORDINATORS: usize = 3;
const WORKERS: usize = 4;
const CLIENTS: usize = 4;
const POOLS: [&str; 2] = ["alpha", "beta"];
const TOOLS: [&str; 3] = ["tool", "other", fleet::LIMITED];
const SEEDS: u64 = 200;
/// Progress is printed after so many worlds.
const WORLDS_REPORTED: u64 = 500;

fn run_id(shard: Shard, now: Timestamp, chance: u64) -> RunId {
    let text = format!("run_{shard}_{:012x}7{:03x}8{:03x}{:012x}", now.0, chance & 0xfff, 0, chance >> 16);
    text.parse().expect("a run id")
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The seeds that are played, and how many steps are enough.
fn seeds() -> (std::ops::Range<u64>, u64) {
    let first = from_environment("TOOLYARD_SEED");
    match (first, from_environment("TOOLYARD_STEPS")) {
        (_, Some(steps)) => (first.unwrap_or(0)..u64::MAX, steps),
        (Some(seed), None) => (seed..seed + 1, u64::MAX),
        (None, None) => (0..from_environment("TOOLYARD_SEEDS").unwrap_or(SEEDS), u64::MAX),
    }
}

fn play_well(seed: u64, flaw: Flaw) -> Report {
    let report = play(seed, flaw);
    if let Some(broken) = &report.broken {
        panic!("TOOLYARD_SEED={seed} breaks a promise after {} steps: {broken}\n{}", report.steps, report.story);
    }
    report
}

/// The first seed whose world breaks a promise.
fn first_broken(flaw: Flaw, seeds: u64) -> Option<u64> {
    (0..seeds).find(|seed| play(*seed, flaw).broken.is_some())
}

#[test]
fn the_promises_hold_whatever_happens() {
    let (seeds, enough) = seeds();
    let (mut steps, mut worlds) = (0, 0);
    for seed in seeds {
        steps += play_well(seed, Flaw::None).steps;
        worlds += 1;
        if worlds % WORLDS_REPORTED == 0 {
            println!("{steps} steps in {worlds} worlds, the last of seed {seed}");
        }
        if steps >= enough {
            break;
        }
    }
    println!("{steps} steps in {worlds} worlds keep the promises");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..5 {
        assert_eq!(play(seed, Flaw::None), play(seed, Flaw::None));
    }
    assert_ne!(play(0, Flaw::None).trace, play(1, Flaw::None).trace);
}

/// A simulation that cannot fail proves nothing: with each of these rules broken, some promise is.
#[test]
fn every_rule_that_is_broken_is_missed() {
    let flaws = [
        // The longest first.
        Flaw::UnfencedContinuation,
        Flaw::DeafWorker,
        Flaw::UnfencedStart,
        Flaw::UnfencedOpening,
        Flaw::EndlessEntries,
        Flaw::LateJobs,
        Flaw::UnfencedDispatch,
        Flaw::EagerOwner,
        Flaw::EarlyAck,
        Flaw::ForgetfulDoor,
        Flaw::AmbiguousAnswer,
        Flaw::UnconfirmedStart,
        Flaw::HastyAck,
        Flaw::IdleOwner,
        Flaw::EndlessLease,
        Flaw::UnfencedEviction,
        Flaw::HastyErasure,
        Flaw::UnfencedSnapshot,
        Flaw::ForgottenErasures,
        Flaw::ForgottenNotifications,
        Flaw::DeafToPauses,
        Flaw::UnfencedQuestion,
        Flaw::StrayAnswer,
    ];
    let (next, threads) = (AtomicUsize::new(0), std::thread::available_parallelism().map_or(1, NonZero::get));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(flaw) = flaws.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = first_broken(*flaw, 20_000);
                    println!("{flaw:?} breaks a promise in the world of seed {found:?}");
                    assert!(found.is_some(), "nobody misses the rule that {flaw:?} breaks");
                }
            });
        }
    });
}

/// Promises of dull worlds prove little.
#[test]
fn the_worlds_are_not_dull() {
    let mut tally: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..200 {
        for (what, count) in play(seed, Flaw::None).tally {
            *tally.entry(what).or_default() += count;
        }
    }
    let expected = [
        "called",
        "called once",
        "called after a delay",
        "cancelled",
        "completed",
        "continued",
        "done",
        "expired",
        "failed",
        "handed back",
        "taken back",
        "ended in the owner's place",
        "interrupted",
        "lease lost",
        "not heard",
        "read",
        "held up",
        "decided",
        "rejected",
        "told to stop",
        "too late",
        "unconfirmed",
        "worker lost",
        "evicted",
        "member lost",
        "snapshot",
        "snapshot refused",
        "erased",
        "orphan",
        "notified",
        "notified again",
        "slots counted",
        "a run packed",
        "asked",
        "asked again",
        "answer heard",
        "question ended",
        "answer refused",
    ];
    for what in expected {
        assert!(tally.get(what).is_some_and(|count| *count > 2), "{what} hardly happens: {tally:?}");
    }
}
