//! The cost of a fleet without work: one coordinator, four workers, fifty tools.

use std::time::Duration;

use serde_json::json;

use crate::Effort;
use crate::execute::{Fleet, Yard};
use crate::process::Usages;
use crate::results::Results;

const FLEET: Fleet = Fleet { coordinators: 1, workers: 4, workers_each: 1, slots: 16, tools: 47, has_short_log: false };
/// A coordinator that just started takes its shards and reads what is in them.
const SETTLE: Duration = Duration::from_secs(8);
/// Long against every period of a heartbeat or a snapshot, and against a tick of the clock of `/proc`.
const TIME: Duration = Duration::from_secs(30);

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let yard = Yard::start(FLEET).await?;
    let time = TIME / effort.divisor.min(3);
    eprintln!("idle: {} s", (SETTLE + time).as_secs());
    tokio::time::sleep(SETTLE).await;
    let before = Usages::of(&yard)?;
    tokio::time::sleep(time).await;
    let after = Usages::of(&yard)?;
    results.set("idle.cpu_percent_of_one_core", after.cpu_percent(before, time));
    results.set("idle.memory_mib", after.memory_mib());
    results.set("idle.fleet", json!("1 coordinator, 4 workers, 50 tools"));
    Ok(())
}
