//! The size of the log: the last value read, and the bytes that this coordinator has appended since. So a burst between
//! two reads does not use the room that is reserved for its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::partitions::sizes;
use super::{Journal, Journals, LogNow, limits};

/// Above this fill level new work is rejected; the rest is reserved for accepted work to end.
pub(crate) const ROOM_PERCENT: u64 = 85;
/// How often to read the size, and after which part of the log was appended here even if that is sooner, because
/// workers append too.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_PERCENT: u64 = 1;
/// How long a check of the log's size may take before the next one.
const ROOM_PATIENCE: Duration = Duration::from_secs(2);

/// A size of the log, in both of its measures.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Amount {
    pub(super) bytes: u64,
    pub(super) messages: u64,
}

/// The bound of the log that leaves no room for new work, with its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    Bytes(u64),
    Messages(u64),
    /// Of the bucket of carried runs: it has no room for runs that may outlive the log.
    Carried,
}

#[derive(Debug)]
pub(super) struct Room {
    bytes: Filled,
    messages: Filled,
    look: Notify,
    deferred: Mutex<Deferred>,
}

/// Jobs of accepted calls that are still to be appended: the room for them is taken.
#[derive(Debug, Default)]
struct Deferred {
    /// As of the last count of all calls.
    counted: Amount,
    /// Accepted since that count, and between the two counts before it: these may be counted twice.
    since: Amount,
    before: Amount,
}

/// The fill level of the log in one measure.
#[derive(Debug)]
struct Filled {
    limit: AtomicU64,
    seen: AtomicU64,
    /// The amount appended here since the size was last read.
    since: AtomicU64,
}

impl Default for Room {
    /// Before the first read there is room.
    fn default() -> Self {
        let filled = || Filled { limit: AtomicU64::new(u64::MAX), seen: AtomicU64::new(0), since: AtomicU64::new(0) };
        Self { bytes: filled(), messages: filled(), look: Notify::new(), deferred: Mutex::default() }
    }
}

impl Room {
    /// Counts an appended message of this size.
    pub(super) fn take(&self, bytes: usize) {
        let by_bytes = self.bytes.take(u64::try_from(bytes).unwrap_or(u64::MAX));
        let by_messages = self.messages.take(1);
        if by_bytes || by_messages {
            self.look.notify_one();
        }
    }

    /// Waits until the size should be read.
    pub(super) async fn wait_for_look(&self) {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = self.look.notified() => {}
        }
    }

    /// The amount appended here before a read, which is included in the read's result.
    pub(super) fn counted(&self) -> Amount {
        Amount {
            bytes: self.bytes.since.load(Ordering::Relaxed),
            messages: self.messages.since.load(Ordering::Relaxed),
        }
    }

    /// Stores the result of a read. Appends during the read stay counted.
    pub(super) fn seen(&self, seen: Amount, limit: Amount, counted: Amount) {
        self.bytes.see(seen.bytes, limit.bytes, counted.bytes);
        self.messages.see(seen.messages, limit.messages, counted.messages);
    }

    /// The bound that is reached and at which new work is rejected, if any.
    pub(super) fn crowded(&self) -> Option<Bound> {
        let deferred = self.deferred().all();
        let bytes = self.bytes.crowded(deferred.bytes).map(Bound::Bytes);
        bytes.or_else(|| self.messages.crowded(deferred.messages).map(Bound::Messages))
    }

    /// Whether more than this part of the log, in percent, is taken.
    fn is_above(&self, part: u8) -> bool {
        self.bytes.is_above(part.into()) || self.messages.is_above(part.into())
    }

    /// A call was accepted whose job is appended later.
    pub(super) fn defer(&self, bytes: u64) {
        let mut deferred = self.deferred();
        deferred.since = deferred.since.and(Amount { bytes, messages: 1 });
    }

    /// Stores a count of all jobs that are still to be appended.
    pub(super) fn count_deferred(&self, counted: Amount) {
        let mut deferred = self.deferred();
        let before = std::mem::take(&mut deferred.since);
        *deferred = Deferred { counted, since: Amount::default(), before };
    }

    fn deferred(&self) -> MutexGuard<'_, Deferred> {
        // It holds numbers only, which are right after a panic too.
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Amount {
    fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), messages: self.messages.saturating_add(other.messages) }
    }
}

impl Deferred {
    fn all(&self) -> Amount {
        self.counted.and(self.since).and(self.before)
    }
}

impl Filled {
    /// Whether so much was appended here that the size should be read.
    fn take(&self, amount: u64) -> bool {
        let since = self.since.fetch_add(amount, Ordering::Relaxed).saturating_add(amount);
        since >= percent(self.limit.load(Ordering::Relaxed), LOOK_PERCENT)
    }

    fn see(&self, seen: u64, limit: u64, counted: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        self.seen.store(seen, Ordering::Relaxed);
        self.since.fetch_sub(counted, Ordering::Relaxed);
    }

    /// The limit, if new work would use the room in which accepted work has to end.
    fn crowded(&self, deferred: u64) -> Option<u64> {
        let limit = self.limit.load(Ordering::Relaxed);
        (self.taken().saturating_add(deferred) >= percent(limit, ROOM_PERCENT)).then_some(limit)
    }

    fn taken(&self) -> u64 {
        self.seen.load(Ordering::Relaxed).saturating_add(self.since.load(Ordering::Relaxed))
    }

    fn is_above(&self, part: u64) -> bool {
        self.taken() > percent(self.limit.load(Ordering::Relaxed), part)
    }
}

pub(super) fn percent(of: u64, part: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(part) / 100).unwrap_or(u64::MAX)
}

impl Journal {
    /// Watches the size of the log, until `stop`, because accepted work needs room to end. `led` is updated whenever
    /// the log has a leader.
    pub(crate) async fn watch_room(self, all: Journals, led: watch::Sender<Instant>, stop: CancellationToken) {
        loop {
            let counted = self.room.counted();
            match tokio::time::timeout(ROOM_PATIENCE, self.broker.context.get_stream(self.stream)).await {
                Ok(Ok(stream)) => {
                    let info = stream.cached_info();
                    // A server that lost the others still answers, and names no leader. A single server has no cluster.
                    if info.cluster.as_ref().is_none_or(|cluster| cluster.leader.is_some()) {
                        self.led_at.fetch_max(::nats::now().0, Ordering::Relaxed);
                        led.send_replace(Instant::now());
                    }
                    let seen = Amount { bytes: info.state.bytes, messages: info.state.messages };
                    self.room.seen(seen, limits(&info.config), counted);
                    let log = LogNow::of(info);
                    self.created_at.store(log.created / 1_000_000, Ordering::Relaxed);
                    self.note_oldest(log.oldest);
                    self.note_first(log.first);
                    self.note_tip(log.last);
                    *self.sizes.lock().unwrap_or_else(PoisonError::into_inner) = Some(sizes(info, &log));
                    all.count_sizes();
                }
                Ok(Err(error)) => tracing::warn!(%error, "reading the size of the log failed"),
                Err(_) => tracing::warn!("reading the size of the log timed out"),
            }
            all.count_leaderless();
            tokio::select! {
                () = self.room.wait_for_look() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// The job of a call that was accepted is appended later, and takes so many bytes.
    pub(crate) fn defer(&self, bytes: u64) {
        self.room.defer(bytes);
    }

    /// Stores how many jobs of accepted calls are still to be appended, and their bytes.
    pub(crate) fn count_deferred(&self, messages: u64, bytes: u64) {
        self.room.count_deferred(Amount { bytes, messages });
    }

    /// The bound of the log that is reached and at which new work is rejected, if any.
    pub(crate) fn crowded(&self) -> Option<Bound> {
        self.room.crowded()
    }

    /// Whether more than this part of the log, in percent, is taken.
    pub(super) fn is_above(&self, part: u8) -> bool {
        self.room.is_above(part)
    }
}
