//! Rates and latencies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Latencies in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// A quantile; 0 without samples.
    pub(crate) fn ms(&mut self, quantile: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        let last = self.0.len().saturating_sub(1);
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small"
        )]
        let index = (last as f64 * quantile).round() as usize;
        self.0.get(index).copied().unwrap_or_default()
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Calls a second, with `in_flight` of them under way all the time.
pub(crate) async fn rate<F, R>(in_flight: usize, time: Duration, call: F) -> anyhow::Result<f64>
where
    F: Fn() -> R,
    R: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let done = Arc::new(AtomicU64::new(0));
    let (began, mut tasks) = (Instant::now(), tokio::task::JoinSet::new());
    for _ in 0..in_flight {
        tasks.spawn(call());
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
        done.fetch_add(1, Ordering::Relaxed);
        if began.elapsed() < time {
            tasks.spawn(call());
        }
    }
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
}

pub(crate) async fn one_by_one<F, R>(calls: usize, samples: &mut Samples, call: F) -> anyhow::Result<()>
where
    F: Fn() -> R,
    R: Future<Output = anyhow::Result<()>>,
{
    for _ in 0..calls.max(1) {
        let began = Instant::now();
        call().await?;
        samples.0.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(())
}
