//! Reads the conversation of a request for its calls.

use std::collections::HashSet;
use std::sync::Arc;

use proto::conversation::NoRole;
use proto::v1::{ConversationCall, ConversationMessage, ConversationRole};
use run::CallId;

use super::read::malformed;
use crate::admission::accept::RequestedCall;
use crate::admission::conversation::Conversation;
use crate::admission::error::RequestError;

/// Gives the calls of a request its conversation. `is_new`: they are the first of their run.
pub(super) fn give(
    mut messages: Vec<ConversationMessage>,
    calls: &mut [RequestedCall],
    is_new: bool,
) -> Result<(), RequestError> {
    if messages.is_empty() {
        return Ok(());
    }
    if let Some(index) = messages.iter().position(|message| message.role() == ConversationRole::Unspecified) {
        return Err(malformed(format!("conversation[{index}].role"))(NoRole(index)));
    }
    if !has_open_calls(&messages) {
        messages.push(asking(calls, is_new));
    }
    let conversation = Arc::new(Conversation::of(messages, calls.len()));
    calls.iter_mut().for_each(|call| call.conversation = Some(Arc::clone(&conversation)));
    Ok(())
}

/// Whether the conversation ends with calls of the model that have no results.
fn has_open_calls(messages: &[ConversationMessage]) -> bool {
    let is_of_tools = |message: &ConversationMessage| message.role() == ConversationRole::Tool;
    let Some(last) = messages.iter().rposition(|message| !is_of_tools(message)) else { return false };
    let (message, results) = (&messages[last], messages[last + 1..].iter().flat_map(|message| &message.results));
    let answered: HashSet<&str> = results.map(|result| result.call_id.as_str()).collect();
    let is_open =
        |call: &ConversationCall| ![&call.call_id, &call.tool].iter().any(|id| answered.contains(id.as_str()));
    message.role() == ConversationRole::Assistant && message.calls.iter().any(is_open)
}

/// The assistant's message with the calls of a request.
fn asking(calls: &[RequestedCall], is_new: bool) -> ConversationMessage {
    let calls = calls.iter().enumerate().map(|(index, call)| {
        // As a call without an id is named when it is accepted.
        let made = if is_new { format!("call_{index}") } else { String::new() };
        ConversationCall {
            call_id: call.id.as_ref().map_or(made, CallId::to_string),
            tool: call.tool.to_string(),
            arguments: String::from_utf8_lossy(&call.arguments).into_owned(),
        }
    });
    let role = ConversationRole::Assistant.into();
    ConversationMessage { role, calls: calls.collect(), ..ConversationMessage::default() }
}
