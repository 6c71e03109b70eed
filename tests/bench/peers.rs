//! The same call and stream on other systems. The program that runs them is Python, as most of them are; here it gets
//! the same broker and store as the rest.

use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::results::Results;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/peers/run.py");

pub(crate) async fn measure(quick: bool, results: &mut Results) -> anyhow::Result<()> {
    let broker = local::Broker::start(local::BrokerOptions::default(), |line| eprintln!("{line}")).await?;
    let store = local::Store::start(|line| eprintln!("{line}")).await?;
    let cache = local::Lookup::from_env().cache.context("a cache folder is needed: set TOOLYARD_CACHE")?;
    let mut command = Command::new("python3");
    command.arg(PROGRAM).args(["--nats-url", &broker.url(), "--redis-url", &store.url()]).arg("--cache").arg(cache);
    if quick {
        command.arg("--quick");
    }
    let output = command.stderr(Stdio::inherit()).kill_on_drop(true).output().await.context("python3 is needed")?;
    ensure!(output.status.success(), "{PROGRAM}: {}", output.status);
    let peers: Value = serde_json::from_slice(&output.stdout).context("what it printed is not JSON")?;
    results.set("peers", peers);
    broker.stop().await;
    store.stop().await;
    Ok(())
}
