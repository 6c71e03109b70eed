//! How long a scrape takes, over the wire, of a coordinator and of a worker that count calls of 2,000 tools.

use std::time::{Duration, Instant};

use anyhow::ensure;
use harness::Admin;
use proto::v1;
use serde_json::json;

use crate::Effort;
use crate::execute::{Fleet, Looked, Yard, new_call};
use crate::measure::{Latencies, rounded};
use crate::results::Results;

/// With the three of every worker.
const TOOLS: u32 = 1_997;
const CALLS_OF_A_RUN: usize = 100;
const SCRAPES: u32 = 100;
/// Calls are counted again each second.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let admin = [Admin::anywhere(), Admin::anywhere()];
    let looked = Looked { admin: Some(admin), ..Looked::default() };
    let yard = Yard::start_looked_at(Fleet { tools: TOOLS, ..Fleet::default() }, &looked).await?;
    eprintln!("scrape: a call of each of {} tools", TOOLS + 3);
    call_each(&yard).await?;
    yard.call().await?;
    for (name, admin) in ["coordinator", "worker"].into_iter().zip(admin) {
        eprintln!("scrape: {name}");
        let (mut latencies, mut longest, mut text) = (Latencies::new(), Duration::ZERO, String::new());
        for _ in 0..effort.count(SCRAPES) {
            let began = Instant::now();
            let (status, body) = admin.get("/metrics").await;
            let took = began.elapsed();
            ensure!(status == 200, "a scrape of the {name} is answered with {status}");
            latencies.record(took);
            (longest, text) = (longest.max(took), body);
            tokio::time::sleep(PAUSE).await;
        }
        let lines = text.lines().filter(|line| !line.starts_with('#')).count();
        ensure!(text.contains("tool_1996"), "the {name} does not count each tool");
        results.set(&format!("scrape.{name}"), latencies.to_json());
        results.set(&format!("scrape.{name}.longest_ms"), rounded(longest.as_secs_f64() * 1e3));
        results.set(&format!("scrape.{name}.series"), lines);
        results.set(&format!("scrape.{name}.bytes"), text.len());
    }
    results.set("scrape.fleet", json!("1 coordinator, 1 worker, 2,000 tools"));
    Ok(())
}

/// Calls that the client would answer, and does not: they end as cancelled, and are counted.
async fn call_each(yard: &Yard) -> anyhow::Result<()> {
    let mut runs = yard.client();
    let tools: Vec<String> = (0..TOOLS).map(|number| format!("tool_{number}")).collect();
    for tools in tools.chunks(CALLS_OF_A_RUN) {
        let calls = tools.iter().map(|tool| new_call(tool, "{}".to_owned())).collect();
        let request = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
        let run = runs.create_run(request).await?.into_inner().run.unwrap_or_default();
        let cancel =
            v1::CancelRunRequest { run_id: run.run_id.clone(), reason: "it was only to be counted".to_owned() };
        runs.cancel_run(cancel).await?;
        let mut stream =
            runs.watch_run(v1::WatchRunRequest { run_id: run.run_id, ..Default::default() }).await?.into_inner();
        while stream.message().await?.is_some() {}
    }
    Ok(())
}
