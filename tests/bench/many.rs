//! What many workers and many coordinators cost: the same call with one worker and with 200 that have as many slots,
//! with one coordinator and with four, and by nothing but JetStream, in turn within each round.

use harness::Traffic;
use serde_json::{Value, json};

use crate::Effort;
use crate::execute::{Fleet, Yard};
use crate::floor::Floor;
use crate::measure::{self, median, rounded};
use crate::process::Usages;
use crate::results::Results;

const IN_FLIGHT: [usize; 2] = [64, 256];
const WORKERS: u32 = 200;
const SLOTS: u32 = 4;
const COORDINATORS: usize = 4;

/// A fleet by name, and that with which it is compared.
struct Compared {
    name: &'static str,
    beside: &'static str,
    yard: Yard,
}

impl Compared {
    async fn start(name: &'static str, beside: &'static str, fleet: Fleet) -> anyhow::Result<Self> {
        eprintln!("many: starting {name}");
        Ok(Self { name, beside, yard: Yard::start(fleet).await? })
    }

    /// A rate with so many calls in flight.
    async fn rate(&self, in_flight: usize, effort: Effort) -> anyhow::Result<f64> {
        self.yard.make_way_for(in_flight);
        Ok(measure::rate(in_flight, effort.time, || self.yard.call()).await?.per_s())
    }

    /// The processor time and the messages of a call.
    async fn cost(&self, in_flight: usize, effort: Effort) -> anyhow::Result<Value> {
        self.yard.make_way_for(in_flight);
        let traffic = async |name: &str| Traffic::of(&self.yard.broker, name).await;
        let before = (traffic("coordinator-").await?, traffic("worker-").await?, Usages::of(&self.yard)?);
        let rate = measure::rate(in_flight, effort.time, || self.yard.call()).await?;
        let mut cost = json!({ "cpu_us": Usages::of(&self.yard)?.cpu_us_per_call(before.2, rate.calls) });
        for (name, before) in [("coordinator", before.0), ("worker", before.1)] {
            let since = traffic(&format!("{name}-")).await?.since(before);
            #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
            let per_call = |count: u64| rounded(count as f64 / f64::from(rate.calls));
            cost["messages"][name] =
                json!({ "to_broker": per_call(since.to_broker), "from_broker": per_call(since.from_broker) });
        }
        Ok(cost)
    }
}

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let one = Fleet { slots: WORKERS * SLOTS, ..Fleet::default() };
    let many = Fleet { workers_each: WORKERS, slots: SLOTS, ..Fleet::default() };
    let fleets = [
        Compared::start("one", "floor", one).await?,
        Compared::start("workers_200", "one", many).await?,
        Compared::start("coordinators_4", "one", Fleet { coordinators: COORDINATORS, ..one }).await?,
    ];
    let floor = Floor::start(&fleets[0].yard.broker.url()).await?;
    for fleet in &fleets {
        measure::rate(IN_FLIGHT[0], effort.time / 3, || fleet.yard.call()).await?;
    }
    for in_flight in IN_FLIGHT {
        let (mut floors, mut rates) = (Vec::new(), vec![Vec::new(); fleets.len()]);
        for round in 1..=effort.rounds {
            eprintln!("many: round {round} of {}, {in_flight} in flight", effort.rounds);
            floors.push(measure::rate(in_flight, effort.time, || floor.call()).await?.per_s());
            for (fleet, rates) in fleets.iter().zip(&mut rates) {
                rates.push(fleet.rate(in_flight, effort).await?);
            }
        }
        let path = format!("many.in_flight_{in_flight}");
        results.set(&format!("{path}.floor.calls_per_s"), rounded(median(floors.clone())));
        for (fleet, of) in fleets.iter().zip(&rates) {
            let beside = match fleets.iter().position(|other| other.name == fleet.beside) {
                Some(other) => &rates[other],
                None => &floors,
            };
            // Of each round, because the machine's other load differs from round to round.
            let ratios = of.iter().zip(beside).map(|(own, other)| own / other).collect();
            let path = format!("{path}.{}", fleet.name);
            results.set(&format!("{path}.calls_per_s"), rounded(median(of.clone())));
            results.set(&format!("{path}.of_{}", fleet.beside), rounded(median(ratios)));
            results.set(&format!("{path}.cost_per_call"), fleet.cost(in_flight, effort).await?);
        }
    }
    Ok(())
}
