//! Converts requests to domain types, for gRPC and HTTP alike. Ids and limits are checked here, and errors name their
//! field.

use std::time::Duration;

use proto::conversation::TOOL_CALL_CONVERSATION;
use proto::convert::fields::fields_in;
use proto::convert::{self, api, parent_in};
use proto::history::TOOL_CALL_HISTORY;
use proto::v1;
use run::{
    Answer, CallError, CallId, CommandError, Content, Decision, ErrorKind, Fields, ParentCall, RequestId, Rules, RunId,
    TenantId, Timestamp, ToolName, limit,
};
use schema::pattern::Budget;

use crate::admission::accept::{AskedApproval, RequestedCall};
use crate::admission::custom::{self, Custom, CustomTools};
use crate::admission::error::RequestError;
use crate::runs::NewRun;
use crate::runs::approved::Approved;
use crate::runs::objects::AskedFile;

/// In the place of a tool's name: every tool.
const ALL_TOOLS: &str = "_all";
/// In the place of a call's id: every call.
pub(super) const ALL_CALLS: &str = "_all";

pub(super) fn malformed<E: std::fmt::Display>(field: impl Into<String>) -> impl FnOnce(E) -> RequestError {
    let field = field.into();
    move |error| RequestError::Malformed { field, reason: error.to_string() }
}

pub(super) fn run_id(text: &str) -> Result<RunId, RequestError> {
    text.parse().map_err(malformed("run_id"))
}

pub(super) fn call_id(text: &str) -> Result<CallId, RequestError> {
    text.parse().map_err(malformed("call_id"))
}

pub(super) fn reason(text: &str) -> Result<&str, RequestError> {
    match text.len() {
        size if size > limit::REASON_BYTES_MAX => {
            Err(malformed("reason")(format!("is {size} bytes; the limit is {} bytes", limit::REASON_BYTES_MAX)))
        }
        _ => Ok(text),
    }
}

pub(super) fn timeout<F: Into<String>>(
    field: impl FnOnce() -> F,
    wire: Option<prost_types::Duration>,
) -> Result<Option<Duration>, RequestError> {
    let Some(wire) = wire else { return Ok(None) };
    match proto::convert::time_in(wire) {
        Some(timeout) if !timeout.is_zero() => Ok(Some(timeout)),
        Some(_) | None => {
            Err(malformed(field())("must be longer than zero, and a duration as `google.protobuf.Duration` has it"))
        }
    }
}

/// A time that may have passed.
fn time(
    field: impl FnOnce() -> String,
    wire: Option<prost_types::Timestamp>,
) -> Result<Option<Timestamp>, RequestError> {
    let Some(wire) = wire else { return Ok(None) };
    match api::time_in(wire) {
        Some(time) => Ok(Some(time)),
        None => Err(malformed(field())("is not a time between the years 1970 and 9999")),
    }
}

/// The tenant and the id of a request, which are needed before the rest is converted.
pub(super) fn whose(tenant: &str, id: &str) -> Result<(Option<TenantId>, Option<RequestId>), RequestError> {
    let tenant = match tenant {
        "" => None,
        tenant => Some(tenant.parse().map_err(malformed("tenant"))?),
    };
    let id = match id {
        "" => None,
        id => Some(id.parse().map_err(malformed("request_id"))?),
    };
    Ok((tenant, id))
}

/// A new run, whose own tools were compiled before.
pub(super) fn new_run(request: v1::CreateRunRequest, custom: CustomTools) -> Result<NewRun, RequestError> {
    let v1::CreateRunRequest { calls, keep_open, timeout: run_timeout, fail_fast, execute, .. } = request;
    let (tenant, request_id) = whose(&request.tenant, &request.request_id)?;
    let timeout = timeout(|| "timeout", run_timeout)?;
    let client_only = execute == Some(false);
    let (tools, rules) = (attached(&request.tools)?, rules(request.rules)?);
    let (mut calls, context) = (asked(calls)?, context(|| "context", None, &request.context)?);
    super::conversation::give(request.conversation, &mut calls, true)?;
    let (files, store) = (files(request.files)?, request.store.unwrap_or(true));
    let approved = approved(&request.approve, &calls)?;
    let parent = request.parent.map(|named| parent(named).map(Box::new)).transpose()?;
    Ok(NewRun {
        calls,
        files,
        keep_open,
        timeout,
        fail_fast,
        client_only,
        custom,
        tenant,
        tools,
        rules,
        context,
        store,
        approved,
        request_id,
        parent,
        redrives: false,
    })
}

/// The call that makes a run, whose shard the run will have.
fn parent(wire: v1::ParentCall) -> Result<ParentCall, RequestError> {
    parent_in(wire).map_err(malformed("parent"))
}

/// The calls of a request that its caller approves, by the ids that it has.
pub(super) fn approved(approve: &[String], calls: &[RequestedCall]) -> Result<Approved, RequestError> {
    if approve.iter().any(|call| call == ALL_CALLS) {
        return Ok(Approved::All);
    }
    let named = approve.iter().enumerate().map(|(index, call)| {
        let field = || format!("approve[{index}]");
        let call: CallId = call.parse().map_err(malformed(field()))?;
        if !calls.iter().any(|other| other.id.as_ref() == Some(&call)) {
            return Err(malformed(field())(format!("no call of the request has the id {call}")));
        }
        Ok(call)
    });
    let named = named.collect::<Result<Vec<_>, _>>()?;
    Ok(if named.is_empty() { Approved::None } else { Approved::These(named) })
}

/// The same for calls that are added to a run.
pub(super) fn approved_in(approve: &[String], calls: &[RequestedCall]) -> Result<Approved, RequestError> {
    let approved = approved(approve, calls)?;
    if approved != Approved::None && calls.iter().any(|call| call.id.is_none()) {
        return Err(malformed("approve")("calls that are added can be approved only if each has an id of its own"));
    }
    Ok(approved)
}

/// The context of tools beside their arguments. Errors name only the place, because the content may be secret.
fn context<F: Into<String>>(
    field: impl FnOnce() -> F,
    call: Option<&CallId>,
    text: &str,
) -> Result<Fields, RequestError> {
    let context = match fields_in(text) {
        Ok(context) => context,
        Err(error) => return Err(malformed(field())(error)),
    };
    let (size, limit) = (context.size(), limit::CONTEXT_BYTES_MAX);
    if size > limit {
        return Err(CommandError::ContextTooLarge { call: call.cloned(), size, limit }.into());
    }
    if let Some(key) = [TOOL_CALL_HISTORY, TOOL_CALL_CONVERSATION].iter().find(|key| context.get(key).is_some()) {
        let reason = format!("has the key {key}, which is reserved for values that the service provides");
        return Err(malformed(field())(reason));
    }
    Ok(context)
}

/// The names of the tools that a run attaches.
fn attached(tools: &[String]) -> Result<Vec<ToolName>, RequestError> {
    if tools.len() > limit::RUN_TOOLS_MAX {
        let (count, max) = (tools.len(), limit::RUN_TOOLS_MAX);
        return Err(malformed("tools")(format!("names {count} tools; the limit is {max}")));
    }
    let names = tools.iter().enumerate();
    names.map(|(index, tool)| tool.parse().map_err(|error| malformed(format!("tools[{index}]"))(error))).collect()
}

fn check_names<'a>(field: &'static str, tools: impl ExactSizeIterator<Item = &'a String>) -> Result<(), RequestError> {
    let (count, max) = (tools.len(), limit::RUN_TOOLS_MAX);
    if count > max {
        return Err(malformed(field)(format!("names {count} tools; the limit is {max}")));
    }
    for tool in tools {
        let parsed: Result<ToolName, _> = tool.parse();
        parsed.map_err(malformed(field))?;
    }
    Ok(())
}

/// The rules of a run. Some name tools.
pub(super) fn rules(wire: Option<v1::RunRules>) -> Result<Rules, RequestError> {
    if let Some(v1::RunRules { calls_max_of, client_tools, .. }) = &wire {
        check_names("rules.calls_max_of", calls_max_of.keys())?;
        check_names("rules.client_tools", client_tools.iter())?;
    }
    Ok(convert::rules(wire))
}

/// The files of a request's calls. Names are checked here, so that no call has two files of one name.
pub(super) fn files(files: Vec<v1::RunFile>) -> Result<Vec<AskedFile>, RequestError> {
    if files.len() > limit::FILES_MAX {
        let (count, max) = (files.len(), limit::FILES_MAX);
        return Err(malformed("files")(format!("has {count} entries; the limit is {max}")));
    }
    let mut asked: Vec<AskedFile> = Vec::with_capacity(files.len());
    for (index, v1::RunFile { tool, name, object_id }) in files.into_iter().enumerate() {
        let field = |name: &str| format!("files[{index}].{name}");
        let tool = match tool.as_str() {
            ALL_TOOLS => None,
            tool => Some(tool.parse().map_err(malformed(field("tool")))?),
        };
        if name.is_empty() || name.len() > limit::FILE_NAME_BYTES_MAX || name.contains(char::is_control) {
            let max = limit::FILE_NAME_BYTES_MAX;
            return Err(malformed(field("name"))(format!("is not 1 to {max} bytes without control characters")));
        }
        if name == TOOL_CALL_CONVERSATION {
            return Err(malformed(field("name"))("the name is reserved for what the service provides"));
        }
        let meets = |other: &&AskedFile| other.tool.is_none() || tool.is_none() || other.tool == tool;
        if asked.iter().filter(meets).any(|other| other.name == name) {
            return Err(malformed(field("name"))("another file of the same tool has this name"));
        }
        asked.push(AskedFile { tool, name, id: object_id.parse().map_err(malformed(field("object_id")))? });
    }
    Ok(asked)
}

pub(super) fn custom_tools(tools: Vec<v1::RequestTool>) -> Result<CustomTools, RequestError> {
    if tools.len() > custom::TOOLS_MAX {
        let (count, max) = (tools.len(), custom::TOOLS_MAX);
        return Err(malformed("request_tools")(format!("has {count} entries; the limit is {max}")));
    }
    let (mut known, mut patterns) = (CustomTools::new(), Budget::default());
    for (index, v1::RequestTool { name, format }) in tools.into_iter().enumerate() {
        let field = |name: &str| format!("request_tools[{index}].{name}");
        let name: ToolName = name.parse().map_err(malformed(field("name")))?;
        let tool = Custom::of(format, &mut patterns).map_err(|(name, reason)| malformed(field(name))(reason))?;
        if known.insert(name, tool).is_some() {
            return Err(malformed(field("name"))("another tool of the request has this name"));
        }
    }
    Ok(known)
}

pub(super) fn asked(calls: Vec<v1::NewCall>) -> Result<Vec<RequestedCall>, RequestError> {
    let asked = calls.into_iter().enumerate().map(|(index, call)| {
        let field = |name: &str| format!("calls[{index}].{name}");
        let id = match call.call_id.as_str() {
            "" => None,
            id => Some(id.parse().map_err(|error| malformed(field("call_id"))(error))?),
        };
        let without_worker = api::without_worker(call.without_worker());
        let concurrency = convert::concurrency(call.concurrency());
        let priority = convert::priority(call.priority());
        let approval = match call.approval {
            Some(approval) => Some(AskedApproval {
                default: convert::approval_default(approval.default()),
                timeout: timeout(|| field("approval.timeout"), approval.timeout)?,
            }),
            None => None,
        };
        let context = context(|| field("context"), id.as_ref(), &call.context)?;
        Ok(RequestedCall {
            id,
            tool: call.tool.parse().map_err(|error| malformed(field("tool"))(error))?,
            arguments: call.arguments.into(),
            metadata: call.metadata.into_iter().collect(),
            not_before: time(|| field("not_before"), call.not_before)?,
            timeout: timeout(|| field("timeout"), call.timeout)?,
            queue_timeout: timeout(|| field("queue_timeout"), call.queue_timeout)?,
            without_worker,
            concurrency,
            approval,
            context,
            files: Vec::new(),
            is_clients: call.execute == Some(false),
            must_stream: call.stream,
            priority,
            conversation: None,
            refusal: None,
            answer: None,
            unlisted: None,
        })
    });
    asked.collect()
}

pub(super) fn decision(index: usize, wire: v1::CallDecision) -> Result<(CallId, Decision), RequestError> {
    use v1::call_decision::Decision as Wire;
    let field = |name: &str| format!("decisions[{index}].{name}");
    let call = wire.call_id.parse().map_err(malformed(field("call_id")))?;
    match wire.decision {
        Some(Wire::Approve(v1::CallApproval { arguments })) => {
            // An empty text would later read as if the call kept its own arguments.
            let arguments = arguments.map(|text| if text.is_empty() { "{}".into() } else { text.into() });
            Ok((call, Decision::Approved { arguments }))
        }
        Some(Wire::Reject(v1::CallRejection { reason: why })) => {
            reason(&why)?;
            Ok((call, Decision::Rejected { reason: why }))
        }
        None => Err(malformed(field("decision"))("neither approves nor rejects")),
    }
}

pub(super) fn answer(index: usize, output: v1::ToolOutput) -> Result<Answer, RequestError> {
    let field = |name: &str| format!("outputs[{index}].{name}");
    let call = output.call_id.parse().map_err(malformed(field("call_id")))?;
    let result = api::contents(output.result).map_err(malformed(field("result")))?;
    if result.iter().any(|part| matches!(part, Content::Object(_))) {
        return Err(malformed(field("result"))("refers to an object, but an answer must have its value inline"));
    }
    match (output.error.as_str(), result.is_empty()) {
        ("", _) => Ok(Answer { call, output: Ok(result) }),
        (error, true) => Ok(Answer { call, output: Err(CallError::new(ErrorKind::ClientFailed, error)) }),
        (_, false) => Err(malformed(field("error"))("set either a result or an error, not both")),
    }
}
