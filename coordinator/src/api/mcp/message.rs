//! JSON-RPC messages of clients, and the errors that answer them.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use proto::Reason;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::admission::error::RequestError;
use crate::api::ApiError;
use crate::api::problem::Problem;
use crate::metrics::refused;

/// Bytes of a request's id, and of its progress token: both are repeated in each message about the request, in the ids
/// of its events, and in records of it.
const ID_BYTES_MAX: usize = 256;

pub(super) const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const INVALID_PARAMS: i64 = -32602;
pub(super) const INTERNAL: i64 = -32603;
/// Before 2026-07-28.
pub(super) const RESOURCE_NOT_FOUND: i64 = -32002;
pub(super) const HEADER_MISMATCH: i64 = -32020;
pub(super) const CAPABILITY_MISSING: i64 = -32021;
pub(super) const VERSION_UNSUPPORTED: i64 = -32022;

/// A message of a client.
#[derive(Debug)]
pub(super) enum Message {
    Request(Request),
    Notification {
        method: String,
        params: Value,
    },
    /// An answer to a request of ours; `None` if it is an error.
    Response {
        id: String,
        result: Option<Value>,
    },
}

#[derive(Debug)]
pub(super) struct Request {
    /// A string or a number, as the client wrote it.
    pub(super) id: Box<RawValue>,
    pub(super) method: String,
    /// An object.
    pub(super) params: Box<RawValue>,
    pub(super) meta: Meta,
}

/// The members of `_meta` that matter here.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Meta {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    pub(super) version: Option<String>,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities")]
    pub(super) capabilities: Option<Value>,
    #[serde(rename = "io.modelcontextprotocol/logLevel")]
    pub(super) log_level: Option<String>,
    #[serde(rename = "progressToken")]
    pub(super) progress_token: Option<Box<RawValue>>,
    pub(super) traceparent: Option<String>,
}

#[derive(Deserialize)]
struct Wire<'a> {
    jsonrpc: Option<&'a str>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    result: Option<Value>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct WithMeta {
    #[serde(default, rename = "_meta")]
    meta: Option<Meta>,
}

impl Message {
    /// Reads a message. An error carries the id of the request if it has one.
    pub(super) fn read(body: &[u8]) -> Result<Self, (Option<Box<RawValue>>, RpcError)> {
        let text =
            std::str::from_utf8(body).map_err(|_| (None, RpcError::new(PARSE_ERROR, "the body is not UTF-8")))?;
        if text.trim_start().starts_with('[') {
            return Err((None, RpcError::new(INVALID_REQUEST, "send each message in a request of its own")));
        }
        let wire: Wire<'_> = serde_json::from_str(text).map_err(|error| {
            let code = if error.is_data() { INVALID_REQUEST } else { PARSE_ERROR };
            (None, RpcError::new(code, format!("the body is not a JSON-RPC message: {error}")))
        })?;
        let id =
            wire.id.filter(|id| id.get().starts_with(['"', '-']) || id.get().starts_with(|c: char| c.is_ascii_digit()));
        let id = id.map(ToOwned::to_owned);
        let wrong = |what: &str| Err((id.clone(), RpcError::new(INVALID_REQUEST, what)));
        if wire.jsonrpc != Some("2.0") {
            return wrong("jsonrpc: \"2.0\" was expected");
        }
        let params = wire.params.map(RawValue::get).filter(|params| *params != "null").unwrap_or("{}");
        if !params.starts_with('{') {
            return Err((id, RpcError::new(INVALID_PARAMS, "params: an object was expected")));
        }
        match (wire.method, &id) {
            (Some(_), None) if wire.id.is_some() => wrong("id: a string or a number was expected"),
            (Some(_), Some(long)) if long.get().len() > ID_BYTES_MAX => Err((None, too_long("id", long))),
            (Some(method), Some(known)) => match Request::new(known, method, params) {
                Ok(request) => Ok(Self::Request(request)),
                Err(error) => Err((id, error)),
            },
            (Some(method), None) => {
                Ok(Self::Notification { method, params: serde_json::from_str(params).unwrap_or_default() })
            }
            (None, Some(id)) if wire.result.is_some() || wire.error.is_some() => {
                let id = serde_json::from_str(id.get()).unwrap_or_default();
                Ok(Self::Response { id, result: wire.result })
            }
            (None, _) => wrong("method: is missing"),
        }
    }
}

fn too_long(what: &str, long: &RawValue) -> RpcError {
    let message = format!("{what}: it has {} bytes, at most {ID_BYTES_MAX} are allowed", long.get().len());
    RpcError::new(INVALID_REQUEST, message)
}

/// The id of a request, in the one form by which it is found: clients may write the same id differently.
pub(super) fn canonical(id: &impl Serialize) -> String {
    serde_json::to_value(id).unwrap_or_default().to_string()
}

impl Request {
    fn new(id: &RawValue, method: String, params: &str) -> Result<Self, RpcError> {
        let WithMeta { meta } = serde_json::from_str(params)
            .map_err(|error| RpcError::new(INVALID_PARAMS, format!("params._meta cannot be read: {error}")))?;
        let meta = meta.unwrap_or_default();
        if let Some(long) = meta.progress_token.as_ref().filter(|token| token.get().len() > ID_BYTES_MAX) {
            return Err(too_long("params._meta.progressToken", long));
        }
        let params = RawValue::from_string(params.to_owned()).expect("it was read as JSON");
        Ok(Self { id: id.to_owned(), method, params, meta })
    }

    /// The parameters of the method.
    pub(super) fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, RpcError> {
        serde_json::from_str(self.params.get()).map_err(|error| {
            RpcError::new(INVALID_PARAMS, format!("the parameters of {} cannot be read: {error}", self.method))
        })
    }
}

/// The error of a request.
#[derive(Debug, Clone)]
pub(super) struct RpcError {
    pub(super) code: i64,
    message: String,
    data: Option<Value>,
    /// The status of the response.
    status: StatusCode,
}

impl RpcError {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        let status = match code {
            PARSE_ERROR | INVALID_REQUEST | HEADER_MISMATCH | CAPABILITY_MISSING | VERSION_UNSUPPORTED => {
                StatusCode::BAD_REQUEST
            }
            _ => StatusCode::OK,
        };
        Self { code, message: message.into(), data: None, status }
    }

    pub(super) fn with(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }

    pub(super) fn status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// The whole message that answers the request.
    pub(super) fn text(&self, id: Option<&RawValue>) -> String {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        let id = id.map_or("null", RawValue::get);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
    }

    pub(super) fn response(&self, id: Option<&RawValue>) -> Response {
        let mut response = json_response(self.text(id));
        *response.status_mut() = self.status;
        response
    }
}

impl From<ApiError> for RpcError {
    fn from(error: ApiError) -> Self {
        refused(error.reason);
        let status = error.reason.http();
        let code =
            if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS { INVALID_PARAMS } else { INTERNAL };
        let mut data = json!({ "reason": error.reason.code(), "remedy": error.reason.remedy() });
        if let Some(wait) = error.retry_after {
            data["retryAfterMs"] = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into();
        }
        let forbidden = [Reason::RoleMissing, Reason::ToolDenied, Reason::TenantDenied].contains(&error.reason);
        let error = Self::new(code, error.message).with(data);
        if forbidden { error.status(StatusCode::FORBIDDEN) } else { error }
    }
}

impl From<RequestError> for RpcError {
    fn from(error: RequestError) -> Self {
        ApiError::from(error).into()
    }
}

impl From<Problem> for RpcError {
    fn from(problem: Problem) -> Self {
        ApiError::new(problem.reason, problem.detail).into()
    }
}

/// A response with a message.
pub(super) fn json_response(text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> (Option<String>, i64) {
        let (id, error) = Message::read(body.as_bytes()).expect_err("it is refused");
        (id.map(|id| id.get().to_owned()), error.code)
    }

    #[test]
    fn a_request_keeps_its_id_and_its_parameters_as_they_were_written() {
        let body = br#"{"jsonrpc":"2.0","id":"7","method":"m","params":{"n":1.10,"_meta":{"progressToken":3}}}"#;
        let Ok(Message::Request(request)) = Message::read(body) else { panic!("a request") };
        assert_eq!((request.id.get(), request.method.as_str()), (r#""7""#, "m"));
        assert!(request.params.get().contains("1.10"));
        assert_eq!(request.meta.progress_token.map(|token| token.get().to_owned()).as_deref(), Some("3"));
    }

    #[test]
    fn what_is_no_message_is_refused_with_the_id_if_there_is_one() {
        assert_eq!(refused("{"), (None, PARSE_ERROR));
        assert_eq!(refused("[]"), (None, INVALID_REQUEST));
        assert_eq!(refused("7"), (None, INVALID_REQUEST));
        assert_eq!(refused(r#"{"id":1,"method":"m"}"#), (Some("1".to_owned()), INVALID_REQUEST));
        assert_eq!(refused(r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#), (None, INVALID_REQUEST));
        assert_eq!(refused(r#"{"jsonrpc":"2.0","id":1}"#), (Some("1".to_owned()), INVALID_REQUEST));
        assert_eq!(
            refused(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[]}"#),
            (Some("1".to_owned()), INVALID_PARAMS)
        );
        let meta = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"traceparent":7}}}"#;
        assert_eq!(refused(meta), (Some("1".to_owned()), INVALID_PARAMS));
    }

    #[test]
    fn an_id_or_a_progress_token_that_is_too_long_is_refused() {
        let (fits, long) = ("x".repeat(ID_BYTES_MAX - 2), "x".repeat(ID_BYTES_MAX - 1));
        let request = |id: &str, token: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":"{id}","method":"m","params":{{"_meta":{{"progressToken":"{token}"}}}}}}"#
            )
        };
        assert!(matches!(Message::read(request(&fits, &fits).as_bytes()), Ok(Message::Request(_))));
        assert_eq!(refused(&request(&long, "p")), (None, INVALID_REQUEST));
        assert_eq!(refused(&request("7", &long)), (Some("\"7\"".to_owned()), INVALID_REQUEST));
    }

    #[test]
    fn an_id_is_the_same_however_it_is_written() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).expect("JSON");
        assert_eq!(canonical(&raw(r#""\u00fc""#)), canonical(&json!("ü")));
        assert_eq!(canonical(&raw("7")), canonical(&json!(7)));
        assert_ne!(canonical(&raw("7")), canonical(&json!("7")));
    }

    #[test]
    fn answers_and_notifications_are_told_apart() {
        let answer = Message::read(br#"{"jsonrpc":"2.0","id":"x","result":{}}"#);
        assert!(matches!(answer, Ok(Message::Response { id, result: Some(_) }) if id == "x"));
        let failed = Message::read(br#"{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":""}}"#);
        assert!(matches!(failed, Ok(Message::Response { result: None, .. })));
        let note = Message::read(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        assert!(matches!(note, Ok(Message::Notification { .. })));
    }
}
