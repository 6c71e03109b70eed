//! The broker's cost of erasing a run among many, on a log of the real shape with the consumers of a fleet and no other
//! load: by one purge, or by one request for each message, as coordinators do it.

use std::time::Duration;

use async_nats::jetstream::{self, Context, consumer, stream};
use serde_json::json;
use uuid::Uuid;

use crate::Effort;
use crate::measure::{self, Latencies, rounded};
use crate::results::Results;

const STREAM: &str = "erase";
const RUNS: u32 = 100_000;
const ERASED: u32 = 2_000;
/// After a purge the broker counts the pending messages of every consumer again. This is fast for consumers at the
/// log's end.
const PURGED: u32 = 100;
/// Consumers of a fleet: feeds of a shard, and each so many-th the queue of a pool.
const CONSUMERS: u32 = 20;
const QUEUE_EVERY: u32 = 5;
/// As many as a coordinator erases at once.
const AT_ONCE: usize = 8;
/// The approximate size of an event.
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

    for number in 0..CONSUMERS {
        let config = consumer::pull::Config {
            deliver_policy: consumer::DeliverPolicy::New,
            ack_policy: consumer::AckPolicy::None,
            filter_subject: match number % QUEUE_EVERY {
                0 => format!("{STREAM}.run.*.*.*.job.main"),
                _ => format!("{STREAM}.run.{:02x}.>", number % 16),
            },
            ..consumer::pull::Config::default()
        };
        context.create_consumer_on_stream(config, STREAM).await?;
    }

    // Anywhere in the log: in between stands what is kept.
    let step = runs.len() / (3 * effort.count(ERASED) as usize).max(1);
    let mut erased = runs.iter().step_by(step.max(1)).cloned();
    let mut next = |count: u32| -> Vec<String> { erased.by_ref().take(effort.count(count) as usize).collect() };
    let (purged, one_by_one, together) = (next(PURGED), next(ERASED), next(ERASED));
    eprintln!("erase: {} runs purged, {} erased one by one, {AT_ONCE} under way", purged.len(), one_by_one.len());
    let mut purges = Latencies::new();
    for run in purged {
        let began = std::time::Instant::now();
        purge(context.clone(), run).await?;
        purges.record(began.elapsed());
    }
    let mut latencies = Latencies::new();
    for run in one_by_one {
        let began = std::time::Instant::now();
        erase(context.clone(), run).await?;
        latencies.record(began.elapsed());
    }
    let per_s = measure::each(AT_ONCE, together, |run| erase(context.clone(), run)).await?;
    let (p50, p99) = (latencies.ms(0.5), latencies.ms(0.99));
    results.set(
        "erase",
        json!({
            "runs": runs.len(), "consumers": CONSUMERS, "p50_ms": p50, "p99_ms": p99, "per_s": rounded(per_s),
            "purge_p50_ms": purges.ms(0.5), "purge_p99_ms": purges.ms(0.99),
        }),
    );
    Ok(())
}

/// The prefix of the subjects of a run.
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

/// The messages are found by their subjects and deleted.
async fn erase(context: Context, run: String) -> anyhow::Result<()> {
    let stream = context.get_stream_no_info(STREAM).await?;
    for place in ["0.job.main", "0.out.main"] {
        let message = stream.direct_get_last_for_subject(format!("{run}.{place}")).await?;
        let request = json!({ "seq": message.sequence, "no_erase": true });
        let told: serde_json::Value = context.request(format!("STREAM.MSG.DELETE.{STREAM}"), &request).await?;
        anyhow::ensure!(told["success"] == true, "{run}: {told}");
    }
    Ok(())
}

async fn purge(context: Context, run: String) -> anyhow::Result<()> {
    let stream = context.get_stream_no_info(STREAM).await?;
    let purged = stream.purge().filter(format!("{run}.>")).sequence(u64::MAX >> 1).await?;
    anyhow::ensure!(purged.purged == 2, "{run}: {purged:?}");
    Ok(())
}
