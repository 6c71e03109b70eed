//! A batch whose calls are added to an open run: the run is shared by several requests, and each is answered for its
//! own calls.

use formats::options::Options;
use formats::turns::Turn;
use proto::names::CALLED_AS;
use proto::v1::run_event::Event;
use proto::{Reason, v1};
use run::{CallId, Run, RunId};
use uuid::Builder;

use crate::admission::accept::{GIVEN_ARGUMENTS, digest};
use crate::admission::error::RequestError;
use crate::api::read::ALL_CALLS;
use crate::api::{Api, ApiError};
use crate::auth::callers::Role;
use crate::readers::Reader;
use crate::runs::approved::{self, Approved};

/// Gives ids to calls that have none of their own, because generated ones would meet those of other requests.
pub(super) fn give_ids(turn: &mut Turn) {
    for call in turn.calls.iter_mut().filter(|call| !call.has_own_id()) {
        call.id = format!("call_{}", Builder::from_random_bytes(rand::random()).into_uuid().simple());
    }
}

pub(super) fn ids(calls: &[v1::NewCall]) -> Vec<CallId> {
    calls.iter().filter_map(|call| call.call_id.parse().ok()).collect()
}

/// Adds the calls to the run, but for those that an earlier request with the same calls has added. Returns the run's
/// output.
pub(super) async fn add(
    api: &Api,
    options: &Options,
    calls: Vec<v1::NewCall>,
    floor_policy: v1::FloorPolicy,
) -> Result<Box<Reader>, ApiError> {
    if options.of_new_run() {
        let message = "the run is there already: of the options only calls, request_tools, files, approve and context \
            can be given to the calls that are added; the call ids make a repeated request safe";
        return Err(ApiError::malformed("", message.to_owned()));
    }
    let run_id: RunId = options
        .run_id
        .parse()
        .map_err(|error: run::InvalidId| ApiError::malformed("run_id", format!("run: {error}")))?;
    // The answer is the output of the run, so nothing is added for a caller who may not read it.
    api.runs.caller.must(Role::Read).map_err(RequestError::from)?;
    let run = api.runs.known(run_id).await?.run;
    if let Err(error) = add_new(api, &run, options, &calls).await {
        if error.reason != Reason::DuplicateCallId {
            return Err(error);
        }
        // The same request may have been repeated meanwhile.
        let run = api.runs.known(run_id).await?.run;
        add_new(api, &run, options, &calls).await?;
    }
    let (run_id, floor_policy) = (options.run_id.clone(), floor_policy.into());
    let watched = v1::WatchRunRequest { run_id, floor_policy, ..v1::WatchRunRequest::default() };
    api.watch_run(watched).await
}

/// Adds the calls that the run does not have, and approves those of the others that still await it.
async fn add_new(api: &Api, run: &Run, options: &Options, calls: &[v1::NewCall]) -> Result<(), ApiError> {
    let v1::CreateRunRequest { request_tools, files, mut approve, context, .. } = options.run.clone();
    let (there, new): (Vec<_>, Vec<_>) = calls.iter().cloned().partition(|call| has(api, run, call));
    let is_approved = |call: &CallId| approve.iter().any(|id| id == ALL_CALLS || id == call.as_str());
    let mut there_approved = ids(&there);
    there_approved.retain(is_approved);
    if !new.is_empty() {
        // Only calls that are added can be approved with the request.
        approve.retain(|id| !there.iter().any(|call| call.call_id == *id));
        let with_context = |call: v1::NewCall| match call.context.is_empty() {
            true => v1::NewCall { context: context.clone(), ..call },
            false => call,
        };
        let calls = new.into_iter().map(with_context).collect();
        let run_id = run.id().to_string();
        Box::pin(api.append_calls(v1::AppendCallsRequest { run_id, calls, request_tools, files, approve })).await?;
    }
    let waiting = approved::waiting(run).filter(|call| there_approved.contains(call));
    Ok(api.runs.approve(run.id(), waiting, &Approved::All).await.map(drop)?)
}

/// The run has this very call: another with its id is refused as a duplicate.
fn has(api: &Api, run: &Run, call: &v1::NewCall) -> bool {
    let Some(known) = call.call_id.parse().ok().and_then(|id: CallId| run.find(&id)) else { return false };
    let spec = known.spec();
    let is_same_tool = || {
        let own = api.runs.own_name(&call.tool);
        own.is_some_and(|own| own == spec.tool || spec.metadata.get(CALLED_AS).is_some_and(|name| name == own.as_str()))
    };
    let arguments = if call.arguments.is_empty() { "{}" } else { &call.arguments };
    let were_given = || spec.metadata.get(GIVEN_ARGUMENTS).is_some_and(|given| *given == digest(arguments.as_bytes()));
    (&*spec.arguments == arguments.as_bytes() || were_given()) && is_same_tool()
}

/// Whether an event is about one of the calls.
pub(super) fn is_of(event: &v1::RunEvent, is_ours: impl Fn(&str) -> bool) -> bool {
    let call = match &event.event {
        Some(Event::CallWaiting(it)) => &it.call_id,
        Some(Event::AttemptStarted(it)) => &it.call_id,
        Some(Event::AttemptEnded(it)) => &it.call_id,
        Some(Event::CancelRequested(it)) => &it.call_id,
        Some(Event::CallSpeaking(it)) => &it.call_id,
        Some(Event::CallOutput(it)) => &it.call_id,
        Some(Event::CallOutputWithdrawn(it)) => &it.call_id,
        Some(Event::CallEnded(it)) => &it.call_id,
        Some(Event::CancelDelivered(it)) => &it.call_id,
        Some(Event::CancelAcknowledged(it)) => &it.call_id,
        Some(Event::CallAwaitingApproval(it)) => &it.call_id,
        Some(Event::CallApproved(it)) => &it.call_id,
        Some(Event::CallRejected(it)) => &it.call_id,
        Some(
            Event::RunOpened(_)
            | Event::CallsAppended(_)
            | Event::RunClosed(_)
            | Event::RunStatusChanged(_)
            | Event::RunEnded(_),
        )
        | None => return false,
    };
    is_ours(call)
}
