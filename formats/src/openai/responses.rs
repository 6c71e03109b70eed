//! OpenAI's Responses API: a [stream](Stream) of a run's parts, and its [requests](Asked).

mod answers;
mod images;
mod input;
mod items;
mod message;
mod part;
mod request;
mod results;
mod returned;
mod stream;

use std::fmt;
use std::str::FromStr;

use proto::Reason;
use run::RunId;

use crate::openai::InputError;
use crate::openai::calls::rest;

pub use answers::{Continued, input_items};
pub(crate) use input::metadata;
pub use input::{Asked, Opened};
pub(crate) use message::{ForUser, for_user};
pub use part::Event;
pub use stream::Stream;

/// The prefix of events that the API does not document. A client only receives them if it requests them.
pub const SLUG: &str = "toolyard:";

/// When the items of executed calls are emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Items {
    /// An item begins when its call gets the floor, and is done before the next one begins.
    #[default]
    OneByOne,
    /// An item begins when its call is accepted, or approved, so that several items are open at a time.
    Interleaved,
}

/// A response: a part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResponseId {
    pub run: RunId,
    /// Zero-based.
    pub part: u32,
}

impl fmt::Display for ResponseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            0 => write!(f, "resp_{}", rest(self.run)),
            part => write!(f, "resp_{}_{part}", rest(self.run)),
        }
    }
}

impl FromStr for ResponseId {
    type Err = InputError;

    fn from_str(text: &str) -> Result<Self, InputError> {
        let parse = || {
            let (shard, rest) = text.strip_prefix("resp_")?.split_once('_')?;
            let (uuid, part) = match rest.split_once('_') {
                Some((uuid, part)) => (uuid, part.parse().ok().filter(|number: &u32| number.to_string() == part)?),
                None => (rest, 0),
            };
            let run = format!("run_{shard}_{uuid}").parse().ok()?;
            Some(Self { run, part })
        };
        // An id that spells out the number of the first part is not canonical.
        parse().filter(|id| id.to_string() == text).ok_or_else(|| {
            let shown: String = text.chars().take(64).collect();
            InputError::new(
                Reason::ResponseNotFound,
                "",
                format!("there is no response {shown:?}: it is not the id of a response"),
            )
        })
    }
}
