//! Metrics of a process. A family is a static with a name and labels; a series of it is a handle to atomics, made once
//! and kept by the code that counts, so that counting allocates nothing and takes no lock. The scrape reads these
//! atomics. The OpenTelemetry SDK reads them too when it exports, except histograms: a histogram's values are recorded
//! in the SDK's own histogram as well, if metrics are exported.

mod reference;
mod text;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use opentelemetry::metrics::{BoundHistogram, Meter};

use crate::otlp::{attributes, register};
use crate::trace::SpanContext;

#[doc(hidden)]
pub use reference::check_reference;
pub use text::{Format, text};

/// Most series of one family; further ones count as [`OTHER`]. Room for 2,000 tools in some pools, with outcomes.
pub const SERIES_MAX: usize = 20_000;
/// The label value for unknown names, so that no caller can create series.
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
    /// The count of each bucket alone; the last is for values above every bound.
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
    /// The same series in the OpenTelemetry SDK, if it is exported.
    exported: OnceLock<BoundHistogram<f64>>,
    /// The last traced value of each bucket. Made when the first one comes.
    exemplars: OnceLock<Box<Mutex<Exemplars>>>,
}

/// A value, and the trace that it was measured in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Exemplar {
    pub(crate) trace: SpanContext,
    pub(crate) value_s: f64,
    /// Seconds since 1970.
    pub(crate) at_s: f64,
}

type Exemplars = [Option<Exemplar>; BOUNDS_US.len() + 1];

/// Which bucket holds a time.
fn bucket(us: u64) -> usize {
    BOUNDS_US.partition_point(|bound| *bound < us)
}

/// A histogram as it was read. Values that were recorded meanwhile may be in the counts and not yet in the sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Read {
    pub(crate) counts: [u64; BOUNDS_US.len() + 1],
    pub(crate) sum_s: f64,
}

impl Histogram {
    /// Records a duration, with its trace if it was traced.
    pub fn record_of(&self, took: Duration, trace: Option<SpanContext>) {
        self.record(took);
        let Some(trace) = trace else { return };
        let exemplars = self.0.exemplars.get_or_init(Box::default);
        let at_s = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
        let exemplar = Exemplar { trace, value_s: took.as_secs_f64(), at_s };
        let bucket = bucket(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        // A panic leaves exemplars behind that are whole.
        if let Some(slot) = exemplars.lock().unwrap_or_else(PoisonError::into_inner).get_mut(bucket) {
            *slot = Some(exemplar);
        }
    }

    pub(crate) fn exemplars(&self) -> Option<Exemplars> {
        self.0.exemplars.get().map(|all| *all.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if let Some(count) = self.0.counts.get(bucket(us)) {
            count.fetch_add(1, Relaxed);
        }
        self.0.sum_us.fetch_add(us, Relaxed);
        if let Some(exported) = self.0.exported.get() {
            exported.record(took.as_secs_f64());
        }
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
    /// Its name and unit at OpenTelemetry, if they are set.
    otel: Option<(&'static str, &'static str)>,
    series: Mutex<BTreeMap<Values, M>>,
    /// The SDK's instrument, of a histogram that is exported.
    histogram: OnceLock<opentelemetry::metrics::Histogram<f64>>,
}

impl<M> Family<M> {
    /// A counter's name ends in `_total`, a histogram's in `_seconds`.
    #[must_use]
    pub const fn new(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Self { name, help, labels, otel: None, series: Mutex::new(BTreeMap::new()), histogram: OnceLock::new() }
    }

    /// Names it for OpenTelemetry, with a unit of UCUM. Without this the name follows from that for Prometheus.
    #[must_use]
    pub const fn exported_as(mut self, name: &'static str, unit: &'static str) -> Self {
        self.otel = Some((name, unit));
        self
    }

    /// Its name and unit at OpenTelemetry.
    pub(crate) fn exported(&self) -> (Cow<'static, str>, &'static str) {
        if let Some((name, unit)) = self.otel {
            return (Cow::Borrowed(name), unit);
        }
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        let (name, unit) = match (name.strip_suffix("_seconds"), name.strip_suffix("_bytes")) {
            (Some(name), _) => (name, "s"),
            (None, Some(name)) => (name, "By"),
            (None, None) => (name, ""),
        };
        (Cow::Owned(name.replacen('_', ".", 1)), unit)
    }

    pub(crate) fn help(&self) -> &'static str {
        self.help
    }

    fn labelled(&self, values: &Values) -> Vec<(&'static str, Box<str>)> {
        self.labels.iter().copied().zip(values.iter().cloned()).collect()
    }

    fn series(&self) -> MutexGuard<'_, BTreeMap<Values, M>> {
        // A panic here leaves the map intact.
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The values of a series of a family.
pub trait Kind: Clone + Default {
    /// Records later values in the OpenTelemetry SDK, too.
    fn export(&self, exported: impl FnOnce() -> BoundHistogram<f64>) {
        // The SDK reads counters and gauges by itself.
        drop(exported);
    }
}

impl Kind for Counter {}
impl Kind for Gauge {}
impl Kind for Histogram {
    fn export(&self, exported: impl FnOnce() -> BoundHistogram<f64>) {
        self.0.exported.get_or_init(exported);
    }
}

impl<M: Kind> Family<M> {
    /// All series there are now.
    pub(crate) fn read(&self) -> Vec<Series<M>> {
        let series = self.series();
        series.iter().map(|(values, metric)| Series { labels: self.labelled(values), metric: metric.clone() }).collect()
    }

    /// The series with these values, one a label. To be kept: looking it up takes a lock.
    pub fn with(&self, values: &[&str]) -> M {
        debug_assert_eq!(values.len(), self.labels.len(), "a value for each label of {}", self.name);
        let mut series = self.series();
        let key: Values = values.iter().map(|value| Box::from(*value)).collect();
        let is_known = series.len() < SERIES_MAX || series.contains_key(&key);
        let key = if is_known { key } else { self.labels.iter().map(|_| Box::from(OTHER)).collect() };
        if let Some(known) = series.get(&key) {
            return known.clone();
        }
        let fresh = M::default();
        if let Some(histogram) = self.histogram.get() {
            fresh.export(|| histogram.bind(&attributes(self.labelled(&key))));
        }
        series.insert(key, fresh.clone());
        fresh
    }
}

impl Family<Histogram> {
    /// Has all series, those to come included, recorded in this histogram, too.
    pub(crate) fn export(&self, histogram: opentelemetry::metrics::Histogram<f64>) {
        let series = self.series();
        let histogram = self.histogram.get_or_init(|| histogram);
        for (values, metric) in series.iter() {
            metric.export(|| histogram.bind(&attributes(self.labelled(values))));
        }
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
}

#[derive(Debug)]
struct Published {
    metrics: Vec<Metric>,
    /// Of the OpenTelemetry SDK, once it exports.
    meter: Option<Meter>,
}

static PUBLISHED: Mutex<Published> = Mutex::new(Published { metrics: Vec::new(), meter: None });

fn all() -> MutexGuard<'static, Published> {
    PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets these be seen from now on. Twice is once: a process may hold two parts that count the same.
pub fn publish(metrics: &[Metric]) {
    let mut published = all();
    for metric in metrics {
        if published.metrics.iter().all(|known| known.name() != metric.name()) {
            published.metrics.push(*metric);
            if let Some(meter) = &published.meter {
                register(meter, *metric);
            }
        }
    }
}

/// Registers all present and later metrics with the OpenTelemetry SDK. `false` if another one has.
pub(crate) fn export_to(meter: Meter) -> bool {
    let mut published = all();
    if published.meter.is_some() {
        return false;
    }
    published.metrics.iter().for_each(|metric| register(&meter, *metric));
    published.meter = Some(meter);
    true
}

pub(crate) fn published() -> Vec<Metric> {
    all().metrics.clone()
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
