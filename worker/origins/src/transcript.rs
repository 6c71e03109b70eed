//! The output of a call that streams, sent as it comes and kept as its result: callers read the stream, and the model
//! reads the result.

use run::limit;
use serde_json::Value;
use toolyard_tool::{Context, Output, ToolError};

/// Bytes of the output that the result repeats: as much as a result in the log may have, with room for the note.
const KEPT_BYTES_MAX: usize = limit::RESULT_BYTES_MAX - 1024;

/// What was said so far.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    text: String,
    /// All pieces were JSON: the result is a list of them.
    pieces: Vec<Value>,
    has_text: bool,
    /// Bytes of all output.
    bytes: usize,
}

impl Transcript {
    /// Sends a line: JSON if it is an object or a list, otherwise text with its end.
    pub(crate) async fn line(&mut self, context: &Context, line: String) -> Result<(), ToolError> {
        match structured(&line) {
            Some(value) => self.json(context, value).await,
            None => self.text(context, &(line + "\n")).await,
        }
    }

    /// Sends the data of an event: JSON if it is an object or a list, otherwise text. With a name it is always JSON.
    pub(crate) async fn event(&mut self, context: &Context, name: &str, data: String) -> Result<(), ToolError> {
        let is_named = !name.is_empty() && name != "message";
        match (is_named, structured(&data)) {
            (false, Some(value)) => self.json(context, value).await,
            (false, None) => self.text(context, &data).await,
            (true, value) => {
                let data = value.unwrap_or(Value::String(data));
                self.json(context, serde_json::json!({ "event": name, "data": data })).await
            }
        }
    }

    /// Sends JSON. A piece that is too large for one is sent as text.
    pub(crate) async fn json(&mut self, context: &Context, value: Value) -> Result<(), ToolError> {
        let text = value.to_string();
        if text.len() > limit::CHUNK_BYTES_MAX {
            return self.text(context, &text).await;
        }
        context.json(&value).await?;
        if self.keep(&text) {
            self.pieces.push(value);
        }
        Ok(())
    }

    /// Sends text.
    pub(crate) async fn text(&mut self, context: &Context, text: &str) -> Result<(), ToolError> {
        self.has_text = true;
        context.text(text).await?;
        self.keep(text);
        Ok(())
    }

    /// Keeps a piece if there is room; then returns `true`.
    fn keep(&mut self, piece: &str) -> bool {
        self.bytes += piece.len();
        let fits = self.bytes <= KEPT_BYTES_MAX;
        let room = KEPT_BYTES_MAX.saturating_sub(self.text.len());
        self.text.push_str(beginning(piece, room));
        fits
    }

    /// The result: a list if all pieces were JSON, otherwise the text.
    pub(crate) fn result(self) -> Result<Output, ToolError> {
        let Self { text, pieces, has_text, bytes } = self;
        match (bytes, has_text) {
            (0, _) => Ok(().into()),
            (bytes, _) if bytes > KEPT_BYTES_MAX => {
                Ok(format!("{text}\n[cut: the call streamed {bytes} bytes, here are the first {}]", text.len()).into())
            }
            (_, false) => Output::json(&pieces),
            (_, true) => Ok(text.into()),
        }
    }
}

/// An object or a list; `None` if the text is none.
fn structured(text: &str) -> Option<Value> {
    serde_json::from_str::<Value>(text).ok().filter(|value| value.is_object() || value.is_array())
}

/// The beginning of a text, of at most `max` bytes.
pub(crate) fn beginning(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}
