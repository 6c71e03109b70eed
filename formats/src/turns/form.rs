//! The forms, and how they are recognised.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::tools::Format;
use crate::turns::error::{Error, Problem, quote};
use crate::turns::forms::responses;
use crate::turns::json::{Node, Object};

/// A vendor's form of an assistant turn and of the messages that answer it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Form {
    /// OpenAI Chat Completions.
    Chat,
    /// OpenAI Responses.
    Responses,
    /// Anthropic Messages.
    Anthropic,
    /// Gemini `generateContent`.
    Gemini,
    /// MCP `tools/call`.
    Mcp,
}

impl Form {
    pub const ALL: [Self; 5] = [Self::Chat, Self::Responses, Self::Anthropic, Self::Gemini, Self::Mcp];

    /// The name of the form in requests.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "openai-chat",
            Self::Responses => "openai-responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Mcp => "mcp",
        }
    }

    /// The form in which the same vendor's models are given definitions of tools.
    #[must_use]
    pub const fn definitions(self) -> Format {
        match self {
            Self::Chat => Format::OpenAiChat,
            Self::Responses => Format::OpenAi,
            Self::Anthropic => Format::Anthropic,
            Self::Gemini => Format::Gemini,
            Self::Mcp => Format::Mcp,
        }
    }

    /// Recognises the form of a turn. The signs must be of exactly one form.
    pub(crate) fn recognised(turn: &Node<'_>) -> Result<Self, Error> {
        let signs = signs(turn)?;
        // Such a turn has no calls, and every form answers it alike.
        if signs.is_empty() && has_only_spoken(turn) {
            return Ok(Self::Chat);
        }
        let mut found = signs.iter();
        match (found.next(), found.next()) {
            (Some(form), None) => Ok(*form),
            (None, _) => Err(Error::new(&turn.pointer, Problem::UnknownForm { seen: turn.description() })),
            (Some(_), Some(_)) => {
                let could_be = signs.iter().copied().collect();
                Err(Error::new(&turn.pointer, Problem::AmbiguousForm { seen: turn.description(), could_be }))
            }
        }
    }

    /// Checks the given form. It is rejected if the turn only bears signs of other forms, because its calls would be
    /// missed.
    pub(crate) fn confirmed(self, turn: &Node<'_>) -> Result<Self, Error> {
        let signs = signs(turn)?;
        if signs.is_empty() || signs.contains(&self) {
            return Ok(self);
        }
        let problem = Problem::OtherForm { named: self, looks_like: signs.into_iter().collect() };
        Err(Error::new(&turn.pointer, problem))
    }
}

/// A turn without calls, which has the same shape with two vendors.
fn has_only_spoken(turn: &Node<'_>) -> bool {
    turn.object().is_ok_and(|message| {
        let role = message.string("role");
        role.is_ok_and(|role| role.as_deref() == Some("assistant")) && message.get("content").is_some()
    })
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is not the name of a form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown form {0:?}: the forms are openai-chat, openai-responses, anthropic, gemini and mcp")]
pub struct UnknownName(String);

impl FromStr for Form {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|form| form.as_str() == name).ok_or_else(|| UnknownName(quote(name)))
    }
}

/// Every form that the turn bears a sign of.
fn signs(turn: &Node<'_>) -> Result<BTreeSet<Form>, Error> {
    let mut signs = BTreeSet::new();
    if turn.is_array() {
        for element in turn.array()?.iter().filter(|element| element.is_object()) {
            signs.extend(signs_of_element(&element.object()?)?);
        }
    } else if turn.is_object() {
        let object = turn.object()?;
        signs.extend(signs_of_element(&object)?);
        signs.extend(signs_of_whole(&object)?);
    }
    Ok(signs)
}

/// Signs of a value that can also be an element of a list: an item, a block, a part, a request, a call.
fn signs_of_element(object: &Object<'_>) -> Result<Vec<Form>, Error> {
    let mut signs = Vec::new();
    let kind = object.get("type").filter(Node::is_string).map(|kind| kind.string()).transpose()?;
    let kind = kind.as_deref().unwrap_or_default();
    if object.get("jsonrpc").is_some() {
        signs.push(Form::Mcp);
    }
    if object.get("function").is_some() || object.get("custom").is_some() {
        signs.push(Form::Chat);
    }
    // LangChain's own form of a call.
    if kind == "tool_call" && object.get("args").is_some() {
        signs.push(Form::Chat);
    }
    if responses::is_told_by(kind) {
        signs.push(Form::Responses);
    }
    if matches!(kind, "tool_use" | "server_tool_use" | "mcp_tool_use" | "thinking" | "redacted_thinking") {
        signs.push(Form::Anthropic);
    }
    if object.get("functionCall").is_some() {
        signs.push(Form::Gemini);
    }
    // Gemini's part in snake case, and the predecessor of `tool_calls` in Chat Completions.
    if let Some(call) = object.get("function_call").filter(Node::is_object) {
        let has_text = call.object()?.get("arguments").is_some();
        signs.push(if has_text { Form::Chat } else { Form::Gemini });
    }
    Ok(signs)
}

/// Signs of a message or of a whole response.
fn signs_of_whole(object: &Object<'_>) -> Result<Vec<Form>, Error> {
    let mut signs = Vec::new();
    if ["choices", "tool_calls", "message"].iter().any(|name| object.get(name).is_some()) {
        signs.push(Form::Chat);
    }
    if object.get("output").is_some_and(|output| output.is_array()) {
        signs.push(Form::Responses);
    }
    if object.get("candidates").is_some() || object.get("parts").is_some() {
        signs.push(Form::Gemini);
    }
    if object.get("stop_reason").is_some() {
        signs.push(Form::Anthropic);
    }
    let content = object.get("content");
    if let Some(content) = content.as_ref().filter(|content| content.is_array()) {
        for block in content.array()?.iter().filter(|block| block.is_object()) {
            signs.extend(signs_of_element(&block.object()?)?);
        }
    }
    if let Some(content) = content.as_ref().filter(|content| content.is_object())
        && content.object()?.get("parts").is_some()
    {
        signs.push(Form::Gemini);
    }
    Ok(signs)
}
