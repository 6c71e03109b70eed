//! What a tool gives back: a call's result.

use bytes::Bytes;
use run::Content;
use serde::Serialize;

use crate::error::ToolError;

/// A call's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output(pub(crate) Vec<Content>);

impl Output {
    /// A JSON value.
    ///
    /// # Errors
    /// When it does not serialize.
    pub fn json(value: &impl Serialize) -> Result<Self, ToolError> {
        Ok(Self(vec![Content::Json(serde_json::to_string(value)?)]))
    }

    #[must_use]
    pub fn data(media_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        Self(vec![Content::Data { media_type: media_type.into(), data: data.into() }])
    }

    /// Another part after this one.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

impl From<String> for Output {
    fn from(text: String) -> Self {
        Self(vec![Content::Text(text)])
    }
}

impl From<&str> for Output {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// A tool with nothing to say still answers: models take an empty result for a failure.
impl From<()> for Output {
    fn from((): ()) -> Self {
        "Done".into()
    }
}
