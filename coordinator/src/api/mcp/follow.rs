//! Follows the run of a `tools/call` until its call has ended, needs input, or becomes a task. What a replica does for
//! a call is in its stream alone: any replica can go on from the log.

use std::collections::HashSet;

use formats::heard::Heard;
use formats::mcp::result::Ended;
use proto::v1;
use proto::v1::run_event::Event;
use run::{CallId, RunId};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::client::{Client, LEVELS};
use super::message::{INTERNAL, INVALID_REQUEST, RpcError};
use super::progress::Progress;
use super::seal::State;
use super::traced::Traced;
use super::under_way::UnderWay;
use super::{CANCELLED_BY_CLIENT, MAIN, call, message, questions, resume, tasks};
use crate::api::abandoned::Abandoned;
use crate::api::output::{HEARTBEAT, broken};
use crate::api::{Api, ApiError};
use crate::readers::{Reader, WatchError};
use crate::requests::{RequestKey, Taken};

/// Questions that are asked at the same time arrive one by one; they are put to the client together.
const QUESTIONS_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);
/// A call of an older client that lasts this long is recorded, so that any replica can cancel it.
const RECORDED_AFTER: std::time::Duration = std::time::Duration::from_secs(1);
/// Output on this channel, or on one that continues with a dot and a level, is a log message.
const LOG: &str = "log";

/// A request whose run is followed.
pub(super) struct Following {
    pub(super) api: Api,
    pub(super) client: Client,
    /// The id of the request.
    pub(super) id: Box<RawValue>,
    pub(super) run: RunId,
    reader: Box<Reader>,
    heard: Heard,
    pub(super) progress: Option<Progress>,
    /// When it becomes a task.
    pub(super) convert_at: Option<Instant>,
    ask_at: Option<Instant>,
    record_at: Option<Instant>,
    /// Calls that the client was asked about, or that were answered here.
    asked: HashSet<CallId>,
    /// Answers that came with the request, before there was a question.
    pub(super) given: Map<String, Value>,
    /// The parameters of a request that may have to be repeated with input.
    pub(super) params: Option<Box<RawValue>>,
    /// Events up to this one were reported before.
    pub(super) reported: Option<u64>,
    /// The last event that was read.
    pub(super) last: Option<u64>,
    /// Cancels the run if the client disconnects.
    pub(super) abandoned: Option<Abandoned>,
    pub(super) traced: Option<Traced>,
    /// Whether messages can be sent before the answer.
    pub(super) has_stream: bool,
    _under_way: Option<UnderWay>,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum Step {
    /// Notifications and requests, each as JSON.
    Messages(Vec<String>),
    /// Nothing for a while.
    Silence,
    /// The waiting time is over.
    Waited,
    /// The answer of the request, as JSON.
    Done(String),
    /// The stream ends without an answer: another replica goes on, or the client does not wait for one.
    Cut,
}

impl Following {
    pub(super) fn new(api: Api, client: Client, id: Box<RawValue>, reader: Box<Reader>) -> Self {
        let run = reader.run().id();
        let records = client.session.is_some();
        let session = client.session.as_deref();
        let under_way = session.map(|session| api.mcp.calls.begin(session, message::canonical(&id), run));
        Self {
            api,
            id,
            run,
            reader,
            heard: Heard::default(),
            progress: None,
            convert_at: None,
            ask_at: None,
            record_at: records.then(|| Instant::now() + RECORDED_AFTER),
            asked: HashSet::new(),
            given: Map::new(),
            params: None,
            reported: None,
            last: None,
            abandoned: None,
            traced: None,
            has_stream: true,
            _under_way: under_way,
            client,
        }
    }

    /// Waits for the next step, at most until the given time. Cancel safe between its steps: what it stores may be
    /// stored again. After an error the run goes on: its client has not left.
    pub(super) async fn next(&mut self, until: Option<Instant>) -> Result<Step, RpcError> {
        let step = Box::pin(self.step(until)).await;
        if let Err(error) = &step {
            self.leave();
            self.fail(&error.code.to_string());
        }
        step
    }

    async fn step(&mut self, until: Option<Instant>) -> Result<Step, RpcError> {
        if self.heard.has_ended(MAIN) {
            return Ok(self.done());
        }
        let silent_until = Instant::now() + HEARTBEAT;
        loop {
            let now = Instant::now();
            if let Some(step) = Box::pin(self.due(now)).await? {
                return Ok(step);
            }
            let progress = self.progress.as_ref().and_then(Progress::due);
            let times = [until, self.convert_at, self.ask_at, self.record_at, progress, Some(silent_until)];
            let wake = times.into_iter().flatten().min().unwrap_or(silent_until);
            let is_opened = self.reader.run().opened_at().is_some();
            let events = tokio::select! {
                biased;
                () = self.api.stop.cancelled(), if is_opened => return Ok(self.stopped()),
                events = self.reader.next() => events,
                () = tokio::time::sleep_until(wake) => {
                    let now = Instant::now();
                    if until.is_some_and(|until| until <= now) {
                        return Ok(Step::Waited);
                    }
                    if silent_until <= now {
                        return Ok(Step::Silence);
                    }
                    continue;
                }
            };
            if let Some(step) = self.take(events)? {
                return Ok(step);
            }
        }
    }

    /// The step that is due now.
    async fn due(&mut self, now: Instant) -> Result<Option<Step>, RpcError> {
        if self.ask_at.is_some_and(|at| at <= now) {
            self.ask_at = None;
            if let Some(step) = self.ask().await? {
                return Ok(Some(step));
            }
        }
        if self.record_at.is_some_and(|at| at <= now) {
            self.record_at = None;
            self.record().await;
        }
        if self.convert_at.is_some_and(|at| at <= now) {
            return Ok(Some(self.become_task()));
        }
        let progress = self.progress.as_mut().and_then(|progress| progress.flush(now));
        Ok(progress.map(|notification| Step::Messages(vec![notification])))
    }

    fn take(&mut self, events: Result<Option<Vec<v1::RunEvent>>, WatchError>) -> Result<Option<Step>, RpcError> {
        let events = match events {
            Ok(Some(events)) => events,
            Ok(None) => return Err(RpcError::new(INTERNAL, format!("run {} ended without its call", self.run))),
            Err(WatchError::Stopped(_)) => return Ok(Some(self.stopped())),
            Err(error) => return Err(broken(&self.reader, error).into()),
        };
        let mut messages: Vec<String> = events.iter().filter_map(|event| self.hear(event)).collect();
        if self.heard.has_ended(MAIN) {
            messages.extend(self.progress.as_mut().and_then(Progress::end));
            if messages.is_empty() {
                return Ok(Some(self.done()));
            }
            // The end follows as a step of its own.
            self.convert_at = None;
            self.ask_at = None;
        } else if questions::open(&self.api, &self.client, self.reader.run())
            .iter()
            .any(|open| !self.asked.contains(&open.call))
        {
            self.ask_at.get_or_insert(Instant::now() + QUESTIONS_PAUSE);
        }
        Ok((!messages.is_empty()).then_some(Step::Messages(messages)))
    }

    /// Reads an event, and returns the notification that it causes.
    fn hear(&mut self, event: &v1::RunEvent) -> Option<String> {
        self.last = Some(event.sequence);
        let is_new = self.reported.is_none_or(|reported| event.sequence > reported);
        let Some(Event::CallOutput(output)) = &event.event else {
            self.heard.take(event);
            return None;
        };
        let now = Instant::now();
        match &output.piece {
            Some(v1::call_output::Piece::Progress(v1::Progress { done, total, message })) => {
                let progress = self.progress.as_mut()?;
                if !is_new {
                    progress.was_reported(*done);
                    return None;
                }
                progress.report(*done, *total, message, now)
            }
            Some(v1::call_output::Piece::Content(content)) => {
                let text = match &content.body {
                    Some(v1::content::Body::Text(text)) => Some(text.as_str()),
                    _ => None,
                };
                if let Some(level) = log_level(&output.channel) {
                    return text.filter(|_| is_new).and_then(|text| self.log(level, text));
                }
                self.heard.take(event);
                match (&mut self.progress, text) {
                    (Some(progress), Some(text)) if is_new => progress.say(text, now),
                    (Some(progress), Some(text)) => progress.was_said(text),
                    (None, _) | (_, None) => {}
                }
                None
            }
            None => None,
        }
    }

    fn log(&self, level: usize, text: &str) -> Option<String> {
        if self.client.log_level.is_none_or(|wanted| level < wanted) {
            return None;
        }
        let params = json!({ "level": LEVELS.get(level)?, "data": text });
        Some(json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }).to_string())
    }

    /// Answers the open calls to which the request brought answers, and asks the client about the others.
    async fn ask(&mut self) -> Result<Option<Step>, RpcError> {
        let mut open = questions::open(&self.api, &self.client, self.reader.run());
        open.retain(|open| !self.asked.contains(&open.call));
        if open.iter().any(|open| self.given.contains_key(&open.key)) {
            let (answered, rest): (Vec<_>, Vec<_>) =
                open.into_iter().partition(|open| self.given.contains_key(&open.key));
            self.asked.extend(answered.iter().map(|open| open.call.clone()));
            questions::answer(&self.api, self.run, &answered, &mut self.given).await?;
            open = rest;
        }
        if open.is_empty() {
            return Ok(None);
        }
        if self.client.is_modern() {
            let by = self.api.runs.caller.name().map(ToString::to_string).unwrap_or_default();
            let digest = self.params.as_deref().map(call::digest).unwrap_or_default();
            let state = State::new(self.run, (by, digest), self.last);
            let state = self.api.mcp.seals.seal(&self.api.runs.requests, &state).await?;
            let requests: Map<String, Value> = open.iter().map(|open| (open.key.clone(), open.request())).collect();
            self.leave();
            let members = json!({ "inputRequests": requests, "requestState": state }).to_string();
            let members = members.trim_start_matches('{').strip_suffix('}').unwrap_or_default().to_owned();
            return Ok(Some(Step::Done(self.answered("input_required", &members))));
        }
        if !self.has_stream {
            let message = format!(
                "the call asks its client a question, on a stream: accept text/event-stream. It goes on as run {}",
                self.run
            );
            return Err(RpcError::new(INVALID_REQUEST, message).with(json!({ "runId": self.run.to_string() })));
        }
        self.asked.extend(open.iter().map(|open| open.call.clone()));
        let request = |open: &questions::Open| {
            let id = resume::question_id(self.run, &open.call);
            let params = open.params();
            json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params }).to_string()
        };
        Ok(Some(Step::Messages(open.iter().map(request).collect())))
    }

    /// Records the call, so that any replica finds it when its client cancels the request. If that fails, only this
    /// replica finds it.
    async fn record(&self) {
        let Some(session) = &self.client.session else { return };
        let key = RequestKey::mcp_call(session, &message::canonical(&self.id));
        let taken = Taken { run: self.run, digest: Default::default() };
        // Without a revision, because a session may use an id again after the call.
        let before = self.api.runs.requests.newest(&key).await.map_or(0, |held| held.revision);
        if let Err(error) = self.api.runs.requests.put(&key, &taken, before).await {
            tracing::debug!(%error, "recording an MCP call failed");
        }
    }

    /// The run goes on without this request.
    fn leave(&mut self) {
        if let Some(abandoned) = self.abandoned.take() {
            abandoned.keep();
        }
    }

    fn fail(&mut self, error: &str) {
        if let Some(traced) = &mut self.traced {
            traced.fail(error);
        }
    }

    fn become_task(&mut self) -> Step {
        self.leave();
        let task = tasks::created(self.run, self.reader.run());
        Step::Done(self.answered("task", &task))
    }

    /// The coordinator shuts down.
    fn stopped(&mut self) -> Step {
        if self.client.capabilities.tasks && self.client.is_modern() {
            return self.become_task();
        }
        self.leave();
        if self.client.is_primed() {
            return Step::Cut;
        }
        let message = format!("this coordinator shuts down; the call goes on as run {}", self.run);
        let error = RpcError::new(INTERNAL, message).with(json!({ "runId": self.run.to_string() }));
        Step::Done(error.text(Some(&self.id)))
    }

    /// The call has ended.
    fn done(&mut self) -> Step {
        self.leave();
        let Some((said, outcome)) = self.heard.contents(MAIN) else {
            return Step::Done(RpcError::new(INTERNAL, "the call has no outcome").text(Some(&self.id)));
        };
        if outcome.state() == v1::CallState::Cancelled && outcome.reason == CANCELLED_BY_CLIENT {
            return Step::Cut;
        }
        let ended = formats::mcp::result::ended(&said, outcome, self.client.era);
        if outcome.state() != v1::CallState::Completed {
            self.fail("tool_error");
        }
        Step::Done(match ended {
            Ended::Result(members) => self.answered("complete", &members),
            Ended::Failed { code, message } => RpcError::new(code, message).text(Some(&self.id)),
            Ended::Cancelled(why) => self.answered("complete", &formats::mcp::result::refused(&why)),
        })
    }

    fn answered(&self, kind: &str, members: &str) -> String {
        super::answered(&self.id, &self.client, kind, members)
    }
}

/// The level of a log message on this channel: an index of [`LEVELS`].
fn log_level(channel: &str) -> Option<usize> {
    let level = match channel.strip_prefix(LOG)? {
        "" => "info",
        rest => rest.strip_prefix('.')?,
    };
    LEVELS.iter().position(|known| *known == level)
}

fn is_log(event: &v1::RunEvent) -> bool {
    match &event.event {
        Some(Event::CallOutput(output)) => log_level(&output.channel).is_some(),
        _ => false,
    }
}

/// The outcome of a call that has ended, read from the log.
pub(super) async fn outcome(api: &Api, client: &Client, run: RunId) -> Result<Ended, RpcError> {
    let policy = v1::FloorPolicy::Interleaved.into();
    let request =
        v1::WatchRunRequest { run_id: run.to_string(), floor_policy: policy, ..v1::WatchRunRequest::default() };
    let mut reader = api.watch_run(request).await?;
    let mut heard = Heard::default();
    while !heard.has_ended(MAIN) {
        let events = tokio::select! {
            () = api.stop.cancelled() => Err(WatchError::Stopped(crate::owner::Stopped)),
            events = reader.next() => events,
        };
        match events.map_err(ApiError::from)? {
            Some(events) => {
                events.iter().filter(|event| !is_log(event)).for_each(|event| heard.take(event));
            }
            None => break,
        }
    }
    let (said, outcome) =
        heard.contents(MAIN).ok_or_else(|| RpcError::new(INTERNAL, format!("run {run} has no outcome of its call")))?;
    Ok(formats::mcp::result::ended(&said, outcome, client.era))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_for_logs_has_a_level() {
        assert_eq!(log_level("log"), LEVELS.iter().position(|level| *level == "info"));
        assert_eq!(log_level("log.error"), LEVELS.iter().position(|level| *level == "error"));
        for other in ["", "stdout", "logs", "log.loud", "log."] {
            assert_eq!(log_level(other), None, "{other}");
        }
    }
}
