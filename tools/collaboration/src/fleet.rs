//! The connection of tools to the coordinators, and the run that a call makes there: its child.
//!
//! A child belongs to the tenant of its parent, and an attempt that is repeated goes on with the child of the one
//! before, because both request it under the same id.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::agent::TOKENS_LEFT;
use client::v1::{self, run_event::Event};
use client::{Client, Code, Connection, Error, PARENT_RUN, Reason, Status, Transcript, Watch};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;
use toolyard_tool::{Context, ToolError};

/// Calls of one child.
pub(crate) const CALLS_MAX: usize = 32;
/// Children of children.
const DEPTH_MAX: u32 = 3;
/// Metadata of a child's calls beside the run of its parent: the call there, how deep it is below a run that a client
/// made, and the tools that made the runs on the way, the outermost first.
const PARENT_CALL: &str = "toolyard.parent_call";
const DEPTH: &str = "toolyard.depth";
const PATH: &str = "toolyard.path";
/// Bytes of all answers together, and of one answer.
const ANSWERS_BYTES_MAX: usize = 192 * 1024;
const ANSWER_BYTES_MAX: usize = 16 * 1024;
/// How long a stopped call reads the log of its run: less than the time that it has to stop.
const PARENT_PATIENCE: Duration = Duration::from_secs(3);
/// Calls of one connection. Each follows a run, and a coordinator serves 256 requests of a connection at once: beyond
/// that nothing else would be sent, and the calls would wait for each other.
const CALLS_PER_CONNECTION: usize = 100;
/// Tools that are called by their name alone, and not because they have a tag or a category.
const BY_NAME_ONLY: [&str; 2] = [crate::TEAM_AGENT, crate::TASK_BROADCAST];

/// Connections to the coordinators, made when they are needed. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fleet(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connection: Connection,
    /// Clients with connections of their own.
    clients: Mutex<Vec<Arc<Client>>>,
}

/// A selection of tools.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    pub(crate) category: Option<String>,
    pub(crate) tag: Option<String>,
    pub(crate) pool: Option<String>,
    /// A pattern of names.
    pub(crate) name: Option<String>,
}

/// A call of a child.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) tool: String,
    pub(crate) arguments: String,
}

/// A run that a call made.
pub(crate) struct Child<'a> {
    context: &'a Context,
    client: Arc<Client>,
    watch: Watch,
    pub(crate) transcript: Transcript,
    total: usize,
    /// Calls whose end or whose waiting was reported.
    reported: Vec<String>,
}

impl Fleet {
    /// The coordinators at this connection, with the key of the pool.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self(Arc::new(Shared { connection, clients: Mutex::default() }))
    }

    /// A client for one call, which keeps it until its end: connected if the others have enough calls.
    ///
    /// # Errors
    /// If the coordinators cannot be reached, or the settings cannot be used.
    pub async fn client(&self) -> Result<Arc<Client>, ToolError> {
        if let Some(client) = self.with_room() {
            return Ok(client);
        }
        // Calls that find one with room do not wait for this.
        let client = Arc::new(Client::connect(&self.0.connection).await.map_err(refused)?);
        // Of those that connected at once, the first one may do.
        if let Some(other) = self.with_room() {
            return Ok(other);
        }
        self.clients().push(Arc::clone(&client));
        Ok(client)
    }

    /// A client that has room for a call.
    fn with_room(&self) -> Option<Arc<Client>> {
        let clients = self.clients();
        // One reference is that of the list.
        clients.iter().find(|client| Arc::strong_count(client) <= CALLS_PER_CONNECTION).map(Arc::clone)
    }

    fn clients(&self) -> MutexGuard<'_, Vec<Arc<Client>>> {
        self.0.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tools that are selected and that a worker executes now, by their names in order.
    pub(crate) async fn select(&self, selection: Selection) -> Result<Vec<String>, ToolError> {
        let Selection { category, tag, pool, name } = selection;
        let request = v1::ListToolsRequest {
            category: category.unwrap_or_default(),
            tags: tag.into_iter().collect(),
            pool: pool.unwrap_or_default(),
            name: name.unwrap_or_default(),
            ..v1::ListToolsRequest::default()
        };
        let listed = self.client().await?.tools(request).await.map_err(refused)?;
        let is_meant = |tool: &v1::Tool| {
            tool.available
                && !tool.definition_only
                && tool.alias_of.is_empty()
                && !BY_NAME_ONLY.contains(&tool.name.as_str())
        };
        Ok(listed.tools.into_iter().filter(is_meant).map(|tool| tool.name).collect())
    }

    /// Makes a run of these calls, below the run of a call. `outlives`: it goes on when the call has ended.
    pub(crate) async fn open<'a>(
        &self,
        context: &'a Context,
        members: &[Member],
        timeout: Duration,
        outlives: bool,
    ) -> Result<Child<'a>, ToolError> {
        if members.is_empty() {
            return Err(ToolError::bad_input("", "no tool is selected: list the tools first"));
        }
        if members.len() > CALLS_MAX {
            let count = members.len();
            return Err(ToolError::bad_input(
                "",
                format!("{count} tools are selected, at most {CALLS_MAX} are called"),
            ));
        }
        let metadata = below(context)?;
        let client = self.client().await?;
        let request = request(context, &client, members, (timeout, metadata)).await?;
        let parent = (!outlives).then(|| parent_call(context));
        let request = v1::CreateRunRequest { parent, ..request };
        let (watch, total) = match client.execute(request).await {
            Ok(watch) => (watch, members.len()),
            Err(Error::Refused(status)) if client::reason(&status) == Some(Reason::RequestIdTaken) => {
                // The attempt before made it, of the tools that were there then.
                let run_id = client::metadata(&status, "run_id").unwrap_or_default();
                let run = client.run(&run_id).await.map_err(|error| match error {
                    // Its request is not yet, or no longer, in the log: another one under the same id finds out.
                    Error::Refused(status) if client::reason(&status) == Some(Reason::RunNotFound) => {
                        ToolError::retryable(status.message())
                    }
                    error => refused(error),
                });
                let total = run?.calls.len();
                (client.watch(&run_id, None, v1::FloorPolicy::Arrival).await.map_err(refused)?, total)
            }
            Err(error) => return Err(refused(error)),
        };
        Ok(Child { context, client, watch, transcript: Transcript::default(), total, reported: Vec::new() })
    }
}

/// Metadata of calls that a call makes: its run and id, how deep they are below a run that a client made, below which
/// tools, and how many tokens of models an agent above leaves to all of them together.
///
/// # Errors
/// They would be too deep.
pub fn below(context: &Context) -> Result<BTreeMap<String, String>, ToolError> {
    let depth = context.metadata().get(DEPTH).and_then(|depth| depth.parse().ok()).unwrap_or(0_u32);
    let path = match context.metadata().get(PATH) {
        Some(above) => format!("{above} > {}", context.tool()),
        None => context.tool().to_string(),
    };
    if depth >= DEPTH_MAX {
        return Err(ToolError::new(format!(
            "{DEPTH_MAX} runs were made below each other ({path}), more are not: call the tools yourself"
        )));
    }
    let (run, call) = (context.run_id().to_string(), context.call_id().to_string());
    let metadata = [(PARENT_RUN, run), (PARENT_CALL, call), (DEPTH, (depth + 1).to_string()), (PATH, path)];
    let left = context.metadata().get(TOKENS_LEFT).map(|left| (TOKENS_LEFT, left.clone()));
    Ok(metadata.into_iter().chain(left).map(|(key, value)| (key.to_owned(), value)).collect())
}

/// The metadata of each of several calls: they share the tokens that are left.
fn shared(mut metadata: BTreeMap<String, String>, calls: usize) -> BTreeMap<String, String> {
    if let Some(left) = metadata.get_mut(TOKENS_LEFT) {
        let calls = u64::try_from(calls.max(1)).unwrap_or(u64::MAX);
        *left = (left.parse().unwrap_or(0_u64) / calls).to_string();
    }
    metadata
}

/// The same for every attempt of the call, because another request under the same id would be refused.
async fn request(
    context: &Context,
    client: &Client,
    members: &[Member],
    (timeout, metadata): (Duration, BTreeMap<String, String>),
) -> Result<v1::CreateRunRequest, ToolError> {
    let call_id = context.call_id().to_string();
    let parent = parent(context, client).await?;
    let call = parent.calls.iter().find(|call| call.call_id == call_id);
    let lasts = call.and_then(|call| {
        let seconds = call.deadline.as_ref()?.seconds.checked_sub(call.create_time.as_ref()?.seconds)?;
        u64::try_from(seconds).ok().map(Duration::from_secs)
    });
    let timeout = lasts.map_or(timeout, |lasts| lasts.min(timeout)).max(Duration::from_secs(1));
    let metadata = shared(metadata, members.len());
    let calls = members.iter().enumerate().map(|(index, member)| v1::NewCall {
        call_id: format!("m{index}"),
        tool: member.tool.clone(),
        arguments: member.arguments.clone(),
        metadata: metadata.clone().into_iter().collect(),
        concurrency: v1::ToolConcurrency::Parallel.into(),
        ..v1::NewCall::default()
    });
    Ok(v1::CreateRunRequest {
        calls: calls.collect(),
        timeout: timeout.try_into().ok(),
        request_id: child_id(context),
        tenant: parent.tenant,
        ..v1::CreateRunRequest::default()
    })
}

/// The run of a call, which its worker's key must be able to read.
///
/// # Errors
/// It cannot be read.
pub async fn parent(context: &Context, client: &Client) -> Result<v1::Run, ToolError> {
    client.run(&context.run_id().to_string()).await.map_err(|error| match refused(error) {
        error if error.is_retryable() => error,
        error => ToolError::new(format!(
            "the key of this worker cannot read the run that calls it ({}): give it a key of the run's tenant",
            error.message()
        )),
    })
}

/// The call as the parent of the run that it makes, which is cancelled once the call has ended.
#[must_use]
pub fn parent_call(context: &Context) -> v1::ParentCall {
    v1::ParentCall { run_id: context.run_id().to_string(), call_id: context.call_id().to_string() }
}

/// The id of what a call requests: the same for all of its attempts.
#[must_use]
pub fn child_id(context: &Context) -> String {
    let digest = Sha256::digest(format!("{}/{}", context.run_id(), context.call_id()));
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("child-{digest}")
}

/// Cancels a run if the call that made it is cancelled or has ended. Otherwise its worker stops or lost its lease, and
/// the next attempt goes on with the run.
pub async fn stop_with_parent(context: &Context, client: &Client, run_id: &str) {
    let is_over = timeout(PARENT_PATIENCE, parent_is_over(context, client)).await;
    if matches!(is_over, Ok(Ok(true))) && !run_id.is_empty() {
        // If this fails, a coordinator does it, unless the run may go on: then it ends at its own deadline.
        drop(client.cancel_run(run_id, "the call that made this run is cancelled").await);
    }
}

/// Whether the log says that the call that made the run is cancelled or has ended. Waits until it does.
async fn parent_is_over(context: &Context, client: &Client) -> Result<bool, Error> {
    let (run_id, call_id) = (context.run_id().to_string(), context.call_id().as_str());
    let mut events = client.watch(&run_id, None, v1::FloorPolicy::Interleaved).await?;
    let is_end = |event: &v1::RunEvent| match &event.event {
        Some(Event::CancelRequested(requested)) => requested.call_id == call_id,
        Some(Event::CallEnded(ended)) => ended.call_id == call_id,
        _ => false,
    };
    while let Some(some) = events.next().await? {
        if some.iter().any(is_end) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Child<'_> {
    pub(crate) fn run_id(&self) -> &str {
        self.transcript.run_id()
    }

    /// Follows the run until it ends, or until its transcript is enough. Reports each call that ends, or that waits
    /// for a person. If the parent call ended meanwhile, the run is cancelled.
    pub(crate) async fn follow(&mut self, is_enough: impl Fn(&Transcript) -> bool) -> Result<(), ToolError> {
        while !is_enough(&self.transcript) {
            let events = tokio::select! {
                biased;
                () = self.context.cancelled() => {
                    stop_with_parent(self.context, &self.client, self.run_id()).await;
                    return Err(ToolError::new("the call was stopped"));
                }
                events = self.watch.next() => events.map_err(refused)?,
            };
            let Some(events) = events else { break };
            events.iter().for_each(|event| self.transcript.apply(event));
            for event in &events {
                self.report(event).await?;
            }
        }
        Ok(())
    }

    async fn report(&mut self, event: &v1::RunEvent) -> Result<(), ToolError> {
        let (call_id, what) = match &event.event {
            Some(Event::CallEnded(ended)) => {
                let state = ended.outcome.as_ref().map_or(v1::CallState::Unspecified, v1::CallOutcome::state);
                (&ended.call_id, state_name(state))
            }
            Some(Event::CallAwaitingApproval(awaiting)) => (&awaiting.call_id, "awaits approval"),
            Some(Event::CallWaiting(waiting)) => (&waiting.call_id, "waits for an answer"),
            Some(Event::RunOpened(_)) => return self.report_progress().await,
            _ => return Ok(()),
        };
        let tool = self.transcript.calls().iter().find(|call| call.call_id == *call_id).map_or("", |call| &call.tool);
        let line = format!("{call_id} {tool}: {what} (run {})\n", self.run_id());
        if self.reported.contains(&line) {
            return Ok(());
        }
        self.context.text(line.clone()).await?;
        self.reported.push(line);
        self.report_progress().await
    }

    /// Reports how many calls have ended, and the run, so that it can be watched.
    async fn report_progress(&self) -> Result<(), ToolError> {
        let done = self.transcript.calls().iter().filter(|call| call.outcome.is_some()).count();
        #[allow(clippy::cast_precision_loss, reason = "there are a few dozen calls")]
        let (done, total) = (done as f64, self.total as f64);
        self.context.progress(done, Some(total), client::made_run(self.run_id())).await
    }

    pub(crate) async fn cancel(&self, reason: &str) -> Result<(), ToolError> {
        self.client.cancel_run(self.run_id(), reason).await.map(drop).map_err(refused)
    }

    /// What each call answered, in the order of the calls.
    pub(crate) fn answers(&self) -> Vec<Value> {
        let calls = self.transcript.calls();
        let room = (ANSWERS_BYTES_MAX / calls.len().max(1)).min(ANSWER_BYTES_MAX);
        calls.iter().map(|call| answer(call, room)).collect()
    }

    pub(crate) fn count(&self, state: v1::CallState) -> usize {
        count(&self.transcript, state)
    }
}

/// Calls that ended in a state.
pub(crate) fn count(transcript: &Transcript, state: v1::CallState) -> usize {
    let is = |call: &&client::CallTranscript| call.outcome.as_ref().is_some_and(|outcome| outcome.state() == state);
    transcript.calls().iter().filter(is).count()
}

fn answer(call: &client::CallTranscript, room: usize) -> Value {
    let mut answer = json!({ "call_id": call.call_id, "tool": call.tool });
    let Some(outcome) = &call.outcome else {
        answer["state"] = json!("pending");
        return answer;
    };
    answer["state"] = json!(state_name(outcome.state()));
    let mut left = room;
    let result: Vec<Value> = outcome.result.iter().map(|content| shown(content, &mut left)).collect();
    let output: String = call.output.iter().filter_map(text_of).collect();
    if !output.is_empty() {
        answer["output"] = json!(cut(&output, &mut left));
    }
    match <[Value; 1]>::try_from(result) {
        Ok([only]) => answer["result"] = only,
        Err(several) if several.is_empty() => {}
        Err(several) => answer["result"] = json!(several),
    }
    if let Some(error) = &outcome.error {
        answer["error"] = json!(cut(&error.message, &mut left));
    }
    if !outcome.reason.is_empty() {
        answer["reason"] = json!(cut(&outcome.reason, &mut left));
    }
    answer
}

fn text_of(content: &v1::Content) -> Option<&str> {
    match &content.body {
        Some(v1::content::Body::Text(text) | v1::content::Body::Json(text)) => Some(text),
        _ => None,
    }
}

fn shown(content: &v1::Content, left: &mut usize) -> Value {
    match &content.body {
        Some(v1::content::Body::Json(text)) if text.len() <= *left => {
            *left -= text.len();
            serde_json::from_str(text).unwrap_or_else(|_| json!(text))
        }
        Some(v1::content::Body::Text(text) | v1::content::Body::Json(text)) => json!(cut(text, left)),
        Some(v1::content::Body::Data(data)) => json!({ "media_type": data.media_type, "bytes": data.data.len() }),
        Some(v1::content::Body::Object(object)) => {
            json!({ "object_id": object.object_id, "bytes": object.size_bytes, "preview": cut(&object.preview, left) })
        }
        None => Value::Null,
    }
}

/// As much of a text as is left, with a note if it was cut.
fn cut(text: &str, left: &mut usize) -> String {
    let shown = toolyard_tool::runtime::beginning(text, *left);
    *left -= shown.len();
    match shown.len() == text.len() {
        true => text.to_owned(),
        false => format!("{shown} [cut here: {} of {} bytes are shown]", shown.len(), text.len()),
    }
}

fn state_name(state: v1::CallState) -> &'static str {
    match state {
        v1::CallState::Completed => "completed",
        v1::CallState::Failed => "failed",
        v1::CallState::Cancelled => "cancelled",
        v1::CallState::Expired => "expired",
        _ => "pending",
    }
}

/// A coordinator that is away may be there for another attempt; what it refuses, it refuses again, unless the reason is
/// temporary.
#[must_use]
pub fn refused(error: Error) -> ToolError {
    match error {
        Error::Unreachable { .. } | Error::RunUnknown => ToolError::retryable(error.to_string()),
        Error::Refused(status) if is_temporary(&status) => match client::retry_after(&status) {
            Some(wait) => ToolError::rate_limited(status.message(), wait),
            None => ToolError::retryable(status.message()),
        },
        Error::Settings(_) | Error::Refused(_) | Error::Source(_) => ToolError::from(error),
    }
}

fn is_temporary(status: &Status) -> bool {
    status.code() == Code::Unavailable || client::reason(status).is_some_and(Reason::is_temporary)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;

    #[test]
    fn what_is_refused_for_a_while_may_be_tried_again() {
        let refused = |code: Code, reason: &str, wait: Option<Duration>| {
            let mut details = ErrorDetails::with_error_info(reason, "toolyard", HashMap::<String, String>::new());
            details.set_retry_info(wait);
            let error = refused(Error::Refused(Box::new(Status::with_error_details(code, "no", details))));
            (error.is_retryable(), error.retry_after())
        };
        let wait = Some(Duration::from_secs(7));
        assert_eq!(refused(Code::ResourceExhausted, "QUOTA_EXCEEDED", wait), (true, wait));
        assert_eq!(refused(Code::ResourceExhausted, "LOG_FULL", None), (true, None));
        assert_eq!(refused(Code::Unavailable, "", None), (true, None));
        assert_eq!(refused(Code::NotFound, "RUN_NOT_FOUND", None), (false, None));
    }
}
