//! A turn: the calls that a model requested, in order, independent of their form.

use std::collections::{HashMap, HashSet};

use proto::v1;
use run::ToolName;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::turns::answer::Answer;
use crate::turns::chunks;
use crate::turns::error::{Error, Problem, quote};
use crate::turns::form::Form;
use crate::turns::forms::{anthropic, chat, gemini, mcp, responses};
use crate::turns::json::Node;
use crate::turns::limit::{CALL_ID_BYTES_MAX, CALLS_MAX, TURN_BYTES_MAX};

/// The calls that a model requested in one turn.
#[derive(Debug)]
pub struct Turn {
    pub form: Form,
    /// The calls in order; empty if the model only returned text.
    pub calls: Vec<Call>,
    /// Requested items that are not among the calls.
    pub passed_over: Vec<SkippedItem>,
}

/// One call of a turn.
#[derive(Debug)]
pub struct Call {
    /// The vendor's id. If the vendor gave none, or one that is empty, longer than 128 bytes or contains control
    /// characters, an id is generated: `call_0` for the first call, and so on, so the same turn gets the same ids.
    /// Answers carry the vendor's own id.
    pub id: String,
    /// The tool's name as the model wrote it; no tool of this name may exist. Calls without a name of their own, such
    /// as shell calls, are named `shell`, `local_shell` or `apply_patch`.
    pub name: String,
    /// The set of tools that the name refers to, if the vendor has such sets. It must not be ignored.
    pub namespace: Option<String>,
    pub arguments: Arguments,
    /// The position of the call in the turn, as a JSON pointer.
    pub pointer: String,
    pub(crate) carrier: Carrier,
}

/// The arguments of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arguments {
    /// JSON as the model wrote it: numbers keep their digits, members their order and repetitions.
    Json(String),
    /// The call must not be executed because the model's arguments are invalid. Answer it with the error `why`, so that
    /// the model can correct it.
    Unreadable { text: String, why: Error },
}

/// An item of a turn that is not answered here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedItem {
    /// The position in the turn.
    pub pointer: String,
    /// The vendor's type name, shortened to 64 characters.
    pub kind: String,
    pub reason: Reason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The vendor executes it, or has already executed it.
    ExecutedByVendor,
    /// The turn already contains its answer.
    Answered,
    /// It requests a decision instead of an execution.
    NeedsApproval,
    /// No tool can answer it in the vendor's form, or its type is unknown.
    Unsupported,
}

/// How a call was carried, as far as its answer needs it. The texts are the vendor's own.
#[derive(Debug)]
pub(crate) enum Carrier {
    ChatTool {
        id: String,
    },
    ChatFunction,
    Item {
        kind: responses::Kind,
        call_id: String,
        caller: Option<String>,
    },
    ToolUse {
        id: String,
    },
    FunctionCall {
        id: Option<String>,
    },
    /// The id is JSON: a string or a number. `is_modern` means the protocol without sessions.
    Request {
        id: String,
        is_modern: bool,
    },
}

impl Turn {
    /// Reads an assistant turn as the vendor sent it. Without `form`, the form is recognised by the turn's shape; a
    /// turn that fits several forms or none is rejected. With `form`, a turn that is clearly of another form is
    /// rejected.
    ///
    /// # Errors
    /// An error with a JSON pointer if the turn is not of the form, exceeds a [limit](crate::turns::limit), repeats a
    /// member or an id, or holds several alternatives. Errors in the arguments of one call are reported in that call
    /// only.
    pub fn parse(turn: &[u8], form: Option<Form>) -> Result<Self, Error> {
        if turn.len() > TURN_BYTES_MAX {
            return Err(Error::new("", Problem::TooLarge { bytes: turn.len(), max: TURN_BYTES_MAX }));
        }
        let text = std::str::from_utf8(turn).map_err(|error| Error::new("", Problem::NotJson(error.to_string())))?;
        let root = Node::parse(text, "")?;
        let Some(message) = chunks::assembled(&root)? else { return Self::read(&root, form) };
        // No place in the message is one in the stream's events: all of it is the turn as a whole.
        let whole = |error: Error| Error { pointer: String::new(), ..error };
        let mut turn = Node::parse(&message, "").and_then(|root| Self::read(&root, form)).map_err(whole)?;
        turn.calls.iter_mut().for_each(|call| call.pointer.clear());
        Ok(turn)
    }

    fn read(root: &Node<'_>, form: Option<Form>) -> Result<Self, Error> {
        let form = match form {
            Some(form) => form.confirmed(root)?,
            None => Form::recognised(root)?,
        };
        Self::parse_node(root, form)
    }

    /// Reads a turn of a form.
    pub(crate) fn parse_node(root: &Node<'_>, form: Form) -> Result<Self, Error> {
        let mut draft = Draft::default();
        match form {
            Form::Chat => chat::read(root, &mut draft)?,
            Form::Responses => responses::read(root, &mut draft)?,
            Form::Anthropic => anthropic::read(root, &mut draft)?,
            Form::Gemini => gemini::read(root, &mut draft)?,
            Form::Mcp => mcp::read(root, &mut draft)?,
        }
        Ok(Self { form, calls: draft.named(), passed_over: draft.passed_over })
    }

    /// A turn without calls.
    pub(crate) fn empty(form: Form) -> Self {
        Self { form, calls: Vec::new(), passed_over: Vec::new() }
    }

    /// The turn of calls that are known by their ids and the names of their tools in the form. Each is an ordinary
    /// call of the form: a function call, a `tool_use` block, a `tools/call` request of the protocol with sessions.
    #[must_use]
    pub fn of_calls(form: Form, calls: impl IntoIterator<Item = (String, String)>) -> Self {
        let calls = calls.into_iter().map(|(id, name)| {
            let carrier = match form {
                Form::Chat => Carrier::ChatTool { id: id.clone() },
                Form::Responses => Carrier::Item { kind: responses::Kind::Function, call_id: id.clone(), caller: None },
                Form::Anthropic => Carrier::ToolUse { id: id.clone() },
                Form::Gemini => Carrier::FunctionCall { id: Some(id.clone()) },
                Form::Mcp => Carrier::Request { id: crate::turns::json::string(&id), is_modern: false },
            };
            let (namespace, arguments, pointer) = (None, Arguments::none(), String::new());
            Call { id, name, namespace, arguments, pointer, carrier }
        });
        Self { calls: calls.collect(), ..Self::empty(form) }
    }

    /// The messages that answer the turn, in the order of its calls. They are sent to the vendor after the turn. Calls
    /// for which `answer` returns `None` stay open: no message mentions them.
    ///
    /// Each message is one line. Each answered call gets its own message (Chat, Responses, MCP), or all calls share one
    /// (Anthropic, Gemini). The [module](crate::turns) lists how content is reduced that a form cannot carry.
    pub fn answers<'a>(&self, mut answer: impl FnMut(&Call) -> Option<Answer<'a>>) -> Vec<Box<RawValue>> {
        let answered: Vec<String> = self.calls.iter().filter_map(|call| Some(call.answered(&answer(call)?))).collect();
        let messages = match self.form {
            Form::Chat | Form::Responses | Form::Mcp => answered,
            Form::Anthropic => anthropic::message(&answered),
            Form::Gemini => gemini::message(&answered),
        };
        let raw = |message: String| {
            // Values that are returned unchanged may contain line breaks between tokens. A line break would end the
            // server-sent event that carries the message. JSON strings contain none.
            let is_one_line = !message.contains(['\n', '\r']);
            let message = if is_one_line { message } else { message.replace(['\n', '\r'], " ") };
            RawValue::from_string(message).expect("the message is composed of JSON")
        };
        messages.into_iter().map(raw).collect()
    }
}

impl Call {
    /// Whether the call has the id that its model gave it.
    #[must_use]
    pub fn has_own_id(&self) -> bool {
        self.vendor_id() == Some(self.id.as_str())
    }

    /// The name of the tool, with the set to which it belongs.
    #[must_use]
    pub fn tool(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}.{}", self.name),
            None => self.name.clone(),
        }
    }

    /// The call as it is to be executed. `request_tools` are those of its request: one that takes text is given the
    /// text.
    ///
    /// # Errors
    /// Why the call fails alone.
    pub fn to_execute(&self, request_tools: &[v1::RequestTool]) -> Result<v1::NewCall, String> {
        let tool = self.tool();
        if tool.parse::<ToolName>().is_err() {
            return Err(format!("there is no tool {:?}", self.name));
        }
        let arguments = match &self.arguments {
            Arguments::Json(arguments) => arguments,
            Arguments::Unreadable { why, .. } => return Err(why.to_string()),
        };
        let takes_text = |own: &v1::RequestTool| {
            own.name == tool && !matches!(own.format, Some(v1::request_tool::Format::InputSchema(_)))
        };
        let arguments = if request_tools.iter().any(takes_text) {
            let input: Value = serde_json::from_str(arguments).unwrap_or_default();
            input["input"].as_str().unwrap_or(arguments).to_owned()
        } else {
            arguments.clone()
        };
        Ok(v1::NewCall { call_id: self.id.clone(), tool, arguments, ..v1::NewCall::default() })
    }

    /// The id that the vendor gave the call, if it gave one.
    pub(crate) fn vendor_id(&self) -> Option<&str> {
        match &self.carrier {
            Carrier::ChatTool { id } | Carrier::ToolUse { id } => Some(id),
            Carrier::Item { call_id, .. } => Some(call_id),
            Carrier::FunctionCall { id } => id.as_deref(),
            Carrier::Request { id, .. } => Some(id.trim_matches('"')),
            Carrier::ChatFunction => None,
        }
    }

    fn answered(&self, answer: &Answer<'_>) -> String {
        match &self.carrier {
            Carrier::ChatTool { id } => chat::tool_message(id, answer),
            Carrier::ChatFunction => chat::function_message(&self.name, answer),
            Carrier::Item { kind, call_id, caller } => responses::output_item(kind, call_id, caller.as_deref(), answer),
            Carrier::ToolUse { id } => anthropic::tool_result(id, answer),
            Carrier::FunctionCall { id } => gemini::function_response(id.as_deref(), &self.name, answer),
            Carrier::Request { id, is_modern: true } => mcp::modern_response(id, answer),
            Carrier::Request { id, is_modern: false } => mcp::response(id, answer),
        }
    }
}

impl Arguments {
    /// From a text that the model wrote as the arguments. An empty text means no arguments, because some models send it
    /// for calls without arguments.
    pub(crate) fn of_text(text: String, pointer: &str) -> Self {
        if text.trim().is_empty() {
            return Self::none();
        }
        match Node::parse(&text, pointer) {
            Ok(node) => Self::Json(node.text.to_owned()),
            Err(why) => Self::Unreadable { text, why },
        }
    }

    /// From a member that holds the arguments as an object; it may be missing.
    pub(crate) fn of_object(node: Option<&Node<'_>>) -> Result<Self, Error> {
        let Some(node) = node else { return Ok(Self::none()) };
        if !node.is_object() {
            return Err(node.unexpected("an object"));
        }
        Ok(Self::Json(node.text.to_owned()))
    }

    pub(crate) fn none() -> Self {
        Self::Json("{}".to_owned())
    }

    /// The same for a call that the model did not finish: a truncated instruction must not be executed.
    pub(crate) fn unfinished(self, pointer: &str, how: &str) -> Self {
        let why = Error::new(pointer, Problem::Incomplete(quote(how)));
        match self {
            Self::Json(text) | Self::Unreadable { text, .. } => Self::Unreadable { text, why },
        }
    }
}

/// A turn while it is being read.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    calls: Vec<Call>,
    /// The pointer of the call that has an id, by id.
    taken: HashMap<String, String>,
    pub(crate) passed_over: Vec<SkippedItem>,
}

impl Draft {
    /// Adds a call with the id `id`, or without one yet. Two ids are equal if their `key`s are.
    pub(crate) fn push(&mut self, id: Option<&str>, key: Option<&str>, call: Call) -> Result<(), Error> {
        if self.calls.len() == CALLS_MAX {
            return Err(Error::new(call.pointer, Problem::TooMany { what: "calls", max: CALLS_MAX }));
        }
        if let Some(key) = key
            && let Some(first) = self.taken.insert(key.to_owned(), call.pointer.clone())
        {
            return Err(Error::new(call.pointer, Problem::DuplicateId { id: quote(key), first }));
        }
        let fits = |id: &&str| (1..=CALL_ID_BYTES_MAX).contains(&id.len()) && !id.chars().any(char::is_control);
        let id = id.filter(fits).unwrap_or_default().to_owned();
        self.calls.push(Call { id, ..call });
        Ok(())
    }

    pub(crate) fn pass_over(&mut self, pointer: &str, kind: &str, reason: Reason) {
        self.passed_over.push(SkippedItem { pointer: pointer.to_owned(), kind: quote(kind), reason });
    }

    /// The calls, each with a unique id.
    fn named(&mut self) -> Vec<Call> {
        let mut calls = std::mem::take(&mut self.calls);
        let mut taken = HashSet::new();
        for call in &mut calls {
            // If two ids look alike, such as MCP's 7 and "7", the second call gets another one.
            if !call.id.is_empty() && !taken.insert(call.id.clone()) {
                call.id.clear();
            }
        }
        for (index, call) in calls.iter_mut().enumerate().filter(|(_, call)| call.id.is_empty()) {
            let made = std::iter::once(format!("call_{index}")).chain((1..).map(|n| format!("call_{index}_{n}")));
            call.id = made.into_iter().find(|id| !taken.contains(id)).expect("the sequence of ids is infinite");
            taken.insert(call.id.clone());
        }
        calls
    }
}
