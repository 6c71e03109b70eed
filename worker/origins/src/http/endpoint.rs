//! An HTTP endpoint as a tool: makes a request of a call's arguments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::{ACCEPT, CONTENT_TYPE};
use ::http::{HeaderMap, HeaderName, HeaderValue, Method};
use bytes::Bytes;
use serde_json::{Map, Value};
use toolyard_tool::{AnyTool, CallError, Context, ErrorKind, Output, ToolError};
use url::Url;

use super::answer;
use super::client::{Client, Outgoing, SendError};
use crate::given::Given;
use crate::requester;

/// Formats that a response may have; anything else is accepted too.
const ACCEPTED: &str = "application/json, text/event-stream, application/x-ndjson, text/*;q=0.9, */*;q=0.8";
/// The headers of a call's tenant, its caller, and the caller's roles with commas between them. No argument can set
/// them.
const CALLER_HEADERS: [&str; 3] = ["toolyard-tenant", "toolyard-caller", "toolyard-roles"];
/// Bytes of an address with its arguments.
const URL_BYTES_MAX: usize = 16 * 1024;

/// A tool that is one HTTP request.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) client: Arc<Client>,
    pub(crate) method: Method,
    /// With the names of arguments in braces.
    pub(crate) url: String,
    /// Where arguments go that do not go to [`Self::others`].
    pub(crate) places: BTreeMap<String, Place>,
    pub(crate) others: Others,
    pub(crate) headers: Vec<(HeaderName, Given)>,
    pub(crate) query: Vec<(String, Given)>,
    pub(crate) body: BodyFormat,
    /// The header that is sent the id of the call, the same in each attempt.
    pub(crate) idempotency_header: Option<HeaderName>,
    /// The service is sent for whom the call is: [`CALLER_HEADERS`].
    pub(crate) caller_headers: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) response_bytes_max: usize,
    /// Whether a call may be executed again when it is not known how it ended.
    pub(crate) repeatable: bool,
}

/// Where an argument goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Into the address, in place of this name in braces.
    Path(String),
    Query(String, Several),
    Header(HeaderName),
    /// A field of the body.
    Field(String),
    /// The whole body.
    Body,
}

/// How several values of one parameter are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Several {
    /// `a=1&a=2`; the fields of an object as parameters of their own.
    #[default]
    Repeated,
    /// `a=1,2`
    Commas,
    /// As JSON.
    Json,
}

/// Where arguments go that have no place of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    Query,
    Body,
}

/// The form of a body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BodyFormat {
    #[default]
    Json,
    Form,
}

/// The parts of a request, as arguments are added.
struct Parts {
    url: String,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    fields: Map<String, Value>,
    whole: Option<Value>,
}

impl AnyTool for Endpoint {
    async fn call(&self, context: &Context, arguments: Value) -> Result<Output, ToolError> {
        let work = async {
            let outgoing = self.outgoing(context, arguments)?;
            let response = tokio::time::timeout(self.idle_timeout, self.client.send(outgoing, self.connect_timeout));
            let response = response.await.map_err(|_| self.silent())?.map_err(|error| self.unanswered(&error))?;
            answer::take(self, context, response).await
        };
        tokio::select! {
            biased;
            // Dropping the request closes its connection.
            () = context.cancelled() => Err(ToolError::new("the call was cancelled")),
            done = work => done,
        }
    }
}

impl Endpoint {
    /// Method, host and path, for messages: without the query, which may hold a secret.
    pub(crate) fn label(&self) -> String {
        let (address, _) = self.url.split_once('?').unwrap_or((&self.url, ""));
        format!("{} {address}", self.method)
    }

    /// The error when nothing arrived for too long.
    pub(crate) fn silent(&self) -> ToolError {
        self.lost(format!("{} sent nothing for {:?}", self.label(), self.idle_timeout))
    }

    /// The error when the request was sent, and it is not known whether the service did what it was called for.
    pub(crate) fn lost(&self, message: String) -> ToolError {
        match self.repeatable {
            true => ToolError::retryable(message),
            false => {
                let message = format!("{message}: its effect may have happened");
                ToolError::of_call(CallError::new(ErrorKind::Interrupted, message))
            }
        }
    }

    /// The error when nothing was answered.
    pub(crate) fn unanswered(&self, error: &SendError) -> ToolError {
        let message = format!("{} was not answered: {error}", self.label());
        match error {
            SendError::Lost(_) => self.lost(message),
            error if error.is_transient() => ToolError::retryable(message),
            _ => ToolError::new(message),
        }
    }

    /// The values that must not reach the model, even if the service sends them back; the longest first.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let given = self.headers.iter().map(|(_, given)| given).chain(self.query.iter().map(|(_, given)| given));
        let mut secrets: Vec<String> = given.flat_map(Given::secrets).filter(|text| text.len() >= 4).collect();
        secrets.sort_by_key(|text| std::cmp::Reverse(text.len()));
        secrets
    }

    pub(crate) fn outgoing(&self, context: &Context, arguments: Value) -> Result<Outgoing, ToolError> {
        let mut parts = Parts {
            url: self.url.clone(),
            query: Vec::new(),
            headers: HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(ACCEPTED))]),
            fields: Map::new(),
            whole: None,
        };
        let Value::Object(arguments) = arguments else { return Err(ToolError::bad_input("", "they are no object")) };
        for (name, value) in arguments {
            self.add(&mut parts, &name, value)?;
        }
        if let Some((_, rest)) = parts.url.split_once('{') {
            let name = rest.split_once('}').map_or(rest, |(name, _)| name);
            return Err(ToolError::bad_input(pointer(name), "it is a part of the address, and is missing"));
        }
        for (name, given) in &self.query {
            parts.query.push((name.clone(), self.value(name, given)?));
        }
        let (content_type, body) = self.body_of(&mut parts)?;
        for (name, given) in &self.headers {
            let value = HeaderValue::from_str(&self.value(name.as_str(), given)?);
            let mut value = value.map_err(|_| self.unusable(name.as_str(), "its value cannot be sent in a header"))?;
            value.set_sensitive(given.is_secret());
            parts.headers.insert(name, value);
        }
        if let Some(content_type) = content_type {
            parts.headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(content_type));
        }
        if let Some(name) = &self.idempotency_header {
            let key = format!("{}/{}", context.run_id(), context.call_id());
            let key = HeaderValue::from_str(&key).map_err(|_| self.unusable(name.as_str(), "the call's id"))?;
            parts.headers.insert(name, key);
        }
        if self.caller_headers {
            for (name, value) in CALLER_HEADERS.into_iter().zip(requester(context)).filter(|(_, text)| !text.is_empty())
            {
                let value = HeaderValue::from_bytes(value.as_bytes());
                parts.headers.insert(name, value.map_err(|_| self.unusable(name, "it cannot be sent in a header"))?);
            }
        }
        let url = address(&parts.url, &parts.query)?;
        Ok(Outgoing { method: self.method.clone(), url, headers: parts.headers, body })
    }

    fn value(&self, name: &str, given: &Given) -> Result<String, ToolError> {
        given.read().map_err(|error| self.unusable(name, &error))
    }

    /// An error of the operator. The log has the reason.
    fn unusable(&self, name: &str, error: &str) -> ToolError {
        tracing::warn!(tool = self.label(), name, error, "a configured value of an HTTP tool cannot be used");
        ToolError::new(format!("the configured value of {name} cannot be used: the worker's log says why"))
    }

    fn add(&self, parts: &mut Parts, name: &str, value: Value) -> Result<(), ToolError> {
        let place = match (self.places.get(name), self.others) {
            (Some(place), _) => place.clone(),
            (None, Others::Query) => Place::Query(name.to_owned(), Several::default()),
            (None, Others::Body) => Place::Field(name.to_owned()),
        };
        match place {
            Place::Path(hole) => {
                let text = scalar(name, &value)?;
                if text.is_empty() {
                    return Err(ToolError::bad_input(pointer(name), "it is a part of the address, and is empty"));
                }
                parts.url = parts.url.replace(&format!("{{{hole}}}"), &escaped(&text));
            }
            Place::Query(key, several) => query(&mut parts.query, name, key, several, value)?,
            Place::Header(header) if !value.is_null() => {
                let text = HeaderValue::from_str(&scalar(name, &value)?);
                let text = text.map_err(|_| ToolError::bad_input(pointer(name), "it cannot be sent in a header"))?;
                parts.headers.insert(header, text);
            }
            Place::Header(_) => {}
            Place::Field(key) => drop(parts.fields.insert(key, value)),
            Place::Body => parts.whole = Some(value),
        }
        Ok(())
    }

    fn body_of(&self, parts: &mut Parts) -> Result<(Option<&'static str>, Bytes), ToolError> {
        let fields = std::mem::take(&mut parts.fields);
        let value = match (parts.whole.take(), self.others) {
            (Some(whole), _) => whole,
            (None, Others::Body) => Value::Object(fields),
            (None, Others::Query) if !fields.is_empty() => Value::Object(fields),
            (None, Others::Query) => return Ok((None, Bytes::new())),
        };
        match self.body {
            BodyFormat::Json => Ok((Some("application/json"), serde_json::to_vec(&value)?.into())),
            BodyFormat::Form => {
                let Value::Object(fields) = value else {
                    return Err(ToolError::bad_input("", "the body is a form, so it must be an object"));
                };
                let mut pairs = Vec::new();
                for (key, value) in fields {
                    query(&mut pairs, &key.clone(), key, Several::Repeated, value)?;
                }
                let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
                Ok((Some("application/x-www-form-urlencoded"), form.into()))
            }
        }
    }
}

/// Adds the values of an argument to a query or a form. `null` adds nothing.
fn query(
    pairs: &mut Vec<(String, String)>,
    name: &str,
    key: String,
    several: Several,
    value: Value,
) -> Result<(), ToolError> {
    match (several, value) {
        (_, Value::Null) => {}
        (Several::Json, value) => pairs.push((key, value.to_string())),
        (Several::Repeated, Value::Array(items)) => {
            for item in items {
                pairs.push((key.clone(), scalar(name, &item)?));
            }
        }
        (Several::Repeated, Value::Object(fields)) => {
            for (key, value) in fields {
                pairs.push((key, scalar(name, &value)?));
            }
        }
        (Several::Repeated | Several::Commas, value) => pairs.push((key, scalar(name, &value)?)),
    }
    Ok(())
}

/// A value as text; several with commas between them.
fn scalar(name: &str, value: &Value) -> Result<String, ToolError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Ok(String::new()),
        Value::Bool(_) | Value::Number(_) => Ok(value.to_string()),
        Value::Array(items) if items.iter().all(|item| !item.is_array() && !item.is_object()) => {
            let texts: Result<Vec<String>, _> = items.iter().map(|item| scalar(name, item)).collect();
            Ok(texts?.join(","))
        }
        Value::Array(_) | Value::Object(_) => {
            Err(ToolError::bad_input(pointer(name), "it cannot be sent outside of a body: write a plain value"))
        }
    }
}

/// A JSON pointer to an argument.
fn pointer(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// Text as a part of a path: it adds no further part, query or fragment.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let escape = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escape).collect()
}

/// The address with its query. Arguments must not lead to another path: `..` is refused.
fn address(text: &str, query: &[(String, String)]) -> Result<Url, ToolError> {
    let mut url =
        Url::parse(text).map_err(|error| ToolError::bad_input("", format!("the address is none: {error}")))?;
    let path = text.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    if path.split('/').any(|part| matches!(part.to_ascii_lowercase().as_str(), "." | "..")) {
        return Err(ToolError::bad_input("", "a part of the address would be . or .., which leads elsewhere"));
    }
    if !query.is_empty() {
        url.query_pairs_mut().extend_pairs(query);
    }
    match url.as_str().len() {
        bytes if bytes > URL_BYTES_MAX => Err(ToolError::bad_input(
            "",
            format!("the address would have {bytes} bytes, at most {URL_BYTES_MAX} are sent"),
        )),
        _ => Ok(url),
    }
}
