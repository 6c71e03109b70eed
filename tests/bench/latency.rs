//! Latency while others call, at a part of the highest rate: each call counts from when it was due.

use std::sync::Arc;

use crate::Effort;
use crate::execute::Yard;
use crate::floor::Floor;
use crate::measure::{self, Latencies, median};
use crate::results::Results;

const PERCENT: [u32; 3] = [10, 50, 80];
/// In flight when the highest rate is looked for.
const IN_FLIGHT: usize = 256;

/// The highest rate is each one's own, of the same rounds.
pub(crate) async fn measure(
    floor: &Arc<Floor>,
    yard: &Arc<Yard>,
    effort: Effort,
    results: &mut Results,
) -> anyhow::Result<()> {
    let (mut floor_rates, mut yard_rates) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        floor_rates.push(measure::rate(IN_FLIGHT, effort.time, || floor.call()).await?.per_s());
        yard_rates.push(measure::rate(IN_FLIGHT, effort.time, || yard.call()).await?.per_s());
    }
    let highest = (median(floor_rates), median(yard_rates));
    for percent in PERCENT {
        let (mut floors, mut yards) = (Latencies::new(), Latencies::new());
        for round in 1..=effort.rounds {
            eprintln!("latency: round {round} of {}, at {percent} % of the highest rate", effort.rounds);
            let part = f64::from(percent) / 100.0;
            let call = Arc::clone(floor);
            measure::open_loop(highest.0 * part, effort.time, &mut floors, move || call.call()).await?;
            let call = Arc::clone(yard);
            measure::open_loop(highest.1 * part, effort.time, &mut yards, move || call.call()).await?;
        }
        results.set(&format!("floor.latency_at_percent.{percent}"), floors.to_json());
        results.set(&format!("execute.latency_at_percent.{percent}"), yards.to_json());
    }
    Ok(())
}
