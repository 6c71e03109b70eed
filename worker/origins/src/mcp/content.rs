//! Results of MCP tools become results of calls.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use run::{CallError, Content, ErrorKind, limit};
use serde_json::{Value, json};
use toolyard_tool::{Output, ToolError};

/// A result in its parts.
#[derive(Debug, Default)]
pub(super) struct Reply {
    blocks: Vec<Block>,
    structured: Option<Value>,
    is_error: bool,
}

#[derive(Debug)]
enum Block {
    Known(Box<ContentBlock>),
    /// Of a later protocol: it is given on as it is.
    Other(Value),
}

impl From<CallToolResult> for Reply {
    fn from(result: CallToolResult) -> Self {
        Self {
            blocks: result.content.into_iter().map(|block| Block::Known(Box::new(block))).collect(),
            structured: result.structured_content,
            is_error: result.is_error.unwrap_or(false),
        }
    }
}

impl Reply {
    /// Reads a result that has parts which are not known here; `None` if it is no result of a tool.
    pub(super) fn read(mut result: Value) -> Option<Self> {
        let fields = result.as_object_mut()?;
        let blocks = match fields.remove("content") {
            Some(Value::Array(blocks)) => blocks,
            Some(_) => return None,
            None if fields
                .keys()
                .all(|key| matches!(key.as_str(), "_meta" | "structuredContent" | "isError" | "resultType")) =>
            {
                Vec::new()
            }
            None => return None,
        };
        let block = |block: Value| match serde_json::from_value(block.clone()) {
            Ok(known) => Block::Known(Box::new(known)),
            Err(_) => Block::Other(block),
        };
        Some(Self {
            blocks: blocks.into_iter().map(block).collect(),
            structured: fields.remove("structuredContent"),
            is_error: fields.get("isError").and_then(Value::as_bool).unwrap_or(false),
        })
    }

    /// The result of a call.
    ///
    /// # Errors
    /// The tool failed, or the result cannot be used.
    pub(super) fn output(self) -> Result<Output, ToolError> {
        if self.is_error {
            return Err(self.error());
        }
        if self.blocks.len() > limit::RESULT_PARTS_MAX / 2 {
            return Err(too_large(format!(
                "the MCP server returned {} parts, at most {} are taken",
                self.blocks.len(),
                limit::RESULT_PARTS_MAX / 2
            )));
        }
        let mut parts = Vec::new();
        let mut structured = self.structured;
        for block in self.blocks {
            match block {
                Block::Other(value) => parts.push(Content::Json(value.to_string())),
                Block::Known(block) => part(*block, &mut structured, &mut parts)?,
            }
        }
        parts.extend(structured.map(|value| Content::Json(value.to_string())));
        Ok(if parts.is_empty() { ().into() } else { parts.into() })
    }

    fn error(self) -> ToolError {
        let texts = self.blocks.iter().filter_map(|block| match block {
            Block::Known(block) => block.as_text().map(|text| text.text.as_str()),
            Block::Other(_) => None,
        });
        let text = texts.collect::<Vec<_>>().join("\n");
        match (text.trim().is_empty(), self.structured) {
            (false, _) => ToolError::new(text),
            (true, Some(value)) => ToolError::new(value.to_string()),
            (true, None) => ToolError::new("the MCP server reported an error without a text"),
        }
    }
}

/// The parts of a block. A text that is the structured content takes its place, so that it is not there twice.
fn part(block: ContentBlock, structured: &mut Option<Value>, parts: &mut Vec<Content>) -> Result<(), ToolError> {
    match block {
        ContentBlock::Text(text) => {
            let is_same = structured.as_ref().is_some_and(|value| is_serialization(&text.text, value));
            match structured.take_if(|_| is_same) {
                Some(value) => parts.push(Content::Json(value.to_string())),
                None => parts.push(Content::Text(text.text)),
            }
        }
        ContentBlock::Image(image) => parts.push(data(image.mime_type, &image.data)?),
        ContentBlock::Audio(audio) => parts.push(data(audio.mime_type, &audio.data)?),
        ContentBlock::Resource(embedded) => match embedded.resource {
            ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
                parts.push(heading(&uri, mime_type.as_deref()));
                parts.push(Content::Text(text));
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                parts.push(heading(&uri, mime_type.as_deref()));
                parts.push(data(mime_type.unwrap_or_else(|| "application/octet-stream".to_owned()), &blob)?);
            }
            other => parts.push(Content::Json(serde_json::to_value(&other)?.to_string())),
        },
        // A link, or a kind that is new.
        other => parts.push(Content::Json(serde_json::to_value(&other)?.to_string())),
    }
    Ok(())
}

/// Names the resource of the next part.
fn heading(uri: &str, mime_type: Option<&str>) -> Content {
    Content::Json(json!({"type": "resource", "uri": uri, "mimeType": mime_type}).to_string())
}

fn is_serialization(text: &str, value: &Value) -> bool {
    text.trim_start().starts_with(['{', '[']) && serde_json::from_str::<Value>(text).is_ok_and(|read| read == *value)
}

fn data(media_type: String, base64: &str) -> Result<Content, ToolError> {
    if media_type.len() > limit::LABEL_BYTES_MAX {
        return Err(ToolError::new(format!("the MCP server returned a media type of {} bytes", media_type.len())));
    }
    let data = STANDARD.decode(base64).map_err(|error| {
        ToolError::new(format!("the MCP server returned a part of {media_type} that is not base64: {error}"))
    })?;
    Ok(Content::Data { media_type, data: data.into() })
}

/// The error of a result that is not taken.
pub(super) fn too_large(message: impl Into<String>) -> ToolError {
    ToolError::of_call(CallError::new(ErrorKind::ResultTooLarge, message))
}

#[cfg(test)]
mod tests {
    use run::Completion;

    use super::*;

    fn parts(result: Value) -> Vec<Content> {
        Completion::from(Reply::read(result).unwrap().output().unwrap()).result
    }

    fn text(text: &str) -> Content {
        Content::Text(text.to_owned())
    }

    fn json_of(value: &Value) -> Content {
        Content::Json(value.to_string())
    }

    #[test]
    fn every_kind_of_content_becomes_a_part() {
        let link = json!({"type": "resource_link", "uri": "test://a", "name": "a"});
        let found = parts(json!({"content": [
            {"type": "text", "text": "hi"},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
            link,
            {"type": "resource", "resource": {"uri": "test://t", "mimeType": "text/plain", "text": "t"}},
            {"type": "resource", "resource": {"uri": "test://b", "blob": "aGk="}},
            {"type": "hologram", "x": 1},
        ]}));
        let data = |kind: &str| Content::Data { media_type: kind.to_owned(), data: "hi".into() };
        let heading =
            |uri: &str, kind: Option<&str>| json_of(&json!({"type": "resource", "uri": uri, "mimeType": kind}));
        assert_eq!(
            found,
            [
                text("hi"),
                data("image/png"),
                data("audio/wav"),
                json_of(&link),
                heading("test://t", Some("text/plain")),
                text("t"),
                heading("test://b", None),
                data("application/octet-stream"),
                json_of(&json!({"type": "hologram", "x": 1})),
            ]
        );
    }

    #[test]
    fn structured_content_is_there_once() {
        let value = json!({"a": [1, 2]});
        let as_text = json!({"content": [{"type": "text", "text": "{ \"a\": [1,2] }"}], "structuredContent": value});
        assert_eq!(parts(as_text), [json_of(&value)]);
        let beside = json!({"content": [{"type": "text", "text": "a list"}], "structuredContent": value});
        assert_eq!(parts(beside), [text("a list"), json_of(&value)]);
        assert_eq!(parts(json!({"structuredContent": 5})), [json_of(&json!(5))]);
        assert_eq!(parts(json!({"content": []})), [text("Done")]);
    }

    #[test]
    fn errors_and_broken_parts_are_errors() {
        let failed = |result: Value| Reply::read(result).unwrap().output().unwrap_err();
        let error = failed(json!({"isError": true, "content": [{"type": "text", "text": "no such file"}]}));
        assert_eq!((error.message(), error.kind()), ("no such file", ErrorKind::ToolFailed));
        let error = failed(json!({"content": [{"type": "image", "data": "%", "mimeType": "image/png"}]}));
        assert!(error.message().contains("not base64"), "{error:?}");
        let many = vec![json!({"type": "text", "text": "x"}); 1000];
        assert_eq!(failed(json!({"content": many})).kind(), ErrorKind::ResultTooLarge);
        assert!(Reply::read(json!({"content": 3})).is_none() && Reply::read(json!([])).is_none());
    }
}
