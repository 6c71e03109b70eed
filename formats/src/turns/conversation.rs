//! A conversation in a form of no vendor, for tools that request it: texts, calls and their results. Images, files and
//! reasoning are left out.

use proto::v1::{ConversationCall, ConversationMessage, ConversationResult, ConversationRole};

use crate::turns::error::Error;
use crate::turns::form::Form;
use crate::turns::json::{Node, Object};
use crate::turns::turn::{Arguments, Turn};

/// The messages of a conversation in Chat Completions, Anthropic or Gemini, or the items of one in Responses.
///
/// # Errors
/// A message is no object, or a text in it cannot be read.
pub(crate) fn read(messages: &[Node<'_>], form: Form) -> Result<Vec<ConversationMessage>, Error> {
    let mut all: Vec<ConversationMessage> = Vec::with_capacity(messages.len());
    for node in messages {
        let object = node.object()?;
        let read = if form == Form::Responses { item(node, &object)? } else { message(node, &object, form)? };
        for message in read {
            match all.last_mut() {
                // Items of one turn are one message.
                Some(last) if form == Form::Responses && joins(last, &message) => join(last, message),
                _ => all.push(message),
            }
        }
    }
    Ok(all)
}

/// The conversation in a member of a body: messages of Chat Completions, or items of Responses. Empty if it is only the
/// calls of a turn.
///
/// # Errors
/// As [`read`], and if it is no list of objects.
pub fn conversation_of(member: &str, form: Form) -> Result<Vec<ConversationMessage>, Error> {
    let messages = read(&Node::parse(member, "")?.array()?, form)?;
    Ok(if is_more_than_calls(&messages) { messages } else { Vec::new() })
}

/// Whether there is more than the calls of one turn, which the request has anyway.
fn is_more_than_calls(messages: &[ConversationMessage]) -> bool {
    let is_calls = |message: &ConversationMessage| {
        message.role() == ConversationRole::Assistant && message.text.is_empty() && !message.calls.is_empty()
    };
    messages.len() > 1 || !messages.iter().all(is_calls)
}

fn joins(last: &ConversationMessage, next: &ConversationMessage) -> bool {
    let together = [ConversationRole::Assistant, ConversationRole::Tool];
    last.role == next.role && together.contains(&next.role()) && (next.text.is_empty() || last.calls.is_empty())
}

fn join(last: &mut ConversationMessage, next: ConversationMessage) {
    let texts = [std::mem::take(&mut last.text), next.text];
    last.text = lines(texts);
    last.calls.extend(next.calls);
    last.results.extend(next.results);
}

fn message(node: &Node<'_>, object: &Object<'_>, form: Form) -> Result<Vec<ConversationMessage>, Error> {
    let role = object.string("role")?.unwrap_or_default();
    let content = object.get("content").or_else(|| object.get("parts"));
    let text = content.as_ref().map(text_of).unwrap_or_default();
    Ok(match role.as_str() {
        "system" | "developer" => vec![said(ConversationRole::System, text)],
        "assistant" | "model" => {
            let calls = calls(node, form);
            vec![ConversationMessage { calls, ..said(ConversationRole::Assistant, text) }]
        }
        "tool" | "function" if form == Form::Chat => {
            let id = object.string("tool_call_id")?.or(object.string("name")?).unwrap_or_default();
            vec![answered(vec![ConversationResult { call_id: id, text, is_error: false }])]
        }
        _ => {
            let results = content.as_ref().map(results).transpose()?.unwrap_or_default();
            // Text beside results is said after them.
            let answers = (!results.is_empty()).then(|| answered(results));
            let speaks = (answers.is_none() || !text.is_empty()).then(|| said(ConversationRole::User, text));
            answers.into_iter().chain(speaks).collect()
        }
    })
}

fn item(node: &Node<'_>, object: &Object<'_>) -> Result<Vec<ConversationMessage>, Error> {
    let kind = object.string("type")?.unwrap_or_else(|| "message".to_owned());
    if kind == "message" {
        let role = match object.string("role")?.as_deref() {
            Some("assistant") => ConversationRole::Assistant,
            Some("system" | "developer") => ConversationRole::System,
            _ => ConversationRole::User,
        };
        let text = object.get("content").as_ref().map(text_of).unwrap_or_default();
        return Ok(vec![said(role, text)]);
    }
    if kind.ends_with("_call_output") {
        let call_id = object.string("call_id")?.unwrap_or_default();
        let text = object.get("output").as_ref().map(text_of).unwrap_or_default();
        return Ok(vec![answered(vec![ConversationResult { call_id, text, is_error: false }])]);
    }
    let calls = calls(node, Form::Responses);
    let message = ConversationMessage { calls, ..said(ConversationRole::Assistant, String::new()) };
    Ok(if message.calls.is_empty() { Vec::new() } else { vec![message] })
}

/// The results among the parts of a message of Anthropic or Gemini.
fn results(content: &Node<'_>) -> Result<Vec<ConversationResult>, Error> {
    let mut results = Vec::new();
    let parts = if content.is_array() { content.array()? } else { Vec::new() };
    for part in parts.iter().filter(|part| part.is_object()) {
        let part = part.object()?;
        if let Some(call_id) = part.string("tool_use_id").ok().flatten() {
            let text = part.get("content").as_ref().map(text_of).unwrap_or_default();
            let is_error = part.get("is_error").is_some_and(|flag| flag.text == "true");
            results.push(ConversationResult { call_id, text, is_error });
        } else if let Some(response) = part.either(["functionResponse", "function_response"]) {
            let response = response.object()?;
            let call_id = response.string("id")?.or(response.string("name")?).unwrap_or_default();
            let (text, is_error) = response.get("response").map(|value| gemini_result(&value)).unwrap_or_default();
            results.push(ConversationResult { call_id, text, is_error });
        }
    }
    Ok(results)
}

/// The only member of a response, if it is a text; otherwise the response as JSON.
fn gemini_result(response: &Node<'_>) -> (String, bool) {
    let object = response.object().ok();
    let only = |name: &str| {
        let object = object.as_ref().filter(|object| object.names_other_than(&[name]).is_empty())?;
        object.string(name).ok().flatten()
    };
    let is_error = object.as_ref().is_some_and(|object| object.get("error").is_some());
    let text = ["output", "result", "error"].into_iter().find_map(only);
    (text.unwrap_or_else(|| response.text.to_owned()), is_error)
}

/// The calls of a message; none if they cannot be read, which is an error only of calls that are to be executed.
fn calls(node: &Node<'_>, form: Form) -> Vec<ConversationCall> {
    let Ok(turn) = Turn::parse_node(node, form) else { return Vec::new() };
    let calls = turn.calls.into_iter().map(|call| ConversationCall {
        tool: call.tool(),
        call_id: call.id,
        arguments: match call.arguments {
            Arguments::Json(text) | Arguments::Unreadable { text, .. } => text,
        },
    });
    calls.collect()
}

fn said(role: ConversationRole, text: String) -> ConversationMessage {
    ConversationMessage { role: role.into(), text, ..ConversationMessage::default() }
}

fn answered(results: Vec<ConversationResult>) -> ConversationMessage {
    ConversationMessage { results, ..said(ConversationRole::Tool, String::new()) }
}

/// The text of a content: a text, or the texts among its parts. What a model only thought is no text.
fn text_of(content: &Node<'_>) -> String {
    if content.is_string() {
        return content.string().unwrap_or_default();
    }
    if content.is_array() {
        return lines(content.array().unwrap_or_default().iter().map(text_of));
    }
    let Ok(part) = content.object() else { return String::new() };
    if part.get("thought").is_some_and(|thought| thought.text == "true") {
        return String::new();
    }
    let text = |name: &str| part.get(name).filter(Node::is_string).and_then(|text| text.string().ok());
    let shell = || lines(["stdout", "stderr"].iter().filter_map(|name| text(name)));
    text("text").or_else(|| text("refusal")).unwrap_or_else(shell)
}

fn lines(texts: impl IntoIterator<Item = String>) -> String {
    texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}
