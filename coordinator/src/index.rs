//! Finds runs and calls: a projection of the log, which submission, execution and watching never wait for.
//!
//! ```text
//! owner ──note───▶ changed runs, one copy each ──every 100 ms──▶ store (memory or Redis) ◀── lists, counts
//! log ──────────── rebuild, if the store has fallen behind ────────▲
//! ```
//!
//! For each shard the store holds a *watermark*: the log position up to which it knows the shard. A watermark is moved
//! by compare-and-set. So a store that lost its content, or was given another, is detected, and the shard is read
//! again.

mod expired;
pub(crate) mod filter;
mod memory;
pub(crate) mod projector;
pub(crate) mod rebuild;
pub(crate) mod redis;
pub(crate) mod summary;
pub(crate) mod verify;
pub(crate) mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use owner::SHARDS_MAX;
use proto::v1::{CallState, RunStatus};
use run::{CallIndex, RunId, Shard, TenantId, Timestamp, ToolName};

use self::expired::Expired;
use self::filter::{Ask, CallFilter, Coverage, Key, Page, Place, RunFilter};
use self::memory::Memory;
pub(crate) use self::rebuild::RebuildError;
use self::summary::Summary;
use crate::index::redis::{RedisStore, UrlError};
use crate::nats::journal::Found;

/// Limits of counting the runs of a tenant: in total, and per request to the store.
const COUNTED_MAX: usize = 20_000;
const PAGE: usize = 500;

/// The store of the index. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) enum Index {
    /// In the memory of this process: it has the runs of the shards that it owns.
    Memory(Memory),
    /// Shared by all coordinators.
    Redis(RedisStore),
}

/// The store does not answer. Every request tries it again, so it recovers by itself.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the index cannot be read: {0}. Runs are executed without it")]
pub(crate) struct Unavailable(pub(crate) String);

/// The last log entry of a shard that the store includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watermark {
    pub(crate) through: u64,
    /// Set while a rebuild reads on from there, with a number unique to it.
    pub(crate) reading: Option<u64>,
}

impl Watermark {
    fn settled(through: u64) -> Self {
        Self { through, reading: None }
    }

    pub(crate) fn is_settled(self) -> bool {
        self.reading.is_none()
    }
}

/// How long runs that have ended are listed if a history keeps them for longer than the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) span: Duration,
    /// How long the history keeps them.
    pub(crate) retention: Duration,
}

impl Listed {
    /// Runs created before may be missing in the lists although the history has them; `None` if none is. `from`: what
    /// was created before was never read into the index.
    fn cut_before(self, from: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        let begin = now.before(self.retention);
        let listed_from = now.before(self.span.min(self.retention));
        Some(from.unwrap_or_default().max(listed_from)).filter(|cut| *cut > begin)
    }
}

/// The watermarks of all shards that there may be; `None` for a shard that is not in the store.
pub(crate) type Watermarks = [Option<Watermark>; SHARDS_MAX];

/// How much of all shards that there may be a store includes.
fn coverage(marks: &Watermarks, found: Found, cut_before: Option<Timestamp>) -> Coverage {
    let all = || marks.iter().take(found.at_most());
    let reading = all().flatten().filter(|mark| !mark.is_settled()).count();
    Coverage { reading, unread: all().filter(|mark| mark.is_none()).count(), cut_before }
}

/// Numbers of runs and calls by state.
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

    /// With a history of runs that have ended. In memory, the index has those of the log alone.
    pub(crate) fn listing(self, listed: Listed) -> Self {
        match self {
            Self::Memory(memory) => Self::Memory(memory.beside_history()),
            Self::Redis(redis) => Self::Redis(redis.listing(listed)),
        }
    }

    /// Notes that runs which have ended and were created before this moment may be missing, although the history has
    /// them.
    async fn cut(&self, before: Timestamp) -> Result<(), Unavailable> {
        match self {
            Self::Memory(memory) => {
                memory.cut(before);
                Ok(())
            }
            Self::Redis(redis) => redis.cut(before).await,
        }
    }

    /// The store that coordinators share, if there is one.
    pub(crate) fn redis(&self) -> Option<RedisStore> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => Some(redis.clone()),
        }
    }

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

    /// Counts the newest runs of a tenant. Both stores have a list of a tenant's runs, but no counts.
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

    /// Empties the index. The owners of the shards find their watermarks missing, and read the shards again.
    pub(crate) async fn wipe(&self) -> Result<(), Unavailable> {
        match self {
            Self::Memory(memory) => {
                memory.wipe();
                Ok(())
            }
            Self::Redis(redis) => redis.wipe().await,
        }
    }

    /// Writes summaries; an older one never replaces a newer one.
    async fn write(&self, summaries: Vec<Arc<Summary>>) -> Result<(), Unavailable> {
        match self {
            Self::Memory(memory) => {
                memory.write(summaries);
                Ok(())
            }
            Self::Redis(redis) => redis.write(&summaries).await,
        }
    }

    /// Removes these runs, unless the store has something of them that is newer than the given log entry.
    async fn erase(&self, runs: &[(RunId, u64)]) -> Result<(), Unavailable> {
        match self {
            Self::Memory(memory) => {
                memory.erase(runs);
                Ok(())
            }
            Self::Redis(redis) => redis.erase(runs).await,
        }
    }

    async fn marks(&self) -> Result<Watermarks, Unavailable> {
        match self {
            Self::Memory(memory) => Ok(memory.marks()),
            Self::Redis(redis) => redis.marks().await,
        }
    }

    /// Moves a watermark by compare-and-set. `false`: the store holds something else.
    async fn advance(&self, shard: Shard, from: Option<Watermark>, to: Watermark) -> Result<bool, Unavailable> {
        match self {
            Self::Memory(memory) => Ok(memory.advance(shard, from, to)),
            Self::Redis(redis) => redis.advance(shard, from, to).await,
        }
    }

    /// Binds the store to the log of this name; content of another log is removed.
    async fn belong_to(&self, log: &str) -> Result<(), Unavailable> {
        match self {
            // It was created after the process connected to its log.
            Self::Memory(_) => Ok(()),
            Self::Redis(redis) => redis.belong_to(log).await,
        }
    }

    fn note_found(&self, found: Found) {
        match self {
            Self::Memory(memory) => memory.note_found(found),
            Self::Redis(redis) => redis.note_found(found),
        }
    }

    /// Another coordinator owns the shard now.
    fn lose(&self, shard: Shard) {
        match self {
            Self::Memory(memory) => memory.forget(shard),
            Self::Redis(_) => {}
        }
    }

    /// Forgets runs that the log no longer holds. In Redis they stay if the history has them.
    async fn prune(&self, expired: &Expired) -> Result<(), Unavailable> {
        match self {
            Self::Memory(memory) => {
                memory.prune(expired);
                Ok(())
            }
            Self::Redis(redis) => redis.prune(expired).await,
        }
    }

    async fn get(&self, ids: &[RunId]) -> Result<Vec<Option<Arc<Summary>>>, Unavailable> {
        match self {
            Self::Memory(memory) => Ok(memory.get(ids)),
            Self::Redis(redis) => redis.get(ids).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_tell_what_they_lack_of_the_history_and_nothing_when_it_is_gone_there_too() {
        let (days, now) = (|days: u64| Duration::from_secs(86_400 * days), Timestamp(1_800_000_000_000));
        let all = Listed { span: days(30), retention: days(30) };
        assert_eq!(all.cut_before(None, now), None);
        let began = now.before(days(3));
        assert_eq!(all.cut_before(Some(began), now), Some(began), "older ones were not in the log");
        assert_eq!(all.cut_before(Some(began), began.after(days(30))), None, "the history has none of them any more");
        let some = Listed { span: days(7), ..all };
        assert_eq!(some.cut_before(None, now), Some(now.before(days(7))));
        assert_eq!(some.cut_before(Some(began), now), Some(began));
        let more = Listed { span: days(60), ..all };
        assert_eq!(more.cut_before(None, now), None);
    }
}
