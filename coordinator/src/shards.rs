//! Sets of shards, and which shards are ours.

use std::fmt;

use proto::names;
use run::Shard;
use tokio::time::Instant;

const SHARDS: usize = names::SHARDS as usize;
const _: () = assert!(SHARDS <= u64::BITS as usize, "a set of shards is a word");

#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ShardSet(u64);

impl ShardSet {
    pub(crate) fn insert(&mut self, shard: Shard) {
        self.0 |= bit(shard);
    }

    pub(crate) fn remove(&mut self, shard: Shard) {
        self.0 &= !bit(shard);
    }

    pub(crate) fn contains(self, shard: Shard) -> bool {
        self.0 & bit(shard) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Shard> {
        every().filter(move |shard| self.contains(*shard))
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

/// A shard that there is not (an id may name one) is in no set.
fn bit(shard: Shard) -> u64 {
    if shard.0 < names::SHARDS { 1 << shard.0 } else { 0 }
}

pub(crate) fn every() -> impl Iterator<Item = Shard> {
    (0..names::SHARDS).map(Shard)
}

/// The shards that are ours, and until when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owned {
    /// Until when we may act, by our own clock.
    pub(crate) until: Instant,
    /// The revision under which each shard became ours; 0 where it is not. Another one means that somebody else may have
    /// had it in between.
    claims: [u64; SHARDS],
    /// Ours only until it is written down how far we came: we act for them no more.
    leaving: ShardSet,
}

impl Owned {
    pub(crate) fn nothing() -> Self {
        Self { until: Instant::now(), claims: [0; SHARDS], leaving: ShardSet::default() }
    }

    /// Whether we may act for the shard now.
    pub(crate) fn holds(&self, shard: Shard) -> bool {
        self.claim(shard).is_some() && !self.leaving.contains(shard) && Instant::now() < self.until
    }

    /// The shards for which we may act now.
    pub(crate) fn shards(&self) -> ShardSet {
        if Instant::now() < self.until { self.claimed().without(self.leaving) } else { ShardSet::default() }
    }

    /// Under which revision the shard is ours, however short of time we are.
    pub(crate) fn claim(&self, shard: Shard) -> Option<u64> {
        self.claims.get(usize::from(shard.0)).copied().filter(|claim| *claim != 0)
    }

    pub(crate) fn claimed(&self) -> ShardSet {
        every().filter(|shard| self.claim(*shard).is_some()).collect()
    }

    pub(crate) fn leaving(&self) -> ShardSet {
        self.leaving
    }

    pub(crate) fn take(&mut self, shard: Shard, revision: u64) {
        if let Some(claim) = self.claims.get_mut(usize::from(shard.0)) {
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
