//! The shared part of OpenAI's APIs: errors in the form that its SDKs read, streams of runs, and lists.

mod assistants;
mod described;
mod responses;
pub(crate) mod schemas;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use bytes::Bytes;
use formats::openai::share::{Share, SharedRun};
use formats::openai::{InputError, without_foreign_tools};
use formats::options::{MEMBER, Options};
use formats::tools::Format;
use futures::{Stream, StreamExt as _};
use http::{HeaderValue, Method, StatusCode, header};
use proto::{Reason, v1};
use run::{Run, RunId, ToolName};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::ask::Ask;
use super::batch::shared;
use super::stored::{self, Room};
use super::{answering, sse};
use crate::admission::error::RequestError;
use crate::api::abandoned::Abandoned;
use crate::api::output::{Piece, Streaming};
use crate::api::problem::{Place, Problem};
use crate::api::{Api, ApiError};
use crate::auth::audit;
use crate::auth::callers::{Denied, Role};
use crate::metrics::refused;
use crate::readers::Reader;

/// A route of OpenAI's APIs.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    /// Its name in the API's own document.
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    /// Its caller must have one of these.
    roles: &'static [Role],
    handler: fn() -> MethodRouter<Api>,
}

impl Route {
    /// Its operation in the document.
    pub(crate) fn described(&self) -> Value {
        described::described(self)
    }
}

/// The routes of OpenAI's APIs; the router and the document are made from them.
pub(crate) fn list_of_routes() -> impl Iterator<Item = &'static Route> {
    responses::ROUTES.iter().chain(assistants::ROUTES)
}

/// The routes under the paths that the SDKs use, whether their base address ends with `/v1` or not. The caller is
/// checked before the request is read.
pub(crate) fn routes(api: &Api) -> Router<Api> {
    list_of_routes().fold(Router::new(), |routes, route| {
        let judge = move |api: Api, request: Request, next: Next| judged(route, api, request, next);
        let handler = (route.handler)().route_layer(from_fn_with_state(api.clone(), judge));
        let handler = answering(handler, route.name);
        routes.route(route.path, handler.clone()).route(&format!("/v1{}", route.path), handler)
    })
}

/// Passes on a request if its caller has one of the roles.
async fn judged(route: &'static Route, api: Api, request: Request, next: Next) -> Result<Response, Wrong> {
    let caller = &api.runs.caller;
    let denied = match route.roles {
        [] => None,
        // A token for one answer is not accepted for objects that consist of several requests.
        roles if roles.iter().any(|role| caller.must(*role).is_ok()) && caller.only().is_none() => None,
        [first, ..] => Some(caller.must(*first).err().unwrap_or_else(|| Denied::token(*first))),
    };
    if let Some(denied) = denied {
        audit::refused(caller, route.name, denied.reason);
        return Err(RequestError::from(denied).into());
    }
    Ok(next.run(request).await)
}

/// The error of a rejected request.
#[derive(Debug)]
pub(crate) struct Wrong {
    reason: Reason,
    message: String,
    /// The wrong part of the request: a JSON pointer into the body, or the name of a parameter.
    param: Option<String>,
    retry_after_s: Option<u64>,
}

impl Wrong {
    pub(crate) fn new(reason: Reason, message: impl Into<String>, param: Option<&str>) -> Self {
        Self { reason, message: message.into(), param: param.map(str::to_owned), retry_after_s: None }
    }

    fn status(&self) -> StatusCode {
        self.reason.http()
    }

    fn json(&self) -> Value {
        let kind = if self.status().is_server_error() { "server_error" } else { "invalid_request_error" };
        let (code, remedy) = (self.reason.code(), self.reason.remedy());
        json!({
            "error": { "type": kind, "code": code, "message": self.message, "param": self.param, "remedy": remedy }
        })
    }
}

impl Wrong {
    /// An error of a run. It names a place in a request that the client did not send, so it is mapped to the part of
    /// the client's request from which the run was made, or to its key.
    fn of_run(error: ApiError, ask: &Ask, calls: &str) -> Self {
        let is_key =
            error.reason == Reason::RequestIdTaken || error.violations.iter().any(|(field, _)| field == "request_id");
        let wrong = Self::from(error);
        let is_at_calls = [StatusCode::BAD_REQUEST, StatusCode::PAYLOAD_TOO_LARGE].contains(&wrong.status());
        let param = match is_key && ask.headers.contains_key("idempotency-key") {
            true => Some("idempotency-key".to_owned()),
            false => is_at_calls.then(|| calls.to_owned()),
        };
        Self { param, ..wrong }
    }

    /// An error of calls that are added to a run: of the options, of the named run, or of the calls.
    fn of_added(error: ApiError, ask: &Ask, calls: &str) -> Self {
        match error.violations.first().map(|(field, _)| field.as_str()) {
            Some("") => Self { param: Some(format!("/{MEMBER}")), ..Self::from(error) },
            Some("run_id") => Self { param: Some(format!("/{MEMBER}/run")), ..Self::from(error) },
            Some(_) | None => Self::of_run(error, ask, calls).if_gone(&format!("/{MEMBER}/run")),
        }
    }

    /// An error in the answers to a run's calls, mapped to their place in the body.
    fn of_answers(error: ApiError, answers: &str) -> Self {
        let wrong = Self::from(error);
        let is_theirs = wrong.status().is_client_error() && wrong.status() != StatusCode::FORBIDDEN;
        Self { param: is_theirs.then(|| answers.to_owned()), ..wrong }
    }

    /// The object that the parameter names does not exist, or not any more.
    fn if_gone(self, param: &str) -> Self {
        match self.status() {
            StatusCode::NOT_FOUND | StatusCode::GONE => Self { param: Some(param.to_owned()), ..self },
            _ => self,
        }
    }
}

impl From<InputError> for Wrong {
    fn from(refused: InputError) -> Self {
        let param = Some(refused.pointer).filter(|pointer| !pointer.is_empty());
        Self::new(refused.reason, refused.message, param.as_deref())
    }
}

impl From<ApiError> for Wrong {
    fn from(error: ApiError) -> Self {
        refused(error.reason);
        let place = error.violations.first().map(|(place, _)| place.as_str());
        let wrong = Self::new(error.reason, error.message, place);
        Self { retry_after_s: error.retry_after.map(|wait| wait.as_secs().max(1)), ..wrong }
    }
}

impl From<RequestError> for Wrong {
    fn from(refusal: RequestError) -> Self {
        ApiError::from(refusal).into()
    }
}

impl From<Problem> for Wrong {
    fn from(problem: Problem) -> Self {
        refused(problem.reason);
        let param = problem.errors.into_iter().next().and_then(|(place, _)| match place {
            Place::Body(place) | Place::Parameter(place) => Some(place),
            Place::Header(name) => Some(name.to_owned()),
            Place::Arguments(_) => None,
        });
        let (message, retry_after_s) = (problem.detail, problem.retry_after_s);
        Self { reason: problem.reason, message, param, retry_after_s }
    }
}

impl IntoResponse for Wrong {
    fn into_response(self) -> Response {
        let mut response = answer(&self.json());
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        } else if self.status() == StatusCode::CONFLICT || self.reason == Reason::Unconfirmed {
            // The SDKs would retry, which would not help, or could do it twice.
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        response
    }
}

fn answer(value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A list as the SDKs page through it.
fn list(items: Vec<Value>, ask: &Ask) -> Result<Value, Wrong> {
    let parameter = |name: &str| ask.query.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
    let limit = match parameter("limit").map(str::parse::<usize>) {
        None => 20,
        Some(Ok(limit)) if (1..=100).contains(&limit) => limit,
        Some(_) => return Err(malformed("limit", "a number from 1 to 100 was expected")),
    };
    let mut items = items;
    match parameter("order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(malformed("order", "asc or desc was expected")),
    }
    if let Some(after) = parameter("after") {
        let place = items.iter().position(|item| item["id"] == after);
        let place = place.ok_or_else(|| malformed("after", "no item of the list has this id"))?;
        items.drain(..=place);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    let (first, last) = (id(items.first()), id(items.last()));
    Ok(json!({ "object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more }))
}

fn malformed(parameter: &str, message: &str) -> Wrong {
    Wrong::new(Reason::Malformed, format!("{parameter}: {message}"), Some(parameter))
}

/// How long the log may take to return the next entries that it is known to hold.
const READ_WAIT: Duration = Duration::from_secs(10);

/// The form of the tools' names in requests of these APIs.
pub(super) const FORM: Format = Format::OpenAi;

/// The body of a request, without tools that are not executed here if the client does not want them refused.
fn body(ask: &Ask) -> Result<std::borrow::Cow<'_, [u8]>, Wrong> {
    match ask.query.iter().find(|(name, _)| name == "foreign_tools").map(|(_, value)| value.as_str()) {
        None | Some("refuse") => Ok((&*ask.body).into()),
        Some("ignore") => Ok(without_foreign_tools(&ask.body)?.map_or((&*ask.body).into(), Into::into)),
        Some(_) => Err(malformed("foreign_tools", "refuse or ignore was expected")),
    }
}

/// The name of a worker's tool, for a name that a model was given.
fn hosted(api: &Api) -> impl Fn(&str) -> Option<String> + 'static {
    let runs = api.runs.clone();
    let registry = Arc::clone(&runs.registry.borrow());
    move |name| {
        let catalog = registry.catalog_of(runs.caller.tenant());
        let known = |name: &ToolName| catalog.find(name).map(|entry| entry.name.to_string());
        let hidden = || known(&name.replace("__", ".").parse().ok()?);
        known(&runs.own_name(name)?).or_else(hidden)
    }
}

/// Reads a run from its beginning, in the order that these APIs need.
async fn watch(api: &Api, of: SharedRun) -> Result<Box<Reader>, Wrong> {
    watch_by(api, of, v1::FloorPolicy::Arrival).await
}

/// Reads what a request presents of a run, from its beginning.
async fn watch_by(api: &Api, of: SharedRun, policy: v1::FloorPolicy) -> Result<Box<Reader>, Wrong> {
    let (run_id, floor_policy) = (of.run.to_string(), policy.into());
    let request = v1::WatchRunRequest { run_id, floor_policy, ..v1::WatchRunRequest::default() };
    let mut reader = api.watch_run(request).await?;
    of.share.into_iter().for_each(|share| reader.narrow(share.places()));
    Ok(reader)
}

/// The next events up to an entry that the log is known to hold.
async fn read_through(reader: &mut Reader, through: u64) -> Result<Option<Vec<v1::RunEvent>>, Wrong> {
    let events = timeout(READ_WAIT, reader.next_through(through)).await;
    let late = |_| RequestError::BrokerUnavailable("the log did not return entries that it holds".into());
    Ok(events.map_err(late)?.map_err(ApiError::from)?)
}

/// Cancels the calls of a request when its client disconnects, if the client wants that.
async fn abandoned(api: &Api, of: SharedRun, is_wanted: bool) -> Result<Option<Abandoned>, Wrong> {
    if !is_wanted {
        return Ok(None);
    }
    // Without calls the whole run is cancelled.
    let calls = match of.share {
        Some(_) => of.calls(&*stored_run(api, of.run).await?).map(|call| call.spec().id.clone()).collect(),
        None => Vec::new(),
    };
    Ok(Some(Abandoned::new(&api.abandoned, &api.runs, (of.run, calls))))
}

/// The present state of a run that a request has changed.
async fn stored_run(api: &Api, run: RunId) -> Result<Arc<Run>, Wrong> {
    let known = api.runs.known(run).await.map_err(|error| RequestError::of_stored(error, run))?;
    Ok(known.run)
}

/// Executes the calls of a request, which are at `place` in its body: in a run of their own, or in the open run
/// `run_id`. Returns the run's output, and what the request presents of it.
async fn execute(
    api: &Api,
    ask: &Ask,
    (mut run, run_id): (v1::CreateRunRequest, String),
    place: &str,
) -> Result<(Box<Reader>, SharedRun), Wrong> {
    if run_id.is_empty() {
        let reader = api.execute_run(run.into()).await.map_err(|error| Wrong::of_run(error, ask, place))?;
        let of = reader.run().id().into();
        return Ok((reader, of));
    }
    let calls = std::mem::take(&mut run.calls);
    let ids: Vec<String> = calls.iter().map(|call| call.call_id.clone()).collect();
    let options = Options { run, run_id, ..Options::default() };
    let added = Box::pin(shared::add(api, &options, calls, v1::FloorPolicy::Arrival)).await;
    let mut reader = added.map_err(|error| Wrong::of_added(error, ask, place))?;
    let run = stored_run(api, reader.run().id()).await?;
    let share = Share::of(&run, ids.iter().map(String::as_str)).ok_or_else(|| {
        let message = "several requests have added these calls to the run, so they are no answer of their own: repeat \
                       each of these requests";
        Wrong::new(Reason::DuplicateCallId, message, Some(place))
    })?;
    reader.narrow(share.places());
    Ok((reader, SharedRun { run: run.id(), share: Some(share) }))
}

/// Whether a run has all that a request would present of it.
fn has_all(run: &Run, of: SharedRun) -> bool {
    of.share.is_none_or(|share| usize::from(share.places().end) <= run.calls().len())
}

/// Cancels what a request presents of a run: its own calls of a shared run, and the whole run otherwise.
async fn cancel_all(api: &Api, of: SharedRun, reason: &str) -> Result<(), Wrong> {
    let Some(share) = of.share else {
        let request = v1::CancelRunRequest { run_id: of.run.to_string(), reason: reason.to_owned() };
        return Ok(api.cancel_run(request).await.map(drop)?);
    };
    let run = api.runs.known(of.run).await.map_err(Wrong::from)?.run;
    for call in share.open(&run) {
        api.runs.cancel_open_call(of.run, &call.spec().id, reason).await?;
    }
    Ok(())
}

/// A run's own id, from the path.
fn path<'a>(ask: &'a Ask, name: &str) -> &'a str {
    ask.path.iter().find(|(other, _)| other == name).map_or("", |(_, value)| value.as_str())
}

/// Converts a run's events to one of OpenAI's streams.
trait Face: Send + 'static {
    /// Whether it shows stored images inline.
    const IS_INLINE: bool = false;

    /// Keeps the bytes of a stored image for the events that follow.
    fn keep(&mut self, _object_id: String, _bytes: Bytes) {}

    /// Takes events, appends the text to send, and returns whether it was the last.
    fn take(&mut self, events: &[v1::RunEvent], run: &run::Run, text: &mut Vec<u8>) -> bool;
}

/// A stream of a conversion's text, with comments while there is nothing to send for long.
fn streamed<F: Face>(reader: Box<Reader>, api: &Api, face: F, abandoned: Option<Abandoned>) -> Response {
    let (streaming, images) = (Streaming::new(reader, api.stop.clone(), None), (api.clone(), Room::default()));
    let telling = (streaming, face, images, abandoned, false);
    let texts = futures::stream::unfold(telling, async |telling| {
        let (mut streaming, mut face, mut images, mut abandoned, ended) = telling;
        if ended {
            return None;
        }
        let mut text = Vec::new();
        let piece = streaming.next().await;
        let stored = match &piece {
            Ok(piece) if F::IS_INLINE => stored::read(&images.0, &piece.events, &mut images.1).await,
            Ok(_) | Err(_) => Ok(Vec::new()),
        };
        let ended = match piece.and_then(|piece| Ok((piece, stored?))) {
            Ok((Piece { events, heartbeat, end }, stored)) => {
                stored.into_iter().for_each(|(object_id, bytes)| face.keep(object_id, bytes));
                if heartbeat.is_some() {
                    text.extend_from_slice(sse::HEARTBEAT);
                }
                // The SDKs treat a stream without its last event as interrupted: it is resumed at another coordinator.
                face.take(&events, streaming.run(), &mut text) || end.is_some()
            }
            Err(error) => {
                sse::event(&mut text, None, Some("error"), &Wrong::from(error).json().to_string());
                true
            }
        };
        if let Some(abandoned) = abandoned.take_if(|_| ended) {
            abandoned.keep();
        }
        Some((Bytes::from(text), (streaming, face, images, abandoned, ended)))
    });
    sse::response(without_silence(texts))
}

/// Drops empty texts, which need not be sent.
fn without_silence(texts: impl Stream<Item = Bytes> + Send + 'static) -> impl Stream<Item = Bytes> + Send + 'static {
    texts.filter(|text| std::future::ready(!text.is_empty()))
}
