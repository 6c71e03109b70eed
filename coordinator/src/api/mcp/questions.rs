//! The open calls of a run that its MCP client can answer: client calls, questions of running tools, and calls that
//! await approval. The answers are stored by the same commands as those of the other APIs, in the caller's name.

use formats::mcp::ask::{Question, Reply};
use proto::v1;
use run::{Call, CallId, CallState, Run, RunId};
use serde_json::{Map, Value, json};

use super::client::Client;
use super::message::RpcError;
use crate::admission::error::RequestError;
use crate::api::{Api, ApiError};
use crate::auth::callers::Role;
use crate::offload;

/// An open call, and the question that its client is asked.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) call: CallId,
    /// The key of the question in `inputRequests`.
    pub(super) key: String,
    question: Question,
}

impl Open {
    /// The request to the client, with its method.
    pub(super) fn request(&self) -> Value {
        json!({ "method": "elicitation/create", "params": self.question.params() })
    }

    pub(super) fn params(&self) -> Value {
        self.question.params()
    }

    /// Whether a running tool asks it.
    pub(super) fn is_of_tool(&self) -> bool {
        self.question.is_of_tool()
    }
}

/// The open calls of a run that this client can be asked about, in order.
pub(super) fn open(api: &Api, client: &Client, run: &Run) -> Vec<Open> {
    if !client.capabilities.elicitation {
        return Vec::new();
    }
    let caller = &api.runs.caller;
    let (answers, approves) = (caller.must(Role::Answer).is_ok(), caller.must(Role::Approve).is_ok());
    let asked = run.calls().iter().filter_map(|call| match call.state() {
        CallState::WaitingForClient if answers => Some(of_client_call(api, run, call)),
        CallState::AwaitingApproval if approves => Some(of_approval(api, run, call)),
        CallState::WaitingForClient
        | CallState::AwaitingApproval
        | CallState::Delayed
        | CallState::Accepted
        | CallState::Queued { .. }
        | CallState::Running(_)
        | CallState::Ended(_) => None,
    });
    asked.filter(|open| client.capabilities.pages || !open.question.is_page()).collect()
}

fn of_client_call(api: &Api, run: &Run, call: &Call) -> Open {
    let spec = call.spec();
    let arguments = String::from_utf8_lossy(&spec.arguments);
    let id = spec.id.clone();
    if call.is_question() {
        let key = name(run, call).unwrap_or_else(|| id.to_string());
        return Open { key, call: id, question: Question::of_tool(&arguments) };
    }
    let (description, output_schema) = manifest(api, run, call);
    let question = Question::of_client_call((spec.tool.as_str(), &description), &arguments, &output_schema);
    Open { key: id.to_string(), call: id, question }
}

/// The name of a question, unless an earlier one of the run has it: keys are unique for the life of a task.
fn name(run: &Run, call: &Call) -> Option<String> {
    let named = |call: &Call| {
        let arguments = String::from_utf8_lossy(&call.spec().arguments);
        if call.is_question() { Question::name(&arguments) } else { None }
    };
    let name = named(call)?;
    let mut earlier = run.calls().iter().take_while(|other| other.index() != call.index());
    (!earlier.any(|other| named(other).as_ref() == Some(&name))).then_some(name)
}

fn of_approval(api: &Api, run: &Run, call: &Call) -> Open {
    let spec = call.spec();
    let arguments = String::from_utf8_lossy(&spec.arguments);
    let question = Question::of_approval((spec.tool.as_str(), &manifest(api, run, call).0), &arguments);
    Open { key: spec.id.to_string(), call: spec.id.clone(), question }
}

/// The description and the output schema of a call's tool, as far as it is known.
fn manifest(api: &Api, run: &Run, call: &Call) -> (String, String) {
    let registry = api.runs.registry.borrow();
    let found = registry.catalog_of(run.tenant()).find(&call.spec().tool);
    found.map_or_else(Default::default, |entry| {
        let manifest = &entry.hosted.manifest;
        (manifest.description.clone(), manifest.output_schema.clone())
    })
}

/// Stores the replies to open calls by their keys. Keys of no open call are passed over: it may have been answered by
/// another client. Returns whether anything was stored.
pub(super) async fn answer(
    api: &Api,
    run: RunId,
    open: &[Open],
    replies: &mut Map<String, Value>,
) -> Result<bool, RpcError> {
    let (mut outputs, mut decisions) = (Vec::new(), Vec::new());
    for (call, reply) in read(open, replies).await? {
        let call_id = call.to_string();
        let decide = |decision| v1::CallDecision { call_id: call.to_string(), decision: Some(decision) };
        match reply {
            Reply::Answer(content) => {
                outputs.push(v1::ToolOutput { call_id, result: vec![content], error: String::new() });
            }
            Reply::Declined(error) => outputs.push(v1::ToolOutput { call_id, result: Vec::new(), error }),
            Reply::Approved => {
                decisions.push(decide(v1::call_decision::Decision::Approve(v1::CallApproval { arguments: None })));
            }
            Reply::Rejected(reason) => {
                decisions.push(decide(v1::call_decision::Decision::Reject(v1::CallRejection { reason })));
            }
        }
    }
    let is_any = !outputs.is_empty() || !decisions.is_empty();
    // One by one, so that a call that was answered elsewhere does not keep the others open.
    for output in outputs {
        let request =
            v1::SubmitToolOutputsRequest { run_id: run.to_string(), outputs: vec![output], all_required: false };
        unless_settled(Box::pin(api.submit_tool_outputs(request)).await.map(|_| ()))?;
    }
    for decision in decisions {
        let request = v1::DecideCallsRequest { run_id: run.to_string(), decisions: vec![decision] };
        unless_settled(Box::pin(api.decide_calls(request)).await.map(|_| ()))?;
    }
    Ok(is_any)
}

/// Takes the replies to open calls, and reads them.
async fn read<'a>(
    open: &'a [Open],
    replies: &mut Map<String, Value>,
) -> Result<Vec<(&'a CallId, Reply)>, RequestError> {
    let given: Vec<_> = open.iter().filter_map(|open| Some((open, replies.remove(&open.key)?))).collect();
    let is_quick = given.is_empty();
    // Each reply compiles a schema.
    let read = || {
        let read = given.into_iter().map(|(Open { call, question, .. }, given)| {
            let invalid = |violations| RequestError::AnswerInvalid { call: call.clone(), violations };
            Ok((call, question.reply(given).map_err(invalid)?))
        });
        read.collect()
    };
    offload::run_unless(is_quick, read).await
}

/// A call that was answered, decided or ended in the meantime needs no reply any more.
fn unless_settled(stored: Result<(), ApiError>) -> Result<(), RpcError> {
    use proto::Reason::{CallAlreadyAnswered, CallAlreadyDecided, CallNotAwaitingApproval, CallNotWaiting, RunEnded};
    match stored {
        Err(error)
            if [CallAlreadyAnswered, CallAlreadyDecided, CallNotAwaitingApproval, CallNotWaiting, RunEnded]
                .contains(&error.reason) =>
        {
            Ok(())
        }
        other => Ok(other?),
    }
}
