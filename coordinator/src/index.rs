//! Finds runs and calls: a projection of the log, never on the way of submission, execution or watching.
//!
//! ```text
//! ledger ──note──▶ changed runs, one copy each ──every 100 ms──▶ store (memory, or Redis) ◀── lists, counts
//! log ──────────── rebuild, where the store has not kept up ────────▲
//! ```
//!
//! For each shard the store holds a *mark*: the place in the log through which it knows the shard. The mark moves only from
//! where its mover left it, so a store that lost or was given another content is noticed, and the shard is read again.

pub(crate) mod filter;
mod memory;
pub(crate) mod projector;
mod rebuild;
pub(crate) mod summary;
pub(crate) mod verify;
pub(crate) mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::names::SHARDS;
use proto::v1::{CallState, RunStatus};
use run::{CallIndex, RunId, Shard, TenantId, Timestamp, ToolName};

use self::filter::{Ask, CallFilter, Coverage, Key, Page, Place, RunFilter};
use self::memory::Memory;
pub(crate) use self::rebuild::RebuildError;
use self::summary::Summary;
use crate::redis::{RedisStore, UrlError};

/// Runs of a tenant that are counted, and how many of them at a time.
const COUNTED_MAX: usize = 20_000;
const PAGE: usize = 500;

/// Where the index is kept. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) enum Index {
    /// By this process alone: it knows the runs of the shards that it owns.
    Memory(Memory),
    /// By all coordinators together.
    Redis(RedisStore),
}

/// The store does not answer. It is tried again with every request, and heals by itself.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the index cannot be read: {0}. Runs go on without it")]
pub(crate) struct Unavailable(pub(crate) String);

/// Through which entry of the log the store knows a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) through: u64,
    /// Set while somebody reads on from there, and different for everybody who does.
    pub(crate) reading: Option<u64>,
}

impl Mark {
    fn settled(through: u64) -> Self {
        Self { through, reading: None }
    }

    pub(crate) fn is_settled(self) -> bool {
        self.reading.is_none()
    }
}

/// The marks of all shards; `None` where the store knows nothing.
pub(crate) type Marks = [Option<Mark>; SHARDS as usize];

/// How many runs and calls stand where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) runs: BTreeMap<RunStatus, u64>,
    pub(crate) calls: BTreeMap<CallState, u64>,
    pub(crate) tools: BTreeMap<ToolName, BTreeMap<CallState, u64>>,
    pub(crate) parked: u64,
}

impl Index {
    pub(crate) fn new(redis_url: Option<&str>, ca: Option<&std::path::Path>) -> Result<Self, UrlError> {
        Ok(match redis_url {
            Some(url) => Self::Redis(RedisStore::new(url, ca)?),
            None => Self::Memory(Memory::default()),
        })
    }

    /// The store that coordinators share, where there is one.
    pub(crate) fn redis(&self) -> Option<RedisStore> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => Some(redis.clone()),
        }
    }

    // ---- for doors ----

    pub(crate) async fn list_runs(
        &self,
        filter: &RunFilter,
        ask: Ask<Key>,
    ) -> Result<Page<Arc<Summary>, Key>, Unavailable> {
        match self {
            Self::Memory(memory) => Ok(memory.list_runs(filter, ask)),
            Self::Redis(redis) => redis.list_runs(filter, ask).await,
        }
    }

    pub(crate) async fn list_calls(
        &self,
        filter: &CallFilter,
        ask: Ask<Place>,
    ) -> Result<Page<(Arc<Summary>, CallIndex), Place>, Unavailable> {
        match self {
            Self::Memory(memory) => Ok(memory.list_calls(filter, ask)),
            Self::Redis(redis) => redis.list_calls(filter, ask).await,
        }
    }

    pub(crate) async fn count(&self) -> Result<(Counts, Coverage), Unavailable> {
        match self {
            Self::Memory(memory) => Ok(memory.count()),
            Self::Redis(redis) => redis.count().await,
        }
    }

    /// Counts the newest runs of a tenant, of which both stores keep a list and no counts.
    pub(crate) async fn count_of(&self, tenant: TenantId) -> Result<(Counts, Coverage), Unavailable> {
        let filter = RunFilter { tenant: Some(tenant), ..RunFilter::default() };
        let (mut counts, mut counted, mut behind) = (Counts::default(), 0, None);
        loop {
            let page = self.list_runs(&filter, Ask { size: PAGE, behind }).await?;
            counted += page.items.len();
            page.items.iter().for_each(|run| counts.add(run));
            behind = page.behind;
            match behind {
                Some(_) if counted < COUNTED_MAX => {}
                Some(last) => {
                    return Ok((counts, Coverage { cut_before: Some(last.created_at()), ..page.coverage }));
                }
                None => return Ok((counts, page.coverage)),
            }
        }
    }

    pub(crate) async fn coverage(&self) -> Result<Coverage, Unavailable> {
        match self {
            Self::Memory(memory) => Ok(memory.coverage()),
            Self::Redis(redis) => redis.coverage().await,
        }
    }

    /// Forgets everything. Whoever owns a shard misses its mark, and reads the shard again.
    pub(crate) async fn wipe(&self) -> Result<(), Unavailable> {
        match self {
            Self::Memory(memory) => {
                memory.wipe();
                Ok(())
            }
            Self::Redis(redis) => redis.wipe().await,
        }
    }

    // ---- for the projector ----

    /// Takes summaries in; an older one never takes the place of a newer one.
    async fn write(&self, summaries: Vec<Arc<Summary>>) -> Result<(), Unavailable> {
        match self {
            Self::Memory(memory) => {
                memory.write(summaries);
                Ok(())
            }
            Self::Redis(redis) => redis.write(&summaries).await,
        }
    }

    /// Forgets these runs, each unless something is known of it that is newer than an entry of the log.
    async fn erase(&self, runs: &[(RunId, u64)]) -> Result<(), Unavailable> {
        match self {
            Self::Memory(memory) => {
                memory.erase(runs);
                Ok(())
            }
            Self::Redis(redis) => redis.erase(runs).await,
        }
    }

    async fn marks(&self) -> Result<Marks, Unavailable> {
        match self {
            Self::Memory(memory) => Ok(memory.marks()),
            Self::Redis(redis) => redis.marks().await,
        }
    }

    /// Moves a mark, if it still stands where its mover believes. `false`: the store holds something else.
    async fn advance(&self, shard: Shard, from: Option<Mark>, to: Mark) -> Result<bool, Unavailable> {
        match self {
            Self::Memory(memory) => Ok(memory.advance(shard, from, to)),
            Self::Redis(redis) => redis.advance(shard, from, to).await,
        }
    }

    /// What the store holds is of the log with this name; of another log it is forgotten.
    async fn belong_to(&self, log: &str) -> Result<(), Unavailable> {
        match self {
            // It was born after the process connected to its log.
            Self::Memory(_) => Ok(()),
            Self::Redis(redis) => redis.belong_to(log).await,
        }
    }

    /// Another coordinator owns the shard now.
    fn lose(&self, shard: Shard) {
        match self {
            Self::Memory(memory) => memory.forget(shard),
            Self::Redis(_) => {}
        }
    }

    /// Forgets runs created before a moment: the log no longer holds them.
    async fn prune(&self, before: Timestamp) -> Result<(), Unavailable> {
        match self {
            Self::Memory(memory) => {
                memory.prune(before);
                Ok(())
            }
            Self::Redis(redis) => redis.prune(before).await,
        }
    }

    // ---- for the comparison with the log ----

    async fn get(&self, ids: &[RunId]) -> Result<Vec<Option<Arc<Summary>>>, Unavailable> {
        match self {
            Self::Memory(memory) => Ok(memory.get(ids)),
            Self::Redis(redis) => redis.get(ids).await,
        }
    }
}
