//! A run as other APIs tell it: [OpenAI's Responses](responses) and [Assistants](assistants). A face is a fold over the
//! run's ordered output, and what it is asked for becomes requests of ours. No IO, no clock and no chance: every id is
//! made of the run's and the call's, every time is the log's, so the same run gives the same bytes to every reader, on
//! any coordinator and after every crash, and who comes back folds again from the beginning and skips what it has.
//!
//! Both faces cut a run into *parts*: a part ends where the run waits for nobody but its client (and approvals), or
//! ends itself; the next one begins with the next thing that happens. A part is a response of the one API and a stream
//! of the other.
//!
//! Neither API can take back what it said. Output of a tool that may start over after it spoke is therefore held until
//! its call ends; that of any other is passed on as it comes.

pub mod assistants;
mod body;
mod calls;
mod refused;
pub mod responses;
mod tools;

pub use refused::InputError;
pub use tools::Hosted;

/// What a face says it is, where an API wants the name of a model or of an assistant.
pub const NAME: &str = "toolyard";
/// Bytes of what a call said while it ran that a face shows. The rest is cut with a note; the run's own events have all
/// of it.
pub const SAID_BYTES_MAX: usize = 256 * 1024;
