//! apalis over Redis. The worker takes jobs in batches and runs them at once, each on a task of its own, as its README
//! shows. Without a task to do it fetches again with its heartbeat, which is short here. A client polls for results,
//! which is what `wait_for` does too, every 100 ms; here oftener.

use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_redis::{Config, RedisStorage};
use clap::{Parser, ValueEnum};

const IN_FLIGHT: usize = 256;
/// How often a client looks while many wait, and while it waits alone.
const LOOK_MANY: Duration = Duration::from_millis(5);
const LOOK_ONE: Duration = Duration::from_millis(1);

/// A worker of 1.0.0 whose fetch came back empty is woken by its next heartbeat, by default every 30 s, and not by the
/// next task: its notice of new tasks splits the channel's name into too few parts to be heard.
const HEARTBEAT: Duration = Duration::from_millis(5);
const CALL_LIMIT: Duration = Duration::from_secs(40);

#[derive(Debug, Parser)]
struct Arguments {
    role: Role,
    #[arg(long)]
    url: String,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    #[arg(long, default_value_t = 200)]
    singles: usize,
    /// Not used: it has no output that streams.
    #[arg(long)]
    chunks: Option<u32>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    Client,
    Worker,
}

type Storage = RedisStorage<u64>;

async fn noop(_: u64) -> Result<(), BoxDynError> {
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let connection = apalis_redis::connect(arguments.url.as_str()).await?;
    let config = Config::default().queue("peer").batch_size(IN_FLIGHT).heartbeat_interval(HEARTBEAT);
    let storage = Storage::new(connection).with_config(config);
    match arguments.role {
        Role::Worker => {
            println!("ready");
            let worker = WorkerBuilder::new("peer").backend(storage).concurrency(IN_FLIGHT).parallelize(tokio::spawn);
            Ok(worker.build(noop).run().await?)
        }
        Role::Client => measure(&arguments, &storage).await,
    }
}

async fn call(mut storage: Storage, look: Duration) -> anyhow::Result<()> {
    let id = TaskId::from_ulid(ulid::Ulid::generate());
    storage.push_task(TaskBuilder::new(0).task_id(id.clone()).build()).await?;
    let began = Instant::now();
    while began.elapsed() < CALL_LIMIT {
        let ended: Vec<TaskResult<()>> = storage.check_status([id.clone()]).await?;
        if let Some(ended) = ended.into_iter().next() {
            return ended.take().map_err(anyhow::Error::msg);
        }
        tokio::time::sleep(look).await;
    }
    anyhow::bail!("a task was not executed within {} s, its worker being idle", CALL_LIMIT.as_secs())
}

async fn rate(storage: &Storage, seconds: f64) -> anyhow::Result<f64> {
    let (began, mut done, mut tasks) = (Instant::now(), 0_u32, tokio::task::JoinSet::new());
    for _ in 0..IN_FLIGHT {
        tasks.spawn(call(storage.clone(), LOOK_MANY));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
        done += 1;
        if began.elapsed().as_secs_f64() < seconds {
            tasks.spawn(call(storage.clone(), LOOK_MANY));
        }
    }
    Ok(f64::from(done) / began.elapsed().as_secs_f64())
}

async fn measure(arguments: &Arguments, storage: &Storage) -> anyhow::Result<()> {
    rate(storage, arguments.seconds / 3.0).await?;
    let (mut rates, mut singles) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        rates.push(rate(storage, arguments.seconds).await?);
        for _ in 0..arguments.singles {
            let began = Instant::now();
            call(storage.clone(), LOOK_ONE).await?;
            singles.push(began.elapsed().as_secs_f64() * 1000.0);
        }
    }
    println!(
        "{}",
        serde_json::json!({
            "in_flight": IN_FLIGHT, "calls_per_s": quantile(rates, 0.5), "single_calls": singles.len(),
            "p50_ms": quantile(singles.clone(), 0.5), "p99_ms": quantile(singles, 0.99),
        })
    );
    Ok(())
}

fn quantile(mut samples: Vec<f64>, part: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let index = ((samples.len() - 1) as f64 * part).round() as usize;
    (samples[index] * 1000.0).round() / 1000.0
}
