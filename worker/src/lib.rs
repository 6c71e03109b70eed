//! Does. Hosts tools, pulls their calls, runs attempts and publishes what they say and how they end. Decides nothing: when
//! a job may not be fresh it asks the owner of the run what to do.
//!
//! The work at the broker (pulling, leases, publishing, acknowledging) has a thread of its own, which no tool can block;
//! tools run on the caller's runtime.

pub mod testkit;
pub mod tool;
pub mod tools;

mod attempt;
mod nats;
mod publisher;
mod table;

use std::time::Duration;

use run::{PoolId, WorkerId};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub use nats::Error;
pub use run::{AfterPartialOutput, RetryOn};
pub use table::{InvalidTool, Table};
pub use tool::{About, Context, Output, Tool, ToolError};

/// Calls that a worker runs at once, unless told otherwise.
pub const SLOTS: u32 = 16;
/// How long running calls may take to end once the worker is told to stop; then they are given back.
pub const DRAIN: Duration = Duration::from_secs(120);

#[derive(Debug, Clone)]
pub struct Options {
    /// The broker's address, for example `nats://127.0.0.1:4222`.
    pub nats_url: String,
    /// The pool whose queue the worker serves.
    pub pool: PoolId,
    /// Calls that it runs at once.
    pub slots: u32,
    /// How long running calls may take to end once it is told to stop.
    pub drain: Duration,
}

impl Options {
    #[must_use]
    pub fn new(nats_url: impl Into<String>, pool: PoolId) -> Self {
        Self { nats_url: nats_url.into(), pool, slots: SLOTS, drain: DRAIN }
    }
}

/// Serves the calls of `table`'s tools until told to stop, then lets running calls end or gives them back. `ready` is
/// called once, when the tools are advertised and the first pull is out.
///
/// # Errors
/// When the broker cannot be reached or is too old. Later losses of the broker are waited out.
pub async fn serve(
    options: Options,
    table: Table,
    stop: CancellationToken,
    ready: impl FnOnce(&WorkerId) + Send + 'static,
) -> Result<(), Error> {
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
