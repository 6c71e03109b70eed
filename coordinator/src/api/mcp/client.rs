//! What a client can do, and which revision of the protocol it uses: of the present revision from each request, of
//! earlier ones from the session id, which holds it. No replica keeps anything of a session.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use formats::mcp::Era;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::message::{
    CAPABILITY_MISSING, HEADER_MISMATCH, INVALID_PARAMS, Meta, Request, RpcError, VERSION_UNSUPPORTED,
};

/// The revision without sessions.
pub(super) const MODERN: &str = "2026-07-28";
/// Revisions with the `initialize` handshake, newest first.
pub(super) const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Clients of this revision and newer ones resume a stream from an event without data.
const PRIMED_SINCE: &str = "2025-11-25";
pub(super) const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";
/// The extension for tasks.
pub(super) const TASKS: &str = "io.modelcontextprotocol/tasks";
/// Bytes of a session id, so that it fits a header.
const SESSION_BYTES_MAX: usize = 1024;
const SESSION_PREFIX: &str = "tyms_";

/// The severities of a log message, least severe first.
pub(super) const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// The client of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Client {
    pub(super) era: Era,
    pub(super) version: String,
    pub(super) capabilities: Capabilities,
    /// Its session, if it has one.
    pub(super) session: Option<String>,
    /// The least severe log messages that it requests: an index of [`LEVELS`].
    pub(super) log_level: Option<usize>,
}

/// The capabilities that matter here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Capabilities {
    #[serde(default, rename = "e", skip_serializing_if = "is_false")]
    pub(super) elicitation: bool,
    /// It opens pages that a question names.
    #[serde(default, rename = "p", skip_serializing_if = "is_false")]
    pub(super) pages: bool,
    #[serde(default, rename = "s", skip_serializing_if = "is_false")]
    pub(super) sampling: bool,
    #[serde(default, rename = "r", skip_serializing_if = "is_false")]
    pub(super) roots: bool,
    #[serde(default, rename = "t", skip_serializing_if = "is_false")]
    pub(super) tasks: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

impl Capabilities {
    pub(super) fn read(declared: &Value) -> Self {
        // Without a mode, forms are meant.
        let elicitation = &declared["elicitation"];
        let forms = elicitation.as_object().is_some_and(|modes| modes.is_empty() || modes.contains_key("form"));
        Self {
            elicitation: forms,
            pages: elicitation["url"].is_object(),
            sampling: declared["sampling"].is_object(),
            roots: declared["roots"].is_object(),
            tasks: declared["extensions"][TASKS].is_object(),
        }
    }

    /// Whether the client has the capability of this name.
    fn has(self, name: &str) -> bool {
        match name {
            "elicitation" => self.elicitation,
            "sampling" => self.sampling,
            "roots" => self.roots,
            "tasks" => self.tasks,
            _ => false,
        }
    }

    /// An error unless the client declared the capability.
    pub(super) fn must(self, name: &str) -> Result<(), RpcError> {
        if self.has(name) {
            return Ok(());
        }
        let required = match name {
            "tasks" => json!({ "extensions": { TASKS: {} } }),
            name => json!({ name: {} }),
        };
        let message = format!("this request needs a client with the capability {name}");
        Err(RpcError::new(CAPABILITY_MISSING, message).with(json!({ "requiredCapabilities": required })))
    }
}

/// The content of a session id. It is not secret and not signed: a client that changes it claims capabilities, as it
/// does in `initialize`, and every request is authenticated by itself.
#[derive(Serialize, Deserialize)]
struct Session {
    #[serde(rename = "v")]
    version: String,
    #[serde(rename = "c")]
    capabilities: Capabilities,
    /// Makes it unique.
    #[serde(rename = "n")]
    nonce: u64,
}

/// A new session id.
pub(super) fn new_session(version: &str, capabilities: Capabilities) -> String {
    let session = Session { version: version.to_owned(), capabilities, nonce: rand::random() };
    let written = serde_json::to_vec(&session).expect("texts and numbers are JSON");
    format!("{SESSION_PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(written))
}

fn read_session(id: &str) -> Option<Session> {
    let written = id.strip_prefix(SESSION_PREFIX).filter(|_| id.len() <= SESSION_BYTES_MAX)?;
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(written).ok()?).ok()
}

pub(super) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

impl Client {
    /// The client of a request.
    pub(super) fn of_request(headers: &HeaderMap, request: &Request) -> Result<Self, RpcError> {
        let Meta { version, capabilities, log_level, .. } = &request.meta;
        let named = header(headers, VERSION);
        let is_legacy = version.is_none() && named.is_none_or(|named| LEGACY.contains(&named));
        if is_legacy && request.method != "server/discover" {
            return Self::of_session(headers);
        }
        match (named, version) {
            (named, Some(version)) if named != Some(version) => {
                let message = format!("the header MCP-Protocol-Version is {named:?}, and the request says {version:?}");
                return Err(RpcError::new(HEADER_MISMATCH, message));
            }
            (named, _) => {
                if let Some(other) = named.filter(|named| *named != MODERN) {
                    return Err(unsupported(other, &[MODERN]));
                }
            }
        }
        let missing = |what: &str| {
            let message = format!("params._meta lacks io.modelcontextprotocol/{what}");
            RpcError::new(INVALID_PARAMS, message).status(StatusCode::BAD_REQUEST)
        };
        let version = version.as_ref().ok_or_else(|| missing("protocolVersion"))?;
        let declared = capabilities.as_ref().filter(|declared| declared.is_object());
        let capabilities = Capabilities::read(declared.ok_or_else(|| missing("clientCapabilities"))?);
        let log_level = log_level.as_ref().and_then(|level| LEVELS.iter().position(|known| known == level));
        Ok(Self { era: Era::Modern, version: version.clone(), capabilities, session: None, log_level })
    }

    /// The client of a session, or one without a session, whose capabilities are unknown.
    pub(super) fn of_session(headers: &HeaderMap) -> Result<Self, RpcError> {
        if let Some(other) = header(headers, VERSION).filter(|named| !LEGACY.contains(named)) {
            return Err(unsupported(other, &LEGACY));
        }
        let version = header(headers, VERSION).unwrap_or("2025-03-26").to_owned();
        let Some(id) = header(headers, SESSION) else {
            let (capabilities, session, log_level) = Default::default();
            return Ok(Self { era: Era::Legacy, version, capabilities, session, log_level });
        };
        let session = read_session(id).ok_or_else(|| {
            RpcError::new(INVALID_PARAMS, "the session is unknown: initialize a new one").status(StatusCode::NOT_FOUND)
        })?;
        let Session { version, capabilities, .. } = session;
        Ok(Self { era: Era::Legacy, version, capabilities, session: Some(id.to_owned()), log_level: None })
    }

    pub(super) fn is_modern(&self) -> bool {
        self.era == Era::Modern
    }

    /// Whether its streams begin with an event from which they can be resumed.
    pub(super) fn is_primed(&self) -> bool {
        self.era == Era::Legacy && self.session.is_some() && self.version.as_str() >= PRIMED_SINCE
    }
}

fn unsupported(version: &str, supported: &[&str]) -> RpcError {
    let data = json!({ "supported": supported, "requested": version });
    RpcError::new(VERSION_UNSUPPORTED, format!("the protocol version {version:?} is not supported")).with(data)
}

/// The headers of a request must repeat its method and the name of its target.
pub(super) fn check_headers(headers: &HeaderMap, request: &Request) -> Result<(), RpcError> {
    let mismatch = |name: &str, given: Option<&str>, expected: &str| {
        let given = given.map_or_else(|| "is missing".to_owned(), |given| format!("is {given:?}"));
        RpcError::new(HEADER_MISMATCH, format!("the header {name} {given}, and the request says {expected:?}"))
    };
    let method = header(headers, "mcp-method");
    if method != Some(&request.method) {
        return Err(mismatch("Mcp-Method", method, &request.method));
    }
    let Some(Value::String(expected)) = target(request)? else { return Ok(()) };
    let given = header(headers, "mcp-name");
    if decoded(given).as_ref() == Some(&expected) { Ok(()) } else { Err(mismatch("Mcp-Name", given, &expected)) }
}

/// The parameter that names the target of a request.
fn target(request: &Request) -> Result<Option<Value>, RpcError> {
    #[derive(Deserialize)]
    struct Targets {
        name: Option<Value>,
        uri: Option<Value>,
        #[serde(rename = "taskId")]
        task: Option<Value>,
    }
    Ok(match request.method.as_str() {
        "tools/call" | "prompts/get" => request.read::<Targets>()?.name,
        "resources/read" => request.read::<Targets>()?.uri,
        "tasks/get" | "tasks/update" | "tasks/cancel" => request.read::<Targets>()?.task,
        _ => None,
    })
}

/// The value of a header, which may be encoded because headers are ASCII; `None` if it is malformed.
pub(super) fn decoded(value: Option<&str>) -> Option<String> {
    let value = value?;
    match value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(encoded) => String::from_utf8(base64::prelude::BASE64_STANDARD.decode(encoded).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_id_holds_what_its_client_declared() {
        let capabilities = Capabilities::read(&json!({ "elicitation": {}, "extensions": { TASKS: {} } }));
        let id = new_session("2025-11-25", capabilities);
        assert!(id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{id}");
        let headers = HeaderMap::from_iter([(http::HeaderName::from_static(SESSION), id.parse().expect("a header"))]);
        let client = Client::of_session(&headers).expect("it is a session");
        assert_eq!((client.capabilities, client.version.as_str()), (capabilities, "2025-11-25"));
        assert!(client.is_primed());
        let unknown =
            HeaderMap::from_iter([(http::HeaderName::from_static(SESSION), "gone".parse().expect("a header"))]);
        assert!(Client::of_session(&unknown).is_err());
    }

    #[test]
    fn elicitation_by_address_alone_is_no_form() {
        assert!(Capabilities::read(&json!({ "elicitation": { "form": {} } })).elicitation);
        assert!(!Capabilities::read(&json!({ "elicitation": { "url": {} } })).elicitation);
        assert!(!Capabilities::read(&json!({})).elicitation);
    }

    #[test]
    fn a_header_may_be_encoded() {
        assert_eq!(decoded(Some("plain")).as_deref(), Some("plain"));
        assert_eq!(decoded(Some("=?base64?SGVsbG8=?=")).as_deref(), Some("Hello"));
        assert_eq!(decoded(Some("=?base64?SGVsbG8?=")), None, "its padding is missing");
        assert_eq!(decoded(Some("=?base64?SGVsbG8=")).as_deref(), Some("=?base64?SGVsbG8="), "it has no end");
        assert_eq!(decoded(None), None);
    }
}
