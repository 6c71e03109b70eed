//! A complete worker program with a tool of its own. Try it beside `toolyard dev`: `toolyard call greet name=Ada`.
//!
//! Such a program has two dependencies on Toolyard: `toolyard-tool`, with which the tool is written and tested, and
//! `toolyard-worker`, which hosts it. A crate that only contains tools needs the first one alone.

use tokio_util::sync::CancellationToken;
use toolyard_tool::{Table, tool};
use toolyard_worker::{Options, serve};

/// Greets a person.
#[tool(read_only)]
async fn greet(
    /// Whom to greet
    name: String,
) -> String {
    format!("Hello, {name}!")
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("TOOLYARD_NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".to_owned());
    let (options, table) = (Options::new(url, "greeters".parse()?), Table::new().host(Greet)?);
    let stop = CancellationToken::new();
    let ctrl_c = stop.clone();
    tokio::spawn(async move { tokio::signal::ctrl_c().await.map(|()| ctrl_c.cancel()) });
    Ok(serve(options, table, stop, |worker| eprintln!("{worker} is ready")).await?)
}
