//! Checks all open calls of our shards once a second, except those of runs at rest: whether their worker is lost or
//! their pool has none, whether their job was delivered but not started, and, for the metrics, the reason for which
//! they wait. A step takes half a millisecond. Entries and requests are processed between the steps, so they do not
//! wait until a hundred thousand calls are checked.

use std::sync::Arc;
use std::time::Duration;

use owner::World as _;
use run::RunId;
use tokio::time::Instant;

use super::surroundings::Surroundings;
use super::tally::Tallies;
use super::{OwnerTask, leads};

/// The interval of rounds. A round only begins after the previous one has ended.
const PERIOD: Duration = Duration::from_secs(1);
/// The duration of one step. A run is always checked as a whole.
const STEP: Duration = Duration::from_micros(500);
/// The shortest pause between two steps. A longer step is followed by a pause of its own length.
const PAUSE: Duration = Duration::from_millis(1);

/// The progress of a round and its results.
pub(super) struct Census {
    began: Instant,
    next: Instant,
    left: Vec<RunId>,
    tallies: Tallies,
}

impl OwnerTask {
    /// Begins a round over all open calls, or checks the next runs, if it is due. Runs opened after a round began are
    /// checked in the next one.
    pub(super) fn step_census(&mut self) {
        let now = Instant::now();
        if self.census.is_none() && self.census_due <= now {
            self.census_due = now + PERIOD;
            let leading = self.owner.shards().iter().filter(|shard| shard.phase().leads());
            let (mut left, mut tallies) = (Vec::new(), Tallies::default());
            for shard in leading {
                left.extend(shard.awake().map(|(id, _)| id));
                tallies.note_resting(shard.resting().waiting());
            }
            self.census = Some(Census { began: now, next: now, left, tallies });
        }
        let Some(mut census) = self.census.take_if(|census| census.next <= now) else { return };
        self.check_some(&mut census, now);
        if census.left.is_empty() {
            let registry = Arc::clone(&self.io.registry.borrow());
            self.tell_tallies(&census.tallies, &registry);
            self.owner.handle_all_checked(census.began.elapsed());
        } else {
            census.next = Instant::now() + now.elapsed().max(PAUSE);
            self.census = Some(census);
        }
    }

    fn check_some(&mut self, census: &mut Census, began: Instant) {
        let world = Surroundings::new(&self.io, self.limited);
        let now = ::nats::now();
        while let Some(id) = census.left.pop() {
            self.owner.check_workers(id, now, &world);
            if leads(&self.owner, id.shard())
                && let Some(known) = self.owner.run(id)
            {
                for call in known.run.calls() {
                    let in_turn = self.io.turns.check(&known.run, call, world.workers());
                    census.tallies.note(&known.run, (call, in_turn), world.workers());
                }
            }
            self.owner.let_rest(id, now);
            if began.elapsed() >= STEP {
                break;
            }
        }
    }

    /// When the next step is due.
    pub(super) fn next_of_census(&self) -> Instant {
        self.census.as_ref().map_or(self.census_due, |census| census.next)
    }
}
