//! The cost of Toolyard, compared with its lower bound: the same no-op call over raw JetStream (two stored messages, a
//! pull, an acknowledgement, a delivery; none of our code) and through Toolyard, in one run, round by round in turn.
//! Also compared with alternatives. One file a section.

mod agents;
mod calls;
mod costly;
mod delayed;
mod erase;
mod execute;
mod fair;
mod floor;
mod growth;
mod history;
mod idle;
mod index;
mod kept;
mod latency;
mod many;
mod mcp;
mod measure;
mod memory;
mod open;
mod parked;
mod partitions;
mod peers;
mod probe;
mod process;
mod readers;
mod registry;
mod results;
mod roles;
mod scrape;
mod sdks;
mod servers;
mod sse;
mod steady;
mod stream;
mod submission;
mod takeover;
mod tracing;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use calls::Way;
use clap::Parser;
use execute::Yard;
use floor::Floor;
use results::Results;

/// As the program that it stands for.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Debug, Parser)]
#[command(about = "Measures Toolyard beside the raw JetStream floor and its peers, with a broker of its own")]
struct Arguments {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Measure only these sections.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Section>,
    /// A look: one short round, less of everything.
    #[arg(long)]
    quick: bool,
    /// Rounds; medians are reported.
    #[arg(long, default_value_t = 3, conflicts_with = "quick")]
    rounds: usize,
    /// Measure only these ways of making a call, in the section of calls.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Way::ALL)]
    ways: Vec<Way>,
    /// Calls in flight, in the section of calls. The cost of a call is always measured with 256.
    #[arg(long, value_delimiter = ',', default_values_t = calls::IN_FLIGHT)]
    in_flight: Vec<usize>,
    /// Calls that the log holds, and that were made with a history, at the end of the growth section.
    #[arg(long, default_value_t = 100_000)]
    retained_max: u64,
    /// MiB of the log in the memory section; the chart has 1024.
    #[arg(long, default_value_t = 256, conflicts_with = "quick")]
    memory_log_mib: u64,
    /// Runs that the history holds, in the section of the history. They lie below `TMPDIR`, where a million need some
    /// GB.
    #[arg(long, default_value_t = 50_000)]
    history_runs: u64,
    /// Runs in the section of the index. A million take some minutes.
    #[arg(long, default_value_t = 50_000)]
    index_runs: u32,
    /// Runs that wait, in the section of parked runs. A million take half an hour.
    #[arg(long, default_value_t = 20_000)]
    parked_runs: u32,
    #[command(flatten)]
    steady: steady::Load,
    #[command(flatten)]
    packages: sdks::Packages,
    /// Be one of the processes that are measured.
    #[command(subcommand)]
    role: Option<roles::Role>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Section {
    /// Calls a second at 1, 16, 256 and 2,000 in flight, latency of single ones, and what a call costs each process.
    Calls,
    /// Latency at 10, 50 and 80 % of the highest rate, from when each call was due.
    Latency,
    /// First chunk, chunks and bytes a second of 1 and of 100 calls that stream.
    Stream,
    /// Reading a run of 100,000 events again, and 1,000 watchers of one run.
    Readers,
    /// 10,000 calls that wait for their client, and the memory of each process.
    Open,
    /// Runs that wait for days: memory, carrying, taking them over.
    Parked,
    /// How long a killed coordinator is missed.
    Takeover,
    /// The first chunk by server-sent events, and 5,000 readers of a run that waits.
    Sse,
    /// Watching a run over the runs in the log, 5,000 readers at once, and 1,000 that do not read.
    Watch,
    /// How long a scrape takes if calls of 2,000 tools are counted.
    Scrape,
    /// The cost of traces of 1 % of all calls, and of metrics.
    Tracing,
    /// The cost of a fleet without work.
    Idle,
    /// Pages of 2,000 tools that 500 workers host, and a call beside them.
    Registry,
    /// The cost of a call over retained calls, tools, workers and coordinators.
    Growth,
    /// Calls with a history beside those without, in turn.
    Kept,
    /// 200 workers beside one with as many slots, and four coordinators beside one, in turn.
    Many,
    /// A log of four partitions beside one of one, each at a cluster of three servers, in turn.
    Partitions,
    /// How long a server of the broker is missed that is killed, or hangs.
    Servers,
    /// The broker in a memory cgroup at the chart's proportions, to a full log and through a restart. Needs root and
    /// cgroup v1; left out without them unless it is asked for.
    Memory,
    /// Calls at a steady rate for minutes, with the broker in a memory cgroup and a log that is far too small for all
    /// of them. Needs what the memory section needs; left out unless it is asked for.
    Steady,
    /// Lists, counts and the overview over many runs, and rebuilding the index from the log, in memory and in Redis.
    Index,
    /// Erasing runs of which nothing is kept, among 100,000 others.
    Erase,
    /// Random runs of the history in a folder: `GetRun` and `WatchRun` of a coordinator that did not write them.
    History,
    /// Requests that cost more than their size says where nothing bounds them.
    Costly,
    /// 100,000 calls that wait for a delayed retry, and the other calls of their pool.
    Delayed,
    /// Ten calls of a tenant behind 20,000 queued ones of another: how much later they begin, in service times.
    Fair,
    /// A call of an MCP tool straight to its server and through the queue. Needs Python 3.
    Mcp,
    /// Workers in Python and in Node beside the worker in Rust. Needs their packages: `--python`, `--node-package`.
    Sdks,
    /// The loop of an agent beside its model: a turn of three parallel calls, and 200 agents at once.
    Agents,
    /// The same call and stream on other systems.
    Peers,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Effort {
    rounds: usize,
    /// For which a rate is measured in each round.
    time: Duration,
    /// By how much less there is of everything that is counted.
    divisor: u32,
    retained_max: u64,
    memory_log_mib: u64,
}

impl Effort {
    fn of(arguments: &Arguments) -> Self {
        if arguments.quick {
            return Self {
                rounds: 1,
                time: Duration::from_secs(1),
                divisor: 10,
                retained_max: 10_000,
                memory_log_mib: 128,
            };
        }
        let (rounds, retained_max) = (arguments.rounds.max(1), arguments.retained_max);
        Self {
            rounds,
            time: Duration::from_secs(3),
            divisor: 1,
            retained_max,
            memory_log_mib: arguments.memory_log_mib,
        }
    }

    /// As many as this, or fewer when only a look is taken.
    fn count(self, full: u32) -> u32 {
        full / self.divisor
    }
}

fn main() -> anyhow::Result<()> {
    sandbox::enter();
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match arguments.role {
        Some(role) => runtime.block_on(roles::serve(role)),
        None => runtime.block_on(measure_all(&arguments)),
    }
}

async fn measure_all(arguments: &Arguments) -> anyhow::Result<()> {
    let effort = Effort::of(arguments);
    let wanted = |section| arguments.only.is_empty() || arguments.only.contains(&section);
    let mut results = Results::of_this_machine();
    if wanted(Section::Calls) || wanted(Section::Latency) || wanted(Section::Stream) || wanted(Section::Readers) {
        let yard = Arc::new(Yard::start(execute::Fleet::default()).await?);
        let floor = Arc::new(Floor::start(&yard.broker.url()).await?);
        eprintln!("warming up");
        measure::rate(256, effort.time / 3, || floor.call()).await?;
        measure::rate(256, effort.time / 3, || yard.call()).await?;
        if wanted(Section::Calls) {
            let what = (arguments.ways.as_slice(), arguments.in_flight.as_slice());
            calls::measure((&floor, &yard), what, effort, &mut results).await?;
        }
        if wanted(Section::Latency) {
            latency::measure(&floor, &yard, effort, &mut results).await?;
        }
        if wanted(Section::Stream) {
            stream::measure(&yard, effort, &mut results).await?;
        }
        if wanted(Section::Readers) {
            readers::measure(&yard, effort, &mut results).await?;
        }
    }
    if wanted(Section::Open) {
        open::measure(effort, &mut results).await?;
    }
    if wanted(Section::Parked) {
        parked::measure(effort, arguments.parked_runs, &mut results).await?;
    }
    if wanted(Section::Takeover) {
        takeover::measure(effort, &mut results).await?;
    }
    if wanted(Section::Sse) {
        sse::measure(effort, &mut results).await?;
    }
    if wanted(Section::Watch) {
        watch::measure(effort, &mut results).await?;
    }
    if wanted(Section::Scrape) {
        scrape::measure(effort, &mut results).await?;
    }
    if wanted(Section::Tracing) {
        tracing::measure(effort, &mut results).await?;
    }
    if wanted(Section::Idle) {
        idle::measure(effort, &mut results).await?;
    }
    if wanted(Section::Registry) {
        registry::measure(effort, &mut results).await?;
    }
    if wanted(Section::Growth) {
        growth::measure(effort, &mut results).await?;
    }
    if wanted(Section::Kept) {
        kept::measure(effort, &mut results).await?;
    }
    if wanted(Section::Many) {
        many::measure(effort, &mut results).await?;
    }
    if wanted(Section::Partitions) {
        partitions::measure(effort, &mut results).await?;
    }
    if wanted(Section::Servers) {
        servers::measure(effort, &mut results).await?;
    }
    if arguments.only.contains(&Section::Memory) || (arguments.only.is_empty() && memory::is_possible()) {
        memory::measure(effort, &mut results).await?;
    }
    if arguments.only.contains(&Section::Steady) {
        steady::measure(arguments.steady, &mut results).await?;
    }
    if wanted(Section::Index) {
        index::measure(effort, arguments.index_runs, &mut results).await?;
    }
    if wanted(Section::Erase) {
        erase::measure(effort, &mut results).await?;
    }
    if wanted(Section::History) {
        history::measure(effort, arguments.history_runs, &mut results).await?;
    }
    if wanted(Section::Costly) {
        costly::measure(effort, &mut results).await?;
    }
    if wanted(Section::Delayed) {
        delayed::measure(effort, &mut results).await?;
    }
    if wanted(Section::Fair) {
        fair::measure(effort, &mut results).await?;
    }
    if wanted(Section::Agents) {
        agents::measure(effort, &mut results).await?;
    }
    if wanted(Section::Mcp) {
        mcp::measure(effort, &mut results).await?;
    }
    if arguments.only.contains(&Section::Sdks) || (arguments.only.is_empty() && arguments.packages.are_given()) {
        sdks::measure(&arguments.packages, effort, &mut results).await?;
    }
    if wanted(Section::Peers) {
        peers::measure(arguments.quick, &mut results).await?;
    }
    results.compare();
    results.print(arguments.json)
}
