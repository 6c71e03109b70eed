//! The coordinator and the worker that are measured, as processes of their own.

use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::Duration;

use nats::Credentials;
use schemars::JsonSchema;
use serde::Deserialize;
use telemetry::otlp::{Exporter, Settings};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;
use worker::{About, Context, Output, Table, Tool, ToolError};

#[derive(Debug, Clone, clap::Subcommand)]
pub(crate) enum Role {
    #[command(hide = true)]
    Coordinator {
        nats_url: String,
        #[arg(long, default_value_t = LOG_BYTES_MAX)]
        log_max_bytes: i64,
        /// The part of the log that runs which have ended may take.
        #[arg(long, default_value_t = coordinator::Tail::default().percent)]
        tail_percent: u8,
        /// The longest time for which the log keeps runs that have ended.
        #[arg(long)]
        tail_age_s: Option<u64>,
        #[arg(long, default_value = "dev")]
        durability: coordinator::Durability,
    },
    /// Some workers in one process.
    #[command(hide = true)]
    Workers { nats_url: String, slots: u32, count: u32, tools: u32 },
}

/// Room for all that a bench stores.
const LOG_BYTES_MAX: i64 = 4 << 30;

/// Arguments of a coordinator whose log is far too small for all calls, so it must become shorter as fast as it grows.
/// Its 1 GiB leaves room on a disk of 2 GiB for the other streams of the broker.
pub(crate) const SHORT_LOG: [&str; 4] = ["--log-max-bytes", "1073741824", "--tail-percent", "10"];

/// A process of ours, killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pub(crate) pid: u32,
    /// What it said when it was ready.
    pub(crate) ready: String,
}

impl Process {
    /// SIGKILL.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// Starts this program again in a role.
pub(crate) async fn start(arguments: &[&str], environment: &[(&str, String)]) -> anyhow::Result<Process> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let ended = || anyhow::anyhow!("{arguments:?} ended before it was ready");
    let (stdout, pid) = (child.stdout.take().ok_or_else(ended)?, child.id().ok_or_else(ended)?);
    let ready = BufReader::new(stdout).lines().next_line().await?.ok_or_else(ended)?;
    Ok(Process { child, pid, ready })
}

pub(crate) async fn serve(role: Role) -> anyhow::Result<()> {
    let endpoint = std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok();
    let settings = Settings::read(endpoint.as_deref(), "bench", |name| std::env::var(name).ok())?;
    // Until the process is killed.
    let _exporter = settings.map(|settings| Exporter::start(&settings)).transpose()?;
    std::thread::spawn(|| {
        let ended = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(i32::from(ended.is_err()));
    });
    let stop = CancellationToken::new();
    let admin = std::env::var("TOOLYARD_ADMIN_LISTEN").ok().map(|address| address.parse()).transpose()?;
    match role {
        Role::Coordinator { nats_url, log_max_bytes, tail_percent, tail_age_s, durability } => {
            let listen = ([127, 0, 0, 1], 0).into();
            let tail = coordinator::Tail { percent: tail_percent, age: tail_age_s.map(Duration::from_secs) };
            let bytes_max = log_max_bytes;
            let log = coordinator::LogOptions { durability, bytes_max, tail, ..coordinator::LogOptions::default() };
            let redis_url = std::env::var("TOOLYARD_REDIS_URL").ok();
            let options = coordinator::Options {
                nats_url,
                credentials: Credentials::default(),
                listen,
                log,
                bucket: None,
                redis_url,
                redis_ca: None,
                api: coordinator::ApiOptions::default(),
                admin,
            };
            let coordinator = coordinator::Coordinator::bind(options).await?;
            let coordinator = match std::env::var_os("TOOLYARD_HISTORY") {
                Some(folder) => coordinator.with_history(crate::history::open(folder.as_ref())?),
                None => coordinator,
            };
            let address = coordinator.address();
            coordinator.serve(stop, move || say(&address.to_string())).await?;
        }
        Role::Workers { nats_url, slots, count, tools } => {
            let mut workers = tokio::task::JoinSet::new();
            for _ in 0..count {
                let options =
                    worker::Options { slots, admin, ..worker::Options::new(nats_url.clone(), "bench".parse()?) };
                let (sender, ready) = tokio::sync::oneshot::channel();
                let (table, stop) = (with_agents(table(tools)?)?, stop.clone());
                let tables = match std::env::var_os(crate::mcp::VARIABLE) {
                    Some(_) => {
                        let (tables, mut servers) = crate::mcp::host(table, stop.clone()).await?;
                        servers.detach_all();
                        tables
                    }
                    None => tokio::sync::watch::Sender::new(std::sync::Arc::new(table)).subscribe(),
                };
                let ready_now = move |_: &worker::WorkerId| sender.send(()).unwrap_or_default();
                workers.spawn(worker::serve_changing(options, tables, stop, ready_now));
                // One after another, or all advertise at once.
                ready.await?;
            }
            say("ready");
            while let Some(ended) = workers.join_next().await {
                ended??;
            }
        }
    }
    Ok(())
}

/// The tools that are measured, and so many more that nobody calls.
fn table(more: u32) -> anyhow::Result<Table> {
    let mut table = Table::new()
        .host(Noop)?
        .host(Chunks)?
        .host(Later)?
        .host(Nap)?
        .define::<Nothing>("ask", &About::new("Ask the client"))?;
    for number in 0..more {
        table = table.define::<Nothing>(&format!("tool_{number}"), &About::new("One of many"))?;
    }
    Ok(table)
}

/// The agents of a file beside other tools, if the bench names one.
fn with_agents(table: Table) -> anyhow::Result<Table> {
    match (std::env::var_os("TOOLYARD_AGENTS"), std::env::var("TOOLYARD_API_URL")) {
        (Some(file), Ok(url)) => {
            let fleet = collaboration::Fleet::new(client::Connection::to(url));
            Ok(::agents::Agents::read(file.as_ref())?.host(table, &fleet)?)
        }
        _ => Ok(table),
    }
}

fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    drop(writeln!(stdout, "{line}").and_then(|()| stdout.flush()));
}

struct Noop;

#[derive(Debug, Deserialize, JsonSchema)]
struct Nothing {}

impl Tool for Noop {
    const NAME: &'static str = "noop";
    type Input = Nothing;

    fn about(&self) -> About {
        About::new("Do nothing").read_only()
    }

    async fn call(&self, _: &Context, _: Nothing) -> Result<Output, ToolError> {
        Ok(().into())
    }
}

/// Takes some time.
struct Nap;

#[derive(Debug, Deserialize, JsonSchema)]
struct NapInput {
    ms: u64,
}

impl Tool for Nap {
    const NAME: &'static str = "nap";
    type Input = NapInput;

    fn about(&self) -> About {
        About::new("Take some time").read_only()
    }

    async fn call(&self, _: &Context, input: NapInput) -> Result<Output, ToolError> {
        tokio::time::sleep(Duration::from_millis(input.ms)).await;
        Ok(().into())
    }
}

/// Fails, and is to be tried again in an hour.
struct Later;

impl Tool for Later {
    const NAME: &'static str = "later";
    type Input = Nothing;

    fn about(&self) -> About {
        About::new("Later").read_only()
    }

    async fn call(&self, _: &Context, _: Nothing) -> Result<Output, ToolError> {
        Err(ToolError::rate_limited("later", Duration::from_secs(3600)))
    }
}

struct Chunks;

#[derive(Debug, Deserialize, JsonSchema)]
struct ChunksInput {
    count: u32,
    bytes: usize,
    /// The pause before each.
    #[serde(default)]
    every_ms: u64,
}

impl Tool for Chunks {
    const NAME: &'static str = "chunks";
    type Input = ChunksInput;

    fn about(&self) -> About {
        About::new("Say many things").read_only().streaming()
    }

    async fn call(&self, context: &Context, input: ChunksInput) -> Result<Output, ToolError> {
        let piece = "x".repeat(input.bytes);
        for _ in 0..input.count {
            if input.every_ms > 0 {
                tokio::time::sleep(Duration::from_millis(input.every_ms)).await;
            }
            context.text(piece.clone()).await?;
        }
        Ok(().into())
    }
}
