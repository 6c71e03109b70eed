//! A batch whose calls are added to an open run: the run is shared by several requests, and each is answered for its
//! own calls.

use formats::options::Options;
use formats::turns::Turn;
use proto::names::CALLED_AS;
use proto::v1;
use proto::v1::run_event::Event;
use run::{CallId, Run, RunId};
use uuid::Builder;

use crate::api::{Api, ApiError};
use crate::readers::Reader;

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
        let message = "the run is there already: of the options only request_tools, files, approve and context can be \
            given to the calls that are added; the call ids make a repeated request safe";
        return Err(ApiError::malformed("", message.to_owned()));
    }
    let run_id: RunId = options
        .run_id
        .parse()
        .map_err(|error: run::InvalidId| ApiError::malformed("run_id", format!("run: {error}")))?;
    let run = api.runs.known(run_id).await?.run;
    let v1::CreateRunRequest { request_tools, files, approve, context, .. } = options.run.clone();
    let new = calls.into_iter().filter(|call| !has(api, &run, call));
    let new: Vec<v1::NewCall> = new.map(|call| v1::NewCall { context: context.clone(), ..call }).collect();
    if !new.is_empty() {
        let run_id = options.run_id.clone();
        let request = v1::AppendCallsRequest { run_id, calls: new, request_tools, files, approve };
        Box::pin(api.append_calls(request)).await?;
    }
    let watched =
        v1::WatchRunRequest { run_id: options.run_id.clone(), after_sequence: None, floor_policy: floor_policy.into() };
    api.watch_run(watched).await
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
    &*spec.arguments == arguments.as_bytes() && is_same_tool()
}

/// Whether an event is about one of the calls.
pub(super) fn is_of(event: &v1::RunEvent, calls: &[CallId]) -> bool {
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
    calls.iter().any(|id| id.as_str() == call)
}
