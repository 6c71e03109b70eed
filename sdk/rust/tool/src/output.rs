//! The result of a call.

use bytes::Bytes;
use run::{Citation, CitedText, Completion, Content};
use serde::Serialize;

use crate::error::ToolError;

/// A call's result, and the state that goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output(pub(crate) Completion);

impl Output {
    /// A JSON value.
    ///
    /// # Errors
    /// When it does not serialize.
    pub fn json(value: &impl Serialize) -> Result<Self, ToolError> {
        Ok(vec![Content::Json(serde_json::to_string(value)?)].into())
    }

    #[must_use]
    pub fn data(media_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        vec![Content::Data { media_type: media_type.into(), data: data.into() }].into()
    }

    /// A text with the sources that it cites; at most 256, with titles and sources of up to 1 KiB. Models read the
    /// text. Clients are given the sources beside it, to show them.
    ///
    /// ```
    /// # use toolyard_tool::{Citation, Output};
    /// let source = Citation::url("https://www.rust-lang.org", "Rust").at(0..4);
    /// Output::cited("Rust is fast.", [source])
    /// # ;
    /// ```
    #[must_use]
    pub fn cited(text: impl Into<String>, citations: impl IntoIterator<Item = Citation>) -> Self {
        CitedText { text: text.into(), citations: citations.into_iter().collect() }.into()
    }

    /// Another part after this one.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.result.extend(other.0.result);
        self.0.extra_state.overlay(&other.0.extra_state);
        self
    }

    /// Gives a value for the state of the run, beside the result: for the caller, not for the model. Of calls that give
    /// the same key the last one counts, as they stand in the run; a call that does not complete gives nothing. At most
    /// 8 KiB a call, keys and values together; more fails it with `ResultTooLarge`.
    ///
    /// ```
    /// # use toolyard_tool::{Output, ToolError};
    /// # fn buy() -> Result<Output, ToolError> {
    /// Output::from("It is in the cart.").with_state("cart", &["tea"])
    /// # }
    /// # assert!(buy().is_ok());
    /// ```
    ///
    /// # Errors
    /// When the value does not serialize.
    pub fn with_state(mut self, key: impl Into<String>, value: &impl Serialize) -> Result<Self, ToolError> {
        self.0.extra_state.set(key, serde_json::to_string(value)?);
        Ok(self)
    }
}

impl From<Output> for Completion {
    fn from(Output(completion): Output) -> Self {
        completion
    }
}

impl From<CitedText> for Output {
    fn from(cited: CitedText) -> Self {
        vec![Content::Cited(Box::new(cited))].into()
    }
}

impl From<String> for Output {
    fn from(text: String) -> Self {
        vec![Content::Text(text)].into()
    }
}

impl From<&str> for Output {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// A tool without a result still answers, because models take an empty result for a failure.
impl From<()> for Output {
    fn from((): ()) -> Self {
        "Done".into()
    }
}
