//! Errors of reading a turn: the place, the problem, and the remedy.

use std::fmt;

use proto::Reason;

use crate::turns::form::Form;
use crate::turns::limit::QUOTE_CHARS_MAX;

/// A turn, or the arguments of a call, that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// A JSON pointer into the turn; empty for the whole turn.
    pub pointer: String,
    pub problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    #[error("it is not JSON: {0}")]
    NotJson(String),
    #[error("{bytes} bytes exceed the limit of {max}: send only the assistant's last turn, without earlier messages")]
    TooLarge { bytes: usize, max: usize },
    #[error("arrays and objects are nested deeper than {max}: make them flatter")]
    TooDeep { max: usize },
    #[error("there are more than {max} {what}: send them in several requests")]
    TooMany { what: &'static str, max: usize },
    #[error("the member {0:?} is repeated, so its value is ambiguous: send it once")]
    Repeated(String),
    #[error("the member {0:?} is missing")]
    Missing(&'static str),
    #[error("expected {expected}, found {found}")]
    Expected { expected: &'static str, found: String },
    #[error("the id {id:?} is already used by the call at {first}: use a different id for each call of a turn")]
    DuplicateId { id: String, first: String },
    #[error("there are {count} alternatives: send only the one that is the turn")]
    Alternatives { count: usize },
    #[error("the call is not complete ({0}): let the model finish it, or leave it out")]
    Incomplete(String),
    #[error(
        "unknown form: found {seen}. Supported are the assistant turns of OpenAI Chat Completions (`tool_calls`, in a \
         message or in `choices`), OpenAI Responses (`output`, or its items), Anthropic Messages (`content` with \
         `tool_use` blocks), Gemini (`parts` with `functionCall`, also in `candidates`) and MCP (`tools/call` \
         requests). Send one of these, or set the form"
    )]
    UnknownForm { seen: String },
    #[error("the form is set to {named}, but the turn looks like {}: set that form, or none", list(.looks_like))]
    OtherForm { named: Form, looks_like: Vec<Form> },
    #[error("the turn may be {}: found {seen}. Set the form", list(.could_be))]
    AmbiguousForm { seen: String, could_be: Vec<Form> },
}

impl Problem {
    /// The reason code of a request that contains the turn.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::TooLarge { .. } => Reason::PayloadTooLarge,
            Self::DuplicateId { .. } => Reason::DuplicateCallId,
            Self::UnknownForm { .. } => Reason::FormUnknown,
            Self::OtherForm { .. } => Reason::FormMismatch,
            Self::AmbiguousForm { .. } => Reason::FormAmbiguous,
            Self::NotJson(_)
            | Self::TooDeep { .. }
            | Self::TooMany { .. }
            | Self::Repeated(_)
            | Self::Missing(_)
            | Self::Expected { .. }
            | Self::Alternatives { .. }
            | Self::Incomplete(_) => Reason::Malformed,
        }
    }
}

fn list(forms: &[Form]) -> String {
    let names: Vec<&str> = forms.iter().map(|form| form.as_str()).collect();
    names.join(" or ")
}

impl Error {
    pub(crate) fn new(pointer: impl Into<String>, problem: Problem) -> Self {
        Self { pointer: pointer.into(), problem }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pointer.as_str() {
            "" => write!(f, "the turn cannot be read: {}", self.problem),
            pointer => write!(f, "the turn cannot be read at {pointer}: {}", self.problem),
        }
    }
}

impl std::error::Error for Error {}

/// A text from outside, shortened for messages.
pub(crate) fn quote(text: &str) -> String {
    text.chars().take(QUOTE_CHARS_MAX).collect()
}
