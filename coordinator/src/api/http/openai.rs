//! What the faces of OpenAI's APIs share: errors in the form that its SDKs read, runs that are told to them, and answers that
//! wait for what is told.

mod assistants;
mod described;
mod responses;
pub(crate) mod schemas;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use bytes::Bytes;
use faces::Refused;
use futures::{Stream, StreamExt as _};
use http::{HeaderValue, Method, StatusCode, header};
use proto::v1;
use run::RunId;
use serde_json::{Value, json};

use super::ask::Ask;
use super::problem::{Problem, remedy, status};
use super::{answering, sse};
use crate::audit;
use crate::callers::{Denied, Role};
use crate::door::output::{Piece, Streaming};
use crate::door::{Door, Fault};
use crate::metrics::refused;
use crate::runs::Refusal;
use crate::watch::Reader;

/// Something that a face can be asked for.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    /// As the API's own document calls it.
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    /// Its caller must have one of these.
    roles: &'static [Role],
    handler: fn() -> MethodRouter<Door>,
}

impl Route {
    /// The operation that the document has of it.
    pub(crate) fn described(&self) -> Value {
        described::described(self)
    }
}

/// What the faces serve, of which the routes are made and what the document says of them.
pub(crate) fn list_of_routes() -> impl Iterator<Item = &'static Route> {
    responses::ROUTES.iter().chain(assistants::ROUTES)
}

/// Routes as the SDKs ask for them, whether their base address ends with `/v1` or not. Nothing of a request is read before its
/// caller is judged.
pub(crate) fn routes(door: &Door) -> Router<Door> {
    list_of_routes().fold(Router::new(), |routes, route| {
        let judge = move |door: Door, request: Request, next: Next| judged(route, door, request, next);
        let handler = (route.handler)().route_layer(from_fn_with_state(door.clone(), judge));
        let handler = answering(handler, route.name);
        routes.route(route.path, handler.clone()).route(&format!("/v1{}", route.path), handler)
    })
}

/// Passes on a request if its caller may make requests of this kind.
async fn judged(route: &'static Route, door: Door, request: Request, next: Next) -> Result<Response, Wrong> {
    let caller = &door.runs.caller;
    let denied = match route.roles {
        [] => None,
        // A token for one answer is no key to anything that is made of several requests.
        roles if roles.iter().any(|role| caller.must(*role).is_ok()) && caller.only().is_none() => None,
        [first, ..] => Some(caller.must(*first).err().unwrap_or_else(|| Denied::token(*first))),
    };
    if let Some(denied) = denied {
        audit::refused(caller, route.name, denied.reason);
        return Err(Refusal::from(denied).into());
    }
    Ok(next.run(request).await)
}

/// Why a request was not served.
#[derive(Debug)]
pub(crate) struct Wrong {
    status: StatusCode,
    code: String,
    message: String,
    /// What is wrong: a JSON pointer into the body, or the name of a parameter.
    param: Option<String>,
    retry_after: Option<u64>,
}

impl Wrong {
    pub(crate) fn new(status: StatusCode, code: &str, message: impl Into<String>, param: Option<&str>) -> Self {
        let (code, message, param) = (code.to_owned(), message.into(), param.map(str::to_owned));
        Self { status, code, message, param, retry_after: None }
    }

    fn json(&self) -> Value {
        let kind = if self.status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let (code, remedy) = (&self.code, remedy(&self.code));
        json!({ "error": { "type": kind, "code": code, "message": self.message, "param": self.param, "remedy": remedy } })
    }
}

impl Wrong {
    /// A fault of a run, which says where it is wrong with a request that the client did not send. Here it is wrong with what the
    /// run was made of, or with its key.
    fn of_run(fault: Fault, ask: &Ask, calls: &str) -> Self {
        let is_key =
            fault.reason == "REQUEST_ID_TAKEN" || fault.violations.iter().any(|(field, _)| field == "request_id");
        let wrong = Self::from(fault);
        let is_at_calls = [StatusCode::BAD_REQUEST, StatusCode::PAYLOAD_TOO_LARGE].contains(&wrong.status);
        let param = match is_key && ask.headers.contains_key("idempotency-key") {
            true => Some("idempotency-key".to_owned()),
            false => is_at_calls.then(|| calls.to_owned()),
        };
        Self { param, ..wrong }
    }

    /// A fault of the answers to a run's calls, which stand there in the body.
    fn of_answers(fault: Fault, answers: &str) -> Self {
        let wrong = Self::from(fault);
        let is_theirs = wrong.status.is_client_error() && wrong.status != StatusCode::FORBIDDEN;
        Self { param: is_theirs.then(|| answers.to_owned()), ..wrong }
    }

    /// What was named there is not there, or not any more.
    fn if_gone(self, param: &str) -> Self {
        match self.status {
            StatusCode::NOT_FOUND | StatusCode::GONE => Self { param: Some(param.to_owned()), ..self },
            _ => self,
        }
    }
}

impl From<Refused> for Wrong {
    fn from(refused: Refused) -> Self {
        let status = match refused.code {
            "RESPONSE_NOT_FOUND" | "CALL_NOT_FOUND" => StatusCode::NOT_FOUND,
            "ANSWERS_MISSING" | "RESPONSE_NOT_WAITING" => StatusCode::CONFLICT,
            _ => StatusCode::BAD_REQUEST,
        };
        let param = Some(refused.pointer).filter(|pointer| !pointer.is_empty());
        Self::new(status, refused.code, refused.message, param.as_deref())
    }
}

impl From<Fault> for Wrong {
    fn from(fault: Fault) -> Self {
        refused(fault.reason);
        let place = fault.violations.first().map(|(place, _)| place.as_str());
        let wrong = Self::new(status(fault.code, fault.reason), fault.reason, fault.message, place);
        Self { retry_after: fault.retry_after.map(|wait| wait.as_secs().max(1)), ..wrong }
    }
}

impl From<Refusal> for Wrong {
    fn from(refusal: Refusal) -> Self {
        Fault::from(refusal).into()
    }
}

impl From<Problem> for Wrong {
    fn from(problem: Problem) -> Self {
        let json = problem.json();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let status = json["status"].as_u64().and_then(|status| StatusCode::from_u16(u16::try_from(status).ok()?).ok());
        let first = &json["errors"][0];
        let param = ["pointer", "parameter", "header"].iter().find_map(|place| text(&first[place]));
        Self {
            status: status.unwrap_or(StatusCode::BAD_REQUEST),
            code: text(&json["reason"]).unwrap_or_default(),
            message: text(&json["detail"]).unwrap_or_default(),
            param,
            retry_after: None,
        }
    }
}

impl IntoResponse for Wrong {
    fn into_response(self) -> Response {
        let mut response = answer(&self.json());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        } else if self.status == StatusCode::CONFLICT || self.code == "UNCONFIRMED" {
            // The SDKs would try again, which changes nothing, or may do it twice.
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
    let said = |name: &str| ask.query.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
    let limit = match said("limit").map(str::parse::<usize>) {
        None => 20,
        Some(Ok(limit)) if (1..=100).contains(&limit) => limit,
        Some(_) => return Err(malformed("limit", "a number from 1 to 100 was expected")),
    };
    let mut items = items;
    match said("order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(malformed("order", "asc or desc was expected")),
    }
    if let Some(after) = said("after") {
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
    Wrong::new(StatusCode::BAD_REQUEST, "MALFORMED", format!("{parameter}: {message}"), Some(parameter))
}

/// The name of a tool that a worker hosts, for one that a model was given.
fn hosted(door: &Door) -> impl Fn(&str) -> Option<String> + 'static {
    let registry = std::sync::Arc::clone(&door.runs.registry.borrow());
    move |name| {
        let known = |name: &str| registry.catalog.find(&name.parse().ok()?).map(|entry| entry.name.to_string());
        known(name).or_else(|| known(&name.replace("__", ".")))
    }
}

/// A run from its beginning, in the order in which faces take it.
async fn watch(door: &Door, run: RunId) -> Result<Box<Reader>, Wrong> {
    let policy = v1::FloorPolicy::Arrival.into();
    let request = v1::WatchRunRequest { run_id: run.to_string(), after_sequence: None, floor_policy: policy };
    Ok(door.watch_run(request).await?)
}

/// A run's own id, as one of the parts of a path.
fn path<'a>(ask: &'a Ask, name: &str) -> &'a str {
    ask.path.iter().find(|(other, _)| other == name).map_or("", |(_, value)| value.as_str())
}

/// A face while it is told of a run; says what is worth saying.
trait Face: Send + 'static {
    /// Takes events in; gives what is to be sent, and whether it was the last.
    fn take(&mut self, events: &[v1::RunEvent], run: &run::Run, text: &mut Vec<u8>) -> bool;
}

/// A stream of what a face says, with comments where it is silent for long.
fn streamed<F: Face>(reader: Box<Reader>, door: &Door, face: F) -> Response {
    let telling = (Streaming::new(reader, door.stop.clone(), None), face, false);
    let texts = futures::stream::unfold(telling, async |(mut streaming, mut face, ended)| {
        if ended {
            return None;
        }
        let mut text = Vec::new();
        let ended = match streaming.next().await {
            Ok(Piece { events, heartbeat, end }) => {
                if heartbeat.is_some() {
                    text.extend_from_slice(sse::HEARTBEAT);
                }
                // One that ends without its last event was cut off, as the SDKs take it: it is read again elsewhere.
                face.take(&events, streaming.run(), &mut text) || end.is_some()
            }
            Err(fault) => {
                sse::event(&mut text, None, Some("error"), &Wrong::from(fault).json().to_string());
                true
            }
        };
        Some((Bytes::from(text), (streaming, face, ended)))
    });
    sse::response(without_silence(texts))
}

/// Nothing need be sent of what says nothing.
fn without_silence(texts: impl Stream<Item = Bytes> + Send + 'static) -> impl Stream<Item = Bytes> + Send + 'static {
    texts.filter(|text| std::future::ready(!text.is_empty()))
}
