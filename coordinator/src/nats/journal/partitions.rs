//! The partitions of the log. Each is a stream of the broker with its own shards, its own leader and its own limits,
//! and has a [`Journal`]. Partitions are added while coordinators run, and are never removed.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use async_nats::jetstream::stream::Info;
use history::History;
use owner::SHARDS_MAX;
use run::{Partition, RunId, Shard, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;

use super::room::{ROOM_PERCENT, percent};
use super::{Bound, Journal, LogNow, ReadError, current_replicas, limits};
use crate::metrics::COUNTS;
use crate::nats::shared::Shared;
use crate::nats::{Broker, setup};
use crate::shards::ShardSet;

/// How old a partition is when it gets its first runs: by then all coordinators know it.
const KNOWN_AFTER: Duration = Duration::from_secs(15);
/// For how long an answer of the broker shows that there are no runs in other partitions: shorter than
/// [`KNOWN_AFTER`], because a partition is created some time before the broker names it.
const ALL_FOR: Duration = Duration::from_secs(10);
/// A partition gets no new runs if it has had no leader for this long.
const LEADERLESS_MAX: Duration = Duration::from_secs(3);

/// Why a run may be in a partition that this coordinator does not know.
const UNSAID: &str = "the broker does not say how many partitions the log has";

/// The shards of the partitions that a coordinator has found.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Found {
    shards: usize,
    /// Until when there are no runs in others; `None` if that is not known.
    all_until: Option<Instant>,
}

impl Found {
    #[cfg(test)]
    pub(crate) fn all(shards: usize, until: Instant) -> Self {
        Self { shards, all_until: Some(until) }
    }

    /// The number of shards that may have runs now.
    pub(crate) fn at_most(self) -> usize {
        let is_all = self.all_until.is_some_and(|until| Instant::now() < until);
        if is_all { self.shards } else { SHARDS_MAX }
    }
}

/// The journals of all partitions. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Journals(Arc<All>);

#[derive(Debug)]
struct All {
    broker: Broker,
    history: Option<History>,
    journals: RwLock<Vec<Journal>>,
    last_look: Shared<usize>,
    /// When the broker was last asked how many partitions there are, and said it.
    counted_at: Mutex<Option<Instant>>,
    /// The bucket of carried runs has no room for new runs that may have to be carried.
    carried_is_full: AtomicBool,
}

impl Journals {
    /// The journals of the partitions that were found when this coordinator connected.
    pub(crate) fn new(broker: &Broker, history: Option<History>) -> Self {
        let all = Self(Arc::new(All {
            broker: broker.clone(),
            history,
            journals: RwLock::default(),
            last_look: Shared::default(),
            counted_at: Mutex::default(),
            carried_is_full: AtomicBool::new(false),
        }));
        all.grow(broker.partitions());
        all
    }

    /// There are so many partitions now.
    pub(crate) fn grow(&self, count: usize) {
        let All { broker, history, journals, .. } = &*self.0;
        let mut journals = journals.write().unwrap_or_else(PoisonError::into_inner);
        let more = Partition::first(count).skip(journals.len());
        journals.extend(more.map(|partition| Journal::new(broker, partition).with_history(history.clone())));
        let count = journals.len();
        drop(journals);
        broker.partitions.send_if_modified(|known| std::mem::replace(known, count) != count);
    }

    /// How many partitions there are.
    pub(crate) fn count(&self) -> usize {
        self.0.broker.partitions()
    }

    /// Reports when there are more partitions.
    pub(crate) fn counts(&self) -> watch::Receiver<usize> {
        self.0.broker.partitions.subscribe()
    }

    pub(crate) fn partitions(&self) -> impl Iterator<Item = Partition> + Clone + use<> {
        Partition::first(self.count())
    }

    /// All shards of the partitions.
    pub(crate) fn shards(&self) -> ShardSet {
        self.partitions().flat_map(Partition::shards).collect()
    }

    /// Asks the broker how many partitions there are now. Concurrent requests share one answer, or its failure.
    ///
    /// # Errors
    /// If the broker does not say it.
    pub(crate) async fn look(&self) -> Result<usize, ReadError> {
        let count = || {
            let journals = self.clone();
            async move { journals.look_once().await }
        };
        self.0.last_look.ask(UNSAID, count).await
    }

    async fn look_once(&self) -> Result<usize, ReadError> {
        let asked_at = Instant::now();
        let count = setup::partitions(&self.0.broker.patient).await;
        let count = count.map_err(|ReadError(why)| ReadError(format!("{UNSAID}: {why}")))?;
        // Partitions are never removed. A server that names fewer knows less.
        if count < self.count() {
            return Err(ReadError(format!("the broker names {count} streams of the log's {}", self.count())));
        }
        self.grow(count);
        *self.0.counted_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(asked_at);
        Ok(count)
    }

    /// The shards that have been found, and until when no run can be in another one.
    pub(crate) fn found(&self) -> Found {
        let counted_at = *self.0.counted_at.lock().unwrap_or_else(PoisonError::into_inner);
        Found { shards: self.shards().len(), all_until: counted_at.map(|at| at + ALL_FOR) }
    }

    /// Whether this coordinator has found the shard's partition. It may not have found all that there are:
    /// [`Self::finds`].
    pub(crate) fn knows(&self, shard: Shard) -> bool {
        shard.partition().as_usize() < self.count()
    }

    /// Whether there is such a shard: the id of a run that a client made up may name any.
    ///
    /// # Errors
    /// As [`Self::has`].
    pub(crate) async fn finds(&self, shard: Shard) -> Result<bool, ReadError> {
        self.has(shard.partition()).await
    }

    /// Whether there is such a partition. Another coordinator may know more of them, also because the broker did not
    /// say how many there are when this one was started.
    ///
    /// # Errors
    /// If the broker does not say it.
    pub(crate) async fn has(&self, partition: Partition) -> Result<bool, ReadError> {
        if partition.as_usize() >= self.count() {
            self.look().await?;
        }
        Ok(partition.as_usize() < self.count())
    }

    /// The shard after this one, also if it is in a partition that this coordinator has not found yet.
    ///
    /// # Errors
    /// As [`Self::has`].
    pub(crate) async fn next_shard(&self, shard: Shard) -> Result<Option<Shard>, ReadError> {
        let Some(next) = shard.0.checked_add(1).map(Shard) else { return Ok(None) };
        Ok(self.finds(next).await?.then_some(next))
    }

    pub(crate) fn of(&self, run: RunId) -> Journal {
        self.of_shard(run.shard())
    }

    /// The journal of a shard's partition; that of the first partition, which has nothing of it, if there is none.
    pub(crate) fn of_shard(&self, shard: Shard) -> Journal {
        self.of_partition(shard.partition())
    }

    pub(crate) fn of_partition(&self, partition: Partition) -> Journal {
        let journals = self.each();
        let found = journals.get(partition.as_usize()).or_else(|| journals.first()).cloned();
        drop(journals);
        found.unwrap_or_else(|| Journal::new(&self.0.broker, Partition::FIRST))
    }

    pub(crate) fn history(&self) -> Option<&History> {
        self.0.history.as_ref()
    }

    fn each(&self) -> RwLockReadGuard<'_, Vec<Journal>> {
        self.0.journals.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bound of the log at which new runs are rejected, if no partition has room for one.
    pub(crate) fn crowded(&self) -> Option<Bound> {
        let bounds: Option<Vec<Bound>> = self.each().iter().map(|journal| journal.crowded()).collect();
        bounds?.first().copied()
    }

    /// Whether the bucket of carried runs has too little room for another run that may outlive the log.
    pub(crate) fn carried_is_full(&self) -> bool {
        self.0.carried_is_full.load(Relaxed)
    }

    /// Stores how full the bucket of carried runs is.
    pub(crate) fn note_carried(&self, bytes: u64, bytes_max: u64) {
        self.0.carried_is_full.store(bytes >= percent(bytes_max, ROOM_PERCENT), Relaxed);
        COUNTS.carried_filled.set(bytes as f64 / bytes_max as f64);
    }

    /// Exports how many partitions have no leader.
    pub(super) fn count_leaderless(&self) {
        let now = ::nats::now();
        let leaderless = self.each().iter().filter(|journal| !journal.is_led(now)).count();
        COUNTS.log_leaderless.set(leaderless as f64);
    }

    /// The shards to which new runs should go: of partitions that have room and a leader, and that every coordinator
    /// knows.
    pub(crate) fn open_to_runs(&self) -> ShardSet {
        let now = ::nats::now();
        let takes = |journal: &&Journal| journal.takes_runs(now) && journal.crowded().is_none();
        self.each().iter().filter(takes).flat_map(|journal| journal.partition.shards()).collect()
    }

    /// The shards of partitions that every coordinator knows.
    pub(crate) fn known_to_all(&self) -> ShardSet {
        let now = ::nats::now();
        let known = |journal: &&Journal| journal.is_known_to_all(now);
        self.each().iter().filter(known).flat_map(|journal| journal.partition.shards()).collect()
    }

    /// Exports the sizes of all partitions as metrics: the sums, and the worst of what has no sum.
    pub(super) fn count_sizes(&self) {
        let seen: Vec<Sizes> = self.each().iter().filter_map(|journal| journal.sizes()).collect();
        let sum = |of: fn(&Sizes) -> f64| seen.iter().map(of).sum::<f64>();
        COUNTS.log_bytes.set(sum(|seen| seen.bytes));
        COUNTS.log_bytes_max.set(sum(|seen| seen.bytes_max));
        let filled = seen.iter().map(|seen| (seen.bytes / seen.bytes_max).max(seen.messages / seen.messages_max));
        COUNTS.log_filled.set(filled.fold(0.0, f64::max));
        COUNTS.log_messages.set(sum(|seen| seen.messages));
        COUNTS.log_messages_max.set(sum(|seen| seen.messages_max));
        COUNTS.log_subjects.set(sum(|seen| seen.subjects));
        COUNTS.log_age.set(seen.iter().map(|seen| seen.age).fold(0.0, f64::max));
        let scarcest = seen.iter().min_by(|one, other| (one.spare_replicas()).total_cmp(&other.spare_replicas()));
        COUNTS.log_replicas.set(scarcest.map_or(0.0, |seen| seen.replicas));
        COUNTS.log_replicas_current.set(scarcest.map_or(0.0, |seen| seen.replicas_current));
    }
}

/// The size of the log for metrics.
pub(super) fn sizes(info: &Info, log: &LogNow) -> Sizes {
    let limits = limits(&info.config);
    let age = if info.state.messages == 0 { Duration::ZERO } else { ::nats::now().since(log.first_at) };
    Sizes {
        bytes: info.state.bytes as f64,
        bytes_max: limits.bytes as f64,
        messages: info.state.messages as f64,
        messages_max: if limits.messages == u64::MAX { f64::INFINITY } else { limits.messages as f64 },
        subjects: info.state.subjects_count as f64,
        age: age.as_secs_f64(),
        replicas: info.config.num_replicas as f64,
        replicas_current: current_replicas(info) as f64,
    }
}

/// The size of a partition, as last read, for metrics.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) bytes: f64,
    pub(super) bytes_max: f64,
    pub(super) messages: f64,
    /// Infinite in a log without the bound, so that a ratio to it is 0.
    pub(super) messages_max: f64,
    pub(super) subjects: f64,
    pub(super) age: f64,
    pub(super) replicas: f64,
    pub(super) replicas_current: f64,
}

impl Sizes {
    fn spare_replicas(&self) -> f64 {
        self.replicas_current - self.replicas
    }
}

impl Journal {
    pub(crate) fn partition(&self) -> Partition {
        self.partition
    }

    fn sizes(&self) -> Option<Sizes> {
        *self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every coordinator knows the partition.
    fn is_known_to_all(&self, now: Timestamp) -> bool {
        let created = Timestamp(self.created_at.load(Relaxed));
        self.partition == Partition::FIRST || created.0 > 0 && now.since(created) >= KNOWN_AFTER
    }

    /// Whether the log of the partition had a leader a moment ago.
    fn is_led(&self, now: Timestamp) -> bool {
        now.since(Timestamp(self.led_at.load(Relaxed))) < LEADERLESS_MAX
    }

    fn takes_runs(&self, now: Timestamp) -> bool {
        self.is_known_to_all(now) && self.is_led(now)
    }
}
