//! Concurrency slots for calls of tenants and tools with a limit of concurrent calls. Nothing is counted without such a
//! limit.

use std::sync::Arc;

use owner::slots::Known;
use run::RunId;

use super::OwnerTask;

/// How often calls are let begin in one go. Those whose turn in their pool has not come leave their slots to the next
/// ones; the rest is checked within a second.
const PASSES_MAX: usize = 16;

/// Limits of the calls that run at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limited {
    /// Whether a tenant or tool has one, so that running calls are counted.
    pub(super) is_on: bool,
    /// In which of our shards it is known what runs.
    pub(super) known: Known,
}

impl Default for Limited {
    fn default() -> Self {
        Self { is_on: false, known: Known::All }
    }
}

impl OwnerTask {
    /// Notes in which shards it is known which calls run.
    pub(super) fn look_at_takeovers(&mut self) {
        let known = Known::of(self.takeover_ages());
        let before = std::mem::replace(&mut self.limited.known, known);
        if let Known::Without(shards) = known
            && self.limited.is_on
            && before != known
        {
            tracing::warn!(
                shards,
                "calls with a limit go on although some shards cannot be read: their part of each limit is kept for \
                 what may run there"
            );
        }
    }

    /// Counts the running calls again, and checks the runs that wait for slots: other coordinators may have freed some,
    /// or limits changed.
    pub(super) fn count_running(&mut self) {
        let registry = Arc::clone(&self.io.registry.borrow());
        let was_limited = std::mem::replace(&mut self.limited.is_on, self.io.quotas.limits_running(&registry));
        self.look_at_takeovers();
        if self.limited.is_on {
            let leading = self.owner.shards().iter().filter(|shard| shard.phase().leads());
            let runs = leading.flat_map(|shard| shard.awake()).map(|(_, open)| &*open.known.run);
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
        if self.limited.known == Known::Soon {
            return;
        }
        for _ in 0..PASSES_MAX {
            let next = self.io.quotas.next_to_run(&self.io.registry.borrow(), self.limited.known);
            if next.is_empty() {
                return;
            }
            next.into_iter().for_each(|id| self.check_run(id));
        }
    }
}
