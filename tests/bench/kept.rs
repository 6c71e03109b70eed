//! What a history costs: the same call with one and without, in turn within each round. Both logs are so short that
//! runs leave them while calls are made.

use serde_json::json;

use crate::Effort;
use crate::execute::{Fleet, Looked, Yard};
use crate::measure::{self, median, rounded};
use crate::process::Usages;
use crate::results::Results;

const IN_FLIGHT: usize = 64;
/// The history is written every 5 s.
const ROUNDS_OF_HISTORY: u32 = 4;

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let fleet = Fleet { has_short_log: true, ..Fleet::default() };
    let folder = tempfile::tempdir()?;
    let looked = Looked { history: Some(folder.path().to_owned()), ..Looked::default() };
    let yards = [("without", Yard::start(fleet).await?), ("with", Yard::start_looked_at(fleet, &looked).await?)];
    for (name, yard) in &yards {
        eprintln!("kept: {} calls {name} a history", effort.retained_max);
        measure::each(IN_FLIGHT, 0..effort.retained_max, |_| yard.call()).await?;
    }
    let mut rates = [Vec::new(), Vec::new()];
    let mut costs = Vec::new();
    for round in 1..=effort.rounds {
        eprintln!("kept: round {round} of {}", effort.rounds);
        costs.clear();
        for ((_, yard), rates) in yards.iter().zip(&mut rates) {
            let before = Usages::of(yard)?;
            let rate = measure::rate(IN_FLIGHT, effort.time * ROUNDS_OF_HISTORY, || yard.call()).await?;
            let after = Usages::of(yard)?;
            rates.push(rate.per_s());
            costs.push(json!({
                "cpu_us_per_call": after.cpu_us_per_call(before, rate.calls), "memory_mib": after.memory_mib()
            }));
        }
    }
    let ratios = rates[1].iter().zip(&rates[0]).map(|(with, without)| with / without).collect();
    results.set("kept.of_without", rounded(median(ratios)));
    for (((name, _), rates), cost) in yards.iter().zip(&rates).zip(costs) {
        results.set(&format!("kept.{name}.calls_per_s"), rounded(median(rates.clone())));
        results.set(&format!("kept.{name}.last_round"), cost);
    }
    Ok(())
}
