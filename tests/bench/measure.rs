//! Rates and latencies.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Latencies, in nanoseconds to three digits.
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        Self(Histogram::new(3).expect("three digits are allowed"))
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.0.record(nanoseconds).expect("a histogram without bounds grows");
    }

    pub(crate) fn ms(&self, quantile: f64) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        let nanoseconds = self.0.value_at_quantile(quantile) as f64;
        rounded(nanoseconds / 1e6)
    }

    pub(crate) fn to_json(&self) -> Value {
        let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(|quantile| self.ms(quantile));
        json!({ "p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "p99_9_ms": p999 })
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// To four digits: more are noise.
pub(crate) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10_f64.powf(3.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}

/// Calls a second, with `in_flight` of them under way all the time.
pub(crate) async fn rate<F, R>(in_flight: usize, time: Duration, call: F) -> anyhow::Result<Rate>
where
    F: Fn() -> R,
    R: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let began = Instant::now();
    let (mut calls, mut tasks) = (0_u32, JoinSet::new());
    for _ in 0..in_flight {
        tasks.spawn(call());
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
        calls += 1;
        if began.elapsed() < time {
            tasks.spawn(call());
        }
    }
    Ok(Rate { calls, time: began.elapsed() })
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) calls: u32,
    pub(crate) time: Duration,
}

impl Rate {
    pub(crate) fn per_s(self) -> f64 {
        f64::from(self.calls) / self.time.as_secs_f64()
    }
}

/// Does each of a number of things once, with `in_flight` of them under way. Gives how many a second.
pub(crate) async fn each<T, F, R>(in_flight: usize, things: impl IntoIterator<Item = T>, act: F) -> anyhow::Result<f64>
where
    F: Fn(T) -> R,
    R: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let (began, mut count, mut tasks) = (Instant::now(), 0_u32, JoinSet::new());
    for thing in things {
        if tasks.len() >= in_flight {
            tasks.join_next().await.transpose()?.transpose()?;
        }
        tasks.spawn(act(thing));
        count += 1;
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}

pub(crate) async fn one_by_one<F, R>(calls: u32, latencies: &mut Latencies, call: F) -> anyhow::Result<()>
where
    F: Fn() -> R,
    R: Future<Output = anyhow::Result<()>>,
{
    for _ in 0..calls.max(1) {
        let began = Instant::now();
        call().await?;
        latencies.record(began.elapsed());
    }
    Ok(())
}

/// Starts calls at a steady rate, whatever becomes of those before, and counts each from when it was due: one that
/// waits because others are slow counts as slow itself (no coordinated omission).
pub(crate) async fn open_loop<F, R>(
    per_s: f64,
    time: Duration,
    latencies: &mut Latencies,
    call: F,
) -> anyhow::Result<()>
where
    F: Fn() -> R + Send + 'static,
    R: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let (sender, ended) = mpsc::channel();
    let runtime = Handle::current();
    // A thread of its own: the timers of the runtime are good to a millisecond, which is more than a call takes.
    let pacing = tokio::task::spawn_blocking(move || {
        let interval = Duration::from_secs_f64(1.0 / per_s);
        let mut due = Instant::now();
        let end = due + time;
        while due < end {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let (call, sender, was_due) = (call(), sender.clone(), due);
            runtime.spawn(async move {
                let result = call.await.map(|()| was_due.elapsed());
                // Nobody listens any more once a call has failed.
                drop(sender.send(result));
            });
            due += interval;
        }
    });
    pacing.await?;
    let all = tokio::task::spawn_blocking(move || ended.into_iter().collect::<anyhow::Result<Vec<_>>>()).await??;
    all.into_iter().for_each(|latency| latencies.record(latency));
    Ok(())
}
