//! Workers in Python and in Node beside the worker in Rust, each with the same tools: calls a second, the latency of
//! single calls, chunks of one call, and a thousand slow calls at once. The packages are built and installed before.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use harness::PATIENCE;
use proto::v1::run_event::Event;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::Effort;
use crate::execute::{self, Fleet, Yard, chunks_of, new_call, request};
use crate::measure::{self, Latencies, median, rounded};
use crate::process::Usage;
use crate::results::Results;
use crate::stream::{self, Shape};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/sdks");
/// Slow calls that a worker executes at once, and so the slots of each.
const SLOW_CALLS: u32 = 1_000;
const SLOW_MS: u32 = 1_000;
const IN_FLIGHT: usize = 256;
/// Calls made one by one in each round, in small batches in turn.
const SINGLES: u32 = 500;
const BATCHES: u32 = 10;
const CHUNKS: Shape = Shape { name: "sdks", calls: 1, chunks: 100_000, bytes: 64 };
/// The pause before each chunk of a call that says little.
const PAUSE_MS: u32 = 20;
const FIRST_CHUNKS: u32 = 50;

/// The packages that are measured.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Packages {
    /// The Python interpreter that has the package toolyard, for the section of SDKs.
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    /// The folder of the built npm package toolyard, for the section of SDKs.
    #[arg(long, value_name = "FOLDER")]
    node_package: Option<PathBuf>,
}

impl Packages {
    pub(crate) fn are_given(&self) -> bool {
        self.python.is_some() || self.node_package.is_some()
    }
}

/// Tools of one kind, and the process that executes them.
struct Side {
    name: &'static str,
    /// Before the names of its tools.
    prefix: &'static str,
    pid: u32,
    rates: [Vec<f64>; 2],
    singles: Latencies,
    chunks: Vec<f64>,
    first_chunks: Latencies,
    cpu_s: f64,
    calls: u32,
}

impl Side {
    fn new(name: &'static str, prefix: &'static str, pid: u32) -> Self {
        let (rates, chunks) = ([Vec::new(), Vec::new()], Vec::new());
        let (singles, first_chunks) = (Latencies::new(), Latencies::new());
        Self { name, prefix, pid, rates, singles, chunks, first_chunks, cpu_s: 0.0, calls: 0 }
    }

    fn noop(&self) -> String {
        format!("{}noop", self.prefix)
    }

    fn chunks(&self) -> String {
        format!("{}chunks", self.prefix)
    }

    /// Calls a second by a stream of its own for each, and by one stream for all.
    async fn measure_rates(&mut self, yard: &Yard, effort: Effort) -> anyhow::Result<()> {
        let noop = self.noop();
        let before = Usage::of(self.pid)?;
        let execute = || execute::completed(yard.client(), new_call(&noop, "{}".to_owned()));
        let rate = measure::rate(IN_FLIGHT, effort.time, execute).await?;
        self.cpu_s += Usage::of(self.pid)?.cpu_s - before.cpu_s;
        self.calls += rate.calls;
        self.rates[0].push(rate.per_s());
        let submitted = measure::rate(IN_FLIGHT, effort.time, || yard.submitted_call(&noop)).await?;
        self.rates[1].push(submitted.per_s());
        Ok(())
    }

    async fn measure_singles(&mut self, yard: &Yard, calls: u32) -> anyhow::Result<()> {
        let noop = self.noop();
        let call = || execute::completed(yard.client(), new_call(&noop, "{}".to_owned()));
        measure::one_by_one(calls, &mut self.singles, call).await
    }

    async fn measure_chunks(&mut self, yard: &Yard, effort: Effort) -> anyhow::Result<()> {
        let tool = self.chunks();
        self.chunks.push(stream::chunks_per_s(yard, &tool, &CHUNKS, effort).await?);
        for _ in 0..effort.count(FIRST_CHUNKS) {
            self.first_chunks.record(first_chunk(yard, &tool).await?);
        }
        Ok(())
    }

    /// From the first submission to the last end.
    async fn slow_calls(&self, yard: &Yard, count: u32) -> anyhow::Result<Value> {
        let (began, mut calls) = (Instant::now(), JoinSet::new());
        for _ in 0..count {
            calls.spawn(execute::completed(yard.client(), chunks_of(&self.chunks(), (1, 1, SLOW_MS))));
        }
        tokio::time::sleep(Duration::from_millis(u64::from(SLOW_MS) / 2)).await;
        let during = Usage::of(self.pid)?.memory_mib();
        while let Some(ended) = calls.join_next().await {
            ended??;
        }
        let seconds = rounded(began.elapsed().as_secs_f64());
        Ok(json!({ "calls": count, "seconds": seconds, "worker_mib_meanwhile": during }))
    }

    fn report(self, slow: &Value, results: &mut Results) {
        let name = self.name;
        let [execute, submit] = self.rates.map(|rates| rounded(median(rates)));
        results.set(&format!("sdks.{name}.calls_per_s"), execute);
        results.set(&format!("sdks.{name}.submitted_calls_per_s"), submit);
        results.set(&format!("sdks.{name}.cpu_us_per_call"), rounded(self.cpu_s * 1e6 / f64::from(self.calls)));
        results.set(&format!("sdks.{name}.single"), self.singles.to_json());
        results.set(&format!("sdks.{name}.chunks_per_s"), rounded(median(self.chunks)));
        results.set(&format!("sdks.{name}.first_chunk_after_pause"), self.first_chunks.to_json());
        results.set(&format!("sdks.{name}.slow_calls"), slow.clone());
    }
}

pub(crate) async fn measure(packages: &Packages, effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    ensure!(
        packages.are_given(),
        "the section of SDKs needs their packages, built for release: --python PROGRAM, an interpreter with the wheel \
         of sdk/python (maturin build --release), and --node-package FOLDER, sdk/typescript after \
         `sdk/typescript/run build`"
    );
    let yard = Yard::start(Fleet { slots: SLOW_CALLS, ..Fleet::default() }).await?;
    let mut sides = vec![Side::new("rust", "", yard.workers[0].pid)];
    let mut workers = Vec::new();
    if let Some(python) = &packages.python {
        let worker = worker(python, &["-m", "toolyard.cli", "run", "tools:app"], &yard, Path::new(""))?;
        let pid = worker.id().context("the worker in Python ended")?;
        sides.extend([Side::new("python", "python_", pid), Side::new("python_threads", "python_threads_", pid)]);
        workers.push(worker);
    }
    if let Some(package) = &packages.node_package {
        let package = package.canonicalize().with_context(|| package.display().to_string())?;
        let program = package.join("dist/cli.js");
        let program = program.to_str().context("a path of text")?;
        let worker = worker(Path::new("node"), &[program, "run", "tools.mjs", "--pool", "node"], &yard, &package)?;
        sides.push(Side::new("node", "node_", worker.id().context("the worker in Node ended")?));
        workers.push(worker);
    }
    for side in &sides {
        until_known(&yard, &side.noop(), &mut workers).await?;
        yard.make_way_for(IN_FLIGHT);
        let noop = side.noop();
        measure::rate(IN_FLIGHT, effort.time / 3, || yard.submitted_call(&noop)).await?;
    }
    rounds(&yard, &mut sides, effort).await?;
    let python = sides.iter().any(|side| side.name == "python").then_some(packages.python.as_deref()).flatten();
    for side in sides {
        eprintln!("sdks: slow calls of {}", side.name);
        yard.make_way_for(SLOW_CALLS as usize);
        let slow = side.slow_calls(&yard, SLOW_CALLS).await?;
        side.report(&slow, results);
    }
    if let Some(python) = python {
        results.set("sdks.python.import_ms", imports(python).await?);
    }
    compare(results);
    Ok(())
}

async fn rounds(yard: &Yard, sides: &mut [Side], effort: Effort) -> anyhow::Result<()> {
    for round in 1..=effort.rounds {
        eprintln!("sdks: round {round} of {}", effort.rounds);
        yard.make_way_for(IN_FLIGHT);
        for side in &mut *sides {
            side.measure_rates(yard, effort).await?;
        }
        for _ in 0..BATCHES {
            for side in &mut *sides {
                side.measure_singles(yard, effort.count(SINGLES) / BATCHES).await?;
            }
        }
        for side in &mut *sides {
            side.measure_chunks(yard, effort).await?;
        }
    }
    Ok(())
}

/// Each beside the worker in Rust.
fn compare(results: &mut Results) {
    for name in ["python", "python_threads", "node"] {
        for value in ["calls_per_s", "submitted_calls_per_s", "chunks_per_s"] {
            let of = |name: &str| results.number(&format!("sdks.{name}.{value}"));
            if let (Some(ours), Some(rusts)) = (of(name), of("rust")) {
                results.set(&format!("sdks.ratios.{name}.{value}"), rounded(ours / rusts));
            }
        }
        let p50 = |name: &str| results.number(&format!("sdks.{name}.single.p50_ms"));
        if let (Some(ours), Some(rusts)) = (p50(name), p50("rust")) {
            results.set(&format!("sdks.ratios.{name}.more_p50_ms"), rounded(ours - rusts));
        }
    }
}

/// Starts a worker with the tools of the bench, killed when dropped.
fn worker(program: &Path, arguments: &[&str], yard: &Yard, package: &Path) -> anyhow::Result<Child> {
    // Of a name alone the PATH is searched. A link stays one, because the environment of a Python is beside its link.
    let is_name = program.components().count() == 1;
    let program = if is_name { program.to_owned() } else { std::path::absolute(program)? };
    let mut command = Command::new(&program);
    command.args(arguments).current_dir(FOLDER).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    command.env("TOOLYARD_NATS_URL", yard.broker.url()).env("TOOLYARD_SLOTS", SLOW_CALLS.to_string());
    command.env("TOOLYARD_LOG", "warn").env("TOOLYARD_BENCH_PACKAGE", package);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.spawn().with_context(|| format!("{} does not start", program.display()))
}

async fn until_known(yard: &Yard, tool: &str, workers: &mut [Child]) -> anyhow::Result<()> {
    let began = Instant::now();
    while let Err(error) = execute::completed(yard.client(), new_call(tool, "{}".to_owned())).await {
        for worker in &mut *workers {
            if let Some(status) = worker.try_wait()? {
                bail!("a worker of the section of SDKs ended before it was ready: {status}");
            }
        }
        ensure!(began.elapsed() < PATIENCE, "{tool} does not become known: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Until the first of two chunks is here, with a pause before each.
async fn first_chunk(yard: &Yard, tool: &str) -> anyhow::Result<Duration> {
    let (began, mut first) = (Instant::now(), None);
    let call = chunks_of(tool, (2, 64, PAUSE_MS));
    let mut stream = yard.client().execute_run(request(call)).await?.into_inner();
    while let Some(message) = stream.message().await? {
        if first.is_none() && message.events.iter().any(|event| matches!(event.event, Some(Event::CallOutput(_)))) {
            first = Some(began.elapsed());
        }
    }
    first.context("the stream ended without a chunk")
}

async fn imports(python: &Path) -> anyhow::Result<Value> {
    let mut command = Command::new(python);
    command.arg(format!("{FOLDER}/imports.py")).stderr(Stdio::inherit()).kill_on_drop(true);
    let output = command.output().await?;
    ensure!(output.status.success(), "imports.py: {}", output.status);
    serde_json::from_slice(&output.stdout).context("what it printed is not JSON")
}
