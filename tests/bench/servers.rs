//! How long a server of the broker is missed that is killed, or hangs: the call that takes longest while a few callers
//! go on, one call after the other each. Each of the three servers in turn, so also the one that leads the log, the one
//! that the coordinator is connected to, and the one that sends it the log. And how long a reader waits for each of its
//! runs, which have ended, at a coordinator that must read them from the log while a server hangs.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use proto::v1;
use proto::v1::run_event::Event;
use proto::v1::run_service_client::RunServiceClient;
use serde_json::json;
use tonic::transport::Channel;

use crate::Effort;
use crate::execute;
use crate::measure::{Latencies, rounded};
use crate::partitions::{PROFILE, Yard};
use crate::results::Results;
use crate::roles;

const CALLERS: usize = 8;
/// How long a server is away. Longer than anybody waits for it.
const AWAY: Duration = Duration::from_secs(20);
/// After a call that failed.
const PAUSE: Duration = Duration::from_millis(200);
/// Runs that are read, each of two calls.
const READ: usize = 100;
/// A coordinator that was just started keeps nothing of runs that have ended, and has taken its shards over by then.
const SETTLE: Duration = Duration::from_secs(10);

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let mut yard = Yard::start(1).await?;
    let (mut killed, mut hung, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=effort.rounds {
        for node in 0..yard.cluster.nodes().len() {
            eprintln!("servers: round {round} of {}, server {node}", effort.rounds);
            // First what is milder: a server that was killed comes back without its roles.
            yard.cluster.nodes()[node].pause();
            hung.push(longest_s(&yard).await?);
            yard.cluster.nodes()[node].resume();
            yard.cluster.healthy().await?;
            reads.push(reads_ms(&yard, node).await?.to_json());
            yard.cluster.nodes_mut()[node].kill().await;
            killed.push(longest_s(&yard).await?);
            yard.cluster.nodes_mut()[node].restart().await?;
            yard.cluster.healthy().await?;
        }
    }
    let result = json!({ "hung_longest_call_s": hung, "killed_longest_call_s": killed, "hung_reads": reads });
    results.set("servers", result);
    yard.cluster.stop().await;
    Ok(())
}

async fn longest_s(yard: &Yard) -> anyhow::Result<f64> {
    let began = Instant::now();
    let callers = (0..CALLERS).map(|_| async {
        let mut longest = Duration::ZERO;
        while began.elapsed() < AWAY {
            let call = Instant::now();
            // A call may also fail, because the broker was away for too long.
            if let Err(error) = execute::noop(yard.client.clone()).await {
                eprintln!("servers: {error:#}");
                tokio::time::sleep(PAUSE).await;
            }
            longest = longest.max(call.elapsed());
        }
        longest
    });
    let longest = futures::future::join_all(callers).await.into_iter().max().unwrap_or_default();
    Ok(rounded(longest.as_secs_f64()))
}

/// Reads runs one after the other, each from its beginning to its end, while a server hangs.
async fn reads_ms(yard: &Yard, node: usize) -> anyhow::Result<Latencies> {
    let mut runs = Vec::new();
    for _ in 0..READ {
        runs.push(ended(yard.client.clone()).await?);
    }
    let url = yard.cluster.url();
    let mut another = roles::start(&["coordinator", &url, "--durability", PROFILE], &[]).await?;
    let client = execute::connect(&another.ready).await?;
    tokio::time::sleep(SETTLE).await;
    yard.cluster.nodes()[node].pause();
    let (began, mut latencies) = (Instant::now(), Latencies::new());
    for run_id in runs.iter().cycle() {
        let read = Instant::now();
        while let Err(error) = read_to_end(client.clone(), run_id).await {
            eprintln!("servers: {error:#}");
            tokio::time::sleep(PAUSE).await;
        }
        latencies.record(read.elapsed());
        if began.elapsed() >= AWAY {
            break;
        }
    }
    yard.cluster.nodes()[node].resume();
    another.kill().await?;
    yard.cluster.healthy().await?;
    Ok(latencies)
}

/// The id of a run of two calls that has ended.
async fn ended(mut client: RunServiceClient<Channel>) -> anyhow::Result<String> {
    let calls =
        ["a", "b"].map(|id| v1::NewCall { call_id: id.to_owned(), ..execute::new_call("noop", "{}".to_owned()) });
    let request = v1::CreateRunRequest { calls: calls.to_vec(), ..v1::CreateRunRequest::default() };
    let mut stream = client.execute_run(v1::ExecuteRunRequest::from(request)).await?.into_inner();
    let mut run_id = None;
    while let Some(message) = stream.message().await? {
        for event in message.events {
            if let Some(Event::RunOpened(opened)) = event.event {
                run_id = Some(opened.run_id);
            }
        }
    }
    run_id.context("the run was opened")
}

async fn read_to_end(mut client: RunServiceClient<Channel>, run_id: &str) -> anyhow::Result<()> {
    let request = v1::WatchRunRequest { run_id: run_id.to_owned(), ..v1::WatchRunRequest::default() };
    let mut stream = client.watch_run(request).await?.into_inner();
    let mut has_ended = false;
    while let Some(message) = stream.message().await? {
        has_ended |= message.events.iter().any(|event| matches!(event.event, Some(Event::RunEnded(_))));
    }
    has_ended.then_some(()).context("the stream ended before the run did")
}
