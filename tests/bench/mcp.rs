//! The cost of the queue for a call of an MCP tool: the same call straight to the server and through Toolyard, one in
//! turn with the other, each to a process of its own of the same server.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use origins::mcp::config::{Reach, ServerConfig};
use origins::mcp::{Host, Programs};
use sandbox::{Sandbox, Settings};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use worker::{Table, testkit};

use crate::Effort;
use crate::execute::{self, Fleet, Looked, Yard, new_call};
use crate::measure::{Latencies, rounded};
use crate::results::Results;

/// Makes a worker of the bench host the server.
pub(crate) const VARIABLE: &str = "TOOLYARD_BENCH_MCP";
const CALLS: u32 = 5_000;
const WARMING: u32 = 200;

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let (tables, mut servers) = host(Table::new(), stop.clone()).await?;
    let table = Arc::clone(&tables.borrow());
    ensure!(table.hosts("echo"), "the MCP server is not running: it needs python3");
    let looked = Looked { mcp: true, ..Looked::default() };
    let yard = Yard::start_looked_at(Fleet { slots: 16, ..Fleet::default() }, &looked).await?;
    for _ in 0..WARMING {
        straight(&table).await?;
        queued(&yard).await?;
    }
    let (mut straight_latencies, mut queued_latencies) = (Latencies::new(), Latencies::new());
    for _ in 0..effort.count(CALLS) {
        let began = Instant::now();
        straight(&table).await?;
        straight_latencies.record(began.elapsed());
        let began = Instant::now();
        queued(&yard).await?;
        queued_latencies.record(began.elapsed());
    }
    let more = |quantile| rounded(queued_latencies.ms(quantile) - straight_latencies.ms(quantile));
    results.set("mcp.straight", straight_latencies.to_json());
    results.set("mcp.queued", queued_latencies.to_json());
    results.set("mcp.more_p50_ms", more(0.5));
    results.set("mcp.more_p99_ms", more(0.99));
    stop.cancel();
    while servers.join_next().await.is_some() {}
    Ok(())
}

/// The tools of the small server of the tests beside others.
pub(crate) async fn host(
    own: Table,
    stop: CancellationToken,
) -> anyhow::Result<(watch::Receiver<Arc<Table>>, JoinSet<()>)> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/origins/tests/servers/server.py");
    let arguments = vec![script.to_str().context("a path of text")?.to_owned()];
    let reach = Reach::Program { program: "python3".to_owned(), arguments, environment: Vec::new(), folder: None };
    let programs = Programs::new(Sandbox::new(Settings::default())?, std::env::temp_dir())?;
    let host = Host::new(vec![ServerConfig::new("bench", reach)?], own, Some(&programs), 1);
    Ok(host.start(stop).await)
}

async fn straight(table: &Table) -> anyhow::Result<()> {
    let called = testkit::call_in(table, "echo", json!({ "text": "hi" })).await;
    ensure!(called.result.is_ok(), "the call failed: {:?}", called.result);
    Ok(())
}

async fn queued(yard: &Yard) -> anyhow::Result<()> {
    execute::completed(yard.client(), new_call("echo", json!({ "text": "hi" }).to_string())).await
}
