//! The answer to a call, richer than any form, and how it is reduced for forms with fewer features.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::turns::json;

/// How a call ended, for the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The parts in order. For an error, the message to the model.
    pub parts: Vec<Part<'a>>,
    /// The call failed, expired, was cancelled or was rejected.
    pub is_error: bool,
}

/// A part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    Text(&'a str),
    /// JSON, with its digits preserved. Text that is not JSON is treated as text.
    Json(&'a str),
    Data {
        media_type: &'a str,
        data: &'a [u8],
    },
}

/// A part for a form that can show images and documents.
#[derive(Debug)]
pub(crate) enum Shown<'a> {
    Text(String),
    /// Data of a media type that the form supports.
    Data {
        media_type: &'a str,
        base64: String,
    },
}

/// The image types that the models of every vendor support.
pub(crate) const IMAGES: [&str; 3] = ["image/png", "image/jpeg", "image/webp"];
pub(crate) const PDF: &str = "application/pdf";

impl<'a> Answer<'a> {
    #[must_use]
    pub fn new(parts: Vec<Part<'a>>) -> Self {
        Self { parts, is_error: false }
    }

    /// An error with its message to the model.
    #[must_use]
    pub fn error(message: &'a str) -> Self {
        Self { parts: vec![Part::Text(message)], is_error: true }
    }

    /// All parts as one text, one part per line. Data is replaced by a note.
    #[must_use]
    pub fn text(&self) -> String {
        let texts: Vec<String> = self.parts.iter().map(Part::text).collect();
        texts.join("\n")
    }

    /// All parts as one text with an error prefix, for a form without an error flag.
    pub(crate) fn text_with_error(&self) -> String {
        if self.is_error { format!("Error: {}", self.text()) } else { self.text() }
    }

    /// The parts for a form that takes data of the media types accepted by `is_taken`.
    pub(crate) fn shown(&self, is_taken: impl Fn(&str) -> bool) -> Vec<Shown<'a>> {
        self.parts.iter().map(|part| part.shown(&is_taken)).collect()
    }

    /// The exit code of a shell, if the last part has one.
    #[must_use]
    pub fn exit_code(&self) -> Option<i64> {
        #[derive(serde::Deserialize)]
        struct Exit {
            exit_code: i64,
        }
        let Some(Part::Json(json)) = self.parts.last() else { return None };
        // Without this check, a list of one number would be read as such an object too.
        let object = json::raw(json).filter(|json| json.starts_with('{'))?;
        serde_json::from_str::<Exit>(object).ok().map(|exit| exit.exit_code)
    }

    /// The answer without its last part.
    #[must_use]
    pub fn without_last(&self) -> Self {
        let (_, rest) = self.parts.split_last().unwrap_or((&Part::Text(""), &[]));
        Self { parts: rest.to_vec(), is_error: self.is_error }
    }

    /// The only part if it is JSON, for forms that carry structured content.
    pub(crate) fn structure(&self) -> Option<&'a str> {
        match self.parts[..] {
            [Part::Json(json)] => json::raw(json),
            _ => None,
        }
    }
}

impl<'a> Part<'a> {
    fn text(&self) -> String {
        match self {
            Self::Text(text) | Self::Json(text) => (*text).to_owned(),
            Self::Data { media_type, data } => match as_text(media_type, data) {
                Some(text) => text.to_owned(),
                None => {
                    format!(
                        "[{media_type}, {} bytes: not shown because this form of results cannot carry it]",
                        data.len()
                    )
                }
            },
        }
    }

    fn shown(&self, is_taken: &impl Fn(&str) -> bool) -> Shown<'a> {
        match *self {
            Self::Data { media_type, data } if is_taken(media_type) => {
                Shown::Data { media_type, base64: BASE64_STANDARD.encode(data) }
            }
            Self::Text(_) | Self::Json(_) | Self::Data { .. } => Shown::Text(self.text()),
        }
    }
}

/// Data that is UTF-8 text.
fn as_text<'a>(media_type: &str, data: &'a [u8]) -> Option<&'a str> {
    let is_text = media_type.starts_with("text/") || media_type == "application/json";
    is_text.then(|| std::str::from_utf8(data).ok()).flatten()
}
