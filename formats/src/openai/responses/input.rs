//! Requests of the API: the calls of a new response, or [answers](super::answers) to the open calls of an earlier one.

use std::collections::BTreeMap;

use crate::turns::{Arguments, Form, Problem, Turn, conversation_of};
use proto::{Reason, v1};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::answers::{Continued, answers};
use crate::openai::InputError;
use crate::openai::body::{Body, readable};
use crate::openai::calls::{ITEM, OURS};
use crate::openai::refused::{check_distinct, check_named};
use crate::openai::tools::{Hosted, Tools};
use crate::options::Options;

/// The most pairs of metadata, and the most bytes of a name and of a value, as the API defines them.
const METADATA_MAX: usize = 16;
const METADATA_NAME_BYTES_MAX: usize = 64;
const METADATA_VALUE_BYTES_MAX: usize = 512;

/// A request for a response.
#[expect(clippy::large_enum_variant, reason = "there is one for each request, and it is taken apart at once")]
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// Calls to execute.
    Opened(Opened),
    /// Answers to the open calls of an earlier response.
    Continued(Continued),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    pub run: v1::CreateRunRequest,
    /// The open run to which the calls are added; empty for a run of their own.
    pub run_id: String,
    pub is_streamed: bool,
    /// Return immediately instead of when the response is complete.
    pub is_background: bool,
    /// Cancel the calls if the client disconnects.
    pub cancels_on_disconnect: bool,
}

impl Asked {
    /// Reads the body of `POST /responses`.
    ///
    /// # Errors
    /// An error with a JSON pointer if the body is invalid or uses a feature that is not supported.
    pub fn read(body: &[u8], hosted: Hosted<'_>) -> Result<Self, InputError> {
        let body = Body::read(body)?;
        check_honoured(&body)?;
        let flag = |name: &str| Ok::<_, InputError>(body.flag(name)?.unwrap_or_default());
        let (is_streamed, is_background, store) = (flag("stream")?, flag("background")?, body.flag("store")?);
        let input = body
            .get("input")
            .ok_or_else(|| InputError::invalid("/input", "it is missing: give the calls to execute"))?;
        let options = body.options()?;
        let (cancels_on_disconnect, run_id) = (options.cancels_on_disconnect, options.run_id.clone());
        match body.value("previous_response_id")? {
            Value::Null => {
                let run = v1::CreateRunRequest { store, ..opened(&body, input, (hosted, &options))? };
                let run = options.give_to(run)?;
                Ok(Self::Opened(Opened { run, run_id, is_streamed, is_background, cancels_on_disconnect }))
            }
            Value::String(_) if options.run != v1::CreateRunRequest::default() || !run_id.is_empty() => {
                let message = "they are those of the run, which the first response began: leave them out";
                Err(InputError::unsupported("/toolyard", message))
            }
            Value::String(previous) => {
                let previous = previous
                    .parse()
                    .map_err(|error: InputError| InputError { pointer: "/previous_response_id".into(), ..error })?;
                let (outputs, approvals) = answers(input)?;
                check_distinct(&outputs)?;
                Ok(Self::Continued(Continued {
                    previous,
                    is_streamed,
                    is_background,
                    cancels_on_disconnect,
                    store,
                    outputs,
                    approvals,
                }))
            }
            _ => Err(InputError::invalid("/previous_response_id", "the id of a response was expected")),
        }
    }
}

/// Fields that concern a model (its name, instructions, sampling, …) are ignored because there is none. Fields that
/// request something which would not be done are rejected.
fn check_honoured(body: &Body<'_>) -> Result<(), InputError> {
    for (name, instead) in [
        ("conversation", "to continue a response, send `previous_response_id`"),
        ("prompt", "there is no model here: send the calls to execute as `input`"),
        ("context_management", "no context is stored"),
    ] {
        if !body.value(name)?.is_null() {
            return Err(InputError::unsupported(format!("/{name}"), format!("it is not supported: {instead}")));
        }
    }
    Ok(())
}

fn opened(
    body: &Body<'_>,
    input: &RawValue,
    (hosted, options): (Hosted<'_>, &Options),
) -> Result<v1::CreateRunRequest, InputError> {
    let items: Vec<Value> = match readable(input, "/input")? {
        Value::Array(items) => items,
        Value::String(_) => {
            let message = "there is no model to read a text: send the calls to execute, as items";
            return Err(InputError::unsupported("/input", message));
        }
        _ => return Err(InputError::invalid("/input", "a list of items was expected")),
    };
    if let Some(nth) = items.iter().position(|item| item["type"] == "mcp_approval_response") {
        let message = "an approval needs the `previous_response_id` of the response that requested it";
        return Err(InputError::invalid(format!("/input/{nth}"), message));
    }
    let place = |error: crate::turns::Error| {
        let refused = InputError::from(error);
        InputError { pointer: format!("/input{}", refused.pointer), ..refused }
    };
    let turn = Turn::parse(input.get().as_bytes(), Some(Form::Responses)).map_err(place)?;
    check_named(&turn, options, "/input")?;
    let conversation = conversation_of(input.get(), Form::Responses).map_err(place)?;
    let tools = Tools::read(Some(&body.value("tools")?), hosted)?.with(&options.run.request_tools);
    let metadata = metadata(&body.value("metadata")?)?;
    let is_serial = body.flag("parallel_tool_calls")? == Some(false);
    if turn.calls.is_empty() {
        let message = "there is no call to execute: send items such as `function_call` or `custom_tool_call` without \
                       an output, or a `previous_response_id` with outputs";
        return Err(InputError::new(Reason::NoCalls, "/input", message));
    }
    let most = match body.value("max_tool_calls")? {
        Value::Null => 0,
        most => most
            .as_u64()
            .and_then(|most| u32::try_from(most).ok())
            .filter(|most| *most > 0)
            .ok_or_else(|| InputError::invalid("/max_tool_calls", "a number of at least 1 was expected"))?,
    };
    let mut calls = Vec::with_capacity(turn.calls.len());
    for call in &turn.calls {
        let nth = call.pointer.trim_start_matches('/').parse::<usize>().unwrap_or_default();
        let kind = items.get(nth).and_then(|item| item["type"].as_str()).unwrap_or_default();
        let arguments = match &call.arguments {
            Arguments::Json(json) => json,
            // A truncated call is not executed. Arguments that are not JSON fail at their tool's validation; the other
            // calls are executed.
            Arguments::Unreadable { why, .. } if matches!(why.problem, Problem::Incomplete(_)) => {
                return Err(place(why.clone()));
            }
            Arguments::Unreadable { text, .. } => text,
        };
        let named = match &call.namespace {
            Some(namespace) => format!("{namespace}.{}", call.name),
            None => call.name.clone(),
        };
        let mut new = v1::NewCall {
            call_id: call.id.clone(),
            tool: hosted(&named).unwrap_or(named),
            arguments: arguments.clone(),
            metadata: metadata.clone().into_iter().collect(),
            ..v1::NewCall::default()
        };
        if let Some(own) = tools.own(&new.tool) {
            if kind != "function_call" {
                new.metadata.insert(ITEM.to_owned(), kind.to_owned());
            }
            let takes_object = matches!(own.format, Some(v1::request_tool::Format::InputSchema(_)));
            if kind == "custom_tool_call" && !takes_object {
                new.arguments = items.get(nth).and_then(|item| item["input"].as_str()).unwrap_or_default().to_owned();
            }
        } else if matches!(kind, "shell_call" | "local_shell_call")
            && hosted(&new.tool).is_none()
            && let Some(bash) = hosted("bash")
        {
            (new.tool, new.arguments) = (bash, script(items.get(nth).map_or(&Value::Null, |item| &item["action"])));
            new.metadata.insert(ITEM.to_owned(), kind.to_owned());
        }
        new.approval = tools.approval(&new.tool);
        calls.push(new);
    }
    let rules = tools.rules(is_serial, most);
    let request_tools = tools.own.into_iter().filter(|tool| !options.run.request_tools.contains(tool)).collect();
    let tools = tools.attached;
    Ok(v1::CreateRunRequest { calls, rules, request_tools, tools, conversation, ..Default::default() })
}

/// The action of a vendor's shell call as a script for a worker's `bash`.
fn script(action: &Value) -> String {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let quoted = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
    let command = match action["commands"].is_array() {
        true => texts(&action["commands"]).join("\n"),
        false => texts(&action["command"]).iter().map(quoted).collect::<Vec<_>>().join(" "),
    };
    let mut arguments = json!({ "command": command });
    if let Some(timeout_ms) = action["timeout_ms"].as_u64() {
        arguments["timeout_s"] = timeout_ms.div_ceil(1000).clamp(1, 600).into();
    }
    if let Some(folder) = action["working_directory"].as_str() {
        arguments["working_directory"] = folder.into();
    }
    arguments.to_string()
}

/// Metadata that is attached to each call and passed to its tool.
pub(crate) fn metadata(value: &Value) -> Result<BTreeMap<String, String>, InputError> {
    let members = match value {
        Value::Null => return Ok(BTreeMap::new()),
        Value::Object(members) => members,
        _ => return Err(InputError::invalid("/metadata", "an object of texts was expected")),
    };
    if members.len() > METADATA_MAX {
        let message = format!("{} pairs exceed the limit of {METADATA_MAX}: send fewer", members.len());
        return Err(InputError::invalid("/metadata", message));
    }
    let mut metadata = BTreeMap::new();
    for (name, value) in members {
        let at = || format!("/metadata/{}", name.replace('~', "~0").replace('/', "~1"));
        let Some(text) = value.as_str() else { return Err(InputError::invalid(at(), "a text was expected")) };
        if name.len() > METADATA_NAME_BYTES_MAX || text.len() > METADATA_VALUE_BYTES_MAX {
            let message = format!(
                "limits: a name {METADATA_NAME_BYTES_MAX} bytes, a value {METADATA_VALUE_BYTES_MAX}: make it shorter"
            );
            return Err(InputError::invalid(at(), message));
        }
        if name.starts_with(OURS) {
            return Err(InputError::invalid(
                at(),
                format!("names that begin with {OURS:?} are reserved: use another one"),
            ));
        }
        metadata.insert(name.clone(), text.to_owned());
    }
    Ok(metadata)
}
