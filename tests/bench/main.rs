//! What a call costs, beside what it must cost: the same no-op call over raw JetStream (two stored messages, a pull, an
//! acknowledgement, a delivery; nothing of ours) and through Toolyard, in one run, round by round in turn.

mod execute;
mod floor;
mod measure;
mod roles;

use std::io::Write as _;
use std::time::Duration;

use clap::Parser;
use measure::{Samples, median};
use serde_json::json;

#[derive(Debug, Parser)]
#[command(about = "Measures Toolyard beside the raw JetStream floor, with a broker of its own")]
struct Arguments {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Calls in flight when the rate is measured.
    #[arg(long, default_value_t = 256)]
    in_flight: usize,
    /// Seconds for which the rate is measured in each round.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Calls made one by one in each round, for latencies.
    #[arg(long, default_value_t = 500)]
    singles: usize,
    /// Rounds; medians are reported.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Chunks of the streaming call.
    #[arg(long, default_value_t = 100_000)]
    chunks: u32,
    /// Be one of the processes that are measured.
    #[command(subcommand)]
    role: Option<roles::Role>,
}

#[derive(Default)]
struct Round {
    calls_per_s: Vec<f64>,
    singles: Samples,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match arguments.role {
        Some(role) => runtime.block_on(roles::serve(role)),
        None => runtime.block_on(measure_all(&arguments)),
    }
}

async fn measure_all(arguments: &Arguments) -> anyhow::Result<()> {
    let broker = local::Broker::start(local::BrokerOptions::default(), |line| eprintln!("{line}")).await?;
    let floor = floor::Floor::start(&broker.url()).await?;
    let yard = execute::Yard::start(&broker.url(), arguments.in_flight).await?;
    let time = Duration::from_secs(arguments.seconds);
    let (mut floors, mut executes) = (Round::default(), Round::default());
    let (mut first_chunks, mut chunks_per_s) = (Samples::default(), Vec::new());

    eprintln!("warming up");
    measure::rate(arguments.in_flight, Duration::from_millis(500), || floor.call()).await?;
    measure::rate(arguments.in_flight, Duration::from_millis(500), || yard.call()).await?;
    for round in 1..=arguments.rounds {
        eprintln!("round {round} of {}", arguments.rounds);
        floors.calls_per_s.push(measure::rate(arguments.in_flight, time, || floor.call()).await?);
        executes.calls_per_s.push(measure::rate(arguments.in_flight, time, || yard.call()).await?);
        // Small batches in turn, so that what else the machine does hits both.
        for _ in 0..10 {
            measure::one_by_one(arguments.singles / 10, &mut floors.singles, || floor.call()).await?;
            measure::one_by_one(arguments.singles / 10, &mut executes.singles, || yard.call()).await?;
            measure::one_by_one(arguments.singles / 50, &mut first_chunks, || yard.first_chunk()).await?;
        }
        chunks_per_s.push(yard.chunks_per_s(arguments.chunks).await?);
    }
    report(arguments, floors, executes, first_chunks, chunks_per_s)?;
    broker.stop().await;
    Ok(())
}

fn report(
    arguments: &Arguments,
    floors: Round,
    executes: Round,
    mut first_chunks: Samples,
    chunks_per_s: Vec<f64>,
) -> anyhow::Result<()> {
    let (floor_rate, rate) = (median(floors.calls_per_s), median(executes.calls_per_s));
    let (mut floor_singles, mut singles) = (floors.singles, executes.singles);
    let (floor_p50, floor_p99) = (floor_singles.ms(0.50), floor_singles.ms(0.99));
    let (p50, p99, first_chunk) = (singles.ms(0.50), singles.ms(0.99), first_chunks.ms(0.50));
    let chunks = median(chunks_per_s);
    let result = json!({
        "floor": { "calls_per_s": floor_rate, "p50_ms": floor_p50, "p99_ms": floor_p99 },
        "execute": {
            "calls_per_s": rate, "p50_ms": p50, "p99_ms": p99,
            "first_chunk_p50_ms": first_chunk, "chunks_per_s": chunks,
        },
        "ratios": {
            "execute_calls": rate / floor_rate, "p50": p50 / floor_p50, "p99": p99 / floor_p99,
            "first_chunk": first_chunk / floor_p50,
        },
    });
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{result}")?;
        return Ok(());
    }
    writeln!(out, "{:<28} {:>12} {:>12} {:>8}", "", "JetStream", "Toolyard", "ratio")?;
    let mut row = |name: &str, floor: f64, ours: f64| {
        writeln!(out, "{name:<28} {floor:>12.2} {ours:>12.2} {:>8.2}", ours / floor)
    };
    row(&format!("calls/s, {} in flight", arguments.in_flight), floor_rate, rate)?;
    row("single call p50, ms", floor_p50, p50)?;
    row("single call p99, ms", floor_p99, p99)?;
    row("first chunk p50, ms", floor_p50, first_chunk)?;
    writeln!(out, "{:<28} {:>12} {chunks:>12.0}", "64-byte chunks/s, one call", "")?;
    Ok(())
}
