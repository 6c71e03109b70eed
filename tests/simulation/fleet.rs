//! A coordinator's knowledge beside the log: living workers and held shards. Nothing is paused or limited here.

use std::collections::BTreeMap;

use owner::{Slot, Workers, World};
use run::{Call, CallError, CallSpec, PoolId, Route, Run, Shard, TenantId, WorkerId};

use crate::SHARDS;

pub(crate) struct Fleet {
    pub(crate) alive: BTreeMap<WorkerId, PoolId>,
    pub(crate) are_known: bool,
    pub(crate) holds: [bool; SHARDS as usize],
}

impl Workers for Fleet {
    fn are_known(&self) -> bool {
        self.are_known
    }

    fn is_alive(&self, pool: &PoolId, worker: &WorkerId) -> bool {
        self.alive.get(worker) == Some(pool)
    }

    fn takers(&self, call: &CallSpec, _: Option<&TenantId>) -> usize {
        let Route::Pool { pool, .. } = &call.route else { return 0 };
        self.alive.values().filter(|of| *of == pool).count()
    }

    fn keeps_unstarted(&self, _: &CallSpec, _: Option<&TenantId>) -> bool {
        false
    }
}

impl World for Fleet {
    type Workers = Self;

    fn workers(&self) -> &Self {
        self
    }

    fn holds(&self, shard: Shard) -> bool {
        self.holds.get(usize::from(shard.0)).copied().unwrap_or(false)
    }

    fn take_slot(&self, _: &Run, _: &Call) -> Slot {
        Slot::Free
    }

    fn denial(&self, _: &Run, _: &Call) -> Option<CallError> {
        None
    }

    fn is_tool_paused(&self, _: &CallSpec) -> bool {
        false
    }

    fn is_pool_paused(&self, _: &PoolId) -> bool {
        false
    }
}
