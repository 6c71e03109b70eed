//! How full the log is: as it was last seen, and what this coordinator has appended since, so that a burst between two
//! looks does not take the room in which it has to end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// When this part of the log is taken nothing new is accepted; the rest is for what was accepted to end in.
pub(crate) const ROOM_PERCENT: u64 = 85;
/// How often to look, and after which part of the log was appended here even if that is sooner: workers append too.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_PERCENT: u64 = 1;

#[derive(Debug)]
pub(super) struct Room {
    limit: AtomicU64,
    seen: AtomicU64,
    /// Appended here since the log was last looked at.
    since: AtomicU64,
    look: Notify,
}

impl Default for Room {
    /// Before the first look there is room.
    fn default() -> Self {
        Self { limit: AtomicU64::new(u64::MAX), seen: AtomicU64::new(0), since: AtomicU64::new(0), look: Notify::new() }
    }
}

impl Room {
    /// Something was appended.
    pub(super) fn take(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let since = self.since.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if since >= percent(self.limit.load(Ordering::Relaxed), LOOK_PERCENT) {
            self.look.notify_one();
        }
    }

    /// Waits until it is time to look.
    pub(super) async fn wait_for_look(&self) {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = self.look.notified() => {}
        }
    }

    /// What was appended here before a look, and so is in what it sees.
    pub(super) fn counted(&self) -> u64 {
        self.since.load(Ordering::Relaxed)
    }

    /// Takes in what a look saw. What was appended while it was under way stays counted.
    pub(super) fn seen(&self, bytes: u64, limit: u64, counted: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        self.seen.store(bytes, Ordering::Relaxed);
        self.since.fetch_sub(counted, Ordering::Relaxed);
    }

    pub(super) fn is_crowded(&self) -> bool {
        let taken = self.seen.load(Ordering::Relaxed).saturating_add(self.since.load(Ordering::Relaxed));
        taken >= percent(self.limit.load(Ordering::Relaxed), ROOM_PERCENT)
    }
}

fn percent(of: u64, part: u64) -> u64 {
    of / 100 * part
}
