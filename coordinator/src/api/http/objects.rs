//! Objects over HTTP: their bytes, as a whole or a range.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures::TryStreamExt as _;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body::Body as _;
use proto::v1;
use run::limit;
use serde_json::{Value, json};

use super::ask::Ask;
use super::routes::answered;
use crate::admission::error::RequestError;
use crate::api::objects::{Reading, Wanted};
use crate::api::problem::{Place, Problem, pointer};
use crate::api::{Api, ApiError};

/// Objects hold untrusted data, so a browser must save them and not treat them as our pages.
const SAFE: [(&str, &str); 4] = [
    ("content-disposition", "attachment"),
    ("x-content-type-options", "nosniff"),
    ("content-security-policy", "sandbox"),
    ("cache-control", "private, no-store"),
];

pub(super) async fn read_object(api: Api, ask: Ask) -> Result<Response, Problem> {
    let request: v1::ReadObjectRequest = ask.read()?;
    let ranged = range(&ask.headers);
    let wanted = ranged.unwrap_or(Wanted::From(request.offset, request.length));
    let reading = api.read_object(&request.object_id, wanted).await.map_err(|error| ask.problem(error))?;
    Ok(response(reading, ranged.is_some()))
}

/// For the bearer of a link; the link identifies its issuer.
pub(super) async fn read_linked(api: Api, ask: Ask) -> Result<Response, Problem> {
    let ranged = range(&ask.headers);
    let token = ask.path.first().map_or("", |(_, token)| token);
    let wanted = ranged.unwrap_or(Wanted::From(0, None));
    let reading = api.read_linked(token, wanted).await.map_err(|error| ask.problem(error))?;
    Ok(response(reading, ranged.is_some()))
}

/// A response with an object's bytes, for the document.
pub(super) fn bytes(description: &str) -> Value {
    let schema = json!({ "type": "string", "contentMediaType": "application/octet-stream" });
    json!({ "description": description, "content": { "*/*": { "schema": schema } } })
}

/// The document's part about links.
pub(super) fn described() -> Value {
    json!({
        "operationId": "ReadLinkedObject",
        "summary": "Reads an object by a link, which CreateObjectLink makes: no other authentication is needed.",
        "parameters": [{ "name": "token", "in": "path", "required": true, "schema": { "type": "string" } }],
        "responses": { "200": bytes("The object."), "206": bytes("The requested range.") },
    })
}

/// The body is the object, with its content type.
pub(super) async fn create_object(api: Api, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let query: Vec<_> = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()).collect();
    let tenant = match query.as_slice() {
        [] => "",
        [(name, tenant)] if name == "tenant" => tenant.as_ref(),
        [(name, _), ..] => {
            let detail = format!("{name}: unknown parameter; only `tenant` is known");
            return Err(Problem::malformed(Place::Parameter(name.clone().into_owned()), detail));
        }
    };
    if body.size_hint().lower() > limit::OBJECT_BYTES_MAX {
        return Err(ApiError::from(RequestError::ObjectTooLarge).into());
    }
    let media_type = parts.headers.get(header::CONTENT_TYPE).map_or(Ok(""), HeaderValue::to_str);
    let media_type = media_type.map_err(|_| {
        Problem::malformed(Place::Header("content-type"), "content-type: only visible ASCII is allowed")
    })?;
    let pieces = body.into_data_stream().map_err(|error| {
        ApiError::malformed(
            "",
            format!(
                "reading the body failed: \
        {error}"
            ),
        )
    });
    let place = |field: &str| match field {
        "tenant" => Place::Parameter(field.to_owned()),
        "media_type" => Place::Header("content-type"),
        _ => Place::Body(pointer(field)),
    };
    let answer = api.create_object((media_type, tenant), pieces).await.map_err(|error| Problem::of(error, place))?;
    let mut response = answered(&answer);
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

/// A requested range has a status of its own.
fn response(Reading { object, span, bytes }: Reading, is_range: bool) -> Response {
    let mut response = Response::new(Body::from_stream(bytes.map_err(|error| error.message)));
    let headers = response.headers_mut();
    for (name, value) in SAFE {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let kind = HeaderValue::from_str(&object.media_type).ok();
    headers.insert(header::CONTENT_TYPE, kind.unwrap_or(HeaderValue::from_static("application/octet-stream")));
    headers.insert(header::CONTENT_LENGTH, span.len().into());
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let sha256: String = object.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    headers.extend(HeaderValue::try_from(format!("\"{sha256}\"")).ok().map(|tag| (header::ETAG, tag)));
    if is_range {
        let range = format!("bytes {}-{}/{}", span.from, span.until.saturating_sub(1), object.size);
        headers.extend(HeaderValue::try_from(range).ok().map(|range| (header::CONTENT_RANGE, range)));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

/// The requested range. Several ranges at once are not supported, and a whole object is returned then.
fn range(headers: &HeaderMap) -> Option<Wanted> {
    let (first, last) = headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    match (first.parse::<u64>().ok(), last.parse::<u64>().ok()) {
        (None, Some(length)) if first.is_empty() => Some(Wanted::Last(length)),
        (Some(from), None) if last.is_empty() => Some(Wanted::From(from, None)),
        (Some(from), Some(last)) if from <= last => Some(Wanted::From(from, Some((last - from).saturating_add(1)))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_understood_and_anything_else_is_passed_over() {
        let asked =
            |text: &'static str| range(&HeaderMap::from_iter([(header::RANGE, HeaderValue::from_static(text))]));
        assert_eq!(asked("bytes=0-9"), Some(Wanted::From(0, Some(10))));
        assert_eq!(asked("bytes=5-"), Some(Wanted::From(5, None)));
        assert_eq!(asked("bytes=-5"), Some(Wanted::Last(5)));
        assert_eq!(asked("bytes=0-18446744073709551615"), Some(Wanted::From(0, Some(u64::MAX))));
        for garbage in ["bytes=9-0", "bytes=0-1,3-4", "bytes=-", "bytes=+1-+2x", "lines=1-2", "bytes=x-y", ""] {
            assert_eq!(asked(garbage), None, "{garbage}");
        }
    }
}
