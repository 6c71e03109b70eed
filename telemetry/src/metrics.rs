//! What a process counts. A family is a static with a name and labels; a series of it is a handle to atomics, made once
//! and kept by whoever counts, so that counting allocates nothing and takes no lock. Everybody who looks (the scrape, the
//! export) reads the same atomics.
//!
//! It is our own, of some hundred lines, because each library failed one of three demands: handles without a lookup a
//! call, no limit of 2,000 series in a family, and one set of numbers behind both Prometheus and OTLP.

mod text;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use text::text;

/// Series of one family; what comes beyond counts as [`OTHER`]. Room for 2,000 tools in some pools, with outcomes.
pub const SERIES_MAX: usize = 20_000;
/// The value of every label of what is not known by name, so that no caller can make up series.
pub const OTHER: &str = "other";
/// Upper bounds of a histogram's buckets, in microseconds: from a call's smallest latency to its longest attempts. Few,
/// for each is a line a series in every scrape.
pub const BOUNDS_US: [u64; 17] = [
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    1_800_000_000,
];

/// A number that only rises, until the process ends.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number as it stands.
#[derive(Debug, Clone, Default)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }

    #[must_use]
    pub fn value(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }
}

/// How long something took, by [`BOUNDS_US`].
#[derive(Debug, Clone, Default)]
pub struct Histogram(Arc<Buckets>);

#[derive(Debug, Default)]
struct Buckets {
    /// Of each bucket alone; the last is for what is longer than every bound.
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// A histogram as it was read. What was recorded meanwhile may be in the counts and not yet in the sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Read {
    pub(crate) counts: [u64; BOUNDS_US.len() + 1],
    pub(crate) sum_s: f64,
}

impl Histogram {
    pub fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        if let Some(count) = self.0.counts.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
        self.0.sum_us.fetch_add(us, Relaxed);
    }

    pub(crate) fn read(&self) -> Read {
        let mut counts = [0; BOUNDS_US.len() + 1];
        for (read, count) in counts.iter_mut().zip(&self.0.counts) {
            *read = count.load(Relaxed);
        }
        Read { counts, sum_s: Duration::from_micros(self.0.sum_us.load(Relaxed)).as_secs_f64() }
    }
}

/// A series as it is exported.
#[derive(Debug)]
pub(crate) struct Series<M> {
    pub(crate) labels: Vec<(&'static str, Box<str>)>,
    pub(crate) metric: M,
}

/// The values of a series' labels, in the order of its family's.
type Values = Box<[Box<str>]>;

/// All series of one name. `M` is a [`Counter`], a [`Gauge`] or a [`Histogram`].
#[derive(Debug)]
pub struct Family<M> {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    series: Mutex<BTreeMap<Values, M>>,
}

impl<M> Family<M> {
    /// A counter's name ends in `_total`, a histogram's in `_seconds`.
    #[must_use]
    pub const fn new(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Self { name, help, labels, series: Mutex::new(BTreeMap::new()) }
    }

    fn series(&self) -> MutexGuard<'_, BTreeMap<Values, M>> {
        // Whoever panicked here left a map behind that is whole.
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Clone + Default> Family<M> {
    /// All series there are now.
    pub(crate) fn read(&self) -> Vec<Series<M>> {
        let labelled = |values: &Values| self.labels.iter().copied().zip(values.iter().cloned()).collect();
        let series = self.series();
        series.iter().map(|(values, metric)| Series { labels: labelled(values), metric: metric.clone() }).collect()
    }

    /// The series with these values, one a label. To be kept: looking it up takes a lock.
    pub fn with(&self, values: &[&str]) -> M {
        debug_assert_eq!(values.len(), self.labels.len(), "a value for each label of {}", self.name);
        let mut series = self.series();
        let key: Values = values.iter().map(|value| Box::from(*value)).collect();
        let is_known = series.len() < SERIES_MAX || series.contains_key(&key);
        let key = if is_known { key } else { self.labels.iter().map(|_| Box::from(OTHER)).collect() };
        series.entry(key).or_default().clone()
    }
}

impl Family<Gauge> {
    /// Puts these series in the place of all that there are.
    pub fn replace<'a>(&self, with: impl IntoIterator<Item = (Vec<&'a str>, f64)>) {
        let fresh = with.into_iter().take(SERIES_MAX).map(|(values, value)| {
            let gauge = Gauge::default();
            gauge.set(value);
            (values.into_iter().map(Box::from).collect(), gauge)
        });
        let fresh = fresh.collect();
        *self.series() = fresh;
    }
}

/// A family of any kind.
#[derive(Debug, Clone, Copy)]
pub enum Metric {
    Counter(&'static Family<Counter>),
    Gauge(&'static Family<Gauge>),
    Histogram(&'static Family<Histogram>),
}

impl Metric {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Counter(family) => family.name,
            Self::Gauge(family) => family.name,
            Self::Histogram(family) => family.name,
        }
    }

    pub(crate) fn help(&self) -> &'static str {
        match self {
            Self::Counter(family) => family.help,
            Self::Gauge(family) => family.help,
            Self::Histogram(family) => family.help,
        }
    }
}

static PUBLISHED: Mutex<Vec<Metric>> = Mutex::new(Vec::new());

/// Lets these be seen from now on. Twice is once: a process may hold two parts that count the same.
pub fn publish(metrics: &[Metric]) {
    let mut published = PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner);
    for metric in metrics {
        if published.iter().all(|known| known.name() != metric.name()) {
            published.push(*metric);
        }
    }
}

pub(crate) fn published() -> Vec<Metric> {
    PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_is_full_counts_what_is_new_as_other() {
        static FULL: Family<Counter> = Family::new("full_total", "", &["tool"]);
        let first = FULL.with(&["first"]);
        for number in 1..SERIES_MAX {
            FULL.with(&[&number.to_string()]);
        }
        FULL.with(&["one too many"]).add(1);
        FULL.with(&["and another"]).add(1);
        FULL.with(&["first"]).add(1);
        assert_eq!((first.value(), FULL.with(&[OTHER]).value()), (1, 2));
        assert_eq!(FULL.series().len(), SERIES_MAX + 1);
    }

    #[test]
    fn a_time_on_a_bound_falls_below_it() {
        let histogram = Histogram::default();
        for ms in [5, 6, 1_800_000, 1_800_001] {
            histogram.record(Duration::from_millis(ms));
        }
        let Read { counts, sum_s } = histogram.read();
        assert_eq!(counts, [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(sum_s, 3600.012);
    }
}
