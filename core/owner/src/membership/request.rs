//! Requests to the lease bucket, their answers, and changes of its keys.

use std::fmt;
use std::time::{Duration, Instant};

use run::Shard;

const MEMBER: &str = "member.";
const SHARD: &str = "shard.";

/// A key of the lease bucket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The lease of a coordinator.
    Member(String),
    /// The owner of a shard.
    Shard(Shard),
}

impl Key {
    /// Reads a key of the bucket. `None` for one that is neither a member's nor a shard's.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        match key.strip_prefix(MEMBER) {
            Some(member) => Some(Self::Member(member.to_owned())),
            None => key.strip_prefix(SHARD)?.parse().ok().map(Self::Shard),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member(member) => write!(f, "{MEMBER}{member}"),
            Self::Shard(shard) => write!(f, "{SHARD}{shard}"),
        }
    }
}

/// A request to the lease bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The key that it changes.
    pub key: Key,
    /// The change.
    pub operation: Operation,
    /// The revision that the key must have, 0 if there must be none; not for [`Operation::Purge`].
    pub revision: u64,
    /// The id under which this member sent it.
    pub(super) id: String,
    pub(super) asked: Instant,
    pub(super) purpose: Purpose,
}

/// The operation of a request on its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Store this value, by compare-and-set.
    Put(String),
    /// Delete the key, by compare-and-set.
    Delete,
    /// Remove the tombstone of a deleted key.
    Purge,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    Renew,
    Evict(String),
    Claim(Shard),
    Free(Shard),
    Purge,
    /// Delete its own key when it leaves.
    Delete,
}

/// The bucket's answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Stored at this revision.
    Stored(u64),
    /// The key has another revision: its present content, read from the bucket's leader. `None` if there is no such
    /// key.
    Conflict(Option<Found>),
    /// No answer, or an error: it may have been stored or not.
    Unknown,
}

/// The content of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// `None` for a deleted key.
    pub value: Option<String>,
    /// Its revision.
    pub revision: u64,
}

/// A change of a key, as the watch of the bucket reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Key,
    /// `None` for a deleted key.
    pub value: Option<String>,
    /// Its revision.
    pub revision: u64,
    /// How long ago it was stored.
    pub age: Duration,
}
