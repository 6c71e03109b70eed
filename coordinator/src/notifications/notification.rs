//! The content of a notification: the run's id, its tenant, and the state of its calls. Never arguments, output or
//! results.

use bytes::Bytes;
use proto::convert::api;
use run::{Call, CallState, Run, RunId, RunStatus, Timestamp};
use serde::{Deserialize, Serialize};

/// The event, under its public name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    #[serde(rename = "run.requires_action")]
    RequiresAction,
    #[serde(rename = "run.completed")]
    Completed,
    #[serde(rename = "run.failed")]
    Failed,
    #[serde(rename = "run.cancelled")]
    Cancelled,
    #[serde(rename = "run.expired")]
    Expired,
}

impl Kind {
    /// `None`: the status has no event, because a run that goes on is not notified.
    pub(super) fn of(status: RunStatus) -> Option<Self> {
        match status {
            RunStatus::InProgress => None,
            RunStatus::RequiresAction => Some(Self::RequiresAction),
            RunStatus::Completed => Some(Self::Completed),
            RunStatus::Failed => Some(Self::Failed),
            RunStatus::Cancelled => Some(Self::Cancelled),
            RunStatus::Expired => Some(Self::Expired),
        }
    }

    /// Whether the notification lists the call: those that are waited for, or all.
    fn names(self, call: &Call) -> bool {
        let waits = matches!(call.state(), CallState::WaitingForClient | CallState::AwaitingApproval);
        self != Self::RequiresAction || waits
    }
}

#[derive(Serialize)]
struct Notification<'a> {
    #[serde(rename = "type")]
    kind: Kind,
    timestamp: String,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    run_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    calls: Vec<Told<'a>>,
}

#[derive(Serialize)]
struct Told<'a> {
    call_id: &'a str,
    tool: &'a str,
    state: &'static str,
    /// The call that asks, if it is a question.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_by_call_id: Option<&'a str>,
}

/// The body of a notification: the same bytes, whichever coordinator makes it.
pub(super) fn body(kind: Kind, run: &Run, at: Timestamp) -> Bytes {
    let calls = run.calls().iter().filter(|call| kind.names(call)).map(|call| Told {
        call_id: call.spec().id.as_str(),
        tool: call.spec().tool.as_str(),
        state: api::state(call).as_str_name(),
        asked_by_call_id: run.asker(call).map(|asks| asks.spec().id.as_str()),
    });
    let tenant = run.tenant().map(run::TenantId::as_str);
    let data = Data { run_id: run.id().to_string(), tenant, calls: calls.collect() };
    let notice = Notification { kind, timestamp: api::timestamp(at).to_string(), data };
    serde_json::to_vec(&notice).expect("texts are JSON").into()
}

/// The id by which a receiver detects duplicates: the run, and the log entry of the notification.
pub(crate) fn message_id(run: RunId, noted: u64) -> String {
    let run = run.to_string();
    format!("msg_{}_{noted}", run.trim_start_matches("run_"))
}
