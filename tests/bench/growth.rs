//! The cost of a call as things grow: calls that the log holds, calls that were made and have left it for the history,
//! tools, workers, coordinators. Each in a yard of its own, all else being small.

use serde_json::{Value, json};

use crate::Effort;
use crate::execute::{Fleet, Looked, Yard};
use crate::measure::{self, Latencies, rounded};
use crate::process::Usages;
use crate::results::Results;

/// Fewer than usual, so that it can be seen what a single call waits for.
const IN_FLIGHT: usize = 64;
const SINGLES: u32 = 500;
const CALLS_MIN: u64 = 1_000;
const TOOLS: [u32; 4] = [1, 10, 100, 1_000];
const WORKERS: [u32; 4] = [1, 10, 50, 200];
const COORDINATORS: [usize; 3] = [1, 2, 4];
/// The slots of all workers together.
const SLOTS: u32 = 512;

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let yard = Yard::start(Fleet::default()).await?;
    for retained in counts(effort) {
        eprintln!("growth: {retained} retained calls");
        let missing = retained.saturating_sub(yard.log().await?.0 / 2);
        measure::each(IN_FLIGHT, 0..missing, |_| yard.call()).await?;
        rows.push(row(json!({ "retained_calls": retained }), &yard, effort).await?);
    }
    drop(yard);
    let folder = tempfile::tempdir()?;
    let looked = Looked { history: Some(folder.path().to_owned()), ..Looked::default() };
    let yard = Yard::start_looked_at(Fleet { has_short_log: true, ..Fleet::default() }, &looked).await?;
    let mut made = 0;
    for calls in counts(effort) {
        eprintln!("growth: {calls} calls with a history");
        measure::each(IN_FLIGHT, made..calls, |_| yard.call()).await?;
        made = calls;
        let (log_messages, _) = yard.log().await?;
        rows.push(row(json!({ "calls_made": calls, "log_messages": log_messages }), &yard, effort).await?);
    }
    drop(yard);
    for tools in TOOLS {
        eprintln!("growth: {tools} tools");
        let yard = Yard::start(Fleet { tools: tools.saturating_sub(3), ..Fleet::default() }).await?;
        rows.push(row(json!({ "tools": tools.max(3) }), &yard, effort).await?);
    }
    for workers_each in WORKERS {
        eprintln!("growth: {workers_each} workers");
        let slots = (SLOTS / workers_each).max(4);
        let yard = Yard::start(Fleet { workers_each, slots, ..Fleet::default() }).await?;
        rows.push(row(json!({ "workers": workers_each }), &yard, effort).await?);
    }
    for coordinators in COORDINATORS {
        eprintln!("growth: {coordinators} coordinators");
        let yard = Yard::start(Fleet { coordinators, ..Fleet::default() }).await?;
        rows.push(row(json!({ "coordinators": coordinators }), &yard, effort).await?);
    }
    results.set("growth", rows);
    Ok(())
}

/// From a thousand calls to as many as are asked for.
fn counts(effort: Effort) -> impl Iterator<Item = u64> {
    let counts = std::iter::successors(Some(CALLS_MIN), |calls| Some(calls * 10));
    counts.take_while(move |calls| *calls <= effort.retained_max)
}

/// A rate, a latency and a cost, added to what grew.
async fn row(mut row: Value, yard: &Yard, effort: Effort) -> anyhow::Result<Value> {
    measure::rate(IN_FLIGHT, effort.time / 3, || yard.call()).await?;
    let mut latencies = Latencies::new();
    measure::one_by_one(effort.count(SINGLES), &mut latencies, || yard.call()).await?;
    let before = Usages::of(yard)?;
    let rate = measure::rate(IN_FLIGHT, effort.time, || yard.call()).await?;
    let after = Usages::of(yard)?;
    row["calls_per_s"] = rounded(rate.per_s()).into();
    row["p50_ms"] = latencies.ms(0.5).into();
    row["p99_ms"] = latencies.ms(0.99).into();
    row["cpu_us_per_call"] = after.cpu_us_per_call(before, rate.calls);
    row["memory_mib"] = after.memory_mib();
    Ok(row)
}
