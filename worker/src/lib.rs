//! The worker. It hosts tools, pulls their calls, runs attempts and publishes their output and ends. It decides
//! nothing: if a job may not be fresh, it asks the owner of the run.
//!
//! The work at the broker (pulling, leases, publishing, acknowledging) is done on threads that no tool can block; tools
//! run on the caller's runtime. All workers of a process share these threads.

#![warn(unnameable_types)]

mod attempt;
mod hooked;
pub mod interceptors;
mod metrics;
mod nats;
mod objects;
mod observe;
mod publisher;
mod threads;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::hooks::HookPoint;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use ::nats::{ConnectError, Credentials};
pub use ::objects::Bucket;
pub use hooked::Unwatchable;
pub use hooks::{self, Hooks};
pub use nats::{Error, hide_this_process};
pub use observe::{Observation, ObservedCall, Observer};
/// The parts of the tool SDK that a program needs to host tools.
pub use proto::convert::worker::WorkerSandbox;
pub use run::{PoolId, WorkerId};
pub use telemetry::admin::ListenError;
pub use toolyard_tool::*;

/// Default of the calls that a worker runs at once.
pub const SLOTS: u32 = 16;
/// Default of the time in which running calls may end after the worker was told to stop; then they are given back.
pub const DRAIN: Duration = Duration::from_secs(120);

#[derive(Debug, Clone)]
pub struct Options {
    /// The broker's address, for example `nats://127.0.0.1:4222`.
    pub nats_url: String,
    pub credentials: Credentials,
    /// The bucket for results that are too large for the log; `None`: the broker. The same as that of the coordinators.
    pub bucket: Option<Bucket>,
    /// The pool whose queue the worker serves.
    pub pool: PoolId,
    /// Calls that it runs at once.
    pub slots: u32,
    /// How long running calls may take to end after the worker was told to stop.
    pub drain: Duration,
    /// Hooks that decide about the ends of executions before they are stored.
    pub hooks: Hooks,
    /// Address of the admin port, for probes, scrapers and operators; `None`: no admin port.
    pub admin: Option<SocketAddr>,
    /// The names under which the admin port is served, beside addresses and `localhost`.
    pub host_names: Vec<String>,
    /// Whether traces include the arguments and results of calls. Then every reader of the traces can read them.
    pub include_content: bool,
    /// Names and attributes of a program's own for the spans of calls; `None`: only those that every worker has.
    pub observer: Option<Observer>,
    /// How programs of its tools are confined, for its admin port and for lists of workers; `None` if they start none.
    pub sandbox: Option<SandboxReport>,
}

/// How a worker confines programs that its tools start.
#[derive(Debug, Clone, Default)]
pub struct SandboxReport {
    /// What operators see of all workers.
    pub effective: WorkerSandbox,
    /// What the machine cannot give, in words.
    pub gaps: Vec<String>,
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
            observer: None,
            sandbox: None,
        }
    }
}

/// Serves the calls of `table`'s tools until `stop`, or until an operator drains the worker (`toolyard workers drain`).
/// Then it lets running calls end, or gives them back. `ready` is called once, when the tools are advertised and the
/// first pull request is open. Workers of one process share threads for their work at the broker, and those of one pool
/// share connections.
///
/// # Errors
/// A hook cannot watch a tool, or the broker cannot be reached or is too old. If the broker is lost later, the worker
/// waits for it.
pub async fn serve(
    options: Options,
    table: Table,
    stop: CancellationToken,
    ready: impl FnOnce(&WorkerId) + Send + 'static,
) -> Result<(), Error> {
    serve_changing(options, watch::Sender::new(Arc::new(table)).subscribe(), stop, ready).await
}

/// As [`serve`], with tools that change while the worker runs, as those of an MCP server: it hosts the newest table. A
/// call of a tool that is not in it any more is given to another worker of the pool, and one that runs already ends.
///
/// # Errors
/// As [`serve`]. A later table that a hook cannot watch is logged and not hosted.
pub async fn serve_changing(
    options: Options,
    tables: watch::Receiver<Arc<Table>>,
    stop: CancellationToken,
    ready: impl FnOnce(&WorkerId) + Send + 'static,
) -> Result<(), Error> {
    let tables = hooked::Tables::check(&options.hooks, tables)?;
    let elsewhere = options.hooks.asked_elsewhere(&[HookPoint::PostToolUse, HookPoint::ToolError]);
    if !elsewhere.is_empty() {
        tracing::info!(hooks = elsewhere.join(", "), "coordinators ask these hooks: each of them needs the file too");
    }
    let tools = Handle::current();
    let (done, result) = oneshot::channel();
    let work = move |place| async move {
        let served = nats::serve(options, tables, tools, stop, ready).await;
        drop(place);
        // The caller may have gone, and the process with it.
        drop(done.send(served));
    };
    threads::spawn(work).map_err(Error::Thread)?;
    result.await.unwrap_or(Err(Error::Died))
}

fn limit_slots(slots: u32) -> u32 {
    slots.clamp(1, 10_000)
}
