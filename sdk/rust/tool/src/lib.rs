//! To write and test tools: the trait [`Tool`](trait@Tool) and the attribute [`tool`](macro@tool), what a call knows of
//! itself ([`Context`]), interceptors, and a test kit. It needs no broker, and does not connect to anything: a worker
//! program hosts the tools with the crate `toolyard-worker`.

#![warn(unnameable_types)]

pub mod declared;
pub mod interceptor;
pub mod runtime;
pub mod testkit;

mod answer;
mod context;
mod error;
mod files;
mod given;
mod limits;
mod objects;
mod output;
mod preview;
mod question;
mod records;
mod table;
mod tool;

pub use answer::{Image, IntoChunk, IntoOutput};
pub use context::{Context, Left};
pub use error::ToolError;
pub use objects::StoredPart;
pub use output::Output;
pub use proto::conversation::{Message, MessageCall, MessageResult, MessageRole, TOOL_CALL_CONVERSATION};
pub use proto::convert::manifest::{InvalidManifest, ManifestError};
pub use proto::elicitation::{Asks, Elicitation, Reply};
pub use proto::history::{PastCall, PastContent, PastOutcome, TOOL_CALL_HISTORY};
pub use proto::names::{AGENT_TEXT, PARTIAL_IMAGE};
pub use question::{Answer, Question};
pub use records::{Record, RecordError, RecordPage, Records};
pub use run::{
    AfterPartialOutput, Alias, Backoff, CallError, CallId, CallerName, Chunk, Citation, CitationSource, CitedText,
    Concurrency, Content, Effects, ErrorKind, File, InvalidId, Manifest, Object, ObjectId, Origin, Permission, Policy,
    Progress, Requester, ResultUse, RetryOn, Role, Roles, RunId, TenantId, ToolName, Version, Violation,
};
pub use schema::InvalidSchema;
pub use table::{InvalidPattern, InvalidTool, NotHosted, Table};
pub use tool::{About, AnyTool, Tool};
/// Makes a tool of a plain function. The function stays as it is; beside it stands a type with its name in camel case,
/// which implements [`Tool`](trait@Tool) and is given to [`Table::host`].
///
/// ```
/// use toolyard_tool::{Table, tool};
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
/// # fn main() -> Result<(), toolyard_tool::InvalidTool> {
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
/// **What it gives back** becomes the result: nothing is `"Done"`; `String` and `&str` are text; [`CitedText`] is
/// text with its sources; [`Image`],
/// [`Content`], `Vec<Content>` and [`Output`] are what they say; what implements [`IntoOutput`] converts itself;
/// anything else that implements `serde::Serialize` is JSON. In a `Result` an error fails the call: [`ToolError`], any
/// `std::error::Error`, `anyhow::Error`, or a `String`. A [`Stream`](futures::Stream) of what implements [`IntoChunk`]
/// is said piece by piece while the tool runs, and the result is `"Done"`; it is dropped as soon as the call should
/// stop.
///
/// **A function that is not async** runs on a thread of its own, where it may block ([`About::blocking`]). It speaks with
/// [`Context::block_on`]. One that gives back a stream only makes it, and must not block.
///
/// **Between the parentheses** stand the methods of [`About`], as `read_only`, `attempts_max = 5`,
/// `backoff(first, longest)` or `after_partial_output = Continue`, and
/// - `name = "…"`, unless the function's own will do;
/// - `description = …`, an expression in place of the doc comment;
/// - `crate = …`, the path of this crate where it is not `::toolyard_tool`.
pub use tool_macros::tool;

/// What the expansion of [`tool`](macro@tool) names.
#[doc(hidden)]
pub mod __private {
    pub use schemars;
    pub use serde;

    pub use crate::answer::{AsItself, AsJson, AsNothing, AsStream, Failure, Probe};
    pub use crate::answer::{MayFail, MayFailBoxed, MayFailSomehow, Succeeds};

    pub mod ways {
        pub use crate::answer::{AnyError, Boxable, Fallible, Infallible, Json, Known, Streamed, Unknown};
    }
}
