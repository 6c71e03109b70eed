//! A whole worker with a tool of its own. Try it beside `toolyard dev`: `toolyard call greet name=Ada`.

use tokio_util::sync::CancellationToken;
use toolyard_worker::{Options, Table, serve, tool};

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
