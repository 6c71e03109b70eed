//! The cost of 100,000 calls that wait for a delayed retry, for other calls of their pool and for the broker.

use std::time::Duration;

use proto::v1;
use serde_json::json;

use crate::Effort;
use crate::execute::{self, Fleet, Yard};
use crate::measure::{each, rate, rounded};
use crate::probe::Probe;
use crate::process::Usages;
use crate::results::Results;

const DELAYED: u32 = 100_000;
const IN_FLIGHT: usize = 256;
/// The last ones are failing and handed back when all were asked for.
const SETTLE: Duration = Duration::from_secs(5);

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let yard = Yard::start(Fleet::default()).await?;
    let delayed = effort.count(DELAYED);
    rate(IN_FLIGHT, effort.time, || yard.call()).await?;
    results.set("delayed.before", beside(&yard, effort).await?);
    eprintln!("delayed: {delayed} calls");
    each(IN_FLIGHT, 0..delayed, |_| {
        let mut client = yard.client();
        async move {
            let calls = vec![execute::new_call("later", "{}".to_owned())];
            client.create_run(v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() }).await?;
            Ok(())
        }
    })
    .await?;
    tokio::time::sleep(SETTLE).await;
    results.set(&format!("delayed.beside_{delayed}"), beside(&yard, effort).await?);
    Ok(())
}

/// The other calls: of one client, one after another, and as many as the yard carries.
async fn beside(yard: &Yard, effort: Effort) -> anyhow::Result<serde_json::Value> {
    let memory = Usages::of(yard)?.memory_mib();
    let probe = Probe::start(yard);
    tokio::time::sleep(effort.time).await;
    let calls = probe.end().await?;
    let rate = rate(IN_FLIGHT, effort.time, || yard.call()).await?.per_s();
    Ok(json!({ "calls_per_s": rounded(rate), "p50_ms": calls.ms(0.5), "p99_ms": calls.ms(0.99), "memory_mib": memory }))
}
