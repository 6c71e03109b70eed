//! The state of a shard besides the owner's: its watchers, its snapshot, and the remaining work for runs that have
//! ended.

use std::collections::HashMap;
use std::sync::Arc;

use owner::erasure::Erasures;
use owner::retention::Unwritten;
use owner::{Outbox, SnapshotSchedule};
use proto::convert::snapshot::Needs;
use run::{Entry, RunId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::log_bytes::LogBytes;
use super::recent::Recent;
use super::run_state::Expecting;
use super::takeover::TakeoverAge;
use super::watcher::{Standing, Watcher};
use crate::nats::journal::Fence;
use crate::nats::notifications::QueuedNotification;
use crate::nats::snapshots::Stored;

#[derive(Debug, Default)]
pub(super) struct ShardTask {
    pub(super) following: Following,
    /// Every entry up to here was passed to the watchers at that time.
    pub(super) seen: u64,
    /// The last entry of the shard that was received, or its barrier.
    pub(super) newest: u64,
    /// What the history still needs of the log.
    pub(super) unwritten: Unwritten,
    /// What was told last about the shard's needs of the log, by an earlier owner too.
    pub(super) told: Option<Needs>,
    /// The entries passed on since the shard has been followed without a gap.
    pub(super) recent: Recent,
    /// Ended runs that are still to be erased.
    pub(super) owed: Erasures,
    /// Bytes of tenants' runs in the log.
    pub(super) log_bytes: LogBytes,
    /// Notifications that are not in the queue of webhooks yet.
    pub(super) outbox: Outbox<QueuedNotification>,
    pub(super) expecting: Vec<Expecting>,
    pub(super) watchers: HashMap<RunId, Vec<Watcher>>,
    /// Watchers that wait for the position from which the feed delivers.
    pub(super) waiting: Vec<oneshot::Sender<Standing>>,
    /// When the shard's last watcher left; `None` while it has one.
    pub(super) unwatched: Option<Instant>,
    pub(super) snapshot: Snapshot,
    /// The right to carry its runs.
    pub(super) fence: Fence,
    /// Set while the shard is ours and not led yet.
    pub(super) takeover: Option<TakeoverAge>,
}

/// Whether a shard that is not ours is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Following {
    #[default]
    No,
    /// A run of it has a watcher; the position from which it is followed has been requested from the broker.
    Joining,
    /// Followed for watchers.
    Yes,
}

/// The shard's snapshot in the bucket, and when it is written again.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) stored: Stored,
    /// When the log that it describes was created.
    pub(super) log: u64,
    /// What the shard needs of the log, as told last.
    pub(super) needs_from: u64,
    pub(super) schedule: SnapshotSchedule,
}

impl ShardTask {
    pub(super) fn hand_to_watchers(&mut self, id: RunId, entry: &Arc<Entry>, bytes: u32) {
        if let Some(watchers) = self.watchers.get_mut(&id) {
            watchers.retain(|watcher| watcher.hand(entry, bytes));
            if watchers.is_empty() {
                self.watchers.remove(&id);
            }
        }
    }

    /// Removes watchers that have gone.
    pub(super) fn sweep_watchers(&mut self) {
        self.waiting.retain(|standing| !standing.is_closed());
        self.watchers.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.is_gone());
            !watchers.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn watchers_that_wait_for_a_shard_and_leave_are_forgotten() {
        let (mut shard, (stays, _waits)) = (ShardTask::default(), oneshot::channel());
        shard.waiting.push(stays);
        shard.waiting.extend((0..1_000).map(|_| oneshot::channel().0));
        shard.sweep_watchers();
        assert_eq!(shard.waiting.len(), 1);
    }
}
