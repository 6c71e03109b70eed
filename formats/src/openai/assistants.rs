//! OpenAI's Assistants API: a [stream](Stream) of a run's parts, and what is [asked](Asked) in its words. The API is
//! deprecated and widely spoken. A run is a run, each of its calls a step; a thread is a name that the client gives and
//! nobody keeps.

mod input;
mod stream;

pub use input::{Asked, tool_outputs};
pub use stream::{Event, Stream};
