//! Tortures a yard: a mixed load while a seeded schedule kills, pauses and restarts everything, and every run checked
//! from outside against the promises. Ends with 1 when one was broken.

mod brokers;
mod check;
mod language;
mod late;
mod load;
mod plan;
mod process;
mod replicas;
mod report;
mod schedule;
mod seed;
mod world;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::check::{Broken, Violation};
use crate::language::{Language, Package};
use crate::load::{Load, Outcome, drive};
use crate::plan::Plan;
use crate::report::Tally;
use crate::schedule::Part;
use crate::seed::Seed;
use crate::world::{ERASE_AFTER, Left, Size, World};

/// The default duration of a storm: the calls at this rate, so that there are enough faults for each.
const CALLS_PER_S: u64 = 110;
/// The shortest storm: a pause of a worker takes some 10 s and comes after some more.
const STORM_S_MIN: u64 = 30;
/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(5);
/// Faults of each lane that `--schedule` prints.
const SCHEDULE_PRINTED: usize = 20;
/// Words that may wait.
const WORDS_MAX: usize = 256;
/// How much later than it must a run may be erased: owners change, and the broker stands still for up to 48 s.
const ERASE_LATE: Duration = Duration::from_secs(90);
/// How many runs are looked for that must be erased, and how long one may still be found.
const ERASED_MAX: usize = 200;
const ERASED_LIMIT: Duration = Duration::from_secs(60);
/// How long after the last fault everything that is on its way has arrived, and what it caused has begun.
const SETTLED: Duration = Duration::from_secs(5);
/// With a history, a storm of so many calls fills the part of each partition that ended runs may take.
const CALLS_THAT_LEAVE: u64 = 20_000;
/// The numbers of the quiet phase's runs begin here.
const CALM: u64 = 1 << 32;

#[derive(Debug, Parser)]
#[command(about = "Tortures coordinators, workers, broker and store, and checks every run from outside")]
struct Arguments {
    /// Calls that are made.
    #[arg(long, default_value_t = 100_000)]
    calls: u64,
    /// Chooses the calls, the victims, the moments.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds over which the calls are spread; chosen by their number when not set.
    #[arg(long)]
    duration: Option<u64>,
    /// Runs under way at once.
    #[arg(long, default_value_t = 400)]
    in_flight: usize,
    /// Nodes of the broker: 1, or 3 of which one at a time is struck.
    #[arg(long, default_value_t = 3)]
    brokers: usize,
    #[arg(long, default_value_t = 3)]
    coordinators: usize,
    /// Partitions of the log. Those after the first are added when the faults begin.
    #[arg(long, default_value_t = 1)]
    partitions: usize,
    /// Runs leave the log soon after their end, and are kept in a history, which is taken away again and again. Some
    /// readers come when the log does not have their runs any more, and runs that wait are carried.
    #[arg(long)]
    history: bool,
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Workers in Python too: the interpreter of an environment in which the package `toolyard` is installed.
    #[arg(long, value_name = "INTERPRETER")]
    python: Option<PathBuf>,
    /// Workers in Node too: the folder of the npm package, which is built.
    #[arg(long, value_name = "PACKAGE")]
    node: Option<PathBuf>,
    /// The targets of faults. Workers of every language are workers.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "worker,coordinator,broker,store,coordinator-link,worker-link,client-link,history"
    )]
    parts: Vec<Part>,
    /// How long it is quiet between faults, in percent of the usual. The usual keeps some part broken at most moments.
    #[arg(long, default_value_t = 100)]
    quiet: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Print the planned faults, and do nothing.
    #[arg(long)]
    schedule: bool,
}

impl Arguments {
    /// The parts that there are.
    fn struck(&self) -> Vec<Part> {
        self.parts.iter().copied().filter(|part| self.history || *part != Part::History).collect()
    }

    fn packages(&self) -> anyhow::Result<Vec<Package>> {
        let python = self.python.as_deref().map(Package::python);
        let node = self.node.as_deref().map(Package::node);
        python.into_iter().chain(node).collect()
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if arguments.schedule {
        return print_schedule(&arguments);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(torture(&arguments))
}

fn print_schedule(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    for lane in schedule::lanes(&Seed::new(arguments.seed), &arguments.struck(), arguments.brokers) {
        writeln!(out, "{}", lane.name)?;
        for fault in lane.quiet(arguments.quiet).take(SCHEDULE_PRINTED) {
            writeln!(out, "  {fault}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn torture(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let folder = tempfile::Builder::new().prefix("torture-").tempdir()?;
    let packages = arguments.packages()?;
    let languages: Vec<Language> =
        std::iter::once(Language::Rust).chain(packages.iter().map(|package| package.language)).collect();
    let Arguments { brokers, coordinators, workers, .. } = *arguments;
    let size = Size { brokers, coordinators, workers, packages, has_history: arguments.history };
    let world = Arc::new(World::start(&size, folder.path()).await?);
    let door = replicas::Replicas::new(&world.doors())?;
    let load = Arc::new(Load { door, effects: folder.path().join("effects"), languages });
    for address in world.addresses() {
        for language in &load.languages {
            let client = harness::Client::connect(*address).await;
            client.wait_for_tool(&format!("{}echo", language.prefix())).await;
        }
    }
    let mut tally = Tally::of(arguments.coordinators);
    calm(&load, arguments, &mut tally).await;
    if arguments.partitions > 1 {
        world.partition(arguments.partitions).await?;
    }
    storm(&world, &load, arguments, &mut tally).await?;
    tokio::time::sleep(SETTLED).await;
    check_erased(&load, arguments, &mut tally).await;
    tally.settle(&load.effects);
    if arguments.history {
        tally.left = world.left(arguments.partitions).await?;
    }
    let world = Arc::into_inner(world).context("somebody still has his hands on the world")?;
    world.end().await;

    let is_broken = tally.violations() > 0;
    let mut out = std::io::stdout().lock();
    if is_broken {
        eprintln!("{}", tally.broken_in_full()?);
        eprintln!("logs and effects are kept in {}", folder.keep().display());
    }
    if arguments.json {
        writeln!(out, "{}", tally.json(arguments.seed))?;
    } else {
        write!(out, "{}", tally.table()?)?;
    }
    if arguments.history && arguments.calls >= CALLS_THAT_LEAVE {
        let Left { entries, parts } = &tally.left;
        anyhow::ensure!(*parts > 0 && entries.iter().all(|left| *left > 0), "not all was tried: {:?}", tally.left);
    }
    Ok(if is_broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs that are not to be stored are gone some time after their end.
async fn check_erased(load: &Load, arguments: &Arguments, tally: &mut Tally) {
    let late_ms = u64::try_from((ERASE_AFTER + ERASE_LATE).as_millis()).unwrap_or(u64::MAX);
    let mut seed = Seed::new(arguments.seed).of(CALM - 1);
    let until = Instant::now() + ERASED_LIMIT;
    for run_id in tally.take_gone(::nats::now().0.saturating_sub(late_ms)).into_iter().take(ERASED_MAX) {
        tally.erased += 1;
        if !load.door.is_gone(&mut seed, &run_id, until).await {
            let what = format!("it is not to be stored, and is found {late_ms} ms after its end");
            tally.tell_of_run(&run_id, Violation { broken: Broken::Kept, what });
        }
    }
}

/// Without faults: measures cancellation and calls.
async fn calm(load: &Arc<Load>, arguments: &Arguments, tally: &mut Tally) {
    let seed = Seed::new(arguments.seed).of(CALM);
    let count = (arguments.calls / 40).clamp(5, 100);
    let began = Instant::now();
    for number in 0..count {
        let outcome = drive(Arc::clone(load), Plan::to_cancel(&seed, CALM + number), None).await;
        tally.took_to_cancel(outcome.cancelled_ms);
        tally.take(outcome);
    }
    #[allow(clippy::cast_precision_loss, reason = "small")]
    let calls = count as f64;
    tally.calm_calls_per_s = calls / began.elapsed().as_secs_f64();
}

/// The load, the faults, and the wait until everything has settled.
async fn storm(world: &Arc<World>, load: &Arc<Load>, arguments: &Arguments, tally: &mut Tally) -> anyhow::Result<()> {
    let seed = Seed::new(arguments.seed);
    let (sender, mut words) = mpsc::channel(WORDS_MAX);
    let stop = CancellationToken::new();
    let mut hands = JoinSet::new();
    for lane in schedule::lanes(&seed, &arguments.struck(), arguments.brokers) {
        let (world, sender, stop) = (Arc::clone(world), sender.clone(), stop.clone());
        let lane = lane.quiet(arguments.quiet);
        hands.spawn(async move { world.torment(lane, sender, stop).await });
    }
    let watched = CancellationToken::new();
    let (observer, told, until) = (Arc::clone(world), sender.clone(), watched.clone());
    hands.spawn(async move { observer.look_after(told, until).await });
    drop(sender);

    let began = Instant::now();
    let mut flight = Flight::new(arguments, &seed, began, load.languages.clone());
    let mut runs: JoinSet<Outcome> = JoinSet::new();
    let mut progress = tokio::time::interval(PROGRESS);
    while !flight.is_over() || !runs.is_empty() {
        tokio::select! {
            next = flight.next(), if !flight.is_over() => {
                let (plan, permit) = next?;
                runs.spawn(drive(Arc::clone(load), plan, Some(permit)));
                if flight.is_over() {
                    tally.storm = began.elapsed();
                    stop.cancel();
                }
            }
            Some(outcome) = runs.join_next() => tally.take(outcome.context("a run's task panicked")?),
            Some(word) = words.recv() => tally.hear(word),
            // Enough runs: running ones are awaited and checked.
            Ok(()) = tokio::signal::ctrl_c(), if !flight.is_over() => {
                flight.calls = flight.asked;
                tally.storm = began.elapsed();
                stop.cancel();
            }
            _ = progress.tick() => tell_progress(world, tally, arguments, began, runs.len()).await,
        }
    }
    watched.cancel();
    // They have the only other ends of the channel, and end when what they struck is back.
    while let Some(word) = words.recv().await {
        tally.hear(word);
    }
    while let Some(ended) = hands.join_next().await {
        ended.context("a hand that strikes panicked")?;
    }
    Ok(())
}

/// The runs that are still to be asked for, spread over the storm.
struct Flight {
    seed: Seed,
    calls: u64,
    asked: u64,
    number: u64,
    began: Instant,
    lasts: Duration,
    languages: Vec<Language>,
    has_history: bool,
    permits: Arc<Semaphore>,
}

impl Flight {
    fn new(arguments: &Arguments, seed: &Seed, began: Instant, languages: Vec<Language>) -> Self {
        let lasts_s = arguments.duration.unwrap_or((arguments.calls / CALLS_PER_S).max(STORM_S_MIN));
        let (lasts, permits) = (Duration::from_secs(lasts_s), Arc::new(Semaphore::new(arguments.in_flight)));
        let (calls, has_history) = (arguments.calls, arguments.history);
        Self { seed: seed.clone(), calls, asked: 0, number: 0, began, lasts, languages, has_history, permits }
    }

    fn is_over(&self) -> bool {
        self.asked >= self.calls
    }

    /// The next run, when it is due and there is room for it. May be dropped while it waits.
    async fn next(&mut self) -> anyhow::Result<(Plan, tokio::sync::OwnedSemaphorePermit)> {
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        let due = self.began + self.lasts.mul_f64(self.asked as f64 / self.calls as f64);
        tokio::time::sleep_until(due).await;
        let permit = Arc::clone(&self.permits).acquire_owned().await?;
        let plan = Plan::new(&self.seed, self.number).spread(&self.languages);
        let plan = if self.has_history { plan.lasting() } else { plan };
        self.number += 1;
        self.asked += u64::try_from(plan.calls.len()).unwrap_or(1);
        Ok((plan, permit))
    }
}

async fn tell_progress(world: &World, tally: &mut Tally, arguments: &Arguments, began: Instant, under_way: usize) {
    for (kind, kib) in world.memory_kib().await {
        let most = tally.memory_kib.entry(kind).or_default();
        *most = kib.max(*most);
    }
    eprintln!(
        "{:>5} s  {:>7} of {} calls done, {under_way} runs under way, {} faults ({} kills), {} violations",
        began.elapsed().as_secs(),
        tally.calls,
        arguments.calls,
        tally.faults.len(),
        tally.kills(),
        tally.violations()
    );
}
