//! The tools that can be called and the workers that live, as their advertisements and heartbeats say. Pure: a snapshot
//! that is replaced when something changes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proto::schema::Schema;
use run::{Manifest, PoolId, ToolName, WorkerId};

#[derive(Debug, Clone, Default)]
pub(crate) struct Registry {
    tools: BTreeMap<ToolName, BTreeMap<PoolId, Hosted>>,
    workers: HashMap<WorkerId, Worker>,
    /// We listened for long enough that a worker that is not known does not live.
    pub(crate) settled: bool,
}

/// A worker as its last heartbeat described it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Worker {
    pub(crate) pool: PoolId,
    /// It takes calls, as far as it knows.
    pub(crate) pulling: bool,
}

/// A tool as one pool hosts it.
#[derive(Debug, Clone)]
pub(crate) struct Hosted {
    pub(crate) manifest: Arc<Manifest>,
    /// Compiled once, when it was advertised.
    pub(crate) schema: Schema,
}

impl Registry {
    /// A pool hosts these tools, and no others any more.
    pub(crate) fn advertise(&mut self, pool: &PoolId, tools: Vec<Hosted>) {
        self.tools.retain(|_, pools| {
            pools.remove(pool);
            !pools.is_empty()
        });
        for hosted in tools {
            self.tools.entry(hosted.manifest.name.clone()).or_default().insert(pool.clone(), hosted);
        }
    }

    /// Takes note of a worker; says whether that is news.
    pub(crate) fn worker_lives(&mut self, id: WorkerId, worker: Worker) -> bool {
        self.workers.insert(id, worker.clone()) != Some(worker)
    }

    pub(crate) fn worker_left(&mut self, worker: &WorkerId) -> bool {
        self.workers.remove(worker).is_some()
    }

    pub(crate) fn is_alive(&self, worker: &WorkerId) -> bool {
        self.workers.contains_key(worker)
    }

    pub(crate) fn live_workers(&self, pool: &PoolId) -> usize {
        self.workers.values().filter(|worker| worker.pool == *pool).count()
    }

    pub(crate) fn pulling_workers(&self, pool: &PoolId) -> usize {
        self.workers.values().filter(|worker| worker.pool == *pool && worker.pulling).count()
    }

    /// Where calls of a tool go: to a pool that lives, if there is one; among equals to the first by name.
    pub(crate) fn route(&self, tool: &ToolName) -> Option<(&PoolId, &Hosted)> {
        let pools = self.tools.get(tool)?;
        if pools.len() == 1 {
            return pools.first_key_value();
        }
        let alive = pools.iter().find(|(pool, _)| self.workers.values().any(|worker| worker.pool == **pool));
        alive.or_else(|| pools.first_key_value())
    }

    /// Tools in the order of their names, beginning after `after`.
    pub(crate) fn tools_after(
        &self,
        after: Option<&ToolName>,
    ) -> impl Iterator<Item = (&ToolName, &BTreeMap<PoolId, Hosted>)> {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.tools.range::<ToolName, _>((from, Bound::Unbounded))
    }

    pub(crate) fn tool(&self, name: &ToolName) -> Option<&BTreeMap<PoolId, Hosted>> {
        self.tools.get(name)
    }
}
