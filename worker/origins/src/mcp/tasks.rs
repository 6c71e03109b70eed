//! Calls that a server executes as tasks are followed to their end: those of the extension of 2026-07-28, and those of
//! the protocol of 2025-11-25.

use std::time::Duration;

use rmcp::model::{
    CallToolResult, CancelTaskParams, CancelTaskRequest, ClientRequest, CustomRequest, GetTaskParams, GetTaskRequest,
    ServerResult, Task, TaskPayload, UpdateTaskParams, UpdateTaskRequest,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use toolyard_tool::{Context, Output, ToolError};

use super::asking;
use super::client::cut;
use super::content::Reply;
use super::session::{RequestError, Session};

/// How often a task is asked about: not more often than this, and not more seldom.
const POLL_LEAST: Duration = Duration::from_millis(50);
const POLL_MOST: Duration = Duration::from_secs(10);
/// If the server names no interval.
const POLL: Duration = Duration::from_secs(1);
/// How long the request that a task should stop may take.
const CANCEL_LIMIT: Duration = Duration::from_secs(1);
/// Bytes of a status that become the message of a progress.
const STATUS_BYTES_MAX: usize = 512;

/// How long a task's result should be kept, in milliseconds: as long as its call may take, and a minute.
pub(super) fn life(context: &Context) -> u64 {
    let left = context.deadline().saturating_duration_since(Instant::now()) + Duration::from_secs(60);
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
}

/// Whether a server of 2025-11-25 refuses a call because its tool only runs as a task, as the TypeScript SDK does it:
/// by a result with the text of an error of the protocol.
pub(super) fn are_required(result: &CallToolResult) -> bool {
    let text = result.content.first().and_then(|block| block.as_text()).map_or("", |text| text.text.as_str());
    result.is_error == Some(true) && text.starts_with("MCP error -32601") && names_them(text)
}

/// Whether the text of a refusal is about tasks.
pub(super) fn names_them(text: &str) -> bool {
    text.contains("task augmentation") || text.contains("taskSupport")
}

/// The task that an answer of a server of 2025-11-25 names, if it does.
pub(super) fn created(result: &Value) -> Option<LegacyTask> {
    LegacyTask::read(result.get("task")?)
}

/// A task of 2025-11-25.
#[derive(Debug)]
pub(super) struct LegacyTask {
    id: String,
    status: String,
    message: String,
    poll: Duration,
}

impl LegacyTask {
    fn read(task: &Value) -> Option<Self> {
        let text = |name: &str| task.get(name).and_then(Value::as_str).map(str::to_owned);
        let poll = task.get("pollInterval").or_else(|| task.get("pollIntervalMs")).and_then(Value::as_u64);
        Some(Self {
            id: text("taskId")?,
            status: text("status")?,
            message: text("statusMessage").unwrap_or_default(),
            poll: pause(poll),
        })
    }
}

fn pause(milliseconds: Option<u64>) -> Duration {
    milliseconds.map_or(POLL, Duration::from_millis).clamp(POLL_LEAST, POLL_MOST)
}

/// Reports a task's status as the progress of its call, when it changes.
struct Status<'a> {
    context: &'a Context,
    last: String,
    reports: u32,
}

impl Status<'_> {
    async fn report(&mut self, message: &str) -> Result<(), RequestError> {
        if message.is_empty() || message == self.last {
            return Ok(());
        }
        message.clone_into(&mut self.last);
        self.reports = self.reports.saturating_add(1);
        let message = cut(message.to_owned(), STATUS_BYTES_MAX);
        self.context.progress(self.reports.into(), None, message).await.map_err(RequestError::Failed)
    }
}

fn failed(message: impl Into<String>) -> RequestError {
    RequestError::Failed(ToolError::new(message))
}

/// Waits before a task is asked about again. `false` if the call is to stop.
async fn paused(context: &Context, pause: Duration) -> bool {
    tokio::select! {
        () = sleep(pause) => true,
        () = context.cancelled() => false,
    }
}

/// Tells the server that a task should stop.
async fn cancel(session: &Session, request: ClientRequest) -> RequestError {
    if timeout(CANCEL_LIMIT, session.peer.send_request(request)).await.is_err() {
        tracing::debug!("telling an MCP server of the cancellation of a task took too long");
    }
    failed("the call was cancelled")
}

/// Follows a task of 2026-07-28.
pub(super) async fn follow(session: &Session, context: &Context, task: Task) -> Result<Output, RequestError> {
    let id = task.task_id.clone();
    let followed = follow_modern(session, context, task).await.map_err(RequestError::after_start);
    if followed.is_err() && context.is_cancelled() {
        let request = CancelTaskRequest::new(CancelTaskParams::new(id));
        return Err(cancel(session, ClientRequest::CancelTaskRequest(request)).await);
    }
    followed
}

async fn follow_modern(session: &Session, context: &Context, task: Task) -> Result<Output, RequestError> {
    let mut status = Status { context, last: String::new(), reports: 0 };
    let mut interval = pause(task.poll_interval_ms);
    status.report(task.status_message.as_deref().unwrap_or_default()).await?;
    loop {
        if !paused(context, interval).await {
            return Err(failed("the call was cancelled"));
        }
        let request = GetTaskRequest::new(GetTaskParams::new(task.task_id.clone()));
        let found = match session.request(context, ClientRequest::GetTaskRequest(request)).await? {
            ServerResult::GetTaskResult(found) => found.task,
            _ => return Err(failed("the MCP server answered tasks/get with what is no task")),
        };
        interval = pause(found.task.poll_interval_ms);
        status.report(found.task.status_message.as_deref().unwrap_or_default()).await?;
        match found.payload {
            TaskPayload::Working => {}
            TaskPayload::InputRequired { input_requests } => {
                let responses = asking::answer(context, input_requests).await.map_err(RequestError::Failed)?;
                let update = UpdateTaskRequest::new(UpdateTaskParams::new(task.task_id.clone(), responses));
                session.request(context, ClientRequest::UpdateTaskRequest(update)).await?;
            }
            TaskPayload::Completed { result } => {
                let reply = Reply::read(Value::Object(result));
                let reply = reply.ok_or_else(|| failed("the task of the MCP server has a result of no tool"))?;
                return reply.output().map_err(RequestError::Failed);
            }
            TaskPayload::Failed { error } => {
                let message = error.get("message").and_then(Value::as_str).unwrap_or("it does not tell why");
                return Err(failed(format!("the task of the MCP server failed: {message}")));
            }
            TaskPayload::Cancelled => return Err(failed("the MCP server cancelled the task of the call")),
            other => return Err(failed(format!("the task of the MCP server has an unknown state: {other:?}"))),
        }
    }
}

/// Follows a task of 2025-11-25.
pub(super) async fn follow_legacy(
    session: &Session,
    context: &Context,
    task: LegacyTask,
) -> Result<Output, RequestError> {
    let id = task.id.clone();
    let followed = follow_old(session, context, task).await.map_err(RequestError::after_start);
    if followed.is_err() && context.is_cancelled() {
        return Err(cancel(session, ask("tasks/cancel", &id)).await);
    }
    followed
}

fn ask(method: &str, id: &str) -> ClientRequest {
    ClientRequest::CustomRequest(CustomRequest::new(method, Some(json!({"taskId": id}))))
}

async fn follow_old(session: &Session, context: &Context, mut task: LegacyTask) -> Result<Output, RequestError> {
    let mut status = Status { context, last: String::new(), reports: 0 };
    loop {
        status.report(&task.message).await?;
        match task.status.as_str() {
            "working" => {}
            "completed" | "failed" => break,
            // The request for the result stays open, and on it the server asks.
            "input_required" => break,
            "cancelled" => return Err(failed("the MCP server cancelled the task of the call")),
            other => return Err(failed(format!("the task of the MCP server has an unknown state: {other:?}"))),
        }
        if !paused(context, task.poll).await {
            return Err(failed("the call was cancelled"));
        }
        let found = match session.request(context, ask("tasks/get", &task.id)).await? {
            ServerResult::GetTaskResult(found) => serde_json::to_value(found).ok(),
            ServerResult::CustomResult(found) => Some(found.0),
            _ => None,
        };
        let found = found.as_ref().and_then(LegacyTask::read);
        task = found.ok_or_else(|| failed("the MCP server answered tasks/get with what is no task"))?;
    }
    match session.request(context, ask("tasks/result", &task.id)).await {
        Ok(ServerResult::CallToolResult(result)) => Reply::from(result).output().map_err(RequestError::Failed),
        Ok(ServerResult::CustomResult(result)) => {
            let reply = Reply::read(result.0);
            let reply = reply.ok_or_else(|| failed("the task of the MCP server has a result of no tool"))?;
            reply.output().map_err(RequestError::Failed)
        }
        Ok(_) => Err(failed("the task of the MCP server has a result of no tool")),
        Err(RequestError::Answered(error)) if task.status == "failed" => {
            let why = if task.message.is_empty() { error.message.to_string() } else { task.message };
            Err(failed(format!("the task of the MCP server failed: {why}")))
        }
        Err(error) => Err(error),
    }
}
