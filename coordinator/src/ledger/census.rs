//! Once a second every open call of our shards is looked at: whether its worker is lost or its pool has none, whether
//! its job is
//! out with nobody, and what it waits for, for the metrics. For half a millisecond at a time, between which entries and
//! requests have their turn: nobody waits until a hundred thousand calls are looked at.

use std::sync::Arc;
use std::time::Duration;

use run::RunId;
use tokio::time::Instant;

use super::Keeper;
use super::act::Lost;
use super::tally::Tallies;
use super::unclaimed::Waiting;
use crate::registry::Registry;

/// How often a look begins, unless the last one is not over.
const PERIOD: Duration = Duration::from_secs(1);
/// For how long runs are looked at in one step; one run is always looked at whole.
const STEP: Duration = Duration::from_micros(500);
/// The shortest pause between two steps. A longer step is followed by a pause of its own length.
const PAUSE: Duration = Duration::from_millis(1);

/// How far the look has come, and what was seen.
pub(super) struct Census {
    began: Instant,
    next: Instant,
    left: Vec<RunId>,
    tallies: Tallies,
    waiting: Vec<Waiting>,
}

impl Keeper {
    /// Begins to look at every open call, or looks at the next runs, when it is time. Runs that were opened since a
    /// look began have their turn in the next.
    pub(super) fn step_census(&mut self) {
        let now = Instant::now();
        if self.census.is_none() && self.census_due <= now {
            self.census_due = now + PERIOD;
            let leading = self.slices.iter().filter(|slice| slice.phase.leads());
            let left = leading.flat_map(|slice| slice.runs.keys().copied()).collect();
            let (tallies, waiting) = (Tallies::default(), Vec::new());
            self.census = Some(Census { began: now, next: now, left, tallies, waiting });
        }
        let Some(mut census) = self.census.take_if(|census| census.next <= now) else { return };
        let registry = Arc::clone(&self.rim.registry.borrow());
        let lost = self.look_at_some(&mut census, &registry, now);
        self.see_to(lost, proto::now());
        if census.left.is_empty() {
            let Census { began, tallies, waiting, .. } = census;
            self.tell_tallies(&tallies, &registry);
            self.look_at_queues(waiting, began.elapsed());
        } else {
            census.next = Instant::now() + now.elapsed().max(PAUSE);
            self.census = Some(census);
        }
    }

    fn look_at_some(&self, census: &mut Census, registry: &Registry, began: Instant) -> Lost {
        let (paused, now) = (self.rim.paused.borrow(), proto::now());
        let mut lost = Lost::default();
        while let Some(id) = census.left.pop() {
            let slice = self.slices.get(usize::from(id.shard().0)).filter(|slice| slice.phase.leads());
            if let Some(open) = slice.and_then(|slice| slice.runs.get(&id)) {
                let run = &open.known.run;
                lost.note(run, registry, now);
                for call in run.calls() {
                    census.tallies.note(run, call, registry);
                    census.waiting.extend(Waiting::of(run, call, registry, &paused, now));
                }
            }
            if began.elapsed() >= STEP {
                break;
            }
        }
        lost
    }

    /// When it is time for the next step.
    pub(super) fn next_of_census(&self) -> Instant {
        self.census.as_ref().map_or(self.census_due, |census| census.next)
    }
}
