//! The callable tools and the live workers. Pure: a snapshot that is replaced on changes, in which finding a tool is
//! one lookup.

mod catalog;
#[cfg(test)]
mod tests;
mod views;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use proto::convert::worker::WorkerSandbox;
use run::{CallError, CallSpec, ErrorKind, PoolId, Route, TenantId, ToolName, ToolSetId, Version, WorkerId};

pub(crate) use catalog::{Catalog, Differing, Entry, Hosted, Refused, Unusable, proves_a_claim};
pub(crate) use views::Views;

use crate::fleet::pools::Closed;

/// The error of a call of a tool that its caller may not call.
pub(crate) fn not_permitted(tool: &ToolName, why: &str) -> CallError {
    CallError::new(ErrorKind::NotPermitted, format!("{tool} may not be called here: {why}"))
}

/// The workers of a pool that host the same tools.
pub(crate) type Hosts = (PoolId, ToolSetId);

#[derive(Debug, Clone, Default)]
pub(crate) struct Registry {
    /// The tools of all pools.
    pub(crate) catalog: Arc<Catalog>,
    /// What each tenant can use of them.
    pub(crate) views: Arc<Views>,
    /// Workers by pool first, because the broker authenticates the pool, while the id is the worker's own claim.
    pools: HashMap<PoolId, Pool>,
    /// We have received heartbeats for long enough that an unknown worker is not alive.
    pub(crate) settled: bool,
    /// Pools that are started when they have calls.
    pub(crate) on_demand: Arc<HashSet<PoolId>>,
}

#[derive(Debug, Clone, Default)]
struct Pool {
    workers: HashMap<WorkerId, Worker>,
    living: Living,
    /// The same, for the workers that host the same tools.
    by_set: HashMap<ToolSetId, Living>,
}

/// A worker according to its last heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Worker {
    pub(crate) tools: ToolSetId,
    /// Whether it is pulling calls.
    pub(crate) pulling: bool,
    /// Calls that it may run concurrently.
    pub(crate) slots: u32,
    /// It takes no more calls, and those that it runs may end.
    pub(crate) draining: bool,
    /// The release of its library; empty if it does not report it.
    pub(crate) release: String,
    /// How it confines programs, as far as it says.
    pub(crate) sandbox: Option<WorkerSandbox>,
    /// The hooks that it calls about the ends of executions, by name.
    pub(crate) hooks: Vec<String>,
}

/// Numbers of live workers of a pool.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Living {
    pub(crate) live: usize,
    /// Those that take more calls, because they do not drain.
    pub(crate) taking: usize,
    /// Of those, the ones that pull jobs.
    pub(crate) pulling: usize,
    /// Slots of all workers that take more calls.
    pub(crate) slots: u64,
}

impl Living {
    fn of(worker: &Worker) -> Self {
        let takes = !worker.draining;
        Self {
            live: 1,
            taking: usize::from(takes),
            pulling: usize::from(takes && worker.pulling),
            slots: if takes { u64::from(worker.slots) } else { 0 },
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            live: self.live + other.live,
            taking: self.taking + other.taking,
            pulling: self.pulling + other.pulling,
            slots: self.slots + other.slots,
        }
    }

    fn without(self, other: Self) -> Self {
        Self {
            live: self.live.saturating_sub(other.live),
            taking: self.taking.saturating_sub(other.taking),
            pulling: self.pulling.saturating_sub(other.pulling),
            slots: self.slots.saturating_sub(other.slots),
        }
    }
}

impl Pool {
    fn count(&mut self, worker: &Worker) {
        self.living = self.living.and(Living::of(worker));
        let set = self.by_set.entry(worker.tools.clone()).or_default();
        *set = set.and(Living::of(worker));
    }

    fn uncount(&mut self, worker: &Worker) {
        self.living = self.living.without(Living::of(worker));
        if let Some(set) = self.by_set.get_mut(&worker.tools) {
            *set = set.without(Living::of(worker));
            if set.live == 0 {
                self.by_set.remove(&worker.tools);
            }
        }
    }
}

impl Registry {
    pub(crate) fn new(on_demand: HashSet<PoolId>) -> Self {
        Self { on_demand: Arc::new(on_demand), ..Self::default() }
    }

    /// Records a worker's heartbeat; returns whether it changed anything.
    pub(crate) fn worker_lives(&mut self, pool: PoolId, id: WorkerId, worker: Worker) -> bool {
        let pool = self.pools.entry(pool).or_default();
        let before = pool.workers.insert(id, worker.clone());
        let changed = before.as_ref() != Some(&worker);
        if changed {
            before.iter().for_each(|before| pool.uncount(before));
            pool.count(&worker);
        }
        changed
    }

    pub(crate) fn worker_left(&mut self, pool: &PoolId, id: &WorkerId) -> bool {
        let Some(pool) = self.pools.get_mut(pool) else { return false };
        let left = pool.workers.remove(id);
        left.iter().for_each(|left| pool.uncount(left));
        left.is_some()
    }

    pub(crate) fn is_alive(&self, pool: &PoolId, worker: &WorkerId) -> bool {
        self.pools.get(pool).is_some_and(|pool| pool.workers.contains_key(worker))
    }

    /// Workers with this id, of any pool.
    pub(crate) fn named<'a>(&'a self, id: &'a WorkerId) -> impl Iterator<Item = (&'a PoolId, &'a Worker)> {
        self.pools.iter().filter_map(move |(pool, workers)| Some((pool, workers.workers.get(id)?)))
    }

    /// All live workers, in the order of their ids and pools.
    pub(crate) fn workers(&self) -> BTreeMap<(&WorkerId, &PoolId), &Worker> {
        let all = self.pools.iter();
        all.flat_map(|(pool, of)| of.workers.iter().map(move |(id, worker)| ((id, pool), worker))).collect()
    }

    pub(crate) fn living(&self, pool: &PoolId) -> Living {
        self.pools.get(pool).map(|pool| pool.living).unwrap_or_default()
    }

    /// All pools that host a tool, or that had a live worker since this process started.
    pub(crate) fn pools(&self) -> BTreeSet<PoolId> {
        let hosts = self.catalog.after(None).iter().flat_map(Entry::all_pools);
        self.pools.keys().chain(hosts).cloned().collect()
    }

    /// The live workers of a pool that host a tool.
    pub(crate) fn living_hosts(&self, pool: &PoolId, entry: &Entry) -> Living {
        self.living_since(pool, entry.of(pool), None)
    }

    /// Of these, the ones that host this version or a newer one.
    fn living_since(&self, pool: &PoolId, entry: &Entry, oldest: Option<&Version>) -> Living {
        let Some(of) = self.pools.get(pool) else { return Living::default() };
        let sets = entry.sets.iter().filter(|((hosting, _), version)| hosting == pool && version.as_ref() >= oldest);
        sets.filter_map(|((_, set), _)| of.by_set.get(set)).fold(Living::default(), |all, set| all.and(*set))
    }

    /// How many workers can take a call of a pool: those that host its tool and run the hooks that it requires.
    /// `tenant`: whose view of the tool counts.
    pub(crate) fn takers(&self, call: &CallSpec, tenant: Option<&TenantId>) -> usize {
        let Route::Pool { pool, version, .. } = &call.route else { return 0 };
        let Some(entry) = self.catalog_of(tenant).find(&call.tool).map(|entry| entry.of(pool)) else { return 0 };
        if call.required_hooks.is_empty() {
            return self.living_since(pool, entry, version.as_ref()).taking;
        }
        let hosts = |worker: &&Worker| {
            let mut sets = entry.sets.iter().filter(|((hosting, _), _)| hosting == pool);
            sets.any(|((_, set), of)| *set == worker.tools && of.as_ref() >= version.as_ref())
        };
        let takes =
            |worker: &&Worker| !worker.draining && call.required_hooks.iter().all(|it| worker.hooks.contains(it));
        let workers = self.pools.get(pool).into_iter().flat_map(|pool| pool.workers.values());
        workers.filter(takes).filter(hosts).count()
    }

    /// The hosts of something.
    pub(crate) fn hosts(&self) -> HashSet<Hosts> {
        let all = self.pools.iter();
        all.flat_map(|(pool, of)| of.workers.values().map(|worker| (pool.clone(), worker.tools.clone()))).collect()
    }

    /// Workers by name, at most `max` of them, so that a person can find the faulty one.
    pub(crate) fn workers_of(&self, (pool, tools): &Hosts, max: usize) -> Vec<WorkerId> {
        let of = self.pools.get(pool).into_iter().flat_map(|pool| &pool.workers);
        let mut ids: Vec<WorkerId> =
            of.filter(|(_, worker)| worker.tools == *tools).map(|(id, _)| id.clone()).collect();
        ids.sort();
        ids.truncate(max);
        ids
    }

    /// The tools that a tenant can use; all for runs without a tenant, which belong to the operator.
    pub(crate) fn catalog_of(&self, tenant: Option<&TenantId>) -> &Catalog {
        tenant.and_then(|tenant| self.views.of(tenant)).unwrap_or(&self.catalog)
    }

    /// The tool behind an alias, for a tenant; `None` if the name is no alias.
    pub(crate) fn alias_of(&self, tool: &ToolName, tenant: Option<&TenantId>) -> Option<ToolName> {
        self.catalog_of(tenant).find(tool)?.alias_of.clone()
    }

    /// The pool for calls of a tool: one in which it is alive, if there is one. Of several pools each gets as many
    /// calls as its workers have slots for, on average. A version that is being rolled out gets its share of the calls
    /// that are `fit` for it.
    pub(crate) fn route(
        &self,
        tool: &ToolName,
        tenant: Option<&TenantId>,
        fit: impl FnOnce(&Entry) -> bool,
    ) -> Option<(&PoolId, &Entry)> {
        let listed = self.catalog_of(tenant).find(tool)?;
        let takes = |entry: &Entry| entry.pools.iter().any(|pool| self.living_hosts(pool, entry).taking > 0);
        let next = listed.beside.as_ref().filter(|beside| rand::random_range(0..100) < beside.share);
        let next = next.map(|beside| &beside.entry).filter(|entry| takes(entry) && fit(entry));
        let entry = next.unwrap_or(listed);
        if let [pool] = entry.pools.as_slice() {
            return Some((pool, entry));
        }
        let slots = |pool: &PoolId| match self.living(pool) {
            Living { taking: 0, .. } => 0,
            living => living.slots.max(1),
        };
        let all: u64 = entry.pools.iter().map(slots).sum();
        let mut place = if all == 0 { 0 } else { rand::random_range(0..all) };
        let chosen = entry.pools.iter().find(|pool| {
            let slots = slots(pool);
            let is_here = place < slots;
            place = place.saturating_sub(slots);
            is_here
        });
        Some((chosen.or_else(|| entry.pools.first())?, entry))
    }

    /// Why a tool of a pool is closed to a tenant.
    pub(crate) fn closed_to(&self, tenant: Option<&TenantId>, tool: &ToolName) -> Option<CallError> {
        let (tenant, entry) = (tenant?, self.catalog.find(tool)?);
        let closed = |pool| self.views.closed(pool, tenant).map(|closed| (closed, pool));
        // The reason that the operator can fix is preferred to the one that other tenants own the pool.
        let why = entry.all_pools().filter_map(closed).max_by_key(|(closed, _)| *closed == Closed::NotShared);
        why.map(|(closed, pool)| not_permitted(tool, &closed.why(pool)))
    }

    /// The real name of a tool that may have been requested by another name.
    pub(crate) fn real_name<'a>(&'a self, tool: &'a ToolName) -> &'a ToolName {
        self.catalog.find(tool).map_or(tool, |entry| &entry.hosted.manifest.name)
    }

    /// Whether a tool is offered: a worker hosts it, may host it as far as is known yet, or will once it is called.
    pub(crate) fn is_available(&self, entry: &Entry) -> bool {
        entry.is_hosted || !self.settled || entry.pools.iter().any(|pool| self.on_demand.contains(pool))
    }
}

/// All sets of tools that are advertised, from which catalogs are made.
pub(crate) type Sets = BTreeMap<Hosts, Set>;

/// Tools that are advertised together.
#[derive(Debug)]
pub(crate) struct Set {
    /// Its position among all advertisements: the lowest came first.
    pub(crate) revision: u64,
    pub(crate) tools: Vec<Hosted>,
    pub(crate) unusable: Vec<Unusable>,
}
