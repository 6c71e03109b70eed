//! Many runs that wait for their clients for days: the memory that each takes in a coordinator and in the broker,
//! before and after they are carried beside the log, how long another coordinator takes to take them over, and what
//! answering one takes then. The index is in Redis, as in production: in memory it has every open run.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use async_nats::jetstream;
use proto::v1::fleet_service_client::FleetServiceClient;
use proto::{names, v1};
use serde_json::{Value, json};
use tonic::transport::Channel;

use crate::Effort;
use crate::execute::{self, Fleet, Looked, Yard};
use crate::measure::{Latencies, each, rounded};
use crate::process::{Usage, peak_bytes};
use crate::results::Results;
use crate::roles;

const IN_FLIGHT: usize = 256;
/// Longer than any of the phases.
const TIMEOUT_S: i64 = 7 * 24 * 3600;
/// Of all runs, so many are answered, one after the other.
const ANSWERED: usize = 1_000;
/// What was allocated for the moment is given back after a while, and runs are packed within a second or two.
const SETTLE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(200);
/// Then something is wrong.
const PATIENCE: Duration = Duration::from_secs(1800);
/// What is carried may take a sixteenth of the log.
const LOG: [&str; 2] = ["--log-max-bytes", "17179869184"];
/// The second coordinator carries what is older.
const TAIL_AGE: [&str; 2] = ["--tail-age-s", "60"];
const MIB: f64 = 1024.0 * 1024.0;

pub(crate) async fn measure(effort: Effort, runs: u32, results: &mut Results) -> anyhow::Result<()> {
    let runs = effort.count(runs);
    let store = local::Store::start(|line| eprintln!("{line}")).await?;
    let looked = Looked { redis: Some(store.url()), ..Looked::default() };
    let mut yard = Yard::start_with(Fleet::default(), &looked, &LOG).await?;
    tokio::time::sleep(SETTLE).await;
    results.set("parked.runs", runs);
    results.set("parked.at_rest", memory(&yard, None)?);

    eprintln!("parked: opening {runs} runs");
    yard.make_way_for(IN_FLIGHT);
    let (sender, mut opened) = tokio::sync::mpsc::channel(usize::try_from(runs)?);
    let opened_per_s = each(IN_FLIGHT, 0..runs, |number| {
        let (mut client, sender) = (yard.client(), sender.clone());
        async move {
            let arguments = json!({ "question": format!("may order {number} be shipped?") }).to_string();
            let calls = vec![execute::new_call("ask", arguments)];
            let timeout = Some(prost_types::Duration { seconds: TIMEOUT_S, nanos: 0 });
            let request = v1::CreateRunRequest { calls, timeout, ..v1::CreateRunRequest::default() };
            let run = client.create_run(request).await?.into_inner().run.context("the run")?;
            Ok(sender.send(run.run_id).await?)
        }
    });
    let opened_per_s = opened_per_s.await?;
    drop(sender);
    let mut ids = Vec::new();
    while let Some(id) = opened.recv().await {
        ids.push(id);
    }
    results.set("parked.opened_per_s", rounded(opened_per_s));
    tokio::time::sleep(SETTLE).await;
    results.set("parked.opened", memory(&yard, Some(runs))?);

    eprintln!("parked: another coordinator takes them over, and carries them");
    let (half, all) = take_over(&mut yard, &looked, [LOG, TAIL_AGE].as_flattened(), runs).await?;
    results.set("parked.half_taken_over_s", rounded(half.as_secs_f64()));
    results.set("parked.taken_over_s", rounded(all.as_secs_f64()));
    results.set("parked.taken_over", memory(&yard, Some(runs))?);
    let began = Instant::now();
    until(|| async { Ok(carried(&yard).await? >= u64::from(runs) && yard.log().await?.0 < u64::from(runs) / 2) })
        .await
        .context("the runs are carried and leave the log")?;
    results.set("parked.carried_s", rounded(began.elapsed().as_secs_f64()));
    tokio::time::sleep(SETTLE).await;
    results.set("parked.carried", memory(&yard, Some(runs))?);

    eprintln!("parked: a third takes over what is carried");
    let (half, all) = take_over(&mut yard, &looked, [LOG, TAIL_AGE].as_flattened(), runs).await?;
    results.set("parked.half_taken_over_carried_s", rounded(half.as_secs_f64()));
    results.set("parked.taken_over_carried_s", rounded(all.as_secs_f64()));
    tokio::time::sleep(SETTLE).await;
    results.set("parked.taken_over_carried", memory(&yard, Some(runs))?);

    eprintln!("parked: answering some");
    let mut client = execute::connect(&yard.coordinators[0].ready).await?;
    let mut answered = Latencies::new();
    for run_id in ids.iter().step_by((ids.len() / ANSWERED).max(1)) {
        let began = Instant::now();
        let outputs = vec![v1::ToolOutput { call_id: "call_0".to_owned(), ..v1::ToolOutput::default() }];
        let request = v1::SubmitToolOutputsRequest { run_id: run_id.clone(), outputs, all_required: false };
        let run = client.submit_tool_outputs(request).await?.into_inner().run.context("the run")?;
        ensure!(run.status() == v1::RunStatus::Completed, "{run_id} is {:?}", run.status());
        answered.record(began.elapsed());
    }
    results.set("parked.answered", answered.to_json());
    Ok(())
}

/// MiB of the coordinator and the broker, and bytes for each of so many runs.
fn memory(yard: &Yard, runs: Option<u32>) -> anyhow::Result<Value> {
    let (coordinator, broker) = (yard.coordinators[0].pid, yard.broker.pid().context("the broker runs")?);
    let mut row = json!({});
    for (name, pid) in [("coordinator", coordinator), ("broker", broker)] {
        let used = Usage::of(pid)?;
        row[format!("{name}_mib")] = used.memory_mib().into();
        row[format!("{name}_peak_mib")] = rounded(peak_bytes(pid)? / MIB).into();
        if let Some(runs) = runs {
            row[format!("{name}_bytes_per_run")] = rounded(used.memory_bytes / f64::from(runs)).into();
        }
    }
    Ok(row)
}

/// Kills the only coordinator, and starts another with these arguments. Returns the time until it has half of the runs,
/// and all of them.
async fn take_over(
    yard: &mut Yard,
    looked: &Looked,
    arguments: &[&str],
    runs: u32,
) -> anyhow::Result<(Duration, Duration)> {
    yard.coordinators[0].kill().await?;
    let (began, url) = (Instant::now(), yard.broker.url());
    let started = roles::start(&[&["coordinator", &url], arguments].concat(), &looked.environments()[0]).await?;
    let channel = Channel::from_shared(format!("http://{}", started.ready))?.connect().await?;
    yard.coordinators[0] = started;
    let has = |wanted: u32| {
        let mut fleet = FleetServiceClient::new(channel.clone());
        async move {
            let overview = fleet.get_overview(v1::GetOverviewRequest::default()).await;
            // It is not ready yet.
            Ok(overview.is_ok_and(|overview| overview.into_inner().runs_open() >= u64::from(wanted)))
        }
    };
    until(|| has(runs / 2)).await.context("half of the runs are taken over")?;
    let half = began.elapsed();
    until(|| has(runs)).await.context("the runs are taken over")?;
    Ok((half, began.elapsed()))
}

/// Entries that are carried beside the log.
async fn carried(yard: &Yard) -> anyhow::Result<u64> {
    let context = jetstream::new(async_nats::connect(yard.broker.url()).await?);
    let stream = context.get_stream(format!("KV_{}", names::CARRIED_BUCKET)).await?;
    Ok(stream.cached_info().state.messages)
}

async fn until<R: Future<Output = anyhow::Result<bool>>>(holds: impl Fn() -> R) -> anyhow::Result<()> {
    let began = Instant::now();
    while !holds().await? {
        ensure!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}");
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
