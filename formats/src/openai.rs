//! A run presented as [OpenAI's Responses](responses) and [Assistants](assistants) APIs. Each is a fold over the run's
//! ordered output, and its requests become requests of Toolyard's API. No IO, no clock and no randomness: every id is
//! derived from the ids of the run and the call, and every time is the log's. The same run therefore gives the same
//! bytes to every reader, on any coordinator and after every crash. A reader that reconnects folds again from the
//! beginning and skips the events it has.
//!
//! Both APIs cut a run into *parts*. A part ends when the run waits only for its client (or for approvals), or when the
//! run ends. The next part begins with the next event. A part is a response of the Responses API and a stream of the
//! Assistants API.
//!
//! The calls of a request that were added to a run of others are presented as a [run of their own](share).
//!
//! Neither API can withdraw output. Output of a tool that may restart after partial output is therefore held until its
//! call ends. Output of every other tool is forwarded immediately.

pub mod assistants;
mod body;
mod calls;
mod foreign;
mod refused;
pub mod resources;
pub mod responses;
pub mod share;
mod tools;
mod url;

pub use foreign::without_foreign_tools;
pub use refused::InputError;
pub use tools::Hosted;

/// The value of fields that hold the name of a model or an assistant.
pub const NAME: &str = "toolyard";
/// The most bytes of a call's streamed output that are shown. The rest is replaced by a note; the run's own events have
/// all of it.
pub const SAID_BYTES_MAX: usize = 256 * 1024;
