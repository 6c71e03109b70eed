//! OpenAI's Assistants API: a [stream](Stream) of a run's parts, and its [requests](Asked). The API is deprecated and
//! widely used. A run is a run, and each of its calls is a step. A thread is a name chosen by the client; nothing is
//! stored for it.

mod input;
mod messages;
mod stream;

pub use input::{Asked, tool_outputs};
pub use stream::{Event, Stream};
