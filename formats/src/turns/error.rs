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
    #[error(
        "it has {bytes} bytes, and at most {max} are read: send the assistant's last turn only, without what was before"
    )]
    TooLarge { bytes: usize, max: usize },
    #[error("arrays and objects are nested deeper than {max}: make them flatter")]
    TooDeep { max: usize },
    #[error("there are more than {max} {what}: send them in several requests")]
    TooMany { what: &'static str, max: usize },
    #[error("the member {0:?} occurs twice, and which one counts nobody can say: send it once")]
    Repeated(String),
    #[error("the member {0:?} is missing")]
    Missing(&'static str),
    #[error("{expected} was expected, and {found} is here")]
    Expected { expected: &'static str, found: String },
    #[error("the id {id:?} was already given to the call at {first}: calls of a turn need ids of their own")]
    DuplicateId { id: String, first: String },
    #[error("{count} alternatives are here, and only one of them is the turn: send that one")]
    Alternatives { count: usize },
    #[error("the call is not complete ({0}): let the model finish it, or leave it out")]
    Incomplete(String),
    #[error(
        "this is no known form: {seen} is here. Known are the assistant turns of OpenAI Chat Completions (`tool_calls`, in a \
         message or in `choices`), OpenAI Responses (`output`, or its items), Anthropic Messages (`content` with `tool_use` \
         blocks), Gemini (`parts` with `functionCall`, also in `candidates`) and MCP (`tools/call` requests). Send one of \
         these, or name the form"
    )]
    UnknownForm { seen: String },
    #[error("it was said to be {named} and looks like {}: name that form, or none", list(.looks_like))]
    OtherForm { named: Form, looks_like: Vec<Form> },
    #[error("this may be {}: {seen} is here. Name the form", list(.could_be))]
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
