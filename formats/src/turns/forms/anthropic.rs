//! Anthropic Messages: `tool_use` blocks, answered by `tool_result` blocks of one user message.

use crate::turns::answer::{Answer, IMAGES, PDF, Shown};
use crate::turns::error::Error;
use crate::turns::json::{self, Node};
use crate::turns::turn::{Arguments, Call, Carrier, Draft, Reason};

/// A message, the list of its blocks, or one block.
pub(crate) fn read(turn: &Node<'_>, draft: &mut Draft) -> Result<(), Error> {
    if turn.is_array() {
        return read_blocks(&turn.array()?, None, draft);
    }
    let whole = turn.object()?;
    let Some(content) = whole.get("content") else {
        return read_blocks(std::slice::from_ref(turn), None, draft);
    };
    if content.is_string() {
        return Ok(());
    }
    // The call at which the model was cut off. Its input may have been closed by force.
    let stop_reason = whole.string("stop_reason")?.filter(|reason| reason == "max_tokens");
    read_blocks(&content.array()?, stop_reason.as_deref(), draft)
}

fn read_blocks(blocks: &[Node<'_>], cut_off: Option<&str>, draft: &mut Draft) -> Result<(), Error> {
    let mut unread = blocks.len();
    for node in blocks {
        unread -= 1;
        let block = node.object()?;
        let kind = block.need("type")?.string()?;
        match kind.as_str() {
            "tool_use" => {}
            "text" | "thinking" | "redacted_thinking" => continue,
            "server_tool_use" | "mcp_tool_use" => {
                draft.pass_over(&node.pointer, &kind, Reason::ExecutedByVendor);
                continue;
            }
            // Results of the vendor's own tools.
            result if result.ends_with("_tool_result") => {
                draft.pass_over(&node.pointer, &kind, Reason::ExecutedByVendor);
                continue;
            }
            _ => {
                draft.pass_over(&node.pointer, &kind, Reason::Unsupported);
                continue;
            }
        }
        let id = block.need("id")?.string()?;
        let input = block.need("input")?;
        let mut arguments = match input.is_string() {
            // A stream whose fragments are no object.
            true => Arguments::of_text(input.string()?, &input.pointer),
            false => Arguments::of_object(Some(&input))?,
        };
        if let Some(how) = cut_off.filter(|_| unread == 0) {
            arguments = arguments.unfinished(&node.pointer, how);
        }
        let call = Call {
            id: String::new(),
            name: block.need("name")?.string()?,
            namespace: block.string("toolset_name")?,
            arguments,
            pointer: node.pointer.clone(),
            carrier: Carrier::ToolUse { id: id.clone() },
        };
        draft.push(Some(&id), Some(&id), call)?;
    }
    Ok(())
}

pub(crate) fn tool_result(id: &str, answer: &Answer<'_>) -> String {
    // The vendor rejects the whole request if an error contains anything but text, or if a text is empty.
    let is_taken = |media_type: &str| {
        !answer.is_error && (IMAGES.contains(&media_type) || media_type == "image/gif" || media_type == PDF)
    };
    let blocks: Vec<String> = answer.shown(is_taken).into_iter().filter_map(block).collect();
    json::object(&[
        ("type", Some(json::string("tool_result"))),
        ("tool_use_id", Some(json::string(id))),
        ("content", (!blocks.is_empty()).then(|| json::array(&blocks))),
        ("is_error", answer.is_error.then(|| "true".to_owned())),
    ])
}

fn block(part: Shown<'_>) -> Option<String> {
    match part {
        Shown::Text(text) if text.trim().is_empty() => None,
        Shown::Text(text) => {
            Some(json::object(&[("type", Some(json::string("text"))), ("text", Some(json::string(&text)))]))
        }
        Shown::Data { media_type, base64 } => {
            let kind = if media_type == PDF { "document" } else { "image" };
            let source = json::object(&[
                ("type", Some(json::string("base64"))),
                ("media_type", Some(json::string(media_type))),
                ("data", Some(json::string(&base64))),
            ]);
            Some(json::object(&[("type", Some(json::string(kind))), ("source", Some(source))]))
        }
    }
}

/// All results in one message, as the vendor requires.
pub(crate) fn message(results: &[String]) -> Vec<String> {
    if results.is_empty() {
        return Vec::new();
    }
    vec![json::object(&[("role", Some(json::string("user"))), ("content", Some(json::array(results)))])]
}
