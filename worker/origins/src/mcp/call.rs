//! A tool of a server: its calls become requests.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, CustomRequest, ErrorCode, ErrorData, InputRequiredResult,
    ServerResult,
};
use rmcp::service::ServiceError;
use rmcp::transport::streamable_http_client::{HttpStatusError, StreamableHttpError};
use run::{CallError, ErrorKind};
use serde_json::{Value, json};
use toolyard_tool::{AnyTool, Context, Output, ToolError};

use super::asking;
use super::content::{Reply, too_large};
use super::lines::TOO_LARGE;
use super::server::Server;
use super::session::{RequestError, Session, message_of};
use super::tasks;

/// How often a server may ask for input before a call fails.
const ROUNDS_MAX: usize = 10;
/// How long a call that asks for nothing and only gives its state back pauses, the more the longer it goes on.
const STATE_PAUSE: Duration = Duration::from_millis(100);
/// How often a call is sent again because its connection had just ended.
const SENDS_MAX: usize = 3;
/// How long a server that limits its rate has called for a pause, if it does not say.
const RATE_PAUSE: Duration = Duration::from_secs(5);
/// The error of a server that needs a page to be opened first.
const URL_ELICITATION_REQUIRED: ErrorCode = ErrorCode(-32_042);

#[derive(Debug)]
pub(super) struct McpTool {
    server: Arc<Server>,
    /// The name that the server gave it.
    own: String,
    /// Whether a call may be executed again when it is not known how it ended.
    repeatable: bool,
}

impl AnyTool for McpTool {
    async fn call(&self, context: &Context, arguments: Value) -> Result<Output, ToolError> {
        let Value::Object(arguments) = arguments else {
            return Err(ToolError::bad_input("", "the arguments of an MCP tool are an object"));
        };
        let mut params = CallToolRequestParams::new(self.own.clone()).with_arguments(arguments);
        for _ in 0..SENDS_MAX {
            let held = self.server.session(context).await?;
            match self.rounds(&held.session, context, &mut params).await {
                Err(RequestError::NotSent) => {}
                other => return other.map_err(|error| self.error(error)),
            }
        }
        Err(ToolError::retryable(format!("the MCP server {} ends as soon as it is called", self.server.name())))
    }
}

impl McpTool {
    pub(super) fn new(server: Arc<Server>, own: String, repeatable: bool) -> Self {
        Self { server, own, repeatable }
    }

    /// Calls until the server needs no more input.
    async fn rounds(
        &self,
        session: &Session,
        context: &Context,
        params: &mut CallToolRequestParams,
    ) -> Result<Output, RequestError> {
        for round in 1..=ROUNDS_MAX {
            let request = ClientRequest::CallToolRequest(CallToolRequest::new(params.clone()));
            let result = match session.request(context, request).await {
                Err(RequestError::Answered(error)) if session.is_legacy() && wants_task(&error) => {
                    self.as_task(session, context, params).await?
                }
                Ok(ServerResult::CallToolResult(result)) if session.is_legacy() && tasks::are_required(&result) => {
                    self.as_task(session, context, params).await?
                }
                other => other?,
            };
            match result {
                ServerResult::CallToolResult(result) => {
                    return Reply::from(result).output().map_err(RequestError::Failed);
                }
                ServerResult::EmptyResult(_) | ServerResult::TaskAckResult(_) => return Ok(().into()),
                ServerResult::InputRequiredResult(needed) => {
                    next_round(context, needed, params, round).await.map_err(RequestError::Failed)?;
                }
                ServerResult::CreateTaskResult(created) => {
                    return tasks::follow(session, context, created.task).await;
                }
                ServerResult::CustomResult(result) => {
                    if let Some(task) = tasks::created(&result.0) {
                        return tasks::follow_legacy(session, context, task).await;
                    }
                    let reply = Reply::read(result.0).ok_or_else(|| RequestError::Failed(self.unexpected()))?;
                    return reply.output().map_err(RequestError::Failed);
                }
                _ => return Err(RequestError::Failed(self.unexpected())),
            }
        }
        let message = format!("the MCP server {} asked for input {ROUNDS_MAX} times", self.server.name());
        Err(RequestError::Failed(ToolError::new(message)))
    }

    /// Calls as a task.
    async fn as_task(
        &self,
        session: &Session,
        context: &Context,
        params: &CallToolRequestParams,
    ) -> Result<ServerResult, RequestError> {
        let life = tasks::life(context);
        let params = json!({"name": params.name, "arguments": params.arguments, "task": {"ttl": life}});
        let request = CustomRequest::new("tools/call", Some(params));
        session.request(context, ClientRequest::CustomRequest(request)).await
    }

    fn unexpected(&self) -> ToolError {
        ToolError::new(format!("the MCP server {} answered with what is no result of a tool", self.server.name()))
    }

    fn error(&self, error: RequestError) -> ToolError {
        let server = self.server.name();
        match error {
            RequestError::Failed(error) => error,
            RequestError::Answered(error) => answered(server, &error),
            RequestError::NotSent => ToolError::retryable(format!("the MCP server {server} is not running")),
            RequestError::Lost => self.lost(&format!("the MCP server {server} was lost while the call ran")),
            RequestError::Transport(error) => self.transport(&error),
        }
    }

    /// It is not known whether the server did what it was called for.
    fn lost(&self, message: &str) -> ToolError {
        match self.repeatable {
            true => ToolError::retryable(message),
            false => {
                let message = format!("{message}: its effect may have happened");
                ToolError::of_call(CallError::new(ErrorKind::Interrupted, message))
            }
        }
    }

    fn transport(&self, error: &ServiceError) -> ToolError {
        let server = self.server.name();
        let ServiceError::TransportSend(sent) = error else {
            return self.lost(&format!("the MCP server {server} did not answer: {error}"));
        };
        let Some(error) = sent.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() else {
            return self.lost(&format!("the connection to the MCP server {server} failed: {}", sent.error));
        };
        match error {
            StreamableHttpError::AuthRequired(_) | StreamableHttpError::InsufficientScope(_) => {
                ToolError::new(format!("the MCP server {server} does not accept the worker's token"))
            }
            StreamableHttpError::HttpStatus(HttpStatusError { status: 429 | 503, retry_after, .. }) => {
                let pause = retry_after.as_deref().and_then(|seconds| seconds.trim().parse().ok());
                let pause = pause.map_or(RATE_PAUSE, Duration::from_secs);
                ToolError::rate_limited(format!("the MCP server {server} takes no more calls now"), pause)
            }
            StreamableHttpError::ResponseBodyTooLarge { max_size } => {
                too_large(format!("the MCP server {server} answered with more than {max_size} bytes"))
            }
            StreamableHttpError::Client(error) if error.is_connect() => {
                ToolError::retryable(format!("the MCP server {server} cannot be reached"))
            }
            error => self.lost(&format!("the MCP server {server} failed: {error}")),
        }
    }
}

/// Whether a server of 2025-11-25 refuses a call because its tool only runs as a task.
fn wants_task(refused: &ErrorData) -> bool {
    refused.code == ErrorCode::METHOD_NOT_FOUND && tasks::names_them(&message_of(refused))
}

/// Prepares the next round of a call: answers what the server needs, and gives its state back.
async fn next_round(
    context: &Context,
    needed: InputRequiredResult,
    params: &mut CallToolRequestParams,
    round: usize,
) -> Result<(), ToolError> {
    let requests = needed.input_requests.unwrap_or_default();
    if requests.is_empty() {
        let pause = STATE_PAUSE.saturating_mul(u32::try_from(round).unwrap_or(u32::MAX));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = context.cancelled() => return Err(ToolError::new("the call was cancelled")),
        }
    }
    let responses = asking::answer(context, requests).await?;
    params.input_responses = (!responses.is_empty()).then_some(responses);
    params.request_state = needed.request_state;
    Ok(())
}

/// The error of a call that the server answered with an error of the protocol.
fn answered(server: &str, error: &ErrorData) -> ToolError {
    let message = message_of(error);
    match error.code {
        ErrorCode::INVALID_PARAMS => ToolError::bad_input("", message),
        ErrorCode(TOO_LARGE) => too_large(format!("the result of the MCP server {server} is too large: {message}")),
        URL_ELICITATION_REQUIRED => ToolError::needs(format!("{message} {}", data_of(error))),
        ErrorCode(code) => ToolError::new(format!("the MCP server {server} answered with error {code}: {message}")),
    }
}

fn data_of(error: &ErrorData) -> String {
    error.data.as_ref().map(Value::to_string).unwrap_or_default()
}
