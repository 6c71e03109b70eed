//! OpenAI's Responses API: `POST /responses` executes the calls that it is given, and answers open calls.

use std::time::Duration;

use axum::response::Response;
use axum::routing::{self, get, post};
use bytes::Bytes;
use formats::openai::InputError;
use formats::openai::responses::{
    Answered as Answers, Asked, Continued, Event, Items, Opened, ResponseId, Stream, input_items,
};
use formats::openai::share::SharedRun;
use http::{Method, StatusCode};
use proto::{Reason, v1};
use run::Run;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    FORM, Face, Route, Wrong, abandoned, answer, body, cancel_all, execute, has_all, hosted, list, malformed, path,
    read_through, stored_run, streamed, watch, watch_by,
};
use crate::admission::error::RequestError;
use crate::api::Api;
use crate::api::abandoned::Abandoned;
use crate::api::http::ask::Ask;
use crate::api::http::sse;
use crate::api::http::stored::{self, Room};
use crate::api::output::broken;
use crate::api::problem::Problem;
use crate::auth::audit;
use crate::auth::callers::Role;
use crate::nats::journal::ReadError;
use crate::owner::Stopped;
use crate::readers::{Reader, WatchError};
use crate::requests::{RequestKey, Taken};

/// How long a cancelled response may take to end before its present state is returned: a tool has 5 s to stop.
const CANCEL_WAIT: Duration = Duration::from_secs(8);

#[rustfmt::skip]
pub(super) const ROUTES: &[Route] = &[
    Route { method: Method::POST, path: "/responses", name: "createResponse",
        roles: &[Role::Submit, Role::Answer, Role::Approve], handler: || post(create),
        description: "Executes the calls in `input`, or answers the open calls of `previous_response_id`." },
    Route { method: Method::GET, path: "/responses/{response_id}", name: "getResponse",
        roles: &[Role::Read], handler: || get(retrieve),
        description: "Gets the present state of a response, or its events." },
    Route { method: Method::DELETE, path: "/responses/{response_id}", name: "deleteResponse",
        roles: &[Role::Submit], handler: || routing::delete(delete),
        description: "Cancels the calls that have not ended; after that the response is not found any more." },
    Route { method: Method::POST, path: "/responses/{response_id}/cancel", name: "cancelResponse",
        roles: &[Role::Submit], handler: || post(cancel),
        description: "Cancels the calls that have not ended, and waits up to 8 s for their end." },
    Route { method: Method::GET, path: "/responses/{response_id}/input_items", name: "listInputItems",
        roles: &[Role::Read], handler: || get(items),
        description: "Lists the calls, or the outputs, from which a response was made." },
];

type Asks = Result<Ask, Problem>;
type Answered = Result<Response, Wrong>;

async fn create(api: Api, ask: Asks) -> Answered {
    let ask = ask?;
    let (shows_all, items) = (shows_all(&ask)?, items_wanted(&ask)?);
    let api = api.in_form(FORM);
    let asked = Asked::read(&body(&ask)?, &hosted(&api))?;
    let (reader, id, is_streamed, is_background, cancels) = match asked {
        Asked::Opened(Opened { mut run, run_id, is_streamed, is_background, cancels_on_disconnect }) => {
            run.request_id = ask.request_id(run.request_id)?;
            let cancels = cancels_on_disconnect && run.request_id.is_empty();
            let (reader, SharedRun { run, share }) = execute(&api, &ask, (run, run_id), "/input").await?;
            (reader, ResponseId { run, share, part: 0 }, is_streamed, is_background, cancels)
        }
        Asked::Continued(continued) => {
            let (reader, id, still_waits) = go_on(&api, &continued).await?;
            let is_background = continued.is_background || still_waits;
            (reader, id, continued.is_streamed, is_background, continued.cancels_on_disconnect)
        }
    };
    let abandoned = abandoned(&api, id.of(), cancels && !is_background).await?;
    if is_streamed {
        let telling = Telling { stream: Stream::new(id.of(), items), id, after: None, shows_all };
        return Ok(streamed(reader, &api, telling, abandoned));
    }
    let mut told = Told::new(reader, id, items);
    let response = if is_background { told.begun(&api).await } else { told.ended(&api).await };
    abandoned.into_iter().for_each(Abandoned::keep);
    Ok(told.room.held_by(answer(&response?)))
}

/// The response id in the path.
fn named(ask: &Ask) -> Result<ResponseId, Wrong> {
    path(ask, "response_id").parse().map_err(|refused: InputError| Wrong::from(refused).if_gone("response_id"))
}

/// Answers the open calls of a response; the output after that belongs to the next response.
///
/// Also returns whether the run still waits only for its client, so that the next response cannot end before the rest
/// is answered.
async fn go_on(api: &Api, continued: &Continued) -> Result<(Box<Reader>, ResponseId, bool), Wrong> {
    let previous = continued.previous;
    let found = find(api, previous, Shown::State(Items::default()))
        .await
        .map_err(|wrong| wrong.if_gone("/previous_response_id"))?;
    if !found.has_ended {
        let message = format!("response {previous} is still in progress: its calls can be answered when it has ended");
        return Err(Wrong::new(Reason::ResponseInProgress, message, Some("/previous_response_id")));
    }
    // All responses of a run have the run's setting.
    let is_stored = found.run.erasure().is_none();
    if continued.store.is_some_and(|store| store != is_stored) {
        let message = format!(
            "response {previous} has `store: {is_stored}`, and the responses that continue it \
            must have the same"
        );
        return Err(Wrong::new(Reason::Unsupported, message, Some("/store")));
    }
    let (submit, decide) = continued.requests(&found.run, &found.response)?;
    if let Some(submit) = submit {
        api.submit_tool_outputs(submit).await.map_err(|error| Wrong::of_answers(error, "/input"))?;
    }
    if let Some(decide) = decide {
        api.decide_calls(decide).await.map_err(|error| Wrong::of_answers(error, "/input"))?;
    }
    // Others may have answered other calls of the response meanwhile, so the answers belong to any later response.
    let part = part_of_answers(api, continued).await?.unwrap_or(found.current);
    let next = ResponseId { part, ..previous };
    let still_waits = next.of().waits(&*stored_run(api, next.run).await?);
    Ok((watch(api, next.of()).await?, next, still_waits))
}

/// The part of the run in which the answers of a request were given. `None` if the log does not have them all.
async fn part_of_answers(api: &Api, continued: &Continued) -> Result<Option<u32>, Wrong> {
    let of = continued.previous.of();
    let through = api.runs.journals.of(of.run).last_of_run(of.run).await.map_err(RequestError::from)?;
    let mut reader = watch_by(api, of, v1::FloorPolicy::Interleaved).await?;
    let mut answered = Answers::new(continued);
    while let Some(events) = read_through(&mut reader, through).await? {
        events.iter().for_each(|event| answered.take(event, reader.run()));
    }
    Ok(answered.part())
}

async fn retrieve(api: Api, ask: Asks) -> Answered {
    let ask = ask?;
    let id = named(&ask)?;
    let parameter = |name: &str| ask.query.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
    let after = parameter("starting_after").map(str::parse::<u64>).transpose();
    let after = after.map_err(|_| malformed("starting_after", "the sequence number of an event was expected"))?;
    let (shows_all, items) = (shows_all(&ask)?, items_wanted(&ask)?);
    match parameter("stream") {
        None | Some("false") if after.is_some() => Err(malformed("starting_after", "needs stream=true")),
        None | Some("false") => Ok(find(&api, id, Shown::Answer(items)).await?.answer()),
        Some("true") => {
            // A missing response is an error of the request, not of the stream.
            let found = find(&api, id, Shown::State(items)).await?;
            if let Some(after) = after.filter(|after| found.next <= *after) {
                let message =
                    format!("starting_after: response {id} has no event {after} yet, its next event is {}", found.next);
                return Err(Wrong::new(Reason::UnknownSequenceNumber, message, Some("starting_after")));
            }
            let reader = watch(&api, id.of()).await?;
            let telling = Telling { stream: Stream::new(id.of(), items), id, after, shows_all };
            Ok(streamed(reader, &api, telling, None))
        }
        Some(_) => Err(malformed("stream", "true or false was expected")),
    }
}

async fn cancel(api: Api, ask: Asks) -> Answered {
    let ask = ask?;
    let (id, items) = (named(&ask)?, items_wanted(&ask)?);
    let shown = || find(&api, id, Shown::Answer(items));
    let found = find(&api, id, Shown::State(Items::default())).await?;
    if !found.is_newest || id.of().has_ended(&found.run) {
        return Ok(shown().await?.answer());
    }
    cancel_all(&api, id.of(), "the response was cancelled").await?;
    if found.has_ended {
        // Its open calls will not be answered any more; its output so far stays.
        return Ok(shown().await?.answer());
    }
    let mut told = Told::new(watch(&api, id.of()).await?, id, items);
    match timeout(CANCEL_WAIT, told.ended(&api)).await {
        Ok(response) => Ok(told.room.held_by(answer(&response?))),
        Err(_) => Ok(shown().await?.answer()),
    }
}

/// The response is not found any more. With the last response of its run the run is erased, from the history too, if
/// the caller has opened it.
async fn delete(api: Api, ask: Asks) -> Answered {
    let ask = ask?;
    let id = named(&ask)?;
    api.runs.caller.must(Role::Submit).map_err(RequestError::from)?;
    if id.share.is_some() {
        // Its deletion would be recorded outside of the run, where an erasure of the run does not find it.
        let message = format!("response {id} is part of a run that other requests share: cancel it, or erase the run");
        return Err(Wrong::new(Reason::Unsupported, message, Some("response_id")));
    }
    let found = find(&api, id, Shown::State(Items::default())).await?;
    if found.is_newest && !found.run.status().is_final() {
        cancel_all(&api, id.of(), "its response was deleted").await?;
    }
    // Before the deletion is recorded: after that, the request is not repeated.
    if may_erase(&api, &found.run) && are_others_deleted(&api, id, found.count).await? {
        let done = api.runs.erase_run(id.run, None, Some("its responses were deleted")).await;
        let told = done.as_ref().map(|_| v1::EraseRunsResponse { matched: 1, requested: 1, ..Default::default() });
        let told = told.as_ref().map_err(|error| error.reason());
        audit::erased(&api.runs.caller, ("", &id.run.to_string()), told, false);
        done?;
    }
    let taken = Taken { run: id.run, digest: Default::default() };
    // If the key exists, the response was deleted before.
    api.runs.requests.put(&RequestKey::deleted(&id.to_string()), &taken, 0).await.map_err(RequestError::from)?;
    Ok(answer(&json!({ "id": id.to_string(), "object": "response", "deleted": true })))
}

/// Who opened a run may erase it with its responses, unless it is kept open for the calls of further requests.
fn may_erase(api: &Api, run: &Run) -> bool {
    !run.is_kept_open() && api.runs.caller.may_add_to(run).is_ok()
}

/// Whether each of the first `count` responses of the run, other than this one, is deleted.
async fn are_others_deleted(api: &Api, id: ResponseId, count: u32) -> Result<bool, Wrong> {
    for part in (0..count).filter(|part| *part != id.part) {
        let key = RequestKey::deleted(&ResponseId { part, ..id }.to_string());
        if api.runs.requests.newest(&key).await.map_err(RequestError::from)?.taken.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn items(api: Api, ask: Asks) -> Answered {
    let ask = ask?;
    let id = named(&ask)?;
    let found = find(&api, id, Shown::State(Items::default())).await?;
    Ok(answer(&list(input_items(id.of(), &found.run, found.previous.as_ref()), &ask)?))
}

/// Whether the client requests the events that the API does not document.
fn shows_all(ask: &Ask) -> Result<bool, Wrong> {
    match ask.query.iter().find(|(name, _)| name == "events").map(|(_, value)| value.as_str()) {
        None | Some("documented") => Ok(false),
        Some("all") => Ok(true),
        Some(_) => Err(malformed("events", "documented or all was expected")),
    }
}

/// When the client wants to be told of the items of executed calls.
fn items_wanted(ask: &Ask) -> Result<Items, Wrong> {
    match ask.query.iter().find(|(name, _)| name == "items").map(|(_, value)| value.as_str()) {
        None | Some("one_by_one") => Ok(Items::OneByOne),
        Some("interleaved") => Ok(Items::Interleaved),
        Some(_) => Err(malformed("items", "one_by_one or interleaved was expected")),
    }
}

/// The present state of a response.
struct Found {
    response: Value,
    has_ended: bool,
    /// The number of its next event; if it has ended, one more than its last.
    next: u64,
    /// The response that its run is at, or begins next.
    current: u32,
    /// Nothing of its run came after it.
    is_newest: bool,
    /// The responses that its run has, with the one that it is at.
    count: u32,
    /// The response before it.
    previous: Option<Value>,
    run: Run,
    /// Holds the bytes of stored images in the response.
    room: Room,
}

impl Found {
    fn answer(self) -> Response {
        self.room.held_by(answer(&self.response))
    }
}

/// What a response is read for.
#[derive(Clone, Copy)]
enum Shown {
    /// It is returned, with its stored images.
    Answer(Items),
    /// Only its state is used, so stored images are not read.
    State(Items),
}

async fn find(api: &Api, id: ResponseId, shown: Shown) -> Result<Found, Wrong> {
    let unknown = || {
        let message = format!("there is no response {id}");
        Wrong::new(Reason::ResponseNotFound, message, Some("response_id"))
    };
    let key = RequestKey::deleted(&id.to_string());
    if api.runs.requests.find(&key).await.map_err(RequestError::from)?.taken.is_some() {
        return Err(unknown());
    }
    if !api.runs.journals.finds(id.run.shard()).await.map_err(RequestError::from)? {
        return Err(unknown());
    }
    let through = api.runs.journals.of(id.run).last_of_run(id.run).await.map_err(RequestError::from)?;
    let reader = watch(api, id.of()).await;
    let reader = reader.map_err(|wrong| {
        if wrong.status() == StatusCode::NOT_FOUND { unknown() } else { wrong.if_gone("response_id") }
    })?;
    let mut told = match shown {
        Shown::Answer(items) => Told::new(reader, id, items),
        Shown::State(items) => Told { room: Room::none(), ..Told::new(reader, id, items) },
    };
    let (mut ended, mut previous, mut next) = (None, None, 0);
    while let Some(events) = read_through(&mut told.reader, through).await? {
        for event in told.take(api, &events).await? {
            if event.part == id.part {
                next = event.sequence + 1;
            }
            if event.is_last() && event.part == id.part {
                ended = Some(event.data["response"].clone());
            } else if event.is_last() && Some(event.part) == id.part.checked_sub(1) {
                previous = Some(event.data["response"].clone());
            }
        }
    }
    let now = told.stream.part();
    let is_newest =
        if ended.is_some() { now == id.part + 1 && told.stream.standing().is_none() } else { now == id.part };
    let has_ended = ended.is_some();
    let count = now + u32::from(told.stream.standing().is_some());
    let standing = || told.stream.standing().filter(|_| now == id.part);
    let is_there = has_all(told.reader.run(), id.of());
    let response = ended.or_else(standing).filter(|_| is_there).ok_or_else(unknown)?;
    let run = told.reader.run().clone();
    Ok(Found { response, has_ended, next, current: now, is_newest, count, previous, run, room: told.room })
}

/// A response that is followed only for its final object.
struct Told {
    reader: Box<Reader>,
    stream: Stream,
    id: ResponseId,
    room: Room,
}

impl Told {
    fn new(reader: Box<Reader>, id: ResponseId, items: Items) -> Self {
        Self { reader, stream: Stream::new(id.of(), items), id, room: Room::default() }
    }

    async fn take(&mut self, api: &Api, events: &[v1::RunEvent]) -> Result<Vec<Event>, Wrong> {
        for (object_id, bytes) in stored::read(api, events, &mut self.room).await? {
            self.stream.keep(object_id, bytes);
        }
        Ok(events.iter().flat_map(|event| self.stream.take(event, self.reader.run())).collect())
    }

    /// The response when it has ended.
    async fn ended(&mut self, api: &Api) -> Result<Value, Wrong> {
        loop {
            for event in self.next(api).await? {
                if event.part == self.id.part && event.is_last() {
                    return Ok(event.data["response"].clone());
                }
            }
        }
    }

    /// The response as soon as it exists.
    async fn begun(&mut self, api: &Api) -> Result<Value, Wrong> {
        loop {
            let events = self.next(api).await?;
            let mut of_part =
                events.into_iter().filter(|event| event.part == self.id.part && event.data.get("response").is_some());
            if let Some(event) = of_part.next_back() {
                let standing = self.stream.standing().filter(|_| !event.is_last());
                return Ok(standing.unwrap_or_else(|| event.data["response"].clone()));
            }
        }
    }

    async fn next(&mut self, api: &Api) -> Result<Vec<Event>, Wrong> {
        let events = tokio::select! {
            () = api.stop.cancelled() => return Err(broken(&self.reader, WatchError::Stopped(Stopped)).into()),
            events = self.reader.next() => events,
        };
        match events {
            Ok(Some(events)) => self.take(api, &events).await,
            Ok(None) => {
                let ended = ReadError::new(&"the run ended without events");
                Err(broken(&self.reader, ended.into()).into())
            }
            Err(error) => Err(broken(&self.reader, error).into()),
        }
    }
}

/// A response that is streamed.
struct Telling {
    stream: Stream,
    id: ResponseId,
    after: Option<u64>,
    shows_all: bool,
}

impl Face for Telling {
    const IS_INLINE: bool = true;

    fn keep(&mut self, object_id: String, bytes: Bytes) {
        self.stream.keep(object_id, bytes);
    }

    fn take(&mut self, events: &[v1::RunEvent], run: &Run, text: &mut Vec<u8>) -> bool {
        let told = events.iter().flat_map(|event| self.stream.take(event, run));
        for event in told.filter(|event| event.part == self.id.part).collect::<Vec<_>>() {
            let is_new = self.after.is_none_or(|after| event.sequence > after);
            if is_new && (self.shows_all || event.is_documented()) {
                sse::event(text, None, Some(event.kind), &event.data.to_string());
            }
            if event.is_last() {
                text.extend_from_slice(b"data: [DONE]\n\n");
                return true;
            }
        }
        false
    }
}
