//! Tells the order of turns what the log says about calls, and dispatches those whose turn has come.

use std::sync::Arc;

use run::{CallIndex, Entry, Event, Fact, Run, Shard};

use super::{Io, OwnerTask};

/// How often turns are given on in one go; the rest has its turn within a second.
const PASSES_MAX: usize = 16;

impl OwnerTask {
    /// Dispatches calls whose turn has come. One that finds no slot of its tenant or tool gives its turn to the next.
    pub(super) fn hand_out(&mut self) {
        for _ in 0..PASSES_MAX {
            let granted = self.io.turns.granted();
            if granted.is_empty() {
                return;
            }
            granted.into_iter().for_each(|id| self.check_run(id));
        }
    }

    /// Counts the calls of a shard that we begin to act for.
    pub(super) fn count_turns(&self, shard: Shard) {
        let registry = Arc::clone(&self.io.registry.borrow());
        for (_, open) in self.owner.shard(shard).into_iter().flat_map(|shard| shard.awake()) {
            let run = &open.known.run;
            run.calls().iter().for_each(|call| self.io.turns.note(run, call, &registry));
        }
    }
}

/// Counts the calls of a run that an entry dispatched, began or ended.
pub(super) fn note_turns(io: &Io, run: &Run, entry: &Entry, heard: &[Fact]) {
    let dispatched = entry.events.iter().filter_map(|event| match event {
        Event::CallDispatched { call, .. } => Some(*call),
        _ => None,
    });
    let changed = heard.iter().filter_map(|heard| match heard {
        Fact::AttemptStarted { attempt, .. } | Fact::AttemptEnded { attempt } => Some(attempt.call),
        Fact::CallEnded { call } => Some(*call),
        _ => None,
    });
    let mut last: Option<CallIndex> = None;
    for index in dispatched.chain(changed) {
        // A start and an end in one entry are one change.
        if last.replace(index) != Some(index)
            && let Some(call) = run.call(index)
        {
            io.turns.note(run, call, &io.registry.borrow());
        }
    }
}
