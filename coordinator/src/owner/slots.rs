//! Concurrency slots for calls of tenants and tools with a limit of concurrent calls. Nothing is counted without such a
//! limit.

use std::sync::Arc;

use run::RunId;

use super::OwnerTask;

/// How often calls are let begin in one go. Those whose turn in their pool has not come leave their slots to the next
/// ones; the rest is checked within a second.
const PASSES_MAX: usize = 16;

impl OwnerTask {
    /// Counts the running calls again, and checks the runs that wait for slots: other coordinators may have freed some,
    /// or limits changed.
    pub(super) fn count_running(&mut self) {
        let registry = Arc::clone(&self.io.registry.borrow());
        let was_limited = std::mem::replace(&mut self.limited, self.io.quotas.limits_running(&registry));
        if self.limited {
            let leading = self.owner.shards().iter().filter(|shard| shard.phase().leads());
            let runs = leading.flat_map(|shard| shard.runs()).map(|(_, open)| &*open.known.run);
            self.io.quotas.count_running(runs, &registry);
            self.check_next();
        } else if was_limited {
            self.io.quotas.forget_running().into_iter().for_each(|id| self.check_run(id));
        }
    }

    /// Counts the running calls of a run. Returns whether a slot became free.
    pub(super) fn see_running(&self, id: RunId) -> bool {
        let registry = self.io.registry.borrow();
        self.owner.run(id).is_some_and(|known| self.io.quotas.see_running(&known.run, &registry))
    }

    /// Checks runs that wait for slots if some may be free.
    pub(super) fn check_next(&mut self) {
        if self.owner.shards().iter().any(|shard| shard.phase().is_taking_over()) {
            return;
        }
        for _ in 0..PASSES_MAX {
            let next = self.io.quotas.next_to_run(&self.io.registry.borrow());
            if next.is_empty() {
                return;
            }
            next.into_iter().for_each(|id| self.check_run(id));
        }
    }
}
