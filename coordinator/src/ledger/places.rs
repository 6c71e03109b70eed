//! Places for calls of tenants and tools that may have only so many running at once. Nothing is looked at where nobody is
//! limited.

use std::sync::Arc;

use run::{Effect, Run, RunId};

use super::slice::Phase;
use super::{Keeper, Rim};

impl Keeper {
    /// Counts anew what runs, and looks at what waits for places: others may have left some, or limits changed.
    pub(super) fn count_running(&mut self) {
        let registry = Arc::clone(&self.rim.registry.borrow());
        let was_limited = std::mem::replace(&mut self.limited, self.rim.quotas.limits_running(&registry));
        if self.limited {
            let leading = self.slices.iter().filter(|slice| slice.phase.leads());
            let runs = leading.flat_map(|slice| slice.runs.values()).map(|open| &*open.known.run);
            self.rim.quotas.count_running(runs, &registry);
            self.look_at_next();
        } else if was_limited {
            self.rim.quotas.forget_running().into_iter().for_each(|id| self.look_at(id));
        }
    }

    /// Takes note of what runs of a run. Says whether a place became free.
    pub(super) fn see_running(&self, id: RunId) -> bool {
        let registry = self.rim.registry.borrow();
        self.open(id).is_some_and(|open| self.rim.quotas.see_running(&open.known.run, &registry))
    }

    /// A shard is ours whose runs are not all read yet.
    pub(super) fn is_taking_over(&self) -> bool {
        self.slices.iter().any(|slice| matches!(slice.phase, Phase::Taking { .. } | Phase::Replaying { .. }))
    }

    pub(super) fn look_at_next(&mut self) {
        if self.is_taking_over() {
            return;
        }
        let next = self.rim.quotas.next_to_run(&self.rim.registry.borrow());
        next.into_iter().for_each(|id| self.look_at(id));
    }
}

/// Whether a call is to be dispatched while somebody is limited: then it must be known what runs.
pub(super) fn are_wanted(effects: &[Effect], rim: &Rim) -> bool {
    let dispatches = |effect: &Effect| matches!(effect, Effect::Dispatch { .. });
    effects.iter().any(dispatches) && rim.quotas.limits_running(&rim.registry.borrow())
}

/// Leaves of what is outstanding what can be done now: a call for which there is no place is dispatched later.
pub(super) fn leave(effects: &mut Vec<Effect>, run: &Run, rim: &Rim, knows_all: bool) {
    let registry = rim.registry.borrow();
    effects.retain(|effect| match effect {
        Effect::Dispatch { call } => {
            run.call(*call).is_some_and(|call| rim.quotas.begin(run, call, &registry, knows_all))
        }
        Effect::Stop { .. }
        | Effect::Decide { .. }
        | Effect::Cancel { .. }
        | Effect::Expire { .. }
        | Effect::Refuse { .. }
        | Effect::Close
        | Effect::ExpireRun => true,
    });
}
