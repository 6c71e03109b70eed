//! Which shards this coordinator owns, as all its parts see it.

use owner::Claims;
pub(crate) use owner::ShardSet;
use run::{Partition, Shard};
use tokio::time::Instant;

/// All numbers that a shard may have, also of partitions that do not exist.
pub(crate) fn every() -> impl Iterator<Item = Shard> + Clone {
    Partition::first(Partition::MAX).flat_map(Partition::shards)
}

/// The shards that this coordinator owns, and until when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owned {
    /// Until when it may act, by its own clock.
    pub(crate) until: Instant,
    claims: Claims,
    /// How many shards there are.
    shards: usize,
    /// Whether the releases of all coordinators know of carried runs.
    all_carry: bool,
}

impl Owned {
    pub(crate) fn new(until: Instant, claims: Claims, (shards, all_carry): (usize, bool)) -> Self {
        Self { until, claims, shards, all_carry }
    }

    /// No shards at all, for a coordinator that is not a member.
    pub(crate) fn nothing() -> Self {
        Self::new(Instant::now(), Claims::default(), (usize::from(Partition::SHARDS), false))
    }

    /// How many shards there are, owned by any coordinator.
    pub(crate) fn of_all(&self) -> usize {
        self.shards
    }

    /// Whether open runs may be carried beside the log: a coordinator of an older release would forget them.
    pub(crate) fn all_carry(&self) -> bool {
        self.all_carry
    }

    /// Whether this coordinator may act for the shard now.
    pub(crate) fn holds(&self, shard: Shard) -> bool {
        self.claims.keeps(shard) && Instant::now() < self.until
    }

    /// The shards for which this coordinator may act now.
    pub(crate) fn shards(&self) -> ShardSet {
        if Instant::now() < self.until { self.claims.kept() } else { ShardSet::default() }
    }

    /// The revision at which the shard was claimed, also when the lease has run out.
    pub(crate) fn claim(&self, shard: Shard) -> Option<u64> {
        self.claims.revision(shard)
    }

    /// The shards that are being released: they wait for their snapshots.
    pub(crate) fn leaving(&self) -> ShardSet {
        self.claims.leaving()
    }
}
