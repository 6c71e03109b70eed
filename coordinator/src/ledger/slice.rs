//! One shard as the ledger has it: who it is to us, how far it is known, its open runs and who watches them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use run::{Entry, RunId, Timestamp};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::erasure::Owed;
use super::log_bytes::LogBytes;
use super::recent::Recent;
use super::standing::{Ended, Expecting};
use super::takeover::Takeover;
use super::unread::Unread;
use super::watcher::{Standing, Watcher};
use crate::known::Known;
use crate::nats::snapshots::Stored;
use crate::webhooks::Letter;

#[derive(Debug, Default)]
pub(super) struct Slice {
    pub(super) phase: Phase,
    /// Every entry up to here was handed to whoever watched then.
    pub(super) seen: u64,
    /// Every entry up to here was applied.
    pub(super) applied: u64,
    /// What was handed out since the shard is followed without a gap.
    pub(super) recent: Recent,
    /// The open runs; none while the shard is not ours.
    pub(super) runs: HashMap<RunId, Open>,
    pub(super) ended: Ended,
    /// Runs whose opening this release cannot read.
    pub(super) unread: Unread,
    /// Ended runs of which nothing is to be kept, until that is so.
    pub(super) owed: Owed,
    /// What tenants' runs take in the log.
    pub(super) log_bytes: LogBytes,
    /// What webhooks are owed, until it is in their queue, and how that goes.
    pub(super) letters: VecDeque<Letter>,
    pub(super) posting: Posting,
    /// What webhooks are owed for entries up to here is among the letters, or was posted by an earlier owner.
    pub(super) lettered: u64,
    pub(super) expecting: Vec<Expecting>,
    pub(super) watchers: HashMap<RunId, Vec<Watcher>>,
    /// Those who watch already and wait to hear from where on.
    pub(super) waiting: Vec<oneshot::Sender<Standing>>,
    /// Since when the shard is followed for nobody.
    pub(super) unwatched: Option<Instant>,
    pub(super) snapshot: Snapshot,
    /// While the shard is ours and not led yet.
    pub(super) takeover: Option<Takeover>,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) known: Known,
    pub(super) timer: Option<Timestamp>,
    /// What its entries take in the log, as far as they were counted here.
    pub(super) bytes: u64,
}

/// Who a shard is to us. `claim` tells apart two times at which it was ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Phase {
    /// Neither ours nor watched.
    #[default]
    Away,
    /// Somebody watches it; it is asked from where on it is followed.
    Joining,
    /// Followed for those who watch.
    Guest,
    /// Ours; its open runs are being read.
    Taking { claim: u64 },
    /// Ours; what was in the log when it became so is not yet applied.
    Replaying { claim: u64, tip: u64 },
    /// Ours, and we act.
    Leading { claim: u64 },
    /// Ours no more, once it is written down how far we came.
    Leaving { claim: u64 },
}

/// What the shard's snapshot says, and how it lies in the bucket.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) stored: Stored,
    /// A large one is not written again before this.
    pub(super) pause: Option<Instant>,
    pub(super) through: u64,
    /// When the log was made of which it speaks.
    pub(super) log: u64,
    pub(super) writing: bool,
    /// It names runs that were erased since, or could not be written.
    pub(super) outdated: bool,
}

/// Of what is owed to webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Posting {
    #[default]
    Idle,
    UnderWay,
    /// The queue took nothing: it is tried again with the next sweep, not with every entry that comes.
    PutOff,
}

impl Phase {
    /// Entries are applied.
    pub(super) fn folds(self) -> bool {
        matches!(self, Self::Replaying { .. } | Self::Leading { .. })
    }

    pub(super) fn leads(self) -> bool {
        matches!(self, Self::Leading { .. })
    }

    pub(super) fn claim(self) -> Option<u64> {
        match self {
            Self::Taking { claim }
            | Self::Replaying { claim, .. }
            | Self::Leading { claim }
            | Self::Leaving { claim } => Some(claim),
            Self::Away | Self::Joining | Self::Guest => None,
        }
    }
}

impl Slice {
    /// The feed has brought everything up to here.
    pub(super) fn come_to(&mut self, position: u64) {
        self.seen = self.seen.max(position);
        if self.phase.folds() {
            self.applied = self.applied.max(position);
        }
    }

    /// Everything is applied that was in the log when the shard became ours.
    pub(super) fn has_caught_up(&self) -> bool {
        matches!(self.phase, Phase::Replaying { tip, .. } if self.applied >= tip)
    }

    /// The run has ended, as far as is remembered here.
    pub(super) fn has_ended(&self, run: RunId) -> bool {
        self.ended.holds(run) || self.owed.holds(run)
    }

    pub(super) fn hand_to_watchers(&mut self, id: RunId, entry: &Arc<Entry>, bytes: u32) {
        if let Some(watchers) = self.watchers.get_mut(&id) {
            watchers.retain(|watcher| watcher.hand(entry, bytes));
            if watchers.is_empty() {
                self.watchers.remove(&id);
            }
        }
    }

    /// Forgets watchers that have gone.
    pub(super) fn sweep_watchers(&mut self) {
        self.watchers.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.is_gone());
            !watchers.is_empty()
        });
    }
}
