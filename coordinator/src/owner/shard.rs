//! What this coordinator keeps of a shard beside the owner's state: who watches its runs, its snapshot, and what is
//! still to be done about runs that have ended.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use run::{Entry, RunId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::erasure::Owed;
use super::log_bytes::LogBytes;
use super::recent::Recent;
use super::run_state::Expecting;
use super::takeover::TakeoverAge;
use super::watcher::{Standing, Watcher};
use crate::nats::notifications::QueuedNotification;
use crate::nats::snapshots::Stored;

#[derive(Debug, Default)]
pub(super) struct ShardTask {
    pub(super) following: Following,
    /// Every entry up to here was handed to those that watched then.
    pub(super) seen: u64,
    /// What was handed out since the shard is followed without a gap.
    pub(super) recent: Recent,
    /// Ended runs that are still to be erased.
    pub(super) owed: Owed,
    /// What tenants' runs take in the log.
    pub(super) log_bytes: LogBytes,
    /// Letters that are not in the queue of webhooks yet.
    pub(super) letters: VecDeque<QueuedNotification>,
    pub(super) posting: Posting,
    /// Letters for entries up to here are among these, or were posted by an earlier owner.
    pub(super) lettered: u64,
    pub(super) expecting: Vec<Expecting>,
    pub(super) watchers: HashMap<RunId, Vec<Watcher>>,
    /// Those who watch already and wait to hear from where on.
    pub(super) waiting: Vec<oneshot::Sender<Standing>>,
    /// Since when the shard is followed for nobody.
    pub(super) unwatched: Option<Instant>,
    pub(super) snapshot: Snapshot,
    /// While the shard is ours and not led yet.
    pub(super) takeover: Option<TakeoverAge>,
}

/// Whether a shard that is not ours is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Following {
    #[default]
    No,
    /// A run of it is watched; the broker is asked from where on it is followed.
    Joining,
    /// Followed for those that watch.
    Yes,
}

/// What the shard's snapshot says, and how it lies in the bucket.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) stored: Stored,
    /// A large one is not written again before this.
    pub(super) pause: Option<Instant>,
    pub(super) through: u64,
    /// When the log that it describes was created.
    pub(super) log: u64,
    pub(super) writing: bool,
    /// It names runs that were erased since, or could not be written.
    pub(super) outdated: bool,
}

/// The state of posting the letters to the queue of webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Posting {
    #[default]
    Idle,
    UnderWay,
    /// The queue took nothing: it is tried again with the next sweep, not with every entry that comes.
    PutOff,
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

    /// Forgets watchers that have gone.
    pub(super) fn sweep_watchers(&mut self) {
        self.watchers.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.is_gone());
            !watchers.is_empty()
        });
    }
}
