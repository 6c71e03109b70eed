//! Many readers, and readers of much: a run of 100,000 events read again from its beginning and from near its end, and
//! 1,000 watchers of one run while it speaks.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use proto::v1::run_event::Event;
use proto::v1::run_service_client::RunServiceClient;
use proto::v1::{self};
use serde_json::json;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::Effort;
use crate::execute::{self, Yard};
use crate::measure::{median, rounded};
use crate::process::Usages;
use crate::results::Results;

const EVENTS: u32 = 100_000;
const WATCHERS: usize = 1_000;
const WATCHERS_PER_CONNECTION: usize = 100;
/// The output of the watched run, 64 bytes at a time.
const WATCHED_CHUNKS: u32 = 1_000;

pub(crate) async fn measure(yard: &Yard, effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let run = long_run(yard, effort.count(EVENTS)).await?;
    let (mut whole, mut tail, mut watched) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=effort.rounds {
        eprintln!("readers: round {round} of {}", effort.rounds);
        whole.push(resume(yard, &run, 0).await?);
        tail.push(resume(yard, &run, run.last - 10).await?);
        watched.push(watch(yard, effort).await?);
    }
    let (mut lasted, mut cpu) = (Vec::new(), Vec::new());
    for (time_s, cpu_us) in watched {
        lasted.push(time_s);
        cpu.push(cpu_us);
    }
    let watchers = u32::try_from(WATCHERS)? / effort.divisor;
    let deliveries = f64::from(watchers * effort.count(WATCHED_CHUNKS));
    let time_s = median(lasted);
    results.set(
        "stream.resume",
        json!({ "events": run.last, "s": rounded(median(whole)), "last_ten_s": rounded(median(tail)) }),
    );
    results.set(
        "stream.watched",
        json!({
            "watchers": watchers, "chunks": effort.count(WATCHED_CHUNKS), "s": rounded(time_s),
            "chunks_delivered_per_s": rounded(deliveries / time_s), "cpu_us_per_delivery": cpu.pop(),
        }),
    );
    Ok(())
}

struct LongRun {
    id: String,
    /// The number of its last event.
    last: u64,
}

async fn long_run(yard: &Yard, chunks: u32) -> anyhow::Result<LongRun> {
    let mut stream = yard.client().execute_run(execute::request(execute::chunks(chunks, 64, 0))).await?.into_inner();
    let (mut id, mut last) = (None, 0);
    while let Some(message) = stream.message().await? {
        for event in message.events {
            last = event.sequence;
            if let Some(Event::RunOpened(opened)) = event.event {
                id = Some(opened.run_id);
            }
        }
    }
    Ok(LongRun { id: id.context("the run was opened")?, last })
}

/// Seconds until all that comes after a number was read.
async fn resume(yard: &Yard, run: &LongRun, after: u64) -> anyhow::Result<f64> {
    let began = Instant::now();
    let request =
        v1::WatchRunRequest { run_id: run.id.clone(), after_sequence: Some(after), ..v1::WatchRunRequest::default() };
    let mut stream = yard.client().watch_run(request).await?.into_inner();
    let mut next = after + 1;
    while let Some(message) = stream.message().await? {
        for event in message.events {
            ensure!(event.sequence == next, "event {} came for {next}", event.sequence);
            next += 1;
        }
    }
    ensure!(next == run.last + 1, "the events ended before {next}");
    Ok(began.elapsed().as_secs_f64())
}

/// Seconds from the moment at which the call of a run that all watch is asked for until all have read to its end; and
/// the processor time of each delivery.
async fn watch(yard: &Yard, effort: Effort) -> anyhow::Result<(f64, serde_json::Value)> {
    let mut runs = yard.client();
    let open = v1::CreateRunRequest { keep_open: true, ..v1::CreateRunRequest::default() };
    let run_id = runs.create_run(open).await?.into_inner().run.context("the run")?.run_id;
    let (watchers, chunks) = (WATCHERS / effort.divisor as usize, effort.count(WATCHED_CHUNKS));
    let (mut reading, mut tasks) = (Vec::new(), JoinSet::new());
    for client in yard.connections(watchers.div_ceil(WATCHERS_PER_CONNECTION)).await? {
        for _ in 0..WATCHERS_PER_CONNECTION.min(watchers) {
            reading.push(begin(client.clone(), run_id.clone()).await?);
        }
    }
    let before = Usages::of(yard)?;
    for mut stream in reading {
        tasks.spawn(async move {
            let mut next = 0;
            while let Some(message) = stream.message().await? {
                for event in message.events {
                    if let Some(Event::CallOutput(output)) = event.event {
                        ensure!(output.chunk == next, "chunk {} came for {next}", output.chunk);
                        next += 1;
                    }
                }
            }
            ensure!(next == chunks, "{next} of {chunks} chunks came");
            Ok(())
        });
    }
    let began = Instant::now();
    let calls = vec![execute::chunks(chunks, 64, 0)];
    runs.append_calls(v1::AppendCallsRequest { run_id: run_id.clone(), calls, ..v1::AppendCallsRequest::default() })
        .await?;
    runs.close_run(v1::CloseRunRequest { run_id }).await?;
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let deliveries = u32::try_from(watchers)? * chunks;
    Ok((began.elapsed().as_secs_f64(), Usages::of(yard)?.cpu_us_per_call(before, deliveries)))
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
