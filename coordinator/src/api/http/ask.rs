//! A request as it came in, read whole and within its limits, and then as the message that it means.

use std::time::Duration;

use axum::RequestPartsExt as _;
use axum::body::Body;
use axum::extract::{FromRequest, RawPathParams, Request};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use proto::json::{self, Unreadable};

use super::problem::{Place, Problem, pointer};
use crate::door::{Fault, REQUEST_BYTES_MAX};
use crate::grpc::bodies::refusal;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    /// What the path has in place of the names of its route.
    pub(crate) path: Vec<(String, String)>,
    /// In the order of the query.
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
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
        // What a body would say there has no meaning, so nothing of it is kept.
        let body = match is_read_from_query(&parts.method) {
            true => Bytes::new(),
            false => whole(body).await?,
        };
        if !body.is_empty() {
            check_type(&parts.headers)?;
        }
        Ok(Self { method: parts.method, path, query, headers: parts.headers, body })
    }
}

/// The body, if it comes in time and is not too large.
async fn whole(body: Body) -> Result<Bytes, Problem> {
    let too_large = || {
        let detail = format!("the body is larger than {REQUEST_BYTES_MAX} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE", detail)
    };
    // Before any of it is read: whoever asked whether to send it need not.
    if body.size_hint().lower() > REQUEST_BYTES_MAX as u64 {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_TIMEOUT, collected(body)).await {
        Ok(Ok(Some(body))) => Ok(body),
        Ok(Ok(None)) => Err(too_large()),
        Ok(Err(error)) => Err(match refusal(&error) {
            Some(fault) => fault.into(),
            None => Problem::malformed(Place::Body(String::new()), format!("the body broke off: {error}")),
        }),
        Err(_) => {
            let detail = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "REQUEST_TIMEOUT", detail))
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

/// A body is JSON, and says so.
fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let said = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase());
    let kind = said(header::CONTENT_TYPE).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    let mut parameters = kind.split(';').skip(1).filter_map(|parameter| parameter.split_once('='));
    let charset =
        parameters.find(|(name, _)| name.trim() == "charset").map(|(_, value)| value.trim().trim_matches('"'));
    let is_utf8 = charset.is_none_or(|charset| ["utf-8", "utf8", "us-ascii"].contains(&charset));
    let is_json = essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    let coding = said(header::CONTENT_ENCODING).filter(|coding| coding != "identity");
    let detail = match coding {
        Some(coding) => format!("the body has the content encoding {coding:?}"),
        None if is_json && is_utf8 => return Ok(()),
        None => format!("the body has the content type {kind:?}"),
    };
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE", detail))
}

impl Ask {
    /// The message that the request means: of a body, its JSON with the names of the path; without one, path and query.
    pub(crate) fn read<M: prost::Message + prost::Name + Default>(&self) -> Result<M, Problem> {
        let path: Vec<(&str, &str)> = self.path.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        if is_read_from_query(&self.method) {
            let query = self.query.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            return json::read_fields(path.into_iter().chain(query)).map_err(|error| self.unreadable(error));
        }
        if let Some((name, _)) = self.query.first() {
            return Err(Problem::malformed(Place::Parameter(name.clone()), format!("{name}: say it in the body")));
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

    /// A fault of this request.
    pub(crate) fn problem(&self, fault: Fault) -> Problem {
        Problem::of(fault, |field| self.place(field))
    }

    /// Where a field of the message stands.
    fn place(&self, field: &str) -> Place {
        let is_in_path = self.path.iter().any(|(name, _)| name == field);
        if is_in_path || is_read_from_query(&self.method) {
            Place::Parameter(field.to_owned())
        } else {
            Place::Body(pointer(field))
        }
    }

    /// The text of a header.
    pub(crate) fn header(&self, name: &'static str) -> Result<Option<&str>, Problem> {
        let Some(value) = self.headers.get(name) else { return Ok(None) };
        let text = value.to_str();
        text.map(Some)
            .map_err(|_| Problem::malformed(Place::Header(name), format!("{name}: has other than visible ASCII")))
    }

    /// The client would rather have events than an answer.
    pub(crate) fn wants_events(&self) -> bool {
        let accepted = self.headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        accepted.flat_map(|accepted| accepted.split(',')).any(|kind| {
            kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
        })
    }

    /// The id of the request as the header says it, unless the body says another.
    pub(crate) fn request_id(&self, said: String) -> Result<String, Problem> {
        const NAME: &str = "idempotency-key";
        match self.header(NAME)? {
            None => Ok(said),
            Some(key) if said.is_empty() || said == key => Ok(key.to_owned()),
            Some(_) => Err(Problem::malformed(Place::Header(NAME), format!("{NAME}: the body has another request_id"))),
        }
    }

    /// The number of the last event that the client has, as a reader says it that comes back.
    pub(crate) fn last_event_id(&self) -> Result<Option<u64>, Problem> {
        const NAME: &str = "last-event-id";
        let Some(id) = self.header(NAME)? else { return Ok(None) };
        let number = id.parse().map_err(|_| {
            Problem::malformed(
                Place::Header(NAME),
                format!("{NAME}: is the number of an event of the run, and {id:?} is none"),
            )
        });
        number.map(Some)
    }
}
