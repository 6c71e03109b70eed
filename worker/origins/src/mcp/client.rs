//! What a server may send to this worker: progress, logs, changes of its tools, and questions.

#![expect(deprecated, reason = "servers of 2025-11-25 log and ask for roots")]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationCapability,
    FormElicitationCapability, Implementation, ListRootsRequestMethod, ListRootsResult,
    LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken, RequestId, TASKS_EXTENSION_ID,
    UrlElicitationCapability,
};
use rmcp::service::{InboundStreamOrigin, NotificationContext, RequestContext};
use rmcp::{ClientHandler, ErrorData, RoleClient};
use run::{Progress, limit};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use toolyard_tool::Context;

use super::asking;

/// Progress that is kept for calls whose token is not known yet: the server may be faster than the return of the send.
const EARLY_MAX: usize = 64;
/// How long a server may take to notice that a call was cancelled, and may ask for it.
const LATE: Duration = Duration::from_secs(5);
/// Bytes of a server's log line that are logged.
const LOG_BYTES_MAX: usize = 1024;

/// The client's side of one connection.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) server: Arc<str>,
    pub(super) calls: Arc<Calls>,
    /// Notified when the server's tools changed.
    pub(super) changed: Arc<Notify>,
}

/// The calls that run on a connection.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    progress: HashMap<ProgressToken, watch::Sender<Option<Progress>>>,
    early: VecDeque<(ProgressToken, Progress)>,
    running: HashMap<RequestId, Context>,
    /// When a call was cancelled last.
    cancelled: Option<Instant>,
}

/// A call that runs; when it is dropped, it is forgotten.
pub(super) struct Running {
    calls: Arc<Calls>,
    id: RequestId,
    token: ProgressToken,
    /// The newest progress that the server reported. Older ones are not kept, so a flood of them costs nothing.
    pub(super) progress: watch::Receiver<Option<Progress>>,
}

impl Calls {
    /// Notes a request that was sent for a call.
    pub(super) fn begin(self: &Arc<Self>, id: RequestId, token: ProgressToken, context: &Context) -> Running {
        let mut inner = self.lock();
        let (sender, progress) = watch::channel(None);
        if let Some(at) = inner.early.iter().rposition(|(early, _)| *early == token) {
            let early = inner.early.remove(at).map(|(_, progress)| progress);
            sender.send_replace(early);
        }
        inner.progress.insert(token.clone(), sender);
        inner.running.insert(id.clone(), context.clone());
        Running { calls: Arc::clone(self), id, token, progress }
    }

    fn report(&self, token: ProgressToken, progress: Progress) {
        let mut inner = self.lock();
        if let Some(sender) = inner.progress.get(&token) {
            // They are read by tasks of their own, so an older one may come later.
            sender.send_if_modified(|newest| {
                let is_newer = newest.as_ref().is_none_or(|newest| newest.done <= progress.done);
                if is_newer {
                    *newest = Some(progress);
                }
                is_newer
            });
            return;
        }
        if inner.early.len() == EARLY_MAX {
            inner.early.pop_front();
        }
        inner.early.push_back((token, progress));
    }

    /// The call for which the server asks: that of the stream on which the question came, or the only one that runs. A
    /// question without a stream may be a late one of a call that was just cancelled; then it is for none.
    fn asking(&self, origin: Option<&InboundStreamOrigin>) -> Option<Context> {
        let inner = self.lock();
        match origin {
            Some(InboundStreamOrigin::OutboundRequest(id)) => inner.running.get(id).cloned(),
            Some(InboundStreamOrigin::Unassociated) | None => {
                if inner.cancelled.is_some_and(|cancelled| cancelled.elapsed() < LATE) {
                    return None;
                }
                let mut running = inner.running.values();
                running.next().filter(|_| running.next().is_none()).cloned()
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut inner = self.calls.lock();
        inner.progress.remove(&self.token);
        if inner.running.remove(&self.id).is_some_and(|call| call.is_cancelled()) {
            inner.cancelled = Some(Instant::now());
        }
    }
}

/// Progress as a call may report it; `None` if it makes no sense.
fn readable(params: ProgressNotificationParam) -> Option<(ProgressToken, Progress)> {
    let ProgressNotificationParam { progress_token, progress, total, message, .. } = params;
    let message = cut(message.unwrap_or_default(), limit::LABEL_BYTES_MAX);
    let total = total.filter(|total| total.is_finite());
    progress.is_finite().then_some((progress_token, Progress { done: progress, total, message }))
}

/// A text within a limit of bytes.
pub(super) fn cut(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        let mut end = limit;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let elicitation = ElicitationCapability::new()
            .with_form(FormElicitationCapability::new())
            .with_url(UrlElicitationCapability::new());
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = Some(elicitation);
        capabilities.extensions = Some([(TASKS_EXTENSION_ID.to_owned(), serde_json::Map::new())].into());
        ClientConfig::new(capabilities, Implementation::new("toolyard", env!("CARGO_PKG_VERSION")))
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListRootsRequestMethod>())
    }

    async fn create_elicitation(
        &self,
        question: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let Some(call) = self.calls.asking(context.extensions.get::<InboundStreamOrigin>()) else {
            tracing::warn!(
                server = &*self.server,
                "declining a question of an MCP server: several calls run, or none, or one was just cancelled, so it \
                 is not known whose it is"
            );
            return Ok(ElicitResult::new(ElicitationAction::Decline));
        };
        let answer = tokio::select! {
            answer = asking::elicit(&call, question) => answer,
            () = context.ct.cancelled() => return Ok(ElicitResult::new(ElicitationAction::Cancel)),
        };
        answer.or_else(|error| {
            tracing::warn!(server = &*self.server, error = error.message(), "asking a client for an MCP server failed");
            Ok(ElicitResult::new(ElicitationAction::Cancel))
        })
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        if let Some((token, progress)) = readable(params) {
            self.calls.report(token, progress);
        }
    }

    async fn on_logging_message(&self, params: LoggingMessageNotificationParam, _: NotificationContext<RoleClient>) {
        if tracing::enabled!(tracing::Level::DEBUG) {
            let message = cut(params.data.to_string(), LOG_BYTES_MAX);
            tracing::debug!(server = &*self.server, level = ?params.level, message, "an MCP server logs");
        }
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }
}
