//! The lines of a program that writes NDJSON.

use std::time::Duration;

use ::run::Content;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;
use toolyard_tool::{Context, Output, ToolError};

use crate::transcript::{Transcript, beginning};

/// Bytes of a line that an error quotes.
const QUOTED_BYTES: usize = 200;

/// A line of output.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
enum Event {
    Text {
        text: String,
        #[serde(default)]
        channel: String,
    },
    Json {
        value: Value,
    },
    Progress {
        done: f64,
        total: Option<f64>,
        #[serde(default)]
        message: String,
    },
    Data {
        media_type: String,
        base64: String,
    },
    Result {
        text: Option<String>,
        value: Option<Value>,
        media_type: Option<String>,
        base64: Option<String>,
    },
    Error {
        message: String,
        #[serde(default)]
        kind: Kind,
        #[serde(default)]
        path: String,
        #[serde(default)]
        retry_after_s: u64,
    },
}

/// What can be done about an error.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    #[default]
    Failed,
    Retryable,
    RateLimited,
    BadInput,
    ModelRetry,
    NeedsInput,
}

/// What a program wrote so far.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) transcript: Transcript,
    /// The parts that it named as its result.
    pub(super) result: Option<Output>,
    pub(super) error: Option<ToolError>,
    lines: u64,
}

impl Heard {
    /// Takes a line to the call.
    pub(super) async fn line(&mut self, context: &Context, line: &str) -> Result<(), ToolError> {
        self.lines += 1;
        if line.trim().is_empty() {
            return Ok(());
        }
        let event = serde_json::from_str(line).map_err(|error| self.wrong(line, &error.to_string()))?;
        match event {
            Event::Text { text, channel } if channel.is_empty() => self.transcript.text(context, &text).await,
            Event::Text { text, channel } => context.text_on(&channel, text).await,
            Event::Json { value } => self.transcript.json(context, value).await,
            Event::Progress { done, total, message } => context.progress(done, total, message).await,
            Event::Data { media_type, base64 } => {
                let bytes = BASE64_STANDARD.decode(base64).map_err(|error| self.wrong(line, &error.to_string()))?;
                context.data(&media_type, bytes).await
            }
            Event::Result { text, value, media_type, base64 } => {
                let part = match (text, value, media_type, base64) {
                    (Some(text), None, None, None) => Content::Text(text),
                    (None, Some(value), None, None) => Content::Json(value.to_string()),
                    (None, None, Some(media_type), Some(base64)) => {
                        let bytes =
                            BASE64_STANDARD.decode(base64).map_err(|error| self.wrong(line, &error.to_string()))?;
                        Content::Data { media_type, data: bytes.into() }
                    }
                    _ => return Err(self.wrong(line, "a result has text, value, or media_type and base64")),
                };
                let part: Output = vec![part].into();
                self.result = Some(match self.result.take() {
                    Some(parts) => parts.and(part),
                    None => part,
                });
                Ok(())
            }
            Event::Error { message, kind, path, retry_after_s } => {
                self.error = Some(match kind {
                    Kind::Failed => ToolError::new(message),
                    Kind::Retryable => ToolError::retryable(message),
                    Kind::RateLimited => ToolError::rate_limited(message, Duration::from_secs(retry_after_s)),
                    Kind::BadInput => ToolError::bad_input(path, message),
                    Kind::ModelRetry => ToolError::model_retry(message),
                    Kind::NeedsInput => ToolError::needs(message),
                });
                Ok(())
            }
        }
    }

    fn wrong(&self, line: &str, error: &str) -> ToolError {
        let line = beginning(line, QUOTED_BYTES);
        ToolError::new(format!("line {} of the program's output is no event: {error}: {line}", self.lines))
    }
}
