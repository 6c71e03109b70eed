//! Sets of shards, and the shards that one coordinator has claimed.

use std::fmt;

use run::{Partition, Shard};

/// The largest number of shards: the number of a shard is one byte.
pub const SHARDS_MAX: usize = Partition::MAX * Partition::SHARDS as usize;
const WORDS: usize = SHARDS_MAX / u64::BITS as usize;
/// Bits of a partition in a word.
const SHARDS_EACH: usize = Partition::SHARDS as usize;
const PARTITIONS_PER_WORD: usize = u64::BITS as usize / SHARDS_EACH;

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

    /// The shards of one of its partitions. Each partition has its turn. All shards if they are of one partition.
    #[must_use]
    pub fn in_turn(self, turn: u64) -> Self {
        let bits = |partition: usize| {
            let place = partition % PARTITIONS_PER_WORD * SHARDS_EACH;
            self.0[partition / PARTITIONS_PER_WORD] & (((1 << SHARDS_EACH) - 1) << place)
        };
        let mut present = (0..Partition::MAX).filter(|partition| bits(*partition) != 0);
        let count = present.clone().count().max(1);
        let chosen = usize::try_from(turn % count as u64).ok().and_then(|turn| present.nth(turn));
        let mut shards = Self::default();
        if let Some(partition) = chosen {
            shards.0[partition / PARTITIONS_PER_WORD] = bits(partition);
        }
        shards
    }

    /// The shards in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Shard> {
        let words = self.0.into_iter().enumerate();
        words.flat_map(|(word, bits)| {
            std::iter::successors(Some(bits), |bits| Some(bits & bits.wrapping_sub(1)))
                .take_while(|bits| *bits != 0)
                .filter_map(move |bits| u8::try_from(word * 64 + bits.trailing_zeros() as usize).ok().map(Shard))
        })
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
        let mut claimed = ShardSet::default();
        for (word, revisions) in claimed.0.iter_mut().zip(self.revisions.chunks_exact(64)) {
            let bits = revisions.iter().enumerate().map(|(bit, revision)| u64::from(*revision != 0) << bit);
            *word = bits.sum();
        }
        claimed
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
        assert_eq!(all.iter().collect::<Vec<_>>(), (0..=u8::MAX).map(Shard).collect::<Vec<_>>());
        let few = [0, 1, 63, 64, 130, 255].map(Shard);
        assert_eq!(few.into_iter().collect::<ShardSet>().iter().collect::<Vec<_>>(), few);
    }

    #[test]
    fn each_partition_of_a_set_has_its_turn_and_no_other_has() {
        let shards: ShardSet = [3, 4, 70, 255].map(Shard).into_iter().collect();
        let turns: Vec<Vec<u8>> =
            (0..4).map(|turn| shards.in_turn(turn).iter().map(|shard| shard.0).collect()).collect();
        assert_eq!(turns, [vec![3, 4], vec![70], vec![255], vec![3, 4]]);
        let first = ShardSet::first(16);
        assert_eq!([first.in_turn(0), first.in_turn(u64::MAX)], [first; 2]);
        assert!(ShardSet::default().in_turn(7).is_empty());
    }
}
