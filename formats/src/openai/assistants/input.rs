//! Requests of the API: the calls of a new run, and outputs for a run that requires action.

use crate::turns::{Arguments, Form, Problem, Turn, conversation_of};
use proto::{Reason, v1};
use serde_json::Value;

use crate::openai::InputError;
use crate::openai::body::Body;
use crate::openai::calls::ITEM;
use crate::openai::refused::{check_distinct, check_named};
use crate::openai::resources;
use crate::openai::responses::metadata;
use crate::openai::tools::{Hosted, Tools};

/// A request for a new run.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    pub run: v1::CreateRunRequest,
    /// The open run to which the calls are added; empty for a run of their own.
    pub run_id: String,
    pub is_streamed: bool,
    /// Cancel the calls if the client disconnects.
    pub cancels_on_disconnect: bool,
}

impl Asked {
    /// Reads the body that creates a run. The API has no field for given calls, so they are in the additional field
    /// `tool_calls`, as in a message of Chat Completions. Fields that concern a model are ignored; messages are
    /// the conversation.
    ///
    /// # Errors
    /// An error with a JSON pointer if the body is invalid.
    pub fn read(text: &[u8], hosted: Hosted<'_>) -> Result<Self, InputError> {
        let body = Body::read(text)?;
        let given = body.get("tool_calls").ok_or_else(|| {
            let message = "the calls to execute are missing, and there is no model to request them: send them like the \
                           `tool_calls` of a Chat Completions message";
            InputError::new(Reason::NoCalls, "/tool_calls", message)
        })?;
        let place = |error: crate::turns::Error| {
            let refused = InputError::from(error);
            InputError { pointer: format!("/tool_calls{}", refused.pointer), ..refused }
        };
        let turn = Turn::parse(given.get().as_bytes(), Some(Form::Chat)).map_err(place)?;
        if turn.calls.is_empty() {
            return Err(InputError::new(Reason::NoCalls, "/tool_calls", "there is no call that can be executed"));
        }
        let options = body.options()?;
        check_named(&turn, &options, "/tool_calls")?;
        let tools = Tools::read(Some(&body.value("tools")?), hosted)?.with(&options.run.request_tools);
        let metadata = metadata(&body.value("metadata")?)?;
        let is_serial = body.flag("parallel_tool_calls")? == Some(false);
        let mut calls = Vec::with_capacity(turn.calls.len());
        for call in &turn.calls {
            let arguments = match &call.arguments {
                Arguments::Json(json) => json,
                Arguments::Unreadable { why, .. } if matches!(why.problem, Problem::Incomplete(_)) => {
                    return Err(place(why.clone()));
                }
                Arguments::Unreadable { text, .. } => text,
            };
            let tool = hosted(&call.name).unwrap_or_else(|| call.name.clone());
            let mut new = v1::NewCall {
                call_id: call.id.clone(),
                arguments: arguments.clone(),
                metadata: metadata.clone().into_iter().collect(),
                approval: tools.approval(&tool),
                tool,
                ..v1::NewCall::default()
            };
            let takes_text = tools
                .own(&new.tool)
                .is_some_and(|own| !matches!(own.format, Some(v1::request_tool::Format::InputSchema(_))));
            if takes_text {
                new.metadata.insert(ITEM.to_owned(), "custom_tool_call".to_owned());
                let input = serde_json::from_str::<Value>(&new.arguments).unwrap_or_default();
                new.arguments = input["input"].as_str().map_or(new.arguments, str::to_owned);
            }
            calls.push(new);
        }
        let rules = tools.rules(is_serial, 0);
        let request_tools = tools.own.into_iter().filter(|tool| !options.run.request_tools.contains(tool)).collect();
        let tools = tools.attached;
        let files = resources::files(&body.value("tool_resources")?)?;
        let conversation = conversation(&body)?;
        let run = v1::CreateRunRequest {
            calls,
            rules,
            request_tools,
            tools,
            files,
            conversation,
            ..v1::CreateRunRequest::default()
        };
        let (cancels_on_disconnect, run_id) = (options.cancels_on_disconnect, options.run_id.clone());
        let run = options.give_to(run)?;
        Ok(Self { run, run_id, is_streamed: body.flag("stream")?.unwrap_or_default(), cancels_on_disconnect })
    }
}

/// The messages that the request gives to its thread. Nothing is stored for a thread, so there are no others.
fn conversation(body: &Body<'_>) -> Result<Vec<v1::ConversationMessage>, InputError> {
    let mut all = Vec::new();
    let mut thread = body.value("thread")?;
    let of_thread = thread.get_mut("messages").map(serde_json::Value::take).unwrap_or_default();
    for (at, messages) in
        [("/thread/messages", of_thread), ("/additional_messages", body.value("additional_messages")?)]
    {
        if messages.is_null() {
            continue;
        }
        let place = |error: crate::turns::Error| {
            let refused = InputError::from(error);
            InputError { pointer: format!("{at}{}", refused.pointer), ..refused }
        };
        all.extend(conversation_of(&messages.to_string(), Form::Chat).map_err(place)?);
    }
    Ok(all)
}

/// Reads the body that submits outputs, and whether the rest of the run is to be streamed. All waiting calls must be
/// answered in one request.
///
/// # Errors
/// An error with a JSON pointer if the body is invalid.
pub fn tool_outputs(text: &[u8], run_id: &str) -> Result<(v1::SubmitToolOutputsRequest, bool), InputError> {
    let body = Body::read(text)?;
    let Value::Array(given) = body.value("tool_outputs")? else {
        return Err(InputError::invalid("/tool_outputs", "expected a list with one output for each waiting call"));
    };
    let mut outputs = Vec::with_capacity(given.len());
    for (nth, output) in given.iter().enumerate() {
        let at = format!("/tool_outputs/{nth}");
        let call_id = output["tool_call_id"]
            .as_str()
            .ok_or_else(|| InputError::invalid(format!("{at}/tool_call_id"), "the id of a call is missing"))?
            .to_owned();
        let text = match &output["output"] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            _ => return Err(InputError::invalid(format!("{at}/output"), "a text was expected")),
        };
        let result = vec![v1::Content::from(v1::content::Body::Text(text))];
        outputs.push((at, v1::ToolOutput { call_id, result, error: String::new() }));
    }
    check_distinct(&outputs)?;
    let outputs = outputs.into_iter().map(|(_, output)| output).collect();
    let submit = v1::SubmitToolOutputsRequest { run_id: run_id.to_owned(), outputs, all_required: true };
    Ok((submit, body.flag("stream")?.unwrap_or_default()))
}
