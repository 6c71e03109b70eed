//! Makes the output and the result of a call of an HTTP response.

use std::time::Duration;

use ::http::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG, LAST_MODIFIED, RETRY_AFTER};
use ::http::{HeaderMap, Method, Response, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use jiff::fmt::rfc2822;
use run::limit;
use serde_json::{Value, json};
use tokio::time::timeout;
use toolyard_tool::{CallError, Context, ErrorKind, Output, ToolError};

use super::endpoint::Endpoint;
use super::events::{Events, Lines};
use crate::transcript::{Transcript, beginning};

/// Bytes of the body of an error that its message quotes.
const EXCERPT_BYTES: usize = 2048;
/// Bytes of the beginning of a secret that are removed at the end of an excerpt; fewer tell nothing.
const PART_BYTES: usize = 3;
/// How long the body of an error may take.
const EXCERPT_TIMEOUT: Duration = Duration::from_secs(5);
/// The wait after a rate limit without a time.
const RATE_LIMIT_WAIT: Duration = Duration::from_secs(1);

/// Takes a response to its call.
pub(crate) async fn take(
    endpoint: &Endpoint,
    context: &Context,
    response: Response<Incoming>,
) -> Result<Output, ToolError> {
    if !response.status().is_success() {
        return Err(refused(endpoint, response).await);
    }
    let headers = response.headers();
    let (media_type, essence) = media_type(headers);
    if endpoint.method == Method::HEAD {
        return Output::json(&head(response.status(), headers));
    }
    match Form::of(&essence) {
        Some(form) => follow(endpoint, context, response.into_body(), form).await,
        None => whole(endpoint, response, &essence, &media_type).await,
    }
}

/// The media type of a body, and without its parameters in small letters.
pub(super) fn media_type(headers: &HeaderMap) -> (String, String) {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    (media_type, essence)
}

/// The form of a body that arrives piece by piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Events,
    Lines,
}

impl Form {
    /// The form that a media type has; `None` for a body that is taken as a whole.
    pub(super) fn of(essence: &str) -> Option<Self> {
        match essence {
            "text/event-stream" => Some(Self::Events),
            "application/x-ndjson" | "application/ndjson" | "application/jsonl" | "application/x-jsonlines" => {
                Some(Self::Lines)
            }
            _ => None,
        }
    }
}

/// Sends the events of a body as output as they come.
async fn follow(endpoint: &Endpoint, context: &Context, mut body: Incoming, form: Form) -> Result<Output, ToolError> {
    let (mut lines, mut events, mut transcript) = (Lines::default(), Events::default(), Transcript::default());
    while let Some(bytes) = next(endpoint, &mut body).await? {
        for line in lines.take(&bytes).map_err(|error| too_large(endpoint, &error))? {
            match form {
                Form::Lines if line.trim().is_empty() => {}
                Form::Lines => transcript.line(context, line).await?,
                Form::Events => match events.take(&line).map_err(|error| too_large(endpoint, &error))? {
                    // The end as OpenAI's services write it.
                    Some(event) if event.data == "[DONE]" => return transcript.result(),
                    Some(event) => transcript.event(context, &event.name, event.data).await?,
                    None => {}
                },
            }
        }
    }
    match (form, lines.rest()) {
        (Form::Lines, Some(line)) if !line.trim().is_empty() => transcript.line(context, line).await?,
        // An event without the empty line behind it is not complete.
        (Form::Lines | Form::Events, _) => {}
    }
    transcript.result()
}

/// The whole body of a response, if it is not too large.
pub(super) async fn bytes(endpoint: &Endpoint, response: Response<Incoming>) -> Result<Vec<u8>, ToolError> {
    let mut body = response.into_body();
    let max = endpoint.response_bytes_max;
    let announced = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
    let mut bytes = Vec::with_capacity(announced.min(max));
    if announced > max {
        return Err(too_large(endpoint, &format!("its body has {announced} bytes, at most {max} are taken")));
    }
    while let Some(piece) = next(endpoint, &mut body).await? {
        if bytes.len() + piece.len() > max {
            return Err(too_large(endpoint, &format!("its body has more than {max} bytes")));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

async fn whole(
    endpoint: &Endpoint,
    response: Response<Incoming>,
    essence: &str,
    media_type: &str,
) -> Result<Output, ToolError> {
    let bytes = bytes(endpoint, response).await?;
    let is_json = essence == "application/json" || essence.ends_with("+json");
    let is_text = essence.starts_with("text/") || essence.ends_with("+xml") || essence == "application/xml";
    match bytes.is_empty() {
        true => Ok(().into()),
        false if is_json => {
            let value: Value = serde_json::from_slice(&bytes)
                .map_err(|error| ToolError::new(format!("{} answered {essence}, but {error}", endpoint.label())))?;
            Output::json(&value)
        }
        false => match (is_text || essence.is_empty(), String::from_utf8(bytes)) {
            (true, Ok(text)) => Ok(text.into()),
            (false, Ok(text)) => Ok(data(media_type, text.into_bytes())),
            (_, Err(error)) => Ok(data(media_type, error.into_bytes())),
        },
    }
}

fn data(media_type: &str, bytes: Vec<u8>) -> Output {
    let known = !media_type.is_empty() && media_type.len() <= limit::LABEL_BYTES_MAX;
    Output::data(if known { media_type } else { "application/octet-stream" }, bytes)
}

/// The next bytes of a body; `None` at its end.
pub(super) async fn next(endpoint: &Endpoint, body: &mut Incoming) -> Result<Option<Bytes>, ToolError> {
    loop {
        let frame = timeout(endpoint.idle_timeout, body.frame()).await.map_err(|_| endpoint.silent())?;
        match frame {
            None => return Ok(None),
            Some(Ok(frame)) => {
                // Otherwise these are trailers.
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
            Some(Err(error)) => {
                let message = format!("the answer of {} broke off: {error}", endpoint.label());
                return Err(endpoint.lost(message));
            }
        }
    }
}

/// What a response without a body says.
fn head(status: StatusCode, headers: &HeaderMap) -> Value {
    let names = [CONTENT_TYPE, CONTENT_LENGTH, LAST_MODIFIED, ETAG];
    let told = names.iter().filter_map(|name| Some((name.as_str(), headers.get(name)?.to_str().ok()?)));
    let headers: serde_json::Map<String, Value> = told.map(|(name, value)| (name.to_owned(), json!(value))).collect();
    json!({ "status": status.as_u16(), "headers": headers })
}

/// The error of a response that is none.
pub(super) async fn refused(endpoint: &Endpoint, response: Response<Incoming>) -> ToolError {
    let (parts, body) = response.into_parts();
    let status = parts.status;
    let excerpt = excerpt(endpoint, body).await;
    let message = match excerpt.is_empty() {
        true => format!("{} answered {status}", endpoint.label()),
        false => format!("{} answered {status}: {excerpt}", endpoint.label()),
    };
    let wait = retry_after(&parts.headers);
    match (status.as_u16(), wait) {
        (429, wait) => ToolError::rate_limited(message, wait.unwrap_or(RATE_LIMIT_WAIT).min(limit::RETRY_AFTER_MAX)),
        (503, Some(wait)) => ToolError::rate_limited(message, wait.min(limit::RETRY_AFTER_MAX)),
        (408 | 425 | 500 | 502..=599, _) => ToolError::retryable(message),
        _ => ToolError::new(message),
    }
}

/// The beginning of the body of an error, without the secrets of its request.
async fn excerpt(endpoint: &Endpoint, mut body: Incoming) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| &data[..]));
            if bytes.len() > EXCERPT_BYTES {
                break;
            }
        }
    };
    // What has arrived until then is quoted.
    let is_cut = timeout(EXCERPT_TIMEOUT, reading).await.is_err() || bytes.len() > EXCERPT_BYTES;
    bytes.truncate(EXCERPT_BYTES);
    let text = masked(&String::from_utf8_lossy(&bytes), &endpoint.secrets());
    let text = beginning(&text, EXCERPT_BYTES).trim();
    if is_cut && !text.is_empty() { format!("{text} …") } else { text.to_owned() }
}

/// A text without secrets, and without the first part of one at its end, as of one that was cut in two.
pub(super) fn masked(text: &str, secrets: &[String]) -> String {
    let mut text = secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "[secret]"));
    let part = |secret: &String| {
        let mut parts = (PART_BYTES..secret.len()).rev().filter_map(|bytes| secret.get(..bytes));
        parts.find(|part| text.ends_with(part)).map(str::len)
    };
    if let Some(bytes) = secrets.iter().filter_map(part).max() {
        text.truncate(text.len() - bytes);
        text.push_str("[secret]");
    }
    text
}

/// `Retry-After`: seconds, or a time, which is compared with the service's own clock.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok();
    let wait = text(RETRY_AFTER)?.trim();
    if let Ok(seconds) = wait.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let time = |text: &str| rfc2822::parse(text).ok().map(|time| time.timestamp());
    let (until, now) = (time(wait)?, time(text(DATE)?)?);
    Some(u64::try_from(until.as_second() - now.as_second()).map_or(Duration::ZERO, Duration::from_secs))
}

pub(super) fn too_large(endpoint: &Endpoint, error: &dyn std::fmt::Display) -> ToolError {
    let message = format!("the answer of {} is too large: {error}", endpoint.label());
    ToolError::of_call(CallError::new(ErrorKind::OutputTooLarge, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_is_cut_in_two_is_masked_too() {
        let secrets = ["Bearer sesame".to_owned(), "sesame".to_owned()];
        let masked = |text: &str| masked(text, &secrets);
        assert_eq!(masked("a Bearer sesame, sesame b"), "a [secret], [secret] b");
        assert_eq!((masked("a Bearer ses").as_str(), masked("a sesam").as_str()), ("a [secret]", "a [secret]"));
        assert_eq!(masked("no ses there, se"), "no ses there, se");
    }

    #[test]
    fn the_wait_is_a_number_of_seconds_or_a_time_of_the_services_clock() {
        let wait = |after: &str, date: Option<&str>| {
            let date = date.map(|date| (DATE, date.parse().unwrap()));
            retry_after(&[(RETRY_AFTER, after.parse().unwrap())].into_iter().chain(date).collect())
        };
        assert_eq!(wait("7", None), Some(Duration::from_secs(7)));
        let now = "Wed, 21 Oct 2015 07:28:00 GMT";
        assert_eq!(wait("Wed, 21 Oct 2015 07:28:30 GMT", Some(now)), Some(Duration::from_secs(30)));
        assert_eq!(wait("Wed, 21 Oct 2015 07:27:30 GMT", Some(now)), Some(Duration::ZERO));
        assert_eq!(wait("Wed, 21 Oct 2015 07:28:30 GMT", None), None);
        assert_eq!(wait("soon", Some(now)), None);
    }
}
