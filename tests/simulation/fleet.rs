//! A coordinator's knowledge beside the log: living workers, held shards, paused tools and pools, and the slots of the
//! one tool with a limit. Each coordinator counts its own slots here. In the product they share the count.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use owner::{Slot, Workers, World};
use run::{Call, CallError, CallIndex, CallSpec, CallState, PoolId, Route, Run, RunId, Shard, TenantId, WorkerId};

use crate::SHARDS;
use crate::net::Paused;

/// The tool with a limit of concurrent calls.
pub(crate) const LIMITED: &str = "limited";
const SLOTS: usize = 2;

pub(crate) struct Fleet {
    pub(crate) alive: BTreeMap<WorkerId, PoolId>,
    pub(crate) are_known: bool,
    pub(crate) holds: [bool; SHARDS as usize],
    pub(crate) paused: Paused,
    pub(crate) slots: Rc<RefCell<Slots>>,
}

/// The calls of the limited tool that run.
#[derive(Default)]
pub(crate) struct Slots {
    pub(crate) is_counted: bool,
    taken: BTreeSet<(RunId, CallIndex)>,
}

impl Slots {
    fn take(&mut self, run: RunId, call: CallIndex) -> Slot {
        if !self.is_counted {
            return Slot::Uncounted;
        }
        if self.taken.len() < SLOTS {
            self.taken.insert((run, call));
        }
        if self.taken.contains(&(run, call)) { Slot::Free } else { Slot::Full }
    }

    /// Notes which calls of a run are in flight. Returns whether a slot has become free.
    pub(crate) fn see(&mut self, run: &Run) -> bool {
        let before = self.taken.len();
        for call in run.calls().iter().filter(|call| call.spec().tool.as_str() == LIMITED) {
            let place = (run.id(), call.index());
            match call.state() {
                CallState::Queued { .. } | CallState::Running(_) => _ = self.taken.insert(place),
                CallState::Ended(_) => _ = self.taken.remove(&place),
                CallState::Accepted
                | CallState::AwaitingApproval
                | CallState::Delayed
                | CallState::WaitingForClient => {}
            }
        }
        self.taken.len() < before
    }

    /// A shard is not ours any more.
    pub(crate) fn forget(&mut self, shard: Shard) {
        self.taken.retain(|(run, _)| run.shard() != shard);
    }
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

    fn take_slot(&self, run: &Run, call: &Call) -> Slot {
        match call.spec().tool.as_str() {
            LIMITED => self.slots.borrow_mut().take(run.id(), call.index()),
            _ => Slot::Free,
        }
    }

    fn denial(&self, _: &Run, _: &Call) -> Option<CallError> {
        None
    }

    fn is_tool_paused(&self, call: &CallSpec) -> bool {
        self.paused.tools.contains_key(call.tool.as_str())
    }

    fn is_pool_paused(&self, pool: &PoolId) -> bool {
        self.paused.pools.contains_key(pool.as_str())
    }
}
