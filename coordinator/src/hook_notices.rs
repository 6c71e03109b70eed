//! Notifies hooks of ends about which no hook decides: calls that are not executed, and calls that were cancelled,
//! expired, or lost with their worker. Notifications are sent once, by the coordinator that stored or applied the
//! event, and are dropped if hooks are slow or the coordinator stops.

use std::sync::Arc;

use ::hooks::{CallStage, HookPoint, HookRequest, Hooks};
use proto::convert::error_kind_name;
use run::{
    AttemptOutcome, Call, CallError, CallSpec, Decider, Decision, Entry, ErrorKind, Event, Outcome, Route, Run, RunId,
    TenantId, expiry,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fleet::registry::Registry;

/// The most notifications that wait. Further ones are dropped.
const WAITING_MAX: usize = 1024;
/// Notifications in flight at once.
const IN_FLIGHT_MAX: usize = 16;

/// Queues notifications. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct HookNotices {
    hooks: Hooks,
    queue: mpsc::Sender<HookRequest>,
    registry: watch::Receiver<Arc<Registry>>,
}

/// The notifications that wait, for [`deliver`].
pub(crate) type Waiting = mpsc::Receiver<HookRequest>;

/// Why a call ended.
struct End<'a> {
    point: HookPoint,
    kind: &'static str,
    message: &'a str,
}

pub(crate) fn new(hooks: Hooks, registry: watch::Receiver<Arc<Registry>>) -> (HookNotices, Waiting) {
    let (queue, waiting) = mpsc::channel(WAITING_MAX);
    (HookNotices { hooks, queue, registry }, waiting)
}

impl HookNotices {
    /// A call will not be executed.
    pub(crate) fn skipped(&self, run: RunId, tenant: Option<&TenantId>, spec: &CallSpec, why: &CallError) {
        let end = End { point: HookPoint::ToolSkip, kind: error_kind_name(why.kind), message: &why.message };
        self.notify((run, tenant), spec, &end);
    }

    /// A request was repeated, so its calls are not executed once more.
    pub(crate) fn repeated(&self, run: RunId, tenant: Option<&TenantId>, spec: &CallSpec) {
        let message = "the request was repeated: the run that it opened before has its calls";
        let end = End { point: HookPoint::ToolSkip, kind: "REPEATED", message };
        self.notify((run, tenant), spec, &end);
    }

    /// Whether hooks are notified of calls that are not executed.
    pub(crate) fn are_for_skipped(&self) -> bool {
        self.hooks.has(HookPoint::ToolSkip)
    }

    /// A call ended with this entry. Hooks are notified unless they were asked about the end.
    pub(crate) fn ended(&self, run: &Run, call: &Call, entry: &Entry) {
        if !self.hooks.has(HookPoint::ToolError) && !self.hooks.has(HookPoint::ToolSkip) {
            return;
        }
        let end = match call.outcome() {
            Some(Outcome::Failed(error)) if !is_decided(call, error, entry) => {
                let point = if is_rejected(call) { HookPoint::ToolSkip } else { HookPoint::ToolError };
                End { point, kind: error_kind_name(error.kind), message: &error.message }
            }
            Some(Outcome::Cancelled { reason, .. }) => {
                End { point: HookPoint::ToolError, kind: "CANCELLED", message: reason }
            }
            Some(Outcome::Expired(deadline)) => {
                End { point: HookPoint::ToolError, kind: "EXPIRED", message: expiry(*deadline) }
            }
            Some(Outcome::Completed(_) | Outcome::Failed(_)) | None => return,
        };
        self.notify((run.id(), run.tenant()), call.spec(), &end);
    }

    fn notify(&self, (run, tenant): (RunId, Option<&TenantId>), spec: &CallSpec, end: &End<'_>) {
        let End { point, kind, message } = *end;
        if !self.hooks.has(point) {
            return;
        }
        let alias_of = self.registry.borrow().alias_of(&spec.tool, tenant);
        let question = HookRequest {
            run,
            call: Some(spec.id.clone()),
            tool: spec.tool.clone(),
            alias_of,
            tenant: tenant.cloned(),
            attempt: None,
            metadata: spec.metadata.clone(),
            arguments: spec.arguments.clone(),
            happened: CallStage::Ended { point, kind, message: message.to_owned() },
        };
        if self.queue.try_send(question).is_err() {
            let tool = &spec.tool;
            tracing::warn!(run.id = %run, %tool, "hooks are slow; notification of the end of a call dropped");
        }
    }
}

/// Nobody decided on the call, so it was rejected. Of a rejection by a person, hooks are notified when it is stored.
fn is_rejected(call: &Call) -> bool {
    call.decided().is_some_and(|decided| matches!(decided.decision, Decision::Rejected { .. }))
}

/// Whether hooks were asked about the error of a call, or are notified elsewhere: when a call is accepted or decided
/// on, and by the coordinator that stores the answer of a client.
fn is_decided(call: &Call, error: &CallError, entry: &Entry) -> bool {
    if matches!(call.spec().route, Route::Refused(_) | Route::Answered(_) | Route::Client) {
        return true;
    }
    let by_person = |event: &Event| match event {
        Event::CallDecided { call: decided, by: Decider::Person, .. } => *decided == call.index(),
        _ => false,
    };
    // The worker asked its hooks about the error that it reports, unless it reports the end of a lost attempt.
    let by_worker = |event: &Event| match event {
        Event::AttemptEnded { attempt, outcome: AttemptOutcome::Failed(reported), .. } => {
            attempt.call == call.index()
                && reported == error
                && !matches!(error.kind, ErrorKind::Interrupted | ErrorKind::WorkerLost)
        }
        _ => false,
    };
    entry.events.iter().any(|event| by_person(event) || by_worker(event))
}

/// Sends notifications until `stop`.
pub(crate) async fn deliver(hooks: Hooks, mut waiting: Waiting, stop: CancellationToken) {
    let mut in_flight = JoinSet::new();
    loop {
        tokio::select! {
            Some(question) = waiting.recv(), if in_flight.len() < IN_FLIGHT_MAX => {
                let hooks = hooks.clone();
                in_flight.spawn(async move { hooks.notify(question).await });
            }
            Some(_) = in_flight.join_next() => {}
            () = stop.cancelled() => return,
        }
    }
}
