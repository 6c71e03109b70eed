//! The partitions of the log. Each is a stream of the broker with its own shards, its own leader and its own limits,
//! and has a [`Journal`]. Partitions are added while coordinators run, and are never removed.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use async_nats::jetstream::stream::Info;
use history::History;
use run::{Partition, RunId, Shard, Timestamp};
use tokio::sync::watch;

use super::{Bound, Journal, LogNow, current_replicas, limits};
use crate::metrics::COUNTS;
use crate::nats::Broker;
use crate::shards::ShardSet;

/// How old a partition is when it gets its first runs: by then all coordinators know it.
const KNOWN_AFTER: Duration = Duration::from_secs(15);
/// A partition gets no new runs if it has had no leader for this long.
const LEADERLESS_MAX: Duration = Duration::from_secs(3);

/// The journals of all partitions. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Journals(Arc<All>);

#[derive(Debug)]
struct All {
    broker: Broker,
    history: Option<History>,
    journals: RwLock<Vec<Journal>>,
}

impl Journals {
    /// The journals of the partitions that were found when this coordinator connected.
    pub(crate) fn new(broker: &Broker, history: Option<History>) -> Self {
        let all = Self(Arc::new(All { broker: broker.clone(), history, journals: RwLock::default() }));
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

    /// Whether there is such a shard: the id of a run that a client made up may name any.
    pub(crate) fn knows(&self, shard: Shard) -> bool {
        shard.partition().as_usize() < self.count()
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

    /// The shards to which new runs should go: of partitions that have room and a leader, and that every coordinator
    /// knows.
    pub(crate) fn open_to_runs(&self) -> ShardSet {
        let now = ::nats::now();
        let takes = |journal: &&Journal| journal.takes_runs(now) && journal.crowded().is_none();
        self.each().iter().filter(takes).flat_map(|journal| journal.partition.shards()).collect()
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

    /// Whether every coordinator knows the partition, and its log has a leader.
    fn takes_runs(&self, now: Timestamp) -> bool {
        let (created, led) = (Timestamp(self.created_at.load(Relaxed)), Timestamp(self.led_at.load(Relaxed)));
        let is_known = self.partition == Partition::FIRST || created.0 > 0 && now.since(created) >= KNOWN_AFTER;
        is_known && now.since(led) < LEADERLESS_MAX
    }
}
