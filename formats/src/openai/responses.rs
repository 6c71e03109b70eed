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
use crate::openai::share::{Share, SharedRun};

pub use answers::{Answered, Continued, input_items};
pub(crate) use input::metadata;
pub use input::{Asked, Opened};
pub(crate) use message::{ForUser, for_user};
pub use part::Event;
pub(crate) use results::ANNOTATIONS_MAX;
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
    /// The calls of the response, if the run has calls of other requests.
    pub share: Option<Share>,
    /// Zero-based.
    pub part: u32,
}

impl ResponseId {
    /// What its responses present.
    #[must_use]
    pub const fn of(self) -> SharedRun {
        SharedRun { run: self.run, share: self.share }
    }
}

impl fmt::Display for ResponseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resp_{}", rest(self.run))?;
        self.share.iter().try_for_each(|share| write!(f, "_{share}"))?;
        match self.part {
            0 => Ok(()),
            part => write!(f, "_{part}"),
        }
    }
}

impl FromStr for ResponseId {
    type Err = InputError;

    fn from_str(text: &str) -> Result<Self, InputError> {
        let parse = || {
            let mut words = text.strip_prefix("resp_")?.split('_').peekable();
            let run = format!("run_{}_{}", words.next()?, words.next()?).parse().ok()?;
            let share = words.peek().and_then(|word| word.parse().ok());
            let mut rest = words.skip(usize::from(share.is_some()));
            let part = rest.next().map_or(Some(0), |part| part.parse().ok())?;
            Some(Self { run, share, part })
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
