//! Wraps every execution of a tool in a worker: it sees the call and its end, may change both, and may answer instead
//! of the tool.
//!
//! ```
//! use toolyard_tool::interceptor::{Call, Interceptor, Next};
//! use toolyard_tool::{Output, Table, ToolError, testkit, tool};
//!
//! /// Says how long each call took.
//! struct Timed;
//!
//! impl Interceptor for Timed {
//!     async fn call(&self, call: Call<'_>, next: Next<'_>) -> Result<Output, ToolError> {
//!         let (tool, began) = (call.tool().clone(), std::time::Instant::now());
//!         let outcome = next.run(call).await;
//!         eprintln!("{tool} took {:?} and {}", began.elapsed(), if outcome.is_ok() { "completed" } else { "failed" });
//!         outcome
//!     }
//! }
//!
//! /// Greets.
//! #[tool(read_only)]
//! async fn greet(name: String) -> String {
//!     format!("Hello, {name}!")
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
//! let table = Table::new().host(Greet)?.intercept(Timed);
//! let called = testkit::call_in(&table, "greet", serde_json::json!({ "name": "Ada" })).await;
//! assert_eq!(called.answer(), "Hello, Ada!");
//! # Ok(())
//! # }
//! ```
//!
//! The first interceptor of a table is the outermost: it sees a call first and its outcome last. If it does not run
//! `next`, neither inner interceptors nor the tool run. Output that a tool sends while it runs does not pass through
//! interceptors: it goes into the log at once and cannot be withdrawn here. So an interceptor that runs a call twice,
//! or reuses its outcome, must check [`Call::said`].
//!
//! No `tower::Service`: a call here borrows its context and the chain, which a service's `'static` requests and `&mut
//! self` forbid without copies, and `poll_ready` would hold back calls that already have their slot.

mod cache;
mod emulate;
mod large_result;
mod message;
mod rate_limit;
mod retry;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use globset::GlobSet;
use run::{CallError, ErrorKind, Manifest, ToolName};
use serde_json::Value;

use crate::context::Context;
use crate::error::ToolError;
use crate::output::Output;
use crate::table::Hosted;

pub use cache::ResultCache;
pub use emulate::Emulate;
pub use large_result::LargeResult;
pub use message::ErrorToMessage;
pub use rate_limit::RateLimit;
pub use retry::Retry;

/// Stands around executions. Given to [`Table::intercept`](crate::Table::intercept).
///
/// As a tool's, its future is dropped when the call is stopped and does not end by itself; when the tool blocks its
/// thread, it runs on that thread.
pub trait Interceptor: Send + Sync + 'static {
    /// Answers the call, usually with the outcome of `next`.
    fn call(&self, call: Call<'_>, next: Next<'_>) -> impl Future<Output = Result<Output, ToolError>> + Send;
}

/// A call on its way to its tool.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    context: &'a Context,
    hosted: &'a Hosted,
    arguments: Value,
    is_changed: bool,
}

impl Call<'_> {
    #[must_use]
    pub fn tool(&self) -> &ToolName {
        &self.manifest().name
    }

    /// The tool's manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.hosted.manifest
    }

    #[must_use]
    pub fn context(&self) -> &Context {
        self.context
    }

    /// The arguments, which fit the tool's schema.
    #[must_use]
    pub fn arguments(&self) -> &Value {
        &self.arguments
    }

    /// Changes the arguments. They are checked against the schema again before the tool is called.
    pub fn arguments_mut(&mut self) -> &mut Value {
        self.is_changed = true;
        &mut self.arguments
    }

    /// The number of chunks (progress included) that this attempt has sent so far.
    #[must_use]
    pub fn said(&self) -> u32 {
        self.context.said()
    }
}

/// The rest of the chain: the inner interceptors, then the tool. May be run several times.
#[derive(Debug, Clone, Copy)]
pub struct Next<'a>(&'a [Ring]);

impl Next<'_> {
    /// # Errors
    /// The error of the tool or of an inner interceptor.
    pub async fn run(self, call: Call<'_>) -> Result<Output, ToolError> {
        let ring = self.0.iter().position(|ring| ring.is_around(call.tool()));
        if let Some(place) = ring {
            return self.0[place].link.call(call, Next(&self.0[place + 1..])).await;
        }
        if call.is_changed {
            call.hosted.check(call.arguments.to_string().as_bytes()).map_err(|error| {
                let message = format!("an interceptor changed the arguments: {}", error.message);
                ToolError(CallError {
                    violations: error.violations,
                    ..CallError::new(ErrorKind::ArgumentsInvalid, message)
                })
            })?;
        }
        call.hosted.execute(call.context, call.arguments).await
    }
}

/// The interceptors of a table, outermost first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chain(Arc<Vec<Ring>>);

impl Chain {
    /// Adds the next one inwards; around all tools, or around some.
    pub(crate) fn push(&mut self, tools: Option<GlobSet>, interceptor: impl Interceptor) {
        Arc::make_mut(&mut self.0).push(Ring { tools, link: Arc::new(interceptor) });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) async fn run(
        &self,
        context: &mut Context,
        hosted: &Hosted,
        arguments: Value,
    ) -> Result<Output, ToolError> {
        context.said = Some(Arc::new(AtomicU32::new(0)));
        Next(&self.0).run(Call { context, hosted, arguments, is_changed: false }).await
    }
}

#[derive(Clone)]
struct Ring {
    tools: Option<GlobSet>,
    link: Arc<dyn Link>,
}

impl Ring {
    fn is_around(&self, tool: &ToolName) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.is_match(tool.as_str()))
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.tools.is_some() { "around some tools" } else { "around all tools" })
    }
}

/// An [`Interceptor`] whose type is forgotten.
trait Link: Send + Sync {
    fn call<'a>(
        &'a self,
        call: Call<'a>,
        next: Next<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<Output, ToolError>> + Send + 'a>>;
}

impl<I: Interceptor> Link for I {
    fn call<'a>(
        &'a self,
        call: Call<'a>,
        next: Next<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<Output, ToolError>> + Send + 'a>> {
        Box::pin(Interceptor::call(self, call, next))
    }
}
