//! Does. Hosts tools, pulls their calls, runs attempts and publishes what they say and how they end. Decides nothing:
//! when a job may not be fresh it asks the owner of the run what to do.
//!
//! The work at the broker (pulling, leases, publishing, acknowledging) has a thread of its own, which no tool can
//! block; tools run on the caller's runtime.

#![warn(unnameable_types)]

pub mod guard;
pub mod tools;

mod attempt;
mod hooked;
mod metrics;
mod nats;
mod objects;
mod publisher;

use std::net::SocketAddr;
use std::time::Duration;

use ::hooks::HookPoint;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub use ::nats::{ConnectError, Credentials};
pub use ::objects::Bucket;
pub use hooked::Unwatchable;
pub use hooks::{self, Hooks};
pub use nats::Error;
pub use run::{PoolId, WorkerId};
pub use telemetry::admin::ListenError;
/// What tools are made of, as far as a program needs it that hosts them.
pub use toolyard_tool::*;

/// Calls that a worker runs at once, unless told otherwise.
pub const SLOTS: u32 = 16;
/// How long running calls may take to end once the worker is told to stop; then they are given back.
pub const DRAIN: Duration = Duration::from_secs(120);

#[derive(Debug, Clone)]
pub struct Options {
    /// The broker's address, for example `nats://127.0.0.1:4222`.
    pub nats_url: String,
    pub credentials: Credentials,
    /// Where results are stored that are too large for the log; `None`: at the broker. As the coordinators have it.
    pub bucket: Option<Bucket>,
    /// The pool whose queue the worker serves.
    pub pool: PoolId,
    /// Calls that it runs at once.
    pub slots: u32,
    /// How long running calls may take to end once it is told to stop.
    pub drain: Duration,
    /// Who is asked about the ends of executions, before they are stored.
    pub hooks: Hooks,
    /// Where probes, scrapers and operators find it; `None`: nowhere.
    pub admin: Option<SocketAddr>,
    /// The names under which the admin port is served, beside addresses and `localhost`.
    pub host_names: Vec<String>,
    /// Whether traces tell the arguments and results of calls. Whoever sees the traces then reads them.
    pub include_content: bool,
}

impl Options {
    #[must_use]
    pub fn new(nats_url: impl Into<String>, pool: PoolId) -> Self {
        let (nats_url, credentials) = (nats_url.into(), Credentials::default());
        Self {
            nats_url,
            credentials,
            bucket: None,
            pool,
            slots: SLOTS,
            drain: DRAIN,
            hooks: Hooks::default(),
            admin: None,
            host_names: Vec::new(),
            include_content: false,
        }
    }
}

/// Serves the calls of `table`'s tools until told to stop, by `stop` or by an operator who drains it (`toolyard workers
/// drain`), then lets running calls end or gives them back. `ready` is called once, when the tools are advertised and
/// the first pull is out.
///
/// # Errors
/// When a hook cannot watch a tool, or the broker cannot be reached or is too old. Later losses of the broker are
/// waited out.
pub async fn serve(
    options: Options,
    table: Table,
    stop: CancellationToken,
    ready: impl FnOnce(&WorkerId) + Send + 'static,
) -> Result<(), Error> {
    hooked::check(&options.hooks, &table)?;
    let elsewhere = options.hooks.asked_elsewhere(&[HookPoint::PostToolUse, HookPoint::ToolError]);
    if !elsewhere.is_empty() {
        tracing::info!(hooks = elsewhere.join(", "), "coordinators ask these hooks: each of them needs the file too");
    }
    let tools = Handle::current();
    let (done, result) = oneshot::channel();
    std::thread::Builder::new()
        .name("toolyard-worker".to_owned())
        .spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            let result = match runtime {
                Ok(runtime) => runtime.block_on(nats::serve(options, table, tools, stop, ready)),
                Err(error) => Err(Error::Thread(error)),
            };
            // The caller may have gone, and the process with it.
            drop(done.send(result));
        })
        .map_err(Error::Thread)?;
    result.await.unwrap_or(Err(Error::Died))
}

fn limit_slots(slots: u32) -> u32 {
    slots.clamp(1, 10_000)
}
