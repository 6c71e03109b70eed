//! Calls a second with a given number in flight, the latency of single calls, and the cost of a call for each process.

use harness::Traffic;
use serde_json::{Value, json};

use crate::Effort;
use crate::execute::Yard;
use crate::floor::Floor;
use crate::measure::{self, Latencies, Rate, median, rounded};
use crate::process::Usages;
use crate::results::Results;

pub(crate) const IN_FLIGHT: [usize; 4] = [1, 16, 256, 2_000];
/// At which the rate is reported as the rate.
const IN_FLIGHT_USUAL: usize = 256;
/// Calls made one by one in each round.
const SINGLES: u32 = 500;
/// Small batches in turn, so that other load of the machine affects all variants alike.
const BATCHES: u32 = 10;

/// How a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Way {
    /// Nothing but JetStream.
    Floor,
    /// A gRPC stream of its own.
    Execute,
    /// Over one stream with all others.
    Submit,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Floor, Self::Execute, Self::Submit];

    fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Execute => "execute",
            Self::Submit => "submit",
        }
    }

    async fn rate(self, in_flight: usize, effort: Effort, (floor, yard): (&Floor, &Yard)) -> anyhow::Result<Rate> {
        yard.make_way_for(in_flight);
        match self {
            Self::Floor => measure::rate(in_flight, effort.time, || floor.call()).await,
            Self::Execute => measure::rate(in_flight, effort.time, || yard.call()).await,
            Self::Submit => measure::rate(in_flight, effort.time, || yard.submitted_call("noop")).await,
        }
    }

    async fn singles(self, calls: u32, all: &mut Latencies, (floor, yard): (&Floor, &Yard)) -> anyhow::Result<()> {
        match self {
            Self::Floor => measure::one_by_one(calls, all, || floor.call()).await,
            Self::Execute => measure::one_by_one(calls, all, || yard.call()).await,
            Self::Submit => measure::one_by_one(calls, all, || yard.submitted_call("noop")).await,
        }
    }

    /// The cost of a call with the usual number in flight.
    async fn cost(self, effort: Effort, (floor, yard): (&Floor, &Yard)) -> anyhow::Result<Value> {
        let log = async || match self {
            Self::Floor => floor.log().await,
            Self::Execute | Self::Submit => yard.log().await,
        };
        let traffic = async |name: &str| Traffic::of(&yard.broker, name).await;
        let (log_before, traffic_before) = (log().await?, (traffic("coordinator-").await?, traffic("worker-").await?));
        let before = Usages::of(yard)?;
        let rate = self.rate(IN_FLIGHT_USUAL, effort, (floor, yard)).await?;
        let mut cost = json!({ "cpu_us": Usages::of(yard)?.cpu_us_per_call(before, rate.calls) });
        let log_after = log().await?;
        let per_call = |count: u64| {
            #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
            let count = count as f64;
            rounded(count / f64::from(rate.calls))
        };
        cost["appends"] = per_call(log_after.0 - log_before.0).into();
        cost["log_bytes"] = per_call(log_after.1 - log_before.1).into();
        if self != Self::Floor {
            for (name, before) in [("coordinator-", traffic_before.0), ("worker-", traffic_before.1)] {
                let since = traffic(name).await?.since(before);
                let messages =
                    json!({ "to_broker": per_call(since.to_broker), "from_broker": per_call(since.from_broker) });
                cost["messages"][name.trim_end_matches('-')] = messages;
            }
        }
        Ok(cost)
    }
}

pub(crate) async fn measure(
    (floor, yard): (&Floor, &Yard),
    (ways, in_flights): (&[Way], &[usize]),
    effort: Effort,
    results: &mut Results,
) -> anyhow::Result<()> {
    let mut rates = vec![vec![Vec::new(); in_flights.len()]; ways.len()];
    let mut singles: Vec<_> = ways.iter().map(|_| Latencies::new()).collect();
    for round in 1..=effort.rounds {
        for (at, in_flight) in in_flights.iter().copied().enumerate() {
            eprintln!("calls: round {round} of {}, {in_flight} in flight", effort.rounds);
            for (way, rates) in ways.iter().zip(&mut rates) {
                rates[at].push(way.rate(in_flight, effort, (floor, yard)).await?.per_s());
            }
        }
        for _ in 0..BATCHES {
            for (way, singles) in ways.iter().zip(&mut singles) {
                way.singles(effort.count(SINGLES) / BATCHES, singles, (floor, yard)).await?;
            }
        }
    }
    for ((way, rates), singles) in ways.iter().zip(rates).zip(singles) {
        let name = way.name();
        for (in_flight, rates) in in_flights.iter().copied().zip(rates) {
            let rate = rounded(median(rates));
            results.set(&format!("{name}.calls_per_s_in_flight.{in_flight}"), rate);
            if in_flight == IN_FLIGHT_USUAL {
                results.set(&format!("{name}.calls_per_s"), rate);
            }
        }
        results.set(&format!("{name}.p50_ms"), singles.ms(0.5));
        results.set(&format!("{name}.p99_ms"), singles.ms(0.99));
        results.set(&format!("{name}.cost_per_call"), way.cost(effort, (floor, yard)).await?);
    }
    Ok(())
}
