//! Where a client learns who issues tokens for this service (RFC 9728).

use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, HeaderValue, Uri};
use serde_json::{Value, json};

use super::message::json_response;
use crate::api::Api;
use crate::api::http::ask::Ask;
use crate::api::port::pages::host;
use crate::api::problem::Problem;

const METADATA: &str = "/.well-known/oauth-protected-resource";
const ENDPOINT: &str = "/mcp";

/// Whether this is the path of the metadata, which needs no authentication.
pub(crate) fn is_metadata(path: &str) -> bool {
    path.strip_prefix(METADATA).is_some_and(|rest| rest.is_empty() || rest == ENDPOINT)
}

/// The metadata of the endpoint.
pub(crate) async fn metadata(api: Api, ask: Ask) -> Response {
    let Some(base) = base(ask.host.as_deref(), &ask.headers, api.mcp.is_tls) else {
        return Problem::new(proto::Reason::Malformed, "the request names no host").into_response();
    };
    let mut metadata = json!({
        "resource": format!("{base}{ENDPOINT}"),
        "resource_name": "Toolyard",
        "bearer_methods_supported": ["header"],
        "scopes_supported": [],
    });
    if let Some(issuer) = api.runs.callers.issuer() {
        metadata["authorization_servers"] = json!([issuer]);
    }
    json_response(metadata.to_string())
}

/// The challenge to a client of the endpoint that is not authenticated.
pub(crate) fn challenge(uri: &Uri, headers: &HeaderMap, is_tls: bool) -> Option<HeaderValue> {
    if uri.path() != ENDPOINT {
        return None;
    }
    let base = base(host(uri, headers).as_deref(), headers, is_tls)?;
    HeaderValue::try_from(format!("Bearer resource_metadata=\"{base}{METADATA}{ENDPOINT}\"")).ok()
}

/// The address under which the client reached this service. Proxies that end TLS report it.
fn base(host: Option<&str>, headers: &HeaderMap, is_tls: bool) -> Option<String> {
    let is_plain = |host: &&str| host.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\/".contains(&byte));
    let host = host.filter(is_plain)?;
    let is_tls = is_tls || headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    Some(format!("{}://{host}", if is_tls { "https" } else { "http" }))
}

/// The document's part about the metadata.
pub(crate) fn described() -> Value {
    json!({
        "operationId": "GetProtectedResource",
        "summary": "Where clients of `/mcp` get tokens (RFC 9728). No authentication needed.",
        "responses": { "200": { "description": "The metadata.",
            "content": { "application/json": { "schema": { "type": "object" } } } } },
    })
}

/// As [`described`], for the path with the endpoint's own, where newer clients look first.
pub(crate) fn described_with_path() -> Value {
    let mut described = described();
    described["operationId"] = "GetProtectedResourceOfMcp".into();
    described
}
