//! Sets of shards, and the shards that one coordinator has claimed.

use std::fmt;

use run::Shard;

/// The largest number of shards: a set of shards is one machine word.
pub const SHARDS_MAX: usize = u64::BITS as usize;

/// A set of shards.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardSet(u64);

impl ShardSet {
    /// The first `count` shards.
    #[must_use]
    pub fn first(count: u8) -> Self {
        (0..count).map(Shard).collect()
    }

    /// Adds a shard. Shard numbers of [`SHARDS_MAX`] and more are ignored: a run id of a caller may hold one.
    pub fn insert(&mut self, shard: Shard) {
        self.0 |= bit(shard);
    }

    /// Removes a shard.
    pub fn remove(&mut self, shard: Shard) {
        self.0 &= !bit(shard);
    }

    /// Whether the shard is in the set.
    #[must_use]
    pub fn contains(self, shard: Shard) -> bool {
        self.0 & bit(shard) != 0
    }

    /// Whether the set has no shard.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of shards.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The shards of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The shards that are not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The shards in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Shard> {
        (0..64).map(Shard).filter(move |shard| self.contains(*shard))
    }
}

impl FromIterator<Shard> for ShardSet {
    fn from_iter<I: IntoIterator<Item = Shard>>(shards: I) -> Self {
        let mut set = Self::default();
        shards.into_iter().for_each(|shard| set.insert(shard));
        set
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|shard| shard.0)).finish()
    }
}

fn bit(shard: Shard) -> u64 {
    1u64.checked_shl(u32::from(shard.0)).unwrap_or(0)
}

/// The shards that a coordinator has claimed, each with the revision of the shard's key at that time. A different
/// revision means that another coordinator may have owned the shard in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claims {
    /// 0 for a shard that is not claimed.
    revisions: [u64; SHARDS_MAX],
    /// Claimed shards that are being released: they wait for their snapshot, and the coordinator no longer acts for
    /// them.
    leaving: ShardSet,
}

impl Default for Claims {
    fn default() -> Self {
        Self { revisions: [0; SHARDS_MAX], leaving: ShardSet::default() }
    }
}

impl Claims {
    /// The revision at which the shard was claimed, also while it is being released.
    #[must_use]
    pub fn revision(&self, shard: Shard) -> Option<u64> {
        self.revisions.get(usize::from(shard.0)).copied().filter(|revision| *revision != 0)
    }

    /// All claimed shards, including those that are being released.
    #[must_use]
    pub fn claimed(&self) -> ShardSet {
        (0..64).map(Shard).filter(|shard| self.revision(*shard).is_some()).collect()
    }

    /// The shards that are being released.
    #[must_use]
    pub fn leaving(&self) -> ShardSet {
        self.leaving
    }

    /// The shards for which the coordinator may act as long as its lease lasts.
    #[must_use]
    pub fn kept(&self) -> ShardSet {
        self.claimed().without(self.leaving)
    }

    /// Whether the shard is claimed and not being released.
    #[must_use]
    pub fn keeps(&self, shard: Shard) -> bool {
        self.revision(shard).is_some() && !self.leaving.contains(shard)
    }

    pub(crate) fn take(&mut self, shard: Shard, revision: u64) {
        if let Some(claim) = self.revisions.get_mut(usize::from(shard.0)) {
            *claim = revision;
            self.leaving.remove(shard);
        }
    }

    pub(crate) fn leave(&mut self, shard: Shard) {
        self.leaving.insert(shard);
    }

    pub(crate) fn lose(&mut self, shard: Shard) {
        self.take(shard, 0);
    }
}
