//! The conversation to which calls belong, for tools that request it. Requests bring it in the form of the API; tools
//! read it as JSON, from the context of their call or from an object.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::history::json;
use crate::v1;

/// The context key of the conversation, and the name of the file that holds a large one. A tool declares it like any
/// other key; callers can set neither.
pub const TOOL_CALL_CONVERSATION: &str = "TOOL_CALL_CONVERSATION";

/// A message of a conversation, in a form of no vendor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub role: MessageRole,
    /// Several parts are lines of their own. Images, files and reasoning are left out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The calls that the model requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<MessageCall>,
    /// Results of calls of earlier messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<MessageResult>,
}

/// Who wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageRole {
    /// The program: instructions for the model.
    System,
    User,
    /// The model.
    Assistant,
    Tool,
}

/// A call that the model requested.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessageCall {
    /// Empty if the model gave none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub call_id: String,
    /// The name that the model used.
    pub tool: String,
    /// A string for a tool that takes text, and if the model did not write JSON.
    pub arguments: Value,
}

/// The result of a call, as the model was given it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageResult {
    /// In a form without ids, the tool's name.
    pub call_id: String,
    pub text: String,
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_error: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// The index of a message without a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is missing: name who wrote the message, such as CONVERSATION_ROLE_USER")]
pub struct NoRole(pub usize);

/// Converts the messages of a request.
///
/// # Errors
/// A message has no role.
pub fn messages(wire: Vec<v1::ConversationMessage>) -> Result<Vec<Message>, NoRole> {
    wire.into_iter().enumerate().map(|(index, message)| message_in(message).ok_or(NoRole(index))).collect()
}

fn message_in(wire: v1::ConversationMessage) -> Option<Message> {
    let role = match wire.role() {
        v1::ConversationRole::System => MessageRole::System,
        v1::ConversationRole::User => MessageRole::User,
        v1::ConversationRole::Assistant => MessageRole::Assistant,
        v1::ConversationRole::Tool => MessageRole::Tool,
        v1::ConversationRole::Unspecified => return None,
    };
    let result = |v1::ConversationResult { call_id, text, is_error }| MessageResult { call_id, text, is_error };
    let calls = wire.calls.into_iter().map(|call| MessageCall::new(call.call_id, call.tool, &call.arguments));
    Some(Message {
        role,
        text: wire.text,
        calls: calls.collect(),
        results: wire.results.into_iter().map(result).collect(),
    })
}

impl MessageCall {
    /// A call whose arguments are a text, usually JSON.
    #[must_use]
    pub fn new(call_id: String, tool: String, arguments: &str) -> Self {
        let text = if arguments.is_empty() { "{}" } else { arguments };
        let arguments = json(text.as_bytes()).unwrap_or_else(|| Value::from(arguments));
        Self { call_id, tool, arguments }
    }
}

/// The conversation as tools read it.
///
/// # Panics
/// Never: texts and JSON values serialize.
#[must_use]
pub fn write(messages: &[Message]) -> String {
    serde_json::to_string(messages).expect("texts and JSON values serialize")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_is_written_with_what_it_has_and_read_again() {
        let call = v1::ConversationCall { call_id: "a".into(), tool: "grep".into(), arguments: r#"{"n":1}"#.into() };
        let result = v1::ConversationResult { call_id: "a".into(), text: "no".into(), is_error: true };
        let wire = |role: v1::ConversationRole, text: &str| v1::ConversationMessage {
            role: role.into(),
            text: text.to_owned(),
            ..v1::ConversationMessage::default()
        };
        let asks = v1::ConversationMessage { calls: vec![call], ..wire(v1::ConversationRole::Assistant, "") };
        let answers = v1::ConversationMessage { results: vec![result], ..wire(v1::ConversationRole::Tool, "") };
        let all = messages(vec![wire(v1::ConversationRole::User, "Hi"), asks, answers]).expect("all have roles");
        let text = write(&all);
        let expected = json!([
            { "role": "user", "text": "Hi" },
            { "role": "assistant", "calls": [{ "call_id": "a", "tool": "grep", "arguments": { "n": 1 } }] },
            { "role": "tool", "results": [{ "call_id": "a", "text": "no", "is_error": true }] },
        ]);
        assert_eq!(serde_json::from_str::<Value>(&text).expect("it is JSON"), expected);
        assert_eq!(serde_json::from_str::<Vec<Message>>(&text).expect("it is a conversation"), all);
        let nobody = vec![wire(v1::ConversationRole::User, "Hi"), wire(v1::ConversationRole::Unspecified, "Hm")];
        assert_eq!(messages(nobody), Err(NoRole(1)));
    }

    #[test]
    fn arguments_that_are_not_json_or_nested_too_deeply_are_text() {
        let arguments = |text: &str| MessageCall::new(String::new(), "t".to_owned(), text).arguments;
        let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
        assert_eq!((arguments(""), arguments("[1]")), (json!({}), json!([1])));
        assert_eq!((arguments("ls -l"), arguments(&deep)), (json!("ls -l"), json!(deep)));
    }
}
