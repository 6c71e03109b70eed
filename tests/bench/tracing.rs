//! The cost of telemetry: calls a second, and processor time of a call, of a fleet that sends traces of 1 % of all
//! requests and its metrics to a collector, compared with one that sends nothing. Both run all the time and are
//! measured in turn, each first every other time.

use harness::Collector;
use serde_json::json;

use crate::Effort;
use crate::execute::{Fleet, Looked, Yard};
use crate::measure::{self, median, rounded};
use crate::process::Usages;
use crate::results::Results;

const IN_FLIGHT: usize = 256;
/// Pairs in each round: what the machine does besides moves single ones by more than what is looked for.
const PAIRS: usize = 5;

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let collector = Collector::start().await;
    let looked = Looked { collector: Some(collector.url()), ..Looked::default() };
    let yards = [Yard::start(Fleet::default()).await?, Yard::start_looked_at(Fleet::default(), &looked).await?];
    for yard in &yards {
        measure::rate(IN_FLIGHT, effort.time, || yard.call()).await?;
    }
    let (mut rates, mut parts) = ([Vec::new(), Vec::new()], Vec::new());
    let (mut calls, mut before) = ([0_u32; 2], Vec::new());
    for yard in &yards {
        before.push(Usages::of(yard)?);
    }
    for pair in 0..effort.rounds * PAIRS {
        eprintln!("tracing: pair {} of {}", pair + 1, effort.rounds * PAIRS);
        let mut per_s = [0.0; 2];
        for at in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            let yard = &yards[at];
            let rate = measure::rate(IN_FLIGHT, effort.time, || yard.call()).await?;
            calls[at] += rate.calls;
            per_s[at] = rate.per_s();
            rates[at].push(per_s[at]);
        }
        parts.push(per_s[1] / per_s[0]);
    }
    for (at, name) in ["off", "on"].into_iter().enumerate() {
        results.set(&format!("tracing.{name}.calls_per_s"), rounded(median(std::mem::take(&mut rates[at]))));
        let cpu = Usages::of(&yards[at])?.cpu_us_per_call(before[at], calls[at]);
        // The client is one for both.
        let cpu = json!({ "coordinator": cpu["coordinator"], "worker": cpu["worker"] });
        results.set(&format!("tracing.{name}.cpu_us_per_call"), cpu);
    }
    results.set("tracing.costs_percent_of_calls_per_s", rounded((1.0 - median(parts)) * 100.0));
    results.set("tracing.spans_at_the_collector", collector.spans_taken());
    Ok(())
}
