//! How long ten calls of one tenant wait behind 20,000 queued calls of another one, in service times.

use std::time::{Duration, Instant};

use anyhow::ensure;
use proto::v1;
use proto::v1::run_event::Event;
use serde_json::json;
use tokio::task::JoinSet;

use crate::Effort;
use crate::execute::{self, Fleet, Yard};
use crate::measure::{each, median, rounded};
use crate::results::Results;

/// Calls of the busy tenant.
const QUEUED: u32 = 20_000;
/// Calls of the other tenant, which come together.
const CALLS: u32 = 10;
const SLOTS: u32 = 32;
/// The service time: each slot executes five calls a second.
const SERVICE: Duration = Duration::from_millis(200);
const IN_FLIGHT: usize = 256;

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let yard = Yard::start(Fleet { slots: SLOTS, ..Fleet::default() }).await?;
    let queued = effort.count(QUEUED);
    let alone = ten(&yard).await?;
    eprintln!("fair: {queued} calls of the busy tenant");
    let began = Instant::now();
    each(IN_FLIGHT, 0..queued, |_| {
        let mut client = yard.client();
        async move {
            client.create_run(nap("busy")).await?;
            Ok(())
        }
    })
    .await?;
    let taken = began.elapsed();
    let mut worst = Vec::new();
    let mut typical = Vec::new();
    for round in 1..=effort.rounds {
        eprintln!("fair: round {round} of {}", effort.rounds);
        let delays = ten(&yard).await?;
        worst.push(delays.iter().copied().fold(0.0, f64::max));
        typical.push(median(delays));
    }
    // The backlog must outlast the measurement, or nothing was measured.
    let ended = f64::from(SLOTS) * began.elapsed().as_secs_f64() / SERVICE.as_secs_f64();
    ensure!(ended < f64::from(queued), "the backlog of {queued} calls was gone before the end of the measurement");
    let name = format!("fair.behind_{queued}");
    results.set("fair.alone_median_service_times", rounded(median(alone)));
    results.set(
        &name,
        json!({
            "slots": SLOTS, "service_ms": SERVICE.as_millis(), "calls": CALLS,
            "median_service_times": rounded(median(typical)), "worst_service_times": rounded(median(worst)),
            "accepted_per_s": rounded(f64::from(queued) / taken.as_secs_f64()),
        }),
    );
    Ok(())
}

fn nap(tenant: &str) -> v1::CreateRunRequest {
    let arguments = json!({ "ms": SERVICE.as_millis() }).to_string();
    let calls = vec![execute::new_call("nap", arguments)];
    v1::CreateRunRequest { calls, tenant: tenant.to_owned(), ..v1::CreateRunRequest::default() }
}

/// By how many service times each of ten calls ended later than it would have on a free slot.
async fn ten(yard: &Yard) -> anyhow::Result<Vec<f64>> {
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let mut client = yard.client();
        calls.spawn(async move {
            let began = Instant::now();
            let request = v1::ExecuteRunRequest::from(nap("small"));
            let mut stream = client.execute_run(request).await?.into_inner();
            while let Some(message) = stream.message().await? {
                if message.events.iter().any(|event| matches!(event.event, Some(Event::CallEnded(_)))) {
                    return anyhow::Ok(began.elapsed());
                }
            }
            anyhow::bail!("the stream ended before its call")
        });
    }
    let mut delays = Vec::new();
    while let Some(ended) = calls.join_next().await {
        let delay = ended??.saturating_sub(SERVICE);
        delays.push(delay.as_secs_f64() / SERVICE.as_secs_f64());
    }
    Ok(delays)
}
