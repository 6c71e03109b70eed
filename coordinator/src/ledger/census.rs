//! Once a second every open call of our shards is looked at: whether its worker is lost or its pool has none, whether its job is
//! out with nobody, and what it waits for, for the metrics. A few hundred runs at a time, between which entries and requests
//! have their turn: nobody waits until a hundred thousand calls are looked at.

use std::sync::Arc;
use std::time::Duration;

use run::RunId;
use tokio::time::Instant;

use super::Keeper;
use super::act::Lost;
use super::tally::Tallies;
use super::unclaimed::Waiting;

/// Runs that are looked at in one step: well under a millisecond.
const STEP: usize = 256;
/// Between two steps. A hundred thousand runs take 0.8 s.
const PAUSE: Duration = Duration::from_millis(2);

/// How far the look has come, and what was seen.
pub(super) struct Census {
    next: Instant,
    left: Vec<RunId>,
    tallies: Tallies,
    waiting: Vec<Waiting>,
}

impl Keeper {
    /// Begins to look at every open call, unless the last look is not over.
    pub(super) fn begin_census(&mut self) {
        if self.census.is_some() {
            return;
        }
        let left = self.slices.iter().filter(|slice| slice.phase.leads()).flat_map(|slice| slice.runs.keys().copied());
        let (next, left) = (Instant::now(), left.collect());
        self.census = Some(Census { next, left, tallies: Tallies::default(), waiting: Vec::new() });
    }

    /// Looks at the next runs, when it is time. Those that were opened since the look began have their turn in the next look.
    pub(super) fn step_census(&mut self) {
        let Some(mut census) = self.census.take_if(|census| census.next <= Instant::now()) else { return };
        let (registry, paused, now) = (Arc::clone(&self.rim.registry.borrow()), self.rim.paused.borrow(), proto::now());
        let mut lost = Lost::default();
        let rest = census.left.len().saturating_sub(STEP);
        for id in census.left.drain(rest..) {
            let Some(slice) = self.slices.get(usize::from(id.shard().0)).filter(|slice| slice.phase.leads()) else {
                continue;
            };
            let Some(open) = slice.runs.get(&id) else { continue };
            let run = &open.known.run;
            lost.note(run, &registry, now);
            for call in run.calls() {
                census.tallies.note(run, call, &registry);
                census.waiting.extend(Waiting::of(run, call, &registry, &paused, now));
            }
        }
        drop(paused);
        self.see_to(lost, now);
        if census.left.is_empty() {
            let Census { tallies, waiting, .. } = census;
            self.tell_tallies(&tallies, &registry);
            self.look_at_queues(waiting);
        } else {
            census.next = Instant::now() + PAUSE;
            self.census = Some(census);
        }
    }
}

/// Waits until it is time for the next step.
pub(super) async fn turn(census: Option<&Census>) {
    match census {
        Some(census) => tokio::time::sleep_until(census.next).await,
        None => std::future::pending().await,
    }
}
