//! Does. Hosts tools, pulls their calls, runs attempts and publishes what they say and how they end. Decides nothing: when
//! a job may not be fresh it asks the owner of the run what to do.
//!
//! The work at the broker (pulling, leases, publishing, acknowledging) has a thread of its own, which no tool can block;
//! tools run on the caller's runtime.

pub mod guard;
pub mod interceptor;
pub mod testkit;
pub mod tool;
pub mod tools;

mod answer;
mod attempt;
mod context;
mod error;
mod files;
mod given;
mod hooked;
mod limits;
mod metrics;
mod nats;
mod objects;
mod output;
mod publisher;
mod table;

use std::net::SocketAddr;
use std::time::Duration;

use proto::nats::Credentials;
use run::{PoolId, WorkerId};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub use answer::{Image, IntoChunk, IntoOutput};
pub use hooks::{self, Hooks};
pub use nats::Error;
pub use proto::history::{PastCall, PastContent, PastOutcome, TOOL_CALL_HISTORY};
pub use run::{
    AfterPartialOutput, CallError, Chunk, Concurrency, Content, ErrorKind, File, Object, ObjectId, Permission,
    Progress, RetryOn,
};
pub use store::Bucket;
pub use table::{InvalidTool, NotHosted, Table, Unwatchable};
pub use tool::{About, Context, Output, Tool, ToolError};
/// Makes a tool of a plain function. The function stays as it is; beside it stands a type with its name in camel case,
/// which implements [`Tool`](trait@Tool) and is given to [`Table::host`].
///
/// ```
/// use toolyard_worker::{Table, tool};
///
/// /// Greets a person.
/// #[tool(read_only)]
/// async fn greet(
///     /// Whom to greet
///     name: String,
/// ) -> String {
///     format!("Hello, {name}!")
/// }
///
/// # fn main() -> Result<(), toolyard_worker::InvalidTool> {
/// let table = Table::new().host(Greet)?;
/// # Ok(())
/// # }
/// ```
///
/// The doc comment is the tool's description.
///
/// **Arguments** are known by their types:
/// - `&Context` or `Context`: what the call knows of itself, and how it speaks. No part of the schema.
/// - One marked `#[context]` is what the caller gave under its name in the context of the call. No part of the schema, and not known
///   to the model: `#[context] user: String`; an `Option` may be missing.
/// - `Arc<T>`: what all calls share. No part of the schema: the tool is then hosted with it, as
///   `Table::host(Search(index))`.
/// - Any other is an argument of the call by its name. Its doc comment describes it, `#[serde(..)]` and `#[schemars(..)]`
///   go to the field that it becomes: `#[serde(default)]`, `#[schemars(range(min = 1))]`. Unknown arguments are refused.
/// - One marked `#[input]` is all arguments in one struct, which derives `serde::Deserialize` and `schemars::JsonSchema`.
///
/// **What it gives back** becomes the result: nothing is `"Done"`; `String` and `&str` are text; [`Image`],
/// [`Content`], `Vec<Content>` and [`Output`] are what they say; what implements [`IntoOutput`] converts itself;
/// anything else that implements `serde::Serialize` is JSON. In a `Result` an error fails the call: [`ToolError`], any
/// `std::error::Error`, `anyhow::Error`, or a `String`. A [`Stream`](futures::Stream) of what implements [`IntoChunk`] is
/// said piece by piece while the tool runs, and the result is `"Done"`; it is dropped as soon as the call should stop.
///
/// **A function that is not async** runs on a thread of its own, where it may block ([`About::blocking`]). It speaks with
/// [`Context::block_on`]. One that gives back a stream only makes it, and must not block.
///
/// **Between the parentheses** stand the methods of [`About`], as `read_only`, `attempts_max = 5`,
/// `backoff(first, longest)` or `after_partial_output = Continue`, and
/// - `name = "…"`, unless the function's own will do;
/// - `description = …`, an expression in place of the doc comment;
/// - `crate = …`, the path of this crate where it is not `::toolyard_worker`.
pub use worker_macros::tool;

/// What the expansion of [`tool`](macro@tool) names.
#[doc(hidden)]
pub mod __private {
    pub use schemars;
    pub use serde;

    pub use crate::answer::Probe;

    pub mod ways {
        pub use crate::answer::{AnyError, Boxable, Fallible, Infallible, Json, Known, Streamed, Unknown};
    }
}

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
            admin: None,
            host_names: Vec::new(),
            include_content: false,
        }
    }
}

/// Serves the calls of `table`'s tools until told to stop, by `stop` or by an operator who drains it (`toolyard workers
/// drain`), then lets running calls end or gives them back. `ready` is called once, when the tools are advertised and the
/// first pull is out.
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
