//! Sets of shards, and the shards that one coordinator has claimed.

use std::fmt;

use run::{Partition, Shard};

/// The largest number of shards: the number of a shard is one byte.
pub const SHARDS_MAX: usize = Partition::MAX * Partition::SHARDS as usize;
const WORDS: usize = SHARDS_MAX / u64::BITS as usize;

/// A set of shards, a bit for each.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardSet([u64; WORDS]);

impl ShardSet {
    /// The first `count` shards.
    #[must_use]
    pub fn first(count: usize) -> Self {
        (0..=u8::MAX).take(count).map(Shard).collect()
    }

    /// Adds a shard.
    pub fn insert(&mut self, shard: Shard) {
        let (word, bit) = place(shard);
        self.0[word] |= bit;
    }

    /// Removes a shard.
    pub fn remove(&mut self, shard: Shard) {
        let (word, bit) = place(shard);
        self.0[word] &= !bit;
    }

    /// Whether the shard is in the set.
    #[must_use]
    pub fn contains(self, shard: Shard) -> bool {
        let (word, bit) = place(shard);
        self.0[word] & bit != 0
    }

    /// Whether the set has no shard.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == [0; WORDS]
    }

    /// The number of shards.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The shards of both sets.
    #[must_use]
    pub fn union(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
        self
    }

    /// The shards that are in both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        self.without(self.without(other))
    }

    /// The shards that are not in `other`.
    #[must_use]
    pub fn without(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word &= !other);
        self
    }

    /// The shards in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Shard> {
        (0..=u8::MAX).map(Shard).filter(move |shard| self.contains(*shard))
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

/// The word of a shard, and its bit there.
fn place(shard: Shard) -> (usize, u64) {
    (usize::from(shard.0) / 64, 1 << (shard.0 % 64))
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
        (0..=u8::MAX).map(Shard).filter(|shard| self.revision(*shard).is_some()).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_every_shard_that_there_may_be() {
        let all: ShardSet = Partition::first(Partition::MAX).flat_map(Partition::shards).collect();
        assert_eq!((all.len(), all), (SHARDS_MAX, ShardSet::first(SHARDS_MAX)));
        let last = Shard(u8::MAX);
        let mut others = all;
        others.remove(last);
        assert!(all.contains(last) && !others.contains(last) && others.contains(Shard(0)));
        assert_eq!(all.without(others).iter().collect::<Vec<_>>(), [last]);
        assert_eq!(all.intersection(others), others);
        assert_eq!(others.union(all), all);
        assert!(all.without(all).is_empty());
    }
}
