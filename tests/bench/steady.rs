//! Calls at a steady rate for a long time, at a broker whose memory and disk are limited. The log is far too
//! small for all of them, so it must become shorter as fast as it grows.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::sync::Semaphore;

use crate::execute;
use crate::measure::{self, Latencies, rounded};
use crate::memory::{Confined, Group, mib};
use crate::process::Usage;
use crate::results::Results;
use crate::roles;
use crate::submission::Submission;

/// The broker's memory.
const LIMIT: u64 = 512 << 20;
/// Calls under way beyond which no more begin; those are counted as not made.
const UNDER_WAY_MAX: usize = 4096;
const MINUTE: Duration = Duration::from_secs(60);
/// Errors that are printed; all are counted.
const ERRORS_SHOWN: u64 = 5;

/// What is asked for.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Load {
    /// Minutes of the section of steady calls.
    #[arg(long, default_value_t = 1)]
    steady_minutes: u32,
    /// Calls a second in that section.
    #[arg(long, default_value_t = 8_000)]
    steady_rate: u32,
}

#[derive(Debug, Default)]
struct Counts {
    completed: AtomicU64,
    failed: AtomicU64,
    not_made: AtomicU64,
}

impl Counts {
    fn take(&self) -> [u64; 3] {
        [&self.completed, &self.failed, &self.not_made].map(|count| count.swap(0, Ordering::Relaxed))
    }
}

pub(crate) async fn measure(load: Load, results: &mut Results) -> anyhow::Result<()> {
    let group = Group::of(LIMIT)?;
    let broker = Confined::start(&group).await?;
    let url = broker.url();
    let of_coordinator = [&["coordinator", &url][..], &roles::SHORT_LOG].concat();
    let coordinator = roles::start(&of_coordinator, &[]).await?;
    let worker = roles::start(&["workers", &broker.url(), "512", "1", "0"], &[]).await?;
    let client = execute::connect(&coordinator.ready).await?;
    execute::until_known(&client).await?;
    let (stream, counts) = (Arc::new(Submission::open(client).await?), Arc::new(Counts::default()));
    let under_way = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    let mut rows = Vec::new();
    for minute in 1..=load.steady_minutes {
        let (stream, counts, under_way) = (Arc::clone(&stream), Arc::clone(&counts), Arc::clone(&under_way));
        let (mut latencies, of_minute) = (Latencies::new(), Arc::clone(&counts));
        let call = move || call(&stream, &counts, &under_way);
        measure::open_loop(f64::from(load.steady_rate), MINUTE, &mut latencies, call).await?;
        let [completed, failed, not_made] = of_minute.take();
        let log = broker.log().await?.cached_info().state.clone();
        let row = json!({
            "minute": minute,
            "completed": completed,
            "failed": failed,
            "not_made": not_made,
            // Calls that were not made or failed took no time, so latencies beside them would say too little.
            "p50_ms": (failed + not_made == 0).then(|| latencies.ms(0.5)),
            "p99_ms": (failed + not_made == 0).then(|| latencies.ms(0.99)),
            "log_messages": log.messages,
            "log_mib": mib(log.bytes),
            "broker_disk_mib": mib(size(broker.folder())),
            "broker_mib": Usage::of(broker.pid()?)?.memory_mib(),
            "coordinator_mib": Usage::of(coordinator.pid)?.memory_mib(),
            "worker_mib": Usage::of(worker.pid)?.memory_mib(),
        });
        eprintln!("steady: {row}");
        rows.push(row);
    }
    results.set("steady.calls_per_s_asked", load.steady_rate);
    let completed: f64 = rows.iter().filter_map(|row| row["completed"].as_f64()).sum();
    let seconds = MINUTE.as_secs_f64() * f64::from(load.steady_minutes.max(1));
    results.set("steady.calls_per_s", rounded(completed / seconds));
    results.set("steady.broker_killed_by_the_kernel", group.killed()?);
    results.set("steady.minutes", rows);
    broker.end().await
}

/// A call on a stream that all share, unless too many are under way.
fn call(
    stream: &Submission,
    counts: &Arc<Counts>,
    under_way: &Arc<Semaphore>,
) -> impl Future<Output = anyhow::Result<()>> + Send + use<> {
    let (counts, place) = (Arc::clone(counts), Arc::clone(under_way).try_acquire_owned());
    let call = place.is_ok().then(|| stream.call("noop"));
    async move {
        let Some(call) = call else {
            counts.not_made.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let ended = call.await;
        drop(place);
        match ended {
            Ok(()) => _ = counts.completed.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                if counts.failed.fetch_add(1, Ordering::Relaxed) < ERRORS_SHOWN {
                    eprintln!("steady: {error}");
                }
            }
        }
        Ok(())
    }
}

/// Bytes of the files in a folder and below. Files that disappear meanwhile count nothing.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => size(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    sizes.sum()
}
