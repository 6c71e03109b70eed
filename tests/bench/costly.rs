//! The cost of requests that would take minutes or gigabytes if only their size were limited, and of another client's
//! calls beside them.

use std::time::{Duration, Instant};

use anyhow::ensure;
use harness::Costly;
use serde_json::json;

use crate::Effort;
use crate::execute::{Fleet, Yard};
use crate::measure::{Latencies, rounded};
use crate::probe::Probe;
use crate::process::{Usage, forget_peak, peak_bytes};
use crate::results::Results;

/// One after another, of each kind.
const TIMES: u32 = 20;
const MIB: f64 = 1024.0 * 1024.0;

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let yard = Yard::start(Fleet::default()).await?;
    let (coordinator, times) = (yard.coordinators[0].pid, effort.count(TIMES).max(2));
    let mut client = yard.connections(1).await?.remove(0);
    for costly in Costly::all() {
        eprintln!("costly: {}", costly.what);
        let alone = Probe::start(&yard);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let alone = alone.end().await?;
        forget_peak(coordinator)?;
        let (before, beside) = (Usage::of(coordinator)?, Probe::start(&yard));
        let mut taken = Latencies::new();
        for _ in 0..times {
            let began = Instant::now();
            let answer = client.create_run(costly.request()).await;
            taken.record(began.elapsed());
            let said = match answer {
                Ok(created) => format!("{created:?}"),
                Err(refusal) => refusal.message().to_owned(),
            };
            ensure!(said.contains(costly.says), "{}: {said}", costly.what);
        }
        let beside = beside.end().await?;
        let grown = (peak_bytes(coordinator)? - before.memory_bytes) / MIB;
        let bytes = costly.arguments.len() + format!("{:?}", costly.format).len();
        results.set(
            &format!("costly.{}", costly.what.replace(' ', "_")),
            json!({
                "bytes": bytes, "p50_ms": taken.ms(0.5), "max_ms": taken.ms(1.0), "coordinator_mib": rounded(grown),
                "others_p99_ms": { "alone": alone.ms(0.99), "beside": beside.ms(0.99) },
            }),
        );
    }
    Ok(())
}
