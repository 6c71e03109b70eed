//! What it costs the broker to erase a run among many: the request that a coordinator makes for each run of which nothing is
//! to be kept, on a log of its own shape and with nothing else to do.

use std::time::Duration;

use async_nats::jetstream::{self, Context, stream};
use serde_json::json;
use uuid::Uuid;

use crate::Effort;
use crate::measure::{self, Latencies, rounded};
use crate::results::Results;

const STREAM: &str = "erase";
const RUNS: u32 = 100_000;
const ERASED: u32 = 2_000;
/// As many as a coordinator erases at once.
const AT_ONCE: usize = 8;
/// About what an event of ours weighs.
const PAYLOAD: [u8; 200] = [b'x'; 200];

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let broker = local::Broker::start(local::BrokerOptions::default(), |_| {}).await?;
    let context = jetstream::new(async_nats::connect(broker.url()).await?);
    let config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec![format!("{STREAM}.>")],
        discard: stream::DiscardPolicy::New,
        max_age: Duration::from_secs(3600),
        storage: stream::StorageType::File,
        allow_direct: true,
        ..stream::Config::default()
    };
    context.create_stream(config).await?;
    let runs: Vec<String> = (0..effort.count(RUNS)).map(subjects).collect();
    eprintln!("erase: storing {} runs", runs.len());
    measure::each(256, runs.clone(), |run| store(context.clone(), run)).await?;

    // Anywhere in the log: in between stands what is kept.
    let step = runs.len() / (2 * effort.count(ERASED) as usize).max(1);
    let erased: Vec<String> = runs.iter().step_by(step.max(1)).cloned().collect();
    let (one_by_one, together) = erased.split_at(erased.len() / 2);
    eprintln!("erase: {} runs one by one, {} with {AT_ONCE} under way", one_by_one.len(), together.len());
    let mut latencies = Latencies::new();
    for run in one_by_one {
        let began = std::time::Instant::now();
        erase(context.clone(), run.clone()).await?;
        latencies.record(began.elapsed());
    }
    let per_s = measure::each(AT_ONCE, together.to_vec(), |run| erase(context.clone(), run)).await?;
    let (p50, p99) = (latencies.ms(0.5), latencies.ms(0.99));
    results.set("erase", json!({ "runs": runs.len(), "p50_ms": p50, "p99_ms": p99, "per_s": rounded(per_s) }));
    Ok(())
}

/// What the subjects of a run begin with.
fn subjects(number: u32) -> String {
    format!("{STREAM}.run.{:02x}.run_{:02x}_{}", number % 16, number % 16, Uuid::now_v7().simple())
}

/// The two messages of a single call.
async fn store(context: Context, run: String) -> anyhow::Result<()> {
    for place in ["0.job.main", "0.out.main"] {
        context.publish(format!("{run}.{place}"), PAYLOAD.to_vec().into()).await?.await?;
    }
    Ok(())
}

async fn erase(context: Context, run: String) -> anyhow::Result<()> {
    let stream = context.get_stream_no_info(STREAM).await?;
    let purged = stream.purge().filter(format!("{run}.>")).sequence(u64::MAX >> 1).await?;
    anyhow::ensure!(purged.purged == 2, "{run}: {purged:?}");
    Ok(())
}
