//! One connection to a server: its tools, and requests for calls.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    ClientRequest, ErrorData, ListToolsRequest, PaginatedRequestParams, ProtocolVersion, RequestMetaObject,
    ServerResult,
};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, ServiceError};
use rmcp::transport::streamable_http_client::StreamableHttpError;
use rmcp::{ErrorData as McpError, RoleClient};
use run::Progress;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout};
use toolyard_tool::{Context, ToolError};

use super::client::{Calls, Running};

/// Tools of one server: more than a pool can advertise.
const TOOLS_MAX: usize = 5_000;
/// Pages of a list of tools.
const PAGES_MAX: usize = 500;
/// How often a call reports progress at most: each report is an entry of the log.
const PROGRESS_PAUSE: Duration = Duration::from_millis(100);
/// How long the notice of a cancellation may take to be sent.
const CANCEL_LIMIT: Duration = Duration::from_secs(1);

/// A connection on which a server answers.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) peer: Peer<RoleClient>,
    pub(super) calls: Arc<Calls>,
}

/// A request had no result.
#[derive(Debug)]
pub(super) enum RequestError {
    /// It was not sent, so it can be sent again.
    NotSent,
    /// The connection failed after the request, or the call that it is about, was sent.
    Lost,
    /// The server answered with an error.
    Answered(ErrorData),
    /// Anything else, which is final.
    Failed(ToolError),
    /// The transport failed.
    Transport(ServiceError),
}

/// A list of tools that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListError {
    #[error("its list of tools has more than {TOOLS_MAX} tools or {PAGES_MAX} pages")]
    Endless,
    #[error("its list of tools repeats the cursor {0:?}")]
    Circle(String),
    #[error("its answer to tools/list is no list of tools")]
    NotAList,
    #[error("it does not list its tools: {0}")]
    Failed(#[from] ServiceError),
}

impl Session {
    /// Whether the connection is of the era of `initialize`.
    pub(super) fn is_legacy(&self) -> bool {
        let version = self.peer.peer_info().map(|info| info.protocol_version.clone());
        version.as_ref().is_none_or(ProtocolVersion::has_initialize)
    }

    /// Whether the server tells when its tools change.
    pub(super) fn tells_changes(&self) -> bool {
        let info = self.peer.peer_info();
        info.and_then(|info| info.capabilities.tools.as_ref()?.list_changed).unwrap_or(false)
    }

    /// All tools of the server, as it describes them.
    pub(super) async fn tools(&self) -> Result<Vec<Value>, ListError> {
        let (mut tools, mut cursor): (Vec<Value>, Option<String>) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let params = Some(PaginatedRequestParams::default().with_cursor(cursor.clone()));
            let request = ListToolsRequest { params, ..ListToolsRequest::default() };
            let result = self.peer.send_request(ClientRequest::ListToolsRequest(request)).await?;
            let (page, next) = match result {
                ServerResult::ListToolsResult(list) => {
                    let page = list.tools.into_iter().map(serde_json::to_value).collect::<Result<_, _>>();
                    (page.map_err(|_| ListError::NotAList)?, list.next_cursor)
                }
                // One of the tools is not described as a tool: the others are of use.
                ServerResult::CustomResult(mut list) => {
                    let Some(Value::Array(page)) = list.0.get_mut("tools").map(Value::take) else {
                        return Err(ListError::NotAList);
                    };
                    (page, list.0.get("nextCursor").and_then(Value::as_str).map(str::to_owned))
                }
                _ => return Err(ListError::NotAList),
            };
            tools.extend(page);
            if tools.len() > TOOLS_MAX {
                break;
            }
            match next.filter(|next| !next.is_empty()) {
                None => return Ok(tools),
                Some(next) if cursor.as_ref() == Some(&next) => return Err(ListError::Circle(next)),
                Some(next) => cursor = Some(next),
            }
        }
        Err(ListError::Endless)
    }

    /// Sends a request of a call and waits for its result. Progress goes to the call; when the call is to stop, the
    /// server is told.
    pub(super) async fn request(
        &self,
        context: &Context,
        request: ClientRequest,
    ) -> Result<ServerResult, RequestError> {
        let mut options = PeerRequestOptions::no_options();
        if let Some(parent) = context.metadata().get("traceparent") {
            let mut meta = RequestMetaObject::default();
            meta.set_traceparent(parent);
            options = options.with_meta(meta);
        }
        let sent = self.peer.send_cancellable_request(request, options).await;
        let mut handle = sent.map_err(|error| match error {
            ServiceError::TransportClosed => RequestError::NotSent,
            error => RequestError::of(error),
        })?;
        let mut running = self.calls.begin(handle.id.clone(), handle.progress_token.clone(), context);
        match wait(context, &mut handle, &mut running).await {
            Some(result) => result,
            None => {
                // The server is told at once, and its answer is not waited for.
                let reason = Some("the call is to stop".to_owned());
                match timeout(CANCEL_LIMIT, handle.cancel(reason)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "telling an MCP server of a cancellation failed"),
                    Err(_) => tracing::debug!("telling an MCP server of a cancellation took too long"),
                }
                Err(RequestError::Failed(ToolError::new("the call was cancelled")))
            }
        }
    }
}

/// Waits for the result of a request; `None` if the call is to stop.
async fn wait(
    context: &Context,
    handle: &mut RequestHandle<RoleClient>,
    running: &mut Running,
) -> Option<Result<ServerResult, RequestError>> {
    let mut next_report = Instant::now();
    let mut newest: Option<Progress> = None;
    let mut reports = true;
    loop {
        tokio::select! {
            biased;
            () = context.cancelled() => return None,
            result = &mut handle.rx => {
                if let Err(error) = report(context, newest.or_else(|| unseen(running))).await {
                    return Some(Err(RequestError::Failed(error)));
                }
                return Some(match result {
                    Ok(result) => result.map_err(RequestError::of),
                    Err(_) => Err(RequestError::Lost),
                });
            }
            () = sleep_until(next_report), if newest.is_some() => {
                next_report = Instant::now() + PROGRESS_PAUSE;
                if let Err(error) = report(context, newest.take()).await {
                    return Some(Err(RequestError::Failed(error)));
                }
            }
            changed = running.progress.changed(), if reports => match changed {
                Ok(()) => newest = running.progress.borrow_and_update().clone(),
                Err(_) => reports = false,
            }
        }
    }
}

/// Progress that came together with the result.
fn unseen(running: &mut Running) -> Option<Progress> {
    let seen = running.progress.has_changed().unwrap_or(false);
    seen.then(|| running.progress.borrow_and_update().clone()).flatten()
}

async fn report(context: &Context, progress: Option<Progress>) -> Result<(), ToolError> {
    match progress {
        Some(Progress { done, total, message }) => context.progress(done, total, message).await,
        None => Ok(()),
    }
}

impl RequestError {
    /// As an error of a call that the server executes as a task: the call was sent, so it must not be sent again,
    /// whatever became of a later request.
    pub(super) fn after_start(self) -> Self {
        match self {
            Self::NotSent => Self::Lost,
            Self::Transport(error) if !is_too_large(&error) => Self::Lost,
            Self::Lost | Self::Answered(_) | Self::Failed(_) | Self::Transport(_) => self,
        }
    }

    fn of(error: ServiceError) -> Self {
        match error {
            ServiceError::McpError(error) => Self::Answered(error),
            ServiceError::TransportClosed => Self::Lost,
            error => Self::Transport(error),
        }
    }
}

/// The answer was larger than is taken.
fn is_too_large(error: &ServiceError) -> bool {
    let ServiceError::TransportSend(sent) = error else { return false };
    let error = sent.error.downcast_ref::<StreamableHttpError<reqwest::Error>>();
    matches!(error, Some(StreamableHttpError::ResponseBodyTooLarge { .. }))
}

/// The message of an error as a server sent it.
pub(super) fn message_of(error: &McpError) -> String {
    match &error.data {
        Some(data) if error.message.trim().is_empty() => data.to_string(),
        Some(_) | None => error.message.to_string(),
    }
}
