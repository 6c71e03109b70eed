//! A turn: the calls that a model asked for, in its order, whatever form they came in.

use std::collections::{HashMap, HashSet};

use serde_json::value::RawValue;

use crate::turns::answer::Answer;
use crate::turns::error::{Error, Problem, quote};
use crate::turns::form::Form;
use crate::turns::forms::{anthropic, chat, gemini, mcp, responses};
use crate::turns::json::Node;
use crate::turns::limit::{CALL_ID_BYTES_MAX, CALLS_MAX, TURN_BYTES_MAX};

/// What a model asked for in one turn.
#[derive(Debug)]
pub struct Turn {
    pub form: Form,
    /// In the order in which they were asked for; none where the model only spoke.
    pub calls: Vec<Call>,
    /// What was asked for and is not among the calls.
    pub passed_over: Vec<SkippedItem>,
}

/// One call of a turn.
#[derive(Debug)]
pub struct Call {
    /// The vendor's id. It is made (`call_0` for the first call, and so on: the same turn gets the same ids) where the
    /// vendor gave none, or one that is empty, longer than 128 bytes or has control characters; answers have the
    /// vendor's own.
    pub id: String,
    /// Of the tool, as the model said it: not yet known to be the name of any. What has no name of its own, as a
    /// shell call, is called `shell`, `local_shell` or `apply_patch`.
    pub name: String,
    /// The set of tools in which the name was meant, where the vendor has such: not to be left out of account.
    pub namespace: Option<String>,
    pub arguments: Arguments,
    /// Where the call stands in the turn, as a JSON pointer.
    pub pointer: String,
    pub(crate) carrier: Carrier,
}

/// What a tool is called with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arguments {
    /// JSON, as the model wrote it: numbers keep their digits, members their order and repetitions.
    Json(String),
    /// The call must not be executed. That is the model's doing: answer it with `why`, as an error, and it may do
    /// better.
    Unreadable { text: String, why: Error },
}

/// Something in a turn that is not for us to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedItem {
    /// Where it stands in the turn.
    pub pointer: String,
    /// What the vendor calls it, shortened to 64 characters.
    pub kind: String,
    pub reason: Reason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The vendor executes it, or has done so.
    ExecutedByVendor,
    /// Its answer stands in the turn already.
    Answered,
    /// It asks for a decision and not for work.
    NeedsApproval,
    /// No tool can answer it in the form that the vendor wants, or nothing is known of it.
    Unsupported,
}

/// How a call came, as far as its answer must go back the same way. Texts are the vendor's own.
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
    /// The id is JSON: a string or a number. `is_modern` of the protocol without sessions.
    Request {
        id: String,
        is_modern: bool,
    },
}

impl Turn {
    /// Reads an assistant turn as it came from the vendor. Without `form` it is recognised by its shape, and refused
    /// where it could be of several forms or of none; with it, where it is plainly of another.
    ///
    /// # Errors
    /// With a JSON pointer, where the turn is not of that form, is over a [limit](crate::turns::limit), repeats a
    /// member or an id, or holds several alternatives. What is wrong with the arguments of one call is said of that
    /// call alone.
    pub fn parse(turn: &[u8], form: Option<Form>) -> Result<Self, Error> {
        if turn.len() > TURN_BYTES_MAX {
            return Err(Error::new("", Problem::TooLarge { bytes: turn.len(), max: TURN_BYTES_MAX }));
        }
        let text = std::str::from_utf8(turn).map_err(|error| Error::new("", Problem::NotJson(error.to_string())))?;
        let root = Node::parse(text, "")?;
        let form = match form {
            Some(form) => form.confirmed(&root)?,
            None => Form::recognised(&root)?,
        };
        let mut draft = Draft::default();
        match form {
            Form::Chat => chat::read(&root, &mut draft)?,
            Form::Responses => responses::read(&root, &mut draft)?,
            Form::Anthropic => anthropic::read(&root, &mut draft)?,
            Form::Gemini => gemini::read(&root, &mut draft)?,
            Form::Mcp => mcp::read(&root, &mut draft)?,
        }
        Ok(Self { form, calls: draft.named(), passed_over: draft.passed_over })
    }

    /// The messages that answer the turn, in the order of its calls, to be given to the vendor after the turn. Calls
    /// for which `answer` has nothing are left open: no message speaks of them.
    ///
    /// Each message is one line. Each answered call gets a message of its own (Chat, Responses, MCP), or all of them
    /// share one (Anthropic, Gemini). What the form cannot carry is degraded as the [crate](crate) says.
    pub fn answers<'a>(&self, mut answer: impl FnMut(&Call) -> Option<Answer<'a>>) -> Vec<Box<RawValue>> {
        let answered: Vec<String> = self.calls.iter().filter_map(|call| Some(call.answered(&answer(call)?))).collect();
        let messages = match self.form {
            Form::Chat | Form::Responses | Form::Mcp => answered,
            Form::Anthropic => anthropic::message(&answered),
            Form::Gemini => gemini::message(&answered),
        };
        let raw = |message: String| {
            // What is given back as it came may have line breaks between its parts, which would end an event that
            // carries the message. Within its strings JSON has none.
            let is_one_line = !message.contains(['\n', '\r']);
            let message = if is_one_line { message } else { message.replace(['\n', '\r'], " ") };
            RawValue::from_string(message).expect("it was put together of JSON")
        };
        messages.into_iter().map(raw).collect()
    }
}

impl Call {
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
    /// Of a text that the model wrote as the arguments. An empty one means none: some models say that so.
    pub(crate) fn of_text(text: String, pointer: &str) -> Self {
        if text.trim().is_empty() {
            return Self::none();
        }
        match Node::parse(&text, pointer) {
            Ok(node) => Self::Json(node.text.to_owned()),
            Err(why) => Self::Unreadable { text, why },
        }
    }

    /// Of a member that holds the arguments as an object, or has none.
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

    /// The same, of a call that the model did not finish: half of an instruction must not be carried out.
    pub(crate) fn unfinished(self, pointer: &str, how: &str) -> Self {
        let why = Error::new(pointer, Problem::Incomplete(quote(how)));
        match self {
            Self::Json(text) | Self::Unreadable { text, .. } => Self::Unreadable { text, why },
        }
    }
}

/// A turn while it is read.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    calls: Vec<Call>,
    /// Which call has an id, by the id.
    taken: HashMap<String, String>,
    pub(crate) passed_over: Vec<SkippedItem>,
}

impl Draft {
    /// A call whose id is `id`, or is still to be made. What two ids need to be the same is their `key`.
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

    /// The calls, each with an id that no other has.
    fn named(&mut self) -> Vec<Call> {
        let mut calls = std::mem::take(&mut self.calls);
        let mut taken = HashSet::new();
        for call in &mut calls {
            // Of two that look alike, as MCP's 7 and "7", the second gets another.
            if !call.id.is_empty() && !taken.insert(call.id.clone()) {
                call.id.clear();
            }
        }
        for (index, call) in calls.iter_mut().enumerate().filter(|(_, call)| call.id.is_empty()) {
            let made = std::iter::once(format!("call_{index}")).chain((1..).map(|n| format!("call_{index}_{n}")));
            call.id = made.into_iter().find(|id| !taken.contains(id)).expect("one of endlessly many is free");
            taken.insert(call.id.clone());
        }
        calls
    }
}
