//! Many waiting calls: 10,000 runs with a client call, 1,000 watchers, and the memory of each process.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use proto::v1;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::Effort;
use crate::execute::{self, Fleet, Yard};
use crate::measure::{each, rounded};
use crate::process::Usages;
use crate::results::Results;

const RUNS: u32 = 10_000;
const WATCHERS: usize = 1_000;
const WATCHERS_PER_CONNECTION: usize = 100;
const IN_FLIGHT: usize = 256;
/// What was allocated for the moment is given back after a while.
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let yard = Yard::start(Fleet::default()).await?;
    let runs = effort.count(RUNS);
    tokio::time::sleep(SETTLE).await;
    results.set("memory_mib.at_rest", Usages::of(&yard)?.memory_mib());

    eprintln!("open: opening {runs} runs");
    let (sender, mut opened) = mpsc::channel(usize::try_from(runs)?);
    let opened_per_s = each(IN_FLIGHT, 0..runs, |_| {
        let (mut client, sender) = (yard.client(), sender.clone());
        async move {
            let calls = vec![execute::new_call("ask", "{}".to_owned())];
            let request = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
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
    tokio::time::sleep(SETTLE).await;
    results.set("memory_mib.with_open_runs", Usages::of(&yard)?.memory_mib());

    eprintln!("open: watching");
    let mut watching = JoinSet::new();
    for (client, ids) in yard.connections(WATCHERS / WATCHERS_PER_CONNECTION).await?.into_iter().zip(
        // Each connection has runs of its own.
        ids.chunks(WATCHERS_PER_CONNECTION),
    ) {
        for id in ids {
            let request = v1::WatchRunRequest { run_id: id.clone(), ..v1::WatchRunRequest::default() };
            let mut client = client.clone();
            let mut stream = client.watch_run(request).await?.into_inner();
            stream.message().await?.context("the run was opened")?;
            watching.spawn(async move {
                let mut ended = false;
                while let Some(message) = stream.message().await? {
                    ended |= message.end.is_some();
                }
                ensure!(ended, "a stream ended before its run");
                Ok(())
            });
        }
    }
    let watchers = watching.len();
    tokio::time::sleep(SETTLE).await;
    results.set("memory_mib.with_open_runs_and_watchers", Usages::of(&yard)?.memory_mib());

    eprintln!("open: answering");
    let answered_per_s = each(IN_FLIGHT, ids, |run_id| {
        let mut client = yard.client();
        async move {
            let outputs = vec![v1::ToolOutput { call_id: "call_0".to_owned(), ..v1::ToolOutput::default() }];
            client.submit_tool_outputs(v1::SubmitToolOutputsRequest { run_id, outputs, all_required: false }).await?;
            Ok(())
        }
    });
    let answered_per_s = rounded(answered_per_s.await?);
    while let Some(ended) = watching.join_next().await {
        ended??;
    }
    let opened_per_s = rounded(opened_per_s);
    results.set(
        "open",
        json!({
            "runs": runs, "watchers": watchers, "opened_per_s": opened_per_s, "answered_per_s": answered_per_s,
        }),
    );
    Ok(())
}
