//! `POST /v1/tool_calls:batch`: takes an assistant turn in the format of a model vendor, and returns the messages that
//! answer it. The calls are executed as an ordinary run, or added to an open one.

mod answer;
mod described;
mod messages;
pub(super) mod shared;
mod terms;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use formats::heard::Heard;
use formats::turns::{Form, Turn};
use proto::v1;
use proto::v1::run_event::Event;
use run::{CallId, CallState, Run, RunStatus};
use tokio::time::Instant;

pub(super) use self::described::{described, messages_described, options, options_described};
pub(super) use self::messages::messages;

use self::answer::Answering;
use self::terms::Terms;
use super::ask::Ask;
use super::sse;
use super::stored::{self, Room};
use crate::admission::error::RequestError;
use crate::api::abandoned::Abandoned;
use crate::api::output::{HEARTBEAT, Piece, broken};
use crate::api::problem::Problem;
use crate::api::{Api, ApiError};
use crate::readers::{Reader, WatchError};

/// How long a stored run may take to appear.
const OPENING_MAX: Duration = Duration::from_secs(10);

pub(super) async fn batch(api: Api, ask: Ask) -> Result<Response, Problem> {
    let mut terms = Terms::read(&ask)?;
    let api = api.in_form(terms.turn.form.definitions());
    let floor_policy = terms.floor_policy(&ask)?;
    let is_shared = !terms.options.run_id.is_empty();
    if is_shared {
        shared::give_ids(&mut terms.turn);
    }
    let (calls, refused) = terms.calls();
    let problem = |error: ApiError| Problem::of(error, |field| terms.place(&ask, field));
    let reader = if calls.is_empty() {
        None
    } else if is_shared {
        Some(Box::pin(shared::add(&api, &terms.options, calls.clone(), floor_policy)).await.map_err(problem)?)
    } else {
        let run = Some(v1::CreateRunRequest { calls: calls.clone(), ..terms.options.run.clone() });
        let request =
            v1::ExecuteRunRequest { run, floor_policy: floor_policy.into(), ..v1::ExecuteRunRequest::default() };
        Some(Box::pin(api.execute_run(request)).await.map_err(problem)?)
    };
    let Terms { turn, dangling, is_of_model, options, wait, .. } = terms;
    let turn = Answering { turn, refused, dangling, is_of_model, is_shared };
    let Some(reader) = reader else { return Ok(turn.response(None)) };
    let (until, wanted) = (Instant::now() + wait, shared::ids(&calls));
    let abandoned = (options.cancels_on_disconnect && options.run.request_id.is_empty()).then(|| {
        let calls = if is_shared { wanted.clone() } else { Vec::new() };
        Abandoned::new(&api.abandoned, &api.runs, (reader.run().id(), calls))
    });
    let mut waiting = Waiting { abandoned, ..Waiting::new(api, reader, until) };
    waiting.want(wanted.iter());
    if ask.wants_events() {
        return Ok(events(turn, waiting));
    }
    waiting.answer(&turn).await.map_err(|error| ask.problem(error))
}

/// The run's output as it is produced, then the messages as an event of their own.
fn events(turn: Answering, waiting: Waiting) -> Response {
    let stream = futures::stream::unfold((Some(turn), waiting, Instant::now()), async |state| {
        // The room for stored content is kept until the client has taken the last event.
        let (Some(turn), mut waiting, mut told_at) = state else { return None };
        match waiting.next().await {
            Ok(Word::Events(mut events)) => {
                if turn.is_shared {
                    events.retain(|event| shared::is_of(event, |call| waiting.is_ours(call)));
                }
                // Events of other requests are nothing to this client.
                let is_silent = events.is_empty() && told_at.elapsed() >= HEARTBEAT;
                if is_silent || !events.is_empty() {
                    told_at = Instant::now();
                }
                let text = match is_silent {
                    true => Bytes::from_static(sse::HEARTBEAT),
                    false => sse::text(Ok(Piece { events, ..Piece::default() })),
                };
                Some((text, (Some(turn), waiting, told_at)))
            }
            Ok(Word::Nothing) => Some((Bytes::from_static(sse::HEARTBEAT), (Some(turn), waiting, Instant::now()))),
            Ok(Word::Settled(run)) => {
                let mut text = Vec::new();
                sse::event(&mut text, None, Some("messages"), &turn.json(Some((&run, &waiting.heard))));
                waiting.keep();
                Some((text.into(), (None, waiting, told_at)))
            }
            Err(fault) => {
                waiting.keep();
                Some((sse::text(Err(fault)), (None, waiting, told_at)))
            }
        }
    });
    sse::response(stream)
}

/// A run whose client waits for calls of it.
struct Waiting {
    api: Api,
    reader: Box<Reader>,
    until: Instant,
    heard: Heard,
    room: Room,
    /// The ids of the calls.
    wanted: HashSet<String>,
    /// Those that the output has not named yet.
    unseen: HashSet<String>,
    /// Those whose end was not read yet.
    open: HashSet<String>,
    /// The run's state, while a client or an approver must act and nothing else is outstanding.
    acts: Option<Arc<Run>>,
    /// Cancels the calls when the client disconnects.
    abandoned: Option<Abandoned>,
}

enum Word {
    Events(Vec<v1::RunEvent>),
    /// The heartbeat's time passed without an event.
    Nothing,
    /// Waiting is over: the calls ended, a client or an approver must act, or the time is up.
    Settled(Arc<Run>),
}

impl Waiting {
    fn new(api: Api, reader: Box<Reader>, until: Instant) -> Self {
        let (heard, room) = (Heard::default(), Room::default());
        let (wanted, unseen, open) = Default::default();
        Self { api, reader, until, heard, room, wanted, unseen, open, acts: None, abandoned: None }
    }

    /// Waits for these calls, which the output that was read may have named already.
    fn want<'a>(&mut self, calls: impl Iterator<Item = &'a CallId>) {
        for call in calls {
            if self.reader.run().find(call).is_none() {
                self.unseen.insert(call.to_string());
            }
            if !self.heard.has_ended(call.as_str()) {
                self.open.insert(call.to_string());
            }
            self.wanted.insert(call.to_string());
        }
    }

    /// Waits, and answers the turn.
    async fn answer(mut self, turn: &Answering) -> Result<Response, ApiError> {
        let run = loop {
            match self.next().await {
                Ok(Word::Events(_) | Word::Nothing) => {}
                Ok(Word::Settled(run)) => break run,
                Err(error) => {
                    self.keep();
                    return Err(error);
                }
            }
        };
        let response = turn.response(Some((&run, &self.heard)));
        let room = std::mem::replace(&mut self.room, Room::none());
        self.keep();
        Ok(room.held_by(response))
    }

    fn wants(&self, call: &str) -> bool {
        self.wanted.contains(call)
    }

    /// Whether a call is one of the client's, or a question of one.
    fn is_ours(&self, call: &str) -> bool {
        let asking = || {
            let run = self.reader.run();
            let question = run.find(&call.parse().ok()?)?;
            run.call(question.spec().asked_by.as_ref()?.attempt.call)
        };
        self.wants(call) || asking().is_some_and(|asking| self.wants(asking.spec().id.as_str()))
    }

    /// The client got its answer, so the run goes on.
    fn keep(&mut self) {
        if let Some(abandoned) = self.abandoned.take() {
            abandoned.keep();
        }
    }

    async fn next(&mut self) -> Result<Word, ApiError> {
        // The log may have ended calls whose events were not read yet.
        let Self { open, acts, .. } = self;
        let is_heard = |run: &Arc<Run>| {
            let mut ended = run.calls().iter().filter(|call| call.outcome().is_some());
            ended.all(|call| !open.contains(call.spec().id.as_str()))
        };
        if let Some(run) = acts.take_if(|run| is_heard(run)) {
            return Ok(Word::Settled(run));
        }
        let now = Instant::now();
        // Calls that were added to an open run may be far behind in the output that is read.
        let is_opened = self.reader.run().opened_at().is_some() && self.unseen.is_empty();
        // A closed run is read to its end.
        if is_opened && self.reader.run().is_open() && self.open.is_empty() {
            return Ok(self.as_it_stands());
        }
        if is_opened && (self.until <= now || self.api.stop.is_cancelled()) {
            return Ok(self.as_it_stands());
        }
        // The run and its calls are stored, so they will be read; their state is not known before.
        let until = if is_opened { self.until.min(now + HEARTBEAT) } else { now + OPENING_MAX };
        let events = tokio::select! {
            biased;
            events = self.reader.next() => events,
            () = self.api.stop.cancelled(), if is_opened => return Ok(self.as_it_stands()),
            () = tokio::time::sleep_until(until) => {
                let (run, reason) = (self.reader.run().id(), "the log does not show its calls yet".to_owned());
                if is_opened {
                    return Ok(Word::Nothing);
                }
                return Err(RequestError::Unconfirmed { run, reason }.into());
            }
        };
        match events {
            Ok(Some(events)) => {
                self.take(&events).await?;
                if events.iter().any(|event| self.may_wait(event)) {
                    // The reader may be far behind, so a client may have acted since.
                    let id = self.reader.run().id();
                    let run = self.api.runs.known(id).await.map_err(|refusal| refusal.of_stored(id))?.run;
                    self.acts = self.waits(&run).then_some(run);
                }
                Ok(Word::Events(events))
            }
            Ok(None) => Ok(self.as_it_stands()),
            Err(WatchError::Stopped(_)) if is_opened => Ok(self.as_it_stands()),
            Err(error) => Err(broken(&self.reader, error)),
        }
    }

    /// Applies events to what was heard of the calls, with the stored images among them.
    async fn take(&mut self, events: &[v1::RunEvent]) -> Result<(), ApiError> {
        for (object_id, bytes) in stored::read(&self.api, events, &mut self.room).await? {
            self.heard.keep(object_id, bytes);
        }
        for event in events {
            self.heard.take(event);
            match &event.event {
                Some(Event::RunOpened(opened)) => self.see(&opened.calls),
                Some(Event::CallsAppended(appended)) => self.see(&appended.calls),
                Some(Event::CallEnded(ended)) => {
                    self.open.remove(&ended.call_id);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn see(&mut self, calls: &[v1::OpenedCall]) {
        for call in calls {
            self.unseen.remove(&call.call_id);
        }
    }

    /// After this event all of the calls may wait for a client or an approver.
    fn may_wait(&self, event: &v1::RunEvent) -> bool {
        match &event.event {
            Some(Event::RunStatusChanged(changed)) => changed.status() == v1::RunStatus::RequiresAction,
            Some(Event::CallWaiting(waiting)) => self.wants(&waiting.call_id),
            Some(Event::CallAwaitingApproval(waiting)) => self.wants(&waiting.call_id),
            Some(Event::CallEnded(ended)) => self.wants(&ended.call_id),
            _ => false,
        }
    }

    /// Nothing of the calls goes on before a client or an approver acts.
    fn waits(&self, run: &Run) -> bool {
        let waits =
            |call: &run::Call| matches!(call.state(), CallState::WaitingForClient | CallState::AwaitingApproval);
        let ours = run.calls().iter().filter(|call| self.wants(call.spec().id.as_str()));
        let mut open = ours.filter(|call| call.outcome().is_none()).peekable();
        run.status() == RunStatus::RequiresAction || (open.peek().is_some() && open.all(waits))
    }

    /// Reads what the log has of the run now.
    async fn caught_up(&mut self) -> Result<Arc<Run>, ApiError> {
        let id = self.reader.run().id();
        let through = self.api.runs.journals.of(id).last_of_run(id).await.map_err(RequestError::from)?;
        let give_up = Instant::now() + OPENING_MAX;
        loop {
            let events = tokio::time::timeout_at(give_up, self.reader.next_through(through)).await;
            let late = |_| RequestError::BrokerUnavailable("the log did not return entries that it holds".into());
            let Some(events) = events.map_err(late)?? else { return Ok(Arc::new(self.reader.run().clone())) };
            self.take(&events).await?;
        }
    }

    fn as_it_stands(&self) -> Word {
        Word::Settled(Arc::new(self.reader.run().clone()))
    }
}

/// The calls of a run as a turn in a form, with the names by which a model of that form knows the tools.
fn turn_of(api: &Api, run: &Run, form: Form) -> Turn {
    let name = |call: &'_ run::Call| -> String {
        let spec = call.spec();
        spec.metadata.get(proto::names::CALLED_AS).cloned().unwrap_or_else(|| spec.tool.to_string())
    };
    let own: Vec<String> = run.requested_calls().map(name).collect();
    let exported = api.runs.exported(own.iter().map(String::as_str), form.definitions());
    let ids = run.requested_calls().map(|call| call.spec().id.to_string());
    Turn::of_calls(form, ids.zip(exported))
}
