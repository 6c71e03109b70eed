//! The index in memory and in Redis: what a list, the counts and the overview take over many runs, and rebuilding it
//! from the log, from the request until every list is complete again.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use proto::v1::fleet_service_client::FleetServiceClient;
use proto::v1::index_service_client::IndexServiceClient;
use proto::v1::{CountRunsRequest, GetOverviewRequest, ListRunsRequest, RebuildIndexRequest};
use serde_json::json;
use tonic::transport::Channel;

use crate::Effort;
use crate::execute::{Fleet, Looked, Yard};
use crate::measure::{self, Latencies, rounded};
use crate::results::Results;

/// The index in memory forgets the oldest runs beyond some 100,000.
const IN_MEMORY_MAX: u32 = 50_000;
/// How often each question is asked, one after the other.
const ASKED: u32 = 200;
/// The log entries of a no-op call: opened, dispatched, started, ended.
const EVENTS_PER_CALL: u32 = 4;
const LOOK: Duration = Duration::from_millis(10);
/// Then something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) async fn measure(effort: Effort, calls: u32, results: &mut Results) -> anyhow::Result<()> {
    let store = local::Store::start(|line| eprintln!("{line}")).await?;
    for (name, url) in [("memory", None), ("redis", Some(store.url()))] {
        let calls = effort.count(if url.is_some() { calls } else { calls.min(IN_MEMORY_MAX) });
        let looked = Looked { redis: url, ..Looked::default() };
        let yard = Yard::start_looked_at(Fleet::default(), &looked).await?;
        eprintln!("index: {calls} calls, to be found in {name}");
        measure::each(256, 0..calls, |_| yard.call()).await?;
        let address = format!("http://{}", yard.coordinators.first().context("a coordinator")?.ready);
        let channel = Channel::from_shared(address)?.connect().await?;
        let mut index = IndexServiceClient::new(channel.clone());
        until_complete(&mut index, calls).await?;
        results.set(&format!("index.{name}_asked"), asked(&channel).await?);
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

/// What questions over all runs take.
async fn asked(channel: &Channel) -> anyhow::Result<serde_json::Value> {
    let (mut overview, mut counts, mut list) = (Latencies::new(), Latencies::new(), Latencies::new());
    let mut fleet = FleetServiceClient::new(channel.clone());
    let mut index = IndexServiceClient::new(channel.clone());
    for _ in 0..ASKED {
        let began = Instant::now();
        fleet.get_overview(GetOverviewRequest::default()).await?;
        overview.record(began.elapsed());
        let began = Instant::now();
        index.count_runs(CountRunsRequest::default()).await?;
        counts.record(began.elapsed());
        let began = Instant::now();
        index.list_runs(ListRunsRequest::default()).await?;
        list.record(began.elapsed());
    }
    Ok(json!({ "overview": overview.to_json(), "count_runs": counts.to_json(), "list_runs": list.to_json() }))
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
