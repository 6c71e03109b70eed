//! Explores every state of small worlds with two coordinators, two workers and one run with one call: every
//! interleaving of messages, crashes, silences, losses, copies and the passing of time within a budget. The owner of
//! the shard, the job
//! protocol of the workers and the fold of the run are the product's own (`core/owner`, `core/run`).
//!
//! `tests/simulation` goes far with chance; this goes a short way and leaves nothing out. What the world itself leaves
//! out, and the number of states, is in `docs/evidence/small-worlds.md`.

mod coordinator;
mod promises;
mod questions;
mod search;
mod step;
#[cfg(test)]
mod tests;
mod worker;
mod world;

use std::io::Write as _;
use std::time::Instant;

use clap::Parser;

use search::search;
use world::{Budget, Flaw, Plan};

/// Explores every state of a small world with one call, and checks the promises in each.
#[derive(Debug, Parser)]
struct Args {
    /// Crashes, silences, losses and copied messages together
    #[arg(long, default_value_t = 1)]
    faults: u8,
    /// Steps of 7 s that may pass
    #[arg(long, default_value_t = 2)]
    short_steps: u8,
    /// Steps of 31 s that may pass
    #[arg(long, default_value_t = 0)]
    long_steps: u8,
    /// How often the client may cancel the call
    #[arg(long, default_value_t = 0)]
    cancels: u8,
    /// How often the client may answer; with any answers, the tool asks a question
    #[arg(long, default_value_t = 0)]
    answers: u8,
    /// The call is safe to repeat
    #[arg(long)]
    repeatable: bool,
    /// The owner appends the job behind the opening of the run
    #[arg(long)]
    apart: bool,
    /// The call may not begin before 7 s have passed
    #[arg(long)]
    delayed: bool,
    /// Break a rule of the protocol on purpose
    #[arg(long, value_enum, default_value = "none")]
    flaw: Flaw,
    /// Give up when more states than this were found
    #[arg(long, default_value_t = 20_000_000)]
    states_max: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let Args { faults, short_steps, long_steps, cancels, answers, repeatable, apart, delayed, flaw, .. } = args;
    let budget = Budget { short_steps, long_steps, cancels, answers, ..Budget::with_faults(faults) };
    let (plan, began) = (Plan { repeatable, apart, delayed, asks: answers > 0, flaw, budget }, Instant::now());
    let found = search(plan, args.states_max);
    writeln!(std::io::stdout(), "{plan:?}: {found} in {:.1} s", began.elapsed().as_secs_f64())?;
    if let Some(broken) = found.broken {
        anyhow::bail!("a promise is broken: {broken}");
    }
    anyhow::ensure!(found.is_complete, "gave up after {} states: raise --states-max", found.states);
    Ok(())
}
