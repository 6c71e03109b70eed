//! The inputs of the owner's decisions besides the log: the registry, the lease, quotas and pauses.

use std::cell::OnceCell;
use std::sync::Arc;

use owner::{Slot, Workers, World};
use run::{Call, CallError, CallSpec, PoolId, Route, Run, Shard, TenantId, WorkerId};

use super::slots::Limited;
use super::{Io, OwnerTask};
use crate::fleet::registry::Registry;

/// Cheap to make: the registry is borrowed when it is first needed.
pub(super) struct Surroundings<'a> {
    io: &'a Io,
    registry: OnceCell<Arc<Registry>>,
    limited: Limited,
}

impl OwnerTask {
    pub(super) fn surroundings(&self) -> Surroundings<'_> {
        Surroundings::new(&self.io, self.limited)
    }
}

impl<'a> Surroundings<'a> {
    pub(super) fn new(io: &'a Io, limited: Limited) -> Self {
        Self { io, registry: OnceCell::new(), limited }
    }
}

fn slot(has_turn: bool) -> Slot {
    if has_turn { Slot::Free } else { Slot::Full }
}

impl World for Surroundings<'_> {
    type Workers = Registry;

    fn workers(&self) -> &Registry {
        self.registry.get_or_init(|| Arc::clone(&self.io.registry.borrow()))
    }

    fn holds(&self, shard: Shard) -> bool {
        self.io.owned.borrow().holds(shard)
    }

    fn take_slot(&self, run: &Run, call: &Call) -> Slot {
        let registry = self.workers();
        if self.is_tool_paused(call.spec()) {
            // It is not dispatched, and checked again until the tool is resumed.
            self.io.turns.leave(run.id(), call.index());
            return Slot::Free;
        }
        if !self.limited.is_on {
            let is_uncounted = self.io.quotas.limits_running(registry);
            let has_turn = || self.io.turns.take(run, call, registry);
            return if is_uncounted { Slot::Uncounted } else { slot(has_turn()) };
        }
        if self.io.turns.is_waiting(run.id(), call.index()) {
            return Slot::Full;
        }
        // First the slot of its tenant or tool: a call without one must not keep a place in the pool's turns, and asks
        // for its turn when a slot is free.
        if !self.io.quotas.begin(run, call, registry, self.limited.known) {
            self.io.turns.give_back(run.id(), call.index());
            return Slot::Full;
        }
        let has_turn = self.io.turns.take(run, call, registry);
        if !has_turn {
            self.io.quotas.give_back(run.id(), call.index());
        }
        slot(has_turn)
    }

    fn denial(&self, run: &Run, call: &Call) -> Option<CallError> {
        let (spec, registry) = (call.spec(), self.workers());
        let listed = registry.catalog_of(run.tenant()).find(&spec.tool);
        let entry = match &spec.route {
            Route::Pool { pool, .. } => listed.map(|entry| entry.of(pool)),
            Route::Client | Route::Refused(_) | Route::Answered(_) => listed,
        };
        let closed = || match &spec.route {
            Route::Pool { pool, .. } => registry.views.keeps_from(pool, &spec.tool, run.tenant()),
            Route::Client | Route::Refused(_) | Route::Answered(_) => None,
        };
        self.io.callers.keeps_from(run, &spec.tool, entry).or_else(closed)
    }

    fn is_tool_paused(&self, call: &CallSpec) -> bool {
        let paused = self.io.paused.borrow();
        paused.tools().next().is_some() && paused.holds(self.workers().real_name(&call.tool))
    }

    fn is_pool_paused(&self, pool: &PoolId) -> bool {
        self.io.paused.borrow().stops(pool)
    }
}

impl Workers for Registry {
    fn are_known(&self) -> bool {
        self.settled
    }

    fn is_alive(&self, pool: &PoolId, worker: &WorkerId) -> bool {
        self.is_alive(pool, worker)
    }

    fn takers(&self, call: &CallSpec, tenant: Option<&TenantId>) -> usize {
        self.takers(call, tenant)
    }

    fn keeps_unstarted(&self, call: &CallSpec, tenant: Option<&TenantId>) -> bool {
        let Route::Pool { pool, .. } = &call.route else { return false };
        let tool = self.catalog_of(tenant).find(&call.tool);
        tool.is_some_and(|tool| tool.of(pool).hosted.manifest.max_concurrent.is_some())
    }
}
