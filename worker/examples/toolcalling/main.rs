//! A worker with the tools of the time and the weather. Each is there twice, written in two ways: as a function with
//! the attribute `tool`, and as a manifest with a closure. A file says which tools exist: `toolcalling.toml`.
//!
//! Beside `toolyard dev`: `cargo run -p toolyard-worker --example toolcalling [FILE]`, then
//! `toolyard call getCityTimeMethod timeZoneId=Asia/Shanghai`.

mod endpoint;
mod my_tool;
mod settings;
mod sub_agent;
mod time;
mod weather;

use std::pin::pin;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use toolyard_tool::Table;
use toolyard_worker::{Options, serve};

use crate::settings::Settings;
use crate::sub_agent::Agent;
use crate::weather::Weather;

/// Only the tools that are enabled.
fn table(settings: &Settings) -> anyhow::Result<Table> {
    let mut table = Table::new();
    if settings.time.enabled {
        table = time::host(table)?;
    }
    if settings.weather.enabled {
        table = weather::host(table, &Arc::new(Weather::new(&settings.weather)?))?;
    }
    if settings.my_tool.enabled {
        table = my_tool::host(table)?;
    }
    if settings.sub_agent.enabled {
        table = sub_agent::host(table, Agent::new(&settings.sub_agent)?)?;
    }
    Ok(table)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    // What TLS is made of; otherwise the clients of services do not know what to take.
    rustls::crypto::ring::default_provider().install_default().map_err(|_| anyhow::anyhow!("TLS is set up twice"))?;
    let settings = Settings::read(std::env::args_os().nth(1))?;
    let url = std::env::var("TOOLYARD_NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".to_owned());
    let (options, table) = (Options::new(url, "tool-calling".parse()?), table(&settings)?);
    let stop = CancellationToken::new();
    let mut serving = pin!(serve(options, table, stop.clone(), |worker| eprintln!("{worker} is ready")));
    tokio::select! {
        served = &mut serving => served?,
        _ = tokio::signal::ctrl_c() => {
            stop.cancel();
            serving.await?;
        }
    }
    Ok(())
}
