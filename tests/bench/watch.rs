//! The cost of watching a waiting run, over the number of runs in the log; and the effect on readers and other calls if
//! thousands of readers reconnect at once or do not read.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use proto::v1;
use proto::v1::run_service_client::RunServiceClient;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::Effort;
use crate::execute::{self, Fleet, Yard};
use crate::measure::{each, rounded};
use crate::probe::Probe;
use crate::process::Usages;
use crate::results::Results;

/// Runs in the log, each more than the last; the last is the bench's largest log.
const LOGS: [u64; 2] = [2_000, 20_000];
const IN_FLIGHT: usize = 256;
const WATCHES: u32 = 500;
const READERS: u32 = 5_000;
const READERS_PER_CONNECTION: usize = 200;
/// Readers that do not read, of a run of so many chunks of 1 KiB.
const UNREAD: u32 = 1_000;
const UNREAD_CHUNKS: u32 = 15_000;
/// Memory is looked at when readers have had this time to be given what they do not read.
const SETTLE: Duration = Duration::from_secs(5);

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let yard = Yard::start(Fleet::default()).await?;
    let mut ids: Vec<String> = Vec::new();
    for runs in LOGS.map(|runs| runs / u64::from(effort.divisor)).into_iter().chain([effort.retained_max]) {
        let missing = runs.saturating_sub(ids.len() as u64);
        eprintln!("watch: {missing} runs more");
        ids.extend(open(&yard, usize::try_from(missing)?).await?);
        let before = Usages::of(&yard)?;
        let watches = effort.count(WATCHES);
        let began = Instant::now();
        for index in 0..watches as usize {
            begin(yard.client(), ids[index * ids.len() / watches as usize].clone()).await?;
        }
        let each_ms = rounded(began.elapsed().as_secs_f64() * 1e3 / f64::from(watches));
        let cpu_us = Usages::of(&yard)?.cpu_us_per_call(before, watches);
        results.set(&format!("watch.of_{runs}"), json!({ "runs": runs, "ms": each_ms, "cpu_us": cpu_us }));
    }
    results.set("watch.storm", storm(&yard, &ids, effort.count(READERS)).await?);
    results.set("watch.unread", unread(&yard, effort).await?);
    Ok(())
}

/// Runs that wait for their client.
async fn open(yard: &Yard, count: usize) -> anyhow::Result<Vec<String>> {
    let (sender, mut opened) = tokio::sync::mpsc::channel(count.max(1));
    each(IN_FLIGHT, 0..count, |_| {
        let (mut client, sender) = (yard.client(), sender.clone());
        async move {
            let calls = vec![execute::new_call("ask", "{}".to_owned())];
            let request = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
            let run = client.create_run(request).await?.into_inner().run.context("the run")?;
            Ok(sender.send(run.run_id).await?)
        }
    })
    .await?;
    drop(sender);
    let mut ids = Vec::new();
    while let Some(id) = opened.recv().await {
        ids.push(id);
    }
    Ok(ids)
}

/// A stream of which the first event has come.
async fn begin(
    mut client: RunServiceClient<Channel>,
    run_id: String,
) -> anyhow::Result<tonic::Streaming<v1::WatchRunResponse>> {
    let request = v1::WatchRunRequest { run_id, ..v1::WatchRunRequest::default() };
    let mut stream = client.watch_run(request).await?.into_inner();
    stream.message().await?.context("the run was opened")?;
    Ok(stream)
}

/// All readers come at once.
async fn storm(yard: &Yard, ids: &[String], readers: u32) -> anyhow::Result<serde_json::Value> {
    eprintln!("watch: {readers} readers at once");
    let connections = yard.connections((readers as usize).div_ceil(READERS_PER_CONNECTION)).await?;
    let probe = Probe::start(yard);
    let mut reading = JoinSet::new();
    let began = Instant::now();
    for reader in 0..readers as usize {
        let client = connections[reader % connections.len()].clone();
        reading.spawn(begin(client, ids[reader % ids.len()].clone()));
    }
    let (mut served, mut kept) = (0, Vec::new());
    while let Some(reader) = reading.join_next().await {
        if let Ok(stream) = reader? {
            kept.push(stream);
            served += 1;
        }
    }
    let all_s = rounded(began.elapsed().as_secs_f64());
    let others = probe.end().await?;
    ensure!(served > 0, "no reader was served");
    Ok(json!({ "readers": readers, "served": served, "all_served_s": all_s, "others": others.to_json() }))
}

/// Readers over HTTP that never read.
async fn unread(yard: &Yard, effort: Effort) -> anyhow::Result<serde_json::Value> {
    let (readers, chunks) = (effort.count(UNREAD), effort.count(UNREAD_CHUNKS));
    eprintln!("watch: {readers} readers that do not read");
    let mut stream = yard.client().execute_run(execute::request(execute::chunks(chunks, 1024, 0))).await?.into_inner();
    let mut id = None;
    while let Some(message) = stream.message().await? {
        for event in message.events {
            if let Some(v1::run_event::Event::RunOpened(opened)) = event.event {
                id = Some(opened.run_id);
            }
        }
    }
    let id = id.context("the run was opened")?;
    let before = Usages::of(yard)?.memory_mib();
    let (probe, mut silent) = (Probe::start(yard), Vec::new());
    for _ in 0..readers {
        let mut connection = TcpStream::connect(yard.coordinators[0].ready.as_str()).await?;
        let request = format!("GET /v1/runs/{id}/events HTTP/1.1\r\nhost: localhost\r\n\r\n");
        connection.write_all(request.as_bytes()).await?;
        silent.push(connection);
    }
    tokio::time::sleep(SETTLE).await;
    let during = Usages::of(yard)?.memory_mib();
    let others = probe.end().await?;
    Ok(json!({
        "readers": readers, "mib": f64::from(chunks) / 1024.0, "others": others.to_json(),
        "coordinator_mib": { "before": before["coordinator"], "during": during["coordinator"] },
    }))
}
