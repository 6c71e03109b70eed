//! The coordinator and the worker that are measured, as processes of their own.

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;
use worker::{About, Context, Output, Table, Tool, ToolError};

#[derive(Debug, Clone, clap::Subcommand)]
pub(crate) enum Role {
    #[command(hide = true)]
    Coordinator { nats_url: String },
    #[command(hide = true)]
    Worker { nats_url: String, slots: u32 },
}

/// Starts this program again in a role; gives its process and what it says when it is ready.
pub(crate) async fn start(arguments: &[&str]) -> anyhow::Result<(Child, String)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdout = child.stdout.take().ok_or_else(|| anyhow::anyhow!("no output"))?;
    let ready = BufReader::new(stdout).lines().next_line().await?;
    Ok((child, ready.ok_or_else(|| anyhow::anyhow!("{arguments:?} ended before it was ready"))?))
}

pub(crate) async fn serve(role: Role) -> anyhow::Result<()> {
    std::thread::spawn(|| {
        let ended = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(i32::from(ended.is_err()));
    });
    let stop = CancellationToken::new();
    match role {
        Role::Coordinator { nats_url } => {
            let listen = ([127, 0, 0, 1], 0).into();
            let log = coordinator::LogOptions::default();
            let redis_url = std::env::var("TOOLYARD_REDIS_URL").ok();
            let options = coordinator::Options { nats_url, listen, log, redis_url };
            let coordinator = coordinator::Coordinator::bind(options).await?;
            let address = coordinator.address();
            coordinator.serve(stop, move || say(&address.to_string())).await?;
        }
        Role::Worker { nats_url, slots } => {
            let options = worker::Options { slots, ..worker::Options::new(nats_url, "bench".parse()?) };
            worker::serve(options, Table::new().host(Noop)?.host(Chunks)?, stop, |id| say(id.as_str())).await?;
        }
    }
    Ok(())
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

struct Chunks;

#[derive(Debug, Deserialize, JsonSchema)]
struct ChunksInput {
    count: u32,
    bytes: usize,
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
            context.text(piece.clone()).await?;
        }
        Ok(().into())
    }
}
