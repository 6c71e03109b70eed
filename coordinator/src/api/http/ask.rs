//! A request as it arrived, read within its limits, and then converted to its message.

use std::time::Duration;

use axum::RequestPartsExt as _;
use axum::body::Body;
use axum::extract::{FromRequest, RawPathParams, Request};
use bytes::{Bytes, BytesMut};
use formats::options::{ON_DISCONNECT, on_disconnect};
use http::{HeaderMap, Method, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use proto::json::{self, Unreadable};
use proto::{Reason, v1};

use crate::api::port::bodies::refusal;
use crate::api::port::pages::host;
use crate::api::problem::{Place, Problem, pointer};
use crate::api::{ApiError, REQUEST_BYTES_MAX};

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    /// The values of the route's path parameters.
    pub(crate) path: Vec<(String, String)>,
    /// In the order of the query.
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
    /// The host that the client names: in the address over HTTP/2, and otherwise in a header.
    pub(crate) host: Option<String>,
    pub(crate) body: Bytes,
}

impl<S: Send + Sync> FromRequest<S> for Ask {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let path = parts.extract::<RawPathParams>().await;
        let path = path.map_err(|error| Problem::malformed(Place::Parameter("path".to_owned()), error.to_string()))?;
        let path = path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let query = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        // The body of such a request has no meaning, so it is discarded.
        let body = match is_read_from_query(&parts.method) {
            true => Bytes::new(),
            false => whole(body).await?,
        };
        if !body.is_empty() {
            check_type(&parts.headers)?;
        }
        let host = host(&parts.uri, &parts.headers);
        Ok(Self { method: parts.method, path, query, headers: parts.headers, host, body })
    }
}

/// The body, if it arrives in time and is not too large.
async fn whole(body: Body) -> Result<Bytes, Problem> {
    let too_large = || {
        let detail = format!("the body is larger than {REQUEST_BYTES_MAX} bytes");
        Problem::new(Reason::PayloadTooLarge, detail)
    };
    // Checked before reading, so a client that sent `Expect` need not send the body.
    if body.size_hint().lower() > REQUEST_BYTES_MAX as u64 {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_TIMEOUT, collected(body)).await {
        Ok(Ok(Some(body))) => Ok(body),
        Ok(Ok(None)) => Err(too_large()),
        Ok(Err(error)) => Err(match refusal(&error) {
            Some(fault) => fault.into(),
            None => Problem::malformed(Place::Body(String::new()), format!("reading the body failed: {error}")),
        }),
        Err(_) => {
            let detail = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
            Err(Problem::new(Reason::RequestTimeout, detail))
        }
    }
}

/// `None` as soon as it is too large.
async fn collected(mut body: Body) -> Result<Option<Bytes>, axum::Error> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if bytes.len() + data.len() > REQUEST_BYTES_MAX {
            return Ok(None);
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Some(bytes.freeze()))
}

fn is_read_from_query(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}

/// The body's content type must be JSON.
fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let given = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase());
    let kind = given(header::CONTENT_TYPE).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    let mut parameters = kind.split(';').skip(1).filter_map(|parameter| parameter.split_once('='));
    let charset =
        parameters.find(|(name, _)| name.trim() == "charset").map(|(_, value)| value.trim().trim_matches('"'));
    let is_utf8 = charset.is_none_or(|charset| ["utf-8", "utf8", "us-ascii"].contains(&charset));
    let is_json = essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    let coding = given(header::CONTENT_ENCODING).filter(|coding| coding != "identity");
    let detail = match coding {
        Some(coding) => format!("the body has the content encoding {coding:?}"),
        None if is_json && is_utf8 => return Ok(()),
        None => format!("the body has the content type {kind:?}"),
    };
    Err(Problem::new(Reason::UnsupportedMediaType, detail))
}

impl Ask {
    /// The message of the request: from a body, its JSON with the values of the path; without a body, from path and
    /// query.
    pub(crate) fn read<M: prost::Message + prost::Name + Default>(&self) -> Result<M, Problem> {
        let path: Vec<(&str, &str)> = self.path.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        if is_read_from_query(&self.method) {
            let query = self.query.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            return json::read_fields(path.into_iter().chain(query)).map_err(|error| self.unreadable(error));
        }
        if let Some((name, _)) = self.query.first() {
            return Err(Problem::malformed(Place::Parameter(name.clone()), format!("{name}: put it in the body")));
        }
        let text = if self.body.is_empty() { b"{}" } else { &*self.body };
        json::read(text, &path).map_err(|error| self.unreadable(error))
    }

    fn unreadable(&self, error: Unreadable) -> Problem {
        let detail = match error.field.as_str() {
            "" => error.reason.clone(),
            _ => error.to_string(),
        };
        Problem::malformed(self.place(&error.field), detail)
    }

    /// The problem details of an error of this request.
    pub(crate) fn problem(&self, fault: ApiError) -> Problem {
        Problem::of(fault, |field| self.place(field))
    }

    /// Where in the request a field of the message was.
    fn place(&self, field: &str) -> Place {
        let is_in_path = self.path.iter().any(|(name, _)| name == field);
        if is_in_path || is_read_from_query(&self.method) {
            Place::Parameter(field.to_owned())
        } else {
            Place::Body(pointer(field))
        }
    }

    /// Removes `floor_policy` and `floor_policy_name` from the query of a request whose other fields are in the body.
    pub(crate) fn take_floor_policy(&mut self) -> Result<(i32, String), Problem> {
        const NAME: &str = "floor_policy";
        let is_floor = |name: &str| name == NAME || name == "floor_policy_name";
        let (given, others) = std::mem::take(&mut self.query).into_iter().partition(|(name, _)| is_floor(name));
        self.query = others;
        let given: Vec<(String, String)> = given;
        if !given.is_empty() && !self.wants_events() {
            let detail = format!("{NAME}: is for a client that accepts text/event-stream");
            return Err(Problem::malformed(Place::Parameter(NAME.to_owned()), detail));
        }
        let given = given.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let watch: v1::WatchRunRequest = json::read_fields(given)
            .map_err(|error| Problem::malformed(Place::Parameter(NAME.to_owned()), error.to_string()))?;
        Ok((watch.floor_policy, watch.floor_policy_name))
    }

    /// Removes `on_disconnect` from the query of a request whose other fields are in the body. Returns whether its run
    /// is to be cancelled when the client disconnects.
    pub(crate) fn take_on_disconnect(&mut self) -> Result<bool, Problem> {
        const NAME: &str = "on_disconnect";
        let Some(at) = self.query.iter().position(|(name, _)| name == NAME) else { return Ok(false) };
        let (_, value) = self.query.remove(at);
        let wrong = |why: &str| Problem::malformed(Place::Parameter(NAME.to_owned()), format!("{NAME}: {why}"));
        if !self.wants_events() {
            return Err(wrong("is for a client that accepts text/event-stream"));
        }
        on_disconnect(&value).ok_or_else(|| wrong(ON_DISCONNECT))
    }

    /// The text of a header.
    pub(crate) fn header(&self, name: &'static str) -> Result<Option<&str>, Problem> {
        let Some(value) = self.headers.get(name) else { return Ok(None) };
        let text = value.to_str();
        text.map(Some)
            .map_err(|_| Problem::malformed(Place::Header(name), format!("{name}: only visible ASCII is allowed")))
    }

    /// The client prefers events to a single answer.
    pub(crate) fn wants_events(&self) -> bool {
        let accepted = self.headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        accepted.flat_map(|accepted| accepted.split(',')).any(|kind| {
            kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
        })
    }

    /// The request id from the header, unless the body has a different one.
    pub(crate) fn request_id(&self, given: String) -> Result<String, Problem> {
        const NAME: &str = "idempotency-key";
        match self.header(NAME)? {
            None => Ok(given),
            Some(key) if given.is_empty() || given == key => Ok(key.to_owned()),
            Some(_) => Err(Problem::malformed(Place::Header(NAME), format!("{NAME}: the body has another request_id"))),
        }
    }

    /// The number of the last event that a resuming client has.
    pub(crate) fn last_event_id(&self) -> Result<Option<u64>, Problem> {
        const NAME: &str = "last-event-id";
        let Some(id) = self.header(NAME)? else { return Ok(None) };
        let number = id.parse().map_err(|_| {
            Problem::malformed(
                Place::Header(NAME),
                format!("{NAME}: must be the number of an event of the run, and {id:?} is not a number"),
            )
        });
        number.map(Some)
    }
}
