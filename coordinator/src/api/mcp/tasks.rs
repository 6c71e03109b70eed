//! Tasks: runs by another name. A task's id contains that of its run, so any replica finds it, and it exists as long as
//! the log has the run.

use formats::mcp::result::Ended;
use proto::Reason;
use proto::convert::api as convert;
use proto::v1;
use run::{CallState, Outcome, Run, RunId, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::client::Client;
use super::message::{INVALID_PARAMS, Request, RpcError};
use super::{CANCELLED_BY_CLIENT, MAIN, follow, members, questions};
use crate::api::{Api, ApiError};
use crate::auth::callers::Role;
use crate::nats::setup::RETENTION;

const PREFIX: &str = "task_";
const OF_RUN: &str = "run_";
/// How often a client should ask for a task.
const POLL_MS: u64 = 1000;

#[derive(Deserialize)]
struct Params {
    #[serde(rename = "taskId")]
    id: String,
    #[serde(default, rename = "inputResponses")]
    replies: Map<String, Value>,
}

/// The id of a run's task.
pub(super) fn id(run: RunId) -> String {
    let run = run.to_string();
    format!("{PREFIX}{}", run.strip_prefix(OF_RUN).unwrap_or(&run))
}

fn run_of(id: &str) -> Option<RunId> {
    format!("{OF_RUN}{}", id.strip_prefix(PREFIX)?).parse().ok()
}

/// The members of the result that makes a call a task.
pub(super) fn created(run: RunId, known: &Run) -> String {
    let at = known.opened_at().unwrap_or_else(|| run.created_at());
    members(&described(run, "working", at, at))
}

fn described(run: RunId, status: &str, created: Timestamp, updated: Timestamp) -> Value {
    let ttl_ms = u64::try_from(RETENTION.as_millis()).unwrap_or(u64::MAX);
    json!({
        "taskId": id(run),
        "status": status,
        "createdAt": convert::timestamp(created).to_string(),
        "lastUpdatedAt": convert::timestamp(updated).to_string(),
        "ttlMs": ttl_ms,
        "pollIntervalMs": POLL_MS,
    })
}

/// The run of the task that a request names, if the client may see it.
async fn found(api: &Api, client: &Client, params: &Params) -> Result<std::sync::Arc<Run>, RpcError> {
    client.capabilities.must("tasks")?;
    let unknown = || RpcError::new(INVALID_PARAMS, format!("there is no task {:?}", params.id));
    let id = run_of(&params.id).ok_or_else(unknown)?;
    let run = api.runs.known(id).await.map_err(|error| {
        let error = ApiError::from(error);
        match error.reason {
            Reason::RunNotFound | Reason::EventsExpired => unknown(),
            _ => error.into(),
        }
    })?;
    let is_task = run.run.calls().first().is_some_and(|call| call.spec().id.as_str() == MAIN);
    if is_task { Ok(run.run) } else { Err(unknown()) }
}

pub(super) async fn get(api: &Api, client: &Client, request: &Request) -> Result<String, RpcError> {
    let params: Params = request.read()?;
    // The capability comes first: without it a client cannot know any task.
    let run = found(api, client, &params).await?;
    api.runs.caller.must(Role::Read).map_err(crate::admission::error::RequestError::from)?;
    state(api, client, &run).await
}

/// The state of a task, as [`state`] has it; `None` if the client may not see it, or it cannot be read now.
pub(super) async fn reported(api: &Api, client: &Client, id: &str) -> Option<String> {
    let params = Params { id: id.to_owned(), replies: Map::new() };
    let run = found(api, client, &params).await.ok()?;
    state(api, client, &run).await.ok()
}

/// Whether this is the last state of a task.
pub(super) fn has_ended(state: &Value) -> bool {
    ["completed", "failed", "cancelled"].iter().any(|ended| state["status"] == *ended)
}

/// The state of a task, as the members of a result.
pub(super) async fn state(api: &Api, client: &Client, run: &Run) -> Result<String, RpcError> {
    let created = run.opened_at().unwrap_or_else(|| run.id().created_at());
    let Some(call) = run.calls().first() else {
        return Ok(members(&described(run.id(), "working", created, created)));
    };
    match call.state() {
        CallState::Ended(ended) => {
            let at = ended.at;
            if let Outcome::Cancelled { reason, .. } = &ended.outcome {
                let mut task = described(run.id(), "cancelled", created, at);
                task["statusMessage"] = reason.as_str().into();
                return Ok(members(&task));
            }
            Ok(match Box::pin(follow::outcome(api, client, run.id())).await? {
                Ended::Result(result) => {
                    let task = members(&described(run.id(), "completed", created, at));
                    format!(r#"{task},"result":{{{result}}}"#)
                }
                Ended::Failed { code, message } => {
                    let mut task = described(run.id(), "failed", created, at);
                    task["error"] = json!({ "code": code, "message": message });
                    members(&task)
                }
                Ended::Cancelled(why) => {
                    let mut task = described(run.id(), "cancelled", created, at);
                    task["statusMessage"] = why.into();
                    members(&task)
                }
            })
        }
        CallState::Running(running) => open_state(api, client, run, (created, running.heard_at.max(created))),
        CallState::Queued { since } => open_state(api, client, run, (created, (*since).max(created))),
        CallState::Accepted | CallState::AwaitingApproval | CallState::Delayed | CallState::WaitingForClient => {
            open_state(api, client, run, (created, created))
        }
    }
}

fn open_state(
    api: &Api,
    client: &Client,
    run: &Run,
    (created, updated): (Timestamp, Timestamp),
) -> Result<String, RpcError> {
    let open = questions::open(api, client, run);
    let status = if open.is_empty() { "working" } else { "input_required" };
    let mut task = described(run.id(), status, created, updated);
    if !open.is_empty() {
        let requests: Map<String, Value> = open.iter().map(|open| (open.key.clone(), open.request())).collect();
        task["inputRequests"] = requests.into();
    }
    if let Some(call) = run.calls().first() {
        task["statusMessage"] = api.runs.explain(run, call).into();
    }
    Ok(members(&task))
}

/// Answers the open questions of a task. The answers are stored when this returns.
pub(super) async fn update(api: &Api, client: &Client, request: &Request) -> Result<String, RpcError> {
    let mut params: Params = request.read()?;
    let run = found(api, client, &params).await?;
    let open = questions::open(api, client, &run);
    questions::answer(api, run.id(), &open, &mut params.replies).await?;
    Ok(String::new())
}

/// Requests that a task stops. One that has ended stays as it is.
pub(super) async fn cancel(api: &Api, client: &Client, request: &Request) -> Result<String, RpcError> {
    let params: Params = request.read()?;
    let run = found(api, client, &params).await?;
    if !run.status().is_final() {
        let request = v1::CancelRunRequest { run_id: run.id().to_string(), reason: CANCELLED_BY_CLIENT.to_owned() };
        match api.cancel_run(request).await {
            Err(error) if error.reason != Reason::RunEnded => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_named_by_its_run() {
        let run: RunId = "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().unwrap();
        assert_eq!(id(run), "task_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f");
        assert_eq!(run_of(&id(run)), Some(run));
        for unknown in ["", "task_", "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f", "tasks-conformance-nonexistent-12345"] {
            assert_eq!(run_of(unknown), None, "{unknown}");
        }
    }
}
