//! Rebuilding the index from the log, in memory and in Redis: from the request until every list is complete again.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use proto::v1::index_service_client::IndexServiceClient;
use proto::v1::{CountRunsRequest, RebuildIndexRequest};
use serde_json::json;
use tonic::transport::Channel;

use crate::Effort;
use crate::execute::{Fleet, Looked, Yard};
use crate::measure::{self, rounded};
use crate::results::Results;

const CALLS: u32 = 50_000;
/// The log entries of a no-op call: opened, dispatched, started, ended.
const EVENTS_PER_CALL: u32 = 4;
const LOOK: Duration = Duration::from_millis(10);
/// Then something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let store = local::Store::start(|line| eprintln!("{line}")).await?;
    for (name, url) in [("memory", None), ("redis", Some(store.url()))] {
        let looked = Looked { redis: url, ..Looked::default() };
        let yard = Yard::start_looked_at(Fleet::default(), &looked).await?;
        let calls = effort.count(CALLS);
        eprintln!("index: {calls} calls, to be found in {name}");
        measure::each(256, 0..calls, |_| yard.call()).await?;
        let address = format!("http://{}", yard.coordinators.first().context("a coordinator")?.ready);
        let mut index = IndexServiceClient::new(Channel::from_shared(address)?.connect().await?);
        until_complete(&mut index, calls).await?;
        let began = Instant::now();
        index.rebuild_index(RebuildIndexRequest {}).await?;
        until_complete(&mut index, calls).await?;
        let s = began.elapsed().as_secs_f64();
        let (entries, _) = yard.log().await?;
        let events = u64::from(calls) * u64::from(EVENTS_PER_CALL);
        results.set(
            &format!("index.{name}"),
            json!({
                "runs": calls, "entries": entries, "events": events, "s": rounded(s),
                "events_per_s": rounded(events as f64 / s),
            }),
        );
    }
    Ok(())
}

async fn until_complete(index: &mut IndexServiceClient<Channel>, runs: u32) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let counted = index.count_runs(CountRunsRequest::default()).await?.into_inner();
        let known: u64 = counted.runs.iter().map(|count| count.count).sum();
        if counted.coverage.is_some_and(|coverage| coverage.complete) && known >= u64::from(runs) {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "the index is not complete: it knows {known} of {runs} runs");
        tokio::time::sleep(LOOK).await;
    }
}
