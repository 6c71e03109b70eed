//! Results and pieces of output, as JavaScript has them.

use bytes::Bytes;
use napi::Result;
use napi::bindgen_prelude::Buffer;
use napi_derive::napi;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use toolyard_tool::{Chunk, Content, Output, Progress, ToolError};

use crate::error::invalid;

/// A part of a result, or a piece of output.
#[derive(Default)]
#[napi(object)]
pub struct Part {
    /// `text`, `json`, `data`, `object` or `progress`.
    pub kind: String,
    /// Text, JSON, the preview of an object, or the message of a progress.
    pub text: Option<String>,
    pub data: Option<Buffer>,
    pub media_type: Option<String>,
    pub channel: Option<String>,
    pub done: Option<f64>,
    pub total: Option<f64>,
}

/// The result of a call: its parts, and a JSON object with the state for its run.
pub(crate) fn output(parts: Vec<Part>, state: Option<&str>) -> Result<Output> {
    let parts = parts.into_iter().map(content).collect::<Result<Vec<_>>>()?;
    let output = if parts.is_empty() { Output::from(()) } else { parts.into() };
    let Some(state) = state else { return Ok(output) };
    let state: Map<String, Value> = serde_json::from_str(state).map_err(invalid)?;
    let set = |output: Output, (key, value): (String, Value)| output.with_state(key, &value);
    state.into_iter().try_fold(output, set).map_err(|error: ToolError| invalid(error.message()))
}

fn content(part: Part) -> Result<Content> {
    let Part { kind, text, data, media_type, .. } = part;
    match (kind.as_str(), text, data) {
        ("text", Some(text), None) => Ok(Content::Text(text)),
        ("json", Some(text), None) => {
            let checked = RawValue::from_string(text).map_err(|why| invalid(format!("a part is not JSON: {why}")))?;
            Ok(Content::Json(checked.get().to_owned()))
        }
        ("data", None, Some(data)) => {
            let media_type = media_type.unwrap_or_else(|| "application/octet-stream".to_owned());
            Ok(Content::Data { media_type, data: Bytes::copy_from_slice(&data) })
        }
        (kind, ..) => Err(invalid(format!("a part of the kind {kind:?} lacks its text or its data"))),
    }
}

impl From<Content> for Part {
    fn from(content: Content) -> Self {
        match content {
            Content::Text(text) => Self { kind: "text".to_owned(), text: Some(text), ..Self::default() },
            Content::Cited(cited) => Self { kind: "text".to_owned(), text: Some(cited.text), ..Self::default() },
            Content::Json(text) => Self { kind: "json".to_owned(), text: Some(text), ..Self::default() },
            Content::Data { media_type, data } => Self {
                kind: "data".to_owned(),
                data: Some(data.to_vec().into()),
                media_type: Some(media_type),
                ..Self::default()
            },
            Content::Object(object) => Self {
                kind: "object".to_owned(),
                text: Some(object.preview),
                media_type: Some(object.media_type),
                ..Self::default()
            },
        }
    }
}

impl From<Chunk> for Part {
    fn from(chunk: Chunk) -> Self {
        match chunk {
            Chunk::Content { channel, content } => Self { channel: Some(channel), ..content.into() },
            Chunk::Progress(Progress { done, total, message }) => {
                Self { kind: "progress".to_owned(), text: Some(message), done: Some(done), total, ..Self::default() }
            }
        }
    }
}
