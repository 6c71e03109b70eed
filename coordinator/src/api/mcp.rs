//! The Model Context Protocol at `/mcp`: the tools of the fleet for any MCP client, in both generations of the protocol
//! on one endpoint. A `tools/call` opens a run with one call, as every other request does; what a client must find
//! again (a task, a stream, a question) is named by the run, so no replica keeps anything of a client.

mod call;
mod client;
mod described;
mod follow;
mod listen;
mod lists;
mod message;
mod metadata;
mod progress;
mod questions;
mod resources;
mod resume;
mod seal;
mod stream;
mod tasks;
mod traced;
mod under_way;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use formats::mcp::Era;
use http::{HeaderValue, StatusCode};
use run::RunId;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use self::client::{Client, LEGACY, LEVELS, MODERN, SESSION, TASKS};
use self::message::{INVALID_PARAMS, METHOD_NOT_FOUND, Message, Request, RpcError, json_response};
use super::Api;
use crate::api::http::ask::Ask;
use crate::api::http::unread::holding;
use crate::api::problem::Problem;
use crate::requests::RequestKey;

pub(crate) use self::described::{events_described, posted_described};
pub(crate) use self::metadata::{
    challenge, described as metadata_described, described_with_path as metadata_of_mcp_described,
};
pub(crate) use self::metadata::{is_metadata, metadata};

/// The id of the call in the run of a `tools/call`.
const MAIN: &str = "mcp";
const CANCELLED_BY_CLIENT: &str = "the client cancelled the request";
/// Sessions whose log level a replica remembers.
const LEVELS_KEPT_MAX: usize = 4096;
/// A cancelled call of another replica is recorded by then.
const RECORDED_BY: Duration = Duration::from_millis(1200);
/// How long a client may keep what the server can do.
const DISCOVERY_TTL_MS: u64 = 60_000;

/// What the endpoint of a replica shares between requests.
#[derive(Debug)]
pub(crate) struct Shared {
    seals: seal::Seals,
    calls: under_way::Calls,
    /// Whether the port has TLS.
    is_tls: bool,
    /// The log level of a session, as an index of [`LEVELS`]; others have the default.
    levels: Mutex<HashMap<String, usize>>,
}

impl Shared {
    pub(crate) fn new(is_tls: bool) -> Self {
        let (seals, calls, levels) = Default::default();
        Self { seals, calls, is_tls, levels }
    }

    fn levels(&self) -> std::sync::MutexGuard<'_, HashMap<String, usize>> {
        self.levels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message of a client.
pub(crate) async fn posted(api: Api, ask: Ask) -> Response {
    match Message::read(&ask.body) {
        Ok(Message::Request(request)) => {
            let id = request.id.clone();
            let answered = Box::pin(requested(api, request, &ask)).await;
            answered.unwrap_or_else(|error| error.response(Some(&id)))
        }
        Ok(Message::Notification { method, params }) => match notified(&api, &ask, &method, &params).await {
            Ok(()) => accepted(),
            Err(error) => error.response(None),
        },
        Ok(Message::Response { id, result }) => match answered_question(&api, &ask, &id, result).await {
            Ok(()) => accepted(),
            Err(error) => error.response(None),
        },
        Err((id, error)) => error.response(id.as_deref()),
    }
}

fn accepted() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

/// A stream of notifications, or the rest of a call's stream. Only older revisions have it.
pub(crate) async fn streamed(api: Api, ask: Ask) -> Response {
    let has_session = ask.headers.contains_key(SESSION);
    let client = match Client::of_session(&ask.headers) {
        Ok(client) if has_session && ask.wants_events() => client,
        Err(error) if has_session => return error.response(None),
        Ok(_) | Err(_) => {
            let detail = "GET is for event streams of clients with a session; the present revision has none";
            return Problem::new(proto::Reason::MethodNotAllowed, detail).into_response();
        }
    };
    let streamed = match client::header(&ask.headers, "last-event-id") {
        Some(event) => Box::pin(call::resumed(api, client, event)).await,
        None => listen::of_session(api, client),
    };
    streamed.unwrap_or_else(|error| error.response(None))
}

async fn requested(api: Api, request: Request, ask: &Ask) -> Result<Response, RpcError> {
    let client = Client::of_request(&ask.headers, &request);
    if request.method == "initialize" && client.as_ref().is_ok_and(|client| client.era == Era::Legacy) {
        return initialized(&request);
    }
    let mut client = client?;
    if client.is_modern() {
        client::check_headers(&ask.headers, &request)?;
    } else {
        let kept = client.session.as_ref().and_then(|session| api.mcp.levels().get(session).copied());
        client.log_level = kept.or(Some(default_level()));
    }
    let members = match (request.method.as_str(), client.era) {
        ("server/discover", Era::Modern) => discovered(),
        ("ping", Era::Legacy) => String::new(),
        ("logging/setLevel", Era::Legacy) => set_level(&api, &client, &request)?,
        ("tools/list", _) => lists::tools(&api, &client, &request)?,
        ("resources/list", _) => resources::list(&api, &client)?,
        ("resources/templates/list", _) => resources::templates(&api, &client)?,
        ("resources/read", _) => {
            let (members, held) = resources::read(&api, &client, &request).await?;
            return Ok(holding(json_response(answered(&request.id, &client, "complete", &members)), held));
        }
        ("tools/call", _) => return Box::pin(call::called(api, client, request, ask)).await,
        ("subscriptions/listen", Era::Modern) => return listen::listened(api, client, &request),
        ("tasks/get", Era::Modern) => tasks::get(&api, &client, &request).await?,
        ("tasks/update", Era::Modern) => tasks::update(&api, &client, &request).await?,
        ("tasks/cancel", Era::Modern) => tasks::cancel(&api, &client, &request).await?,
        (method, era) => {
            let error = RpcError::new(METHOD_NOT_FOUND, format!("the method {method:?} is not served here"));
            return Err(if era == Era::Modern { error.status(StatusCode::NOT_FOUND) } else { error });
        }
    };
    Ok(json_response(answered(&request.id, &client, "complete", &members)))
}

/// The answer of a request. `members`: those of its result, as JSON without braces.
fn answered(id: &RawValue, client: &Client, kind: &str, members: &str) -> String {
    let mut parts = Vec::new();
    if client.is_modern() {
        parts.push(format!(r#""resultType":"{kind}""#));
        parts.push(format!(r#""_meta":{{"io.modelcontextprotocol/serverInfo":{}}}"#, server_info()));
    }
    if !members.is_empty() {
        parts.push(members.to_owned());
    }
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{{}}}}}"#, id.get(), parts.join(","))
}

/// The members of an object without its braces.
fn members(object: &Value) -> String {
    let text = object.to_string();
    text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default().to_owned()
}

fn server_info() -> Value {
    json!({ "name": "toolyard", "title": "Toolyard", "version": env!("CARGO_PKG_VERSION") })
}

const INSTRUCTIONS: &str = "Tools of a fleet of workers. A call that takes longer than a few seconds becomes a task if \
    the client has the tasks extension. Large results are resources.";

fn capabilities(era: Era) -> Value {
    let mut all = json!({ "tools": { "listChanged": true }, "resources": {}, "logging": {} });
    if era == Era::Modern {
        all["extensions"] = json!({ TASKS: {} });
    }
    all
}

fn discovered() -> String {
    members(&json!({
        "supportedVersions": [MODERN],
        "capabilities": capabilities(Era::Modern),
        "instructions": INSTRUCTIONS,
        "ttlMs": DISCOVERY_TTL_MS,
        "cacheScope": "public",
    }))
}

/// Begins a session. Everything that is known of it is in its id.
fn initialized(request: &Request) -> Result<Response, RpcError> {
    #[derive(Deserialize)]
    struct Params {
        #[serde(rename = "protocolVersion")]
        version: String,
        #[serde(default)]
        capabilities: Value,
    }
    let Params { version, capabilities: declared } = request.read()?;
    let [newest, ..] = LEGACY;
    let version = LEGACY.into_iter().find(|known| *known == version).unwrap_or(newest);
    let result = json!({
        "protocolVersion": version,
        "capabilities": capabilities(Era::Legacy),
        "serverInfo": server_info(),
        "instructions": INSTRUCTIONS,
    });
    let mut response = json_response(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, request.id.get()));
    let session = client::new_session(version, client::Capabilities::read(&declared));
    let session = HeaderValue::try_from(session).expect("a prefix and base64 make a header");
    response.headers_mut().insert(SESSION, session);
    Ok(response)
}

fn default_level() -> usize {
    LEVELS.iter().position(|level| *level == "info").unwrap_or_default()
}

/// The level counts at this replica: sessions are kept nowhere.
fn set_level(api: &Api, client: &Client, request: &Request) -> Result<String, RpcError> {
    #[derive(Deserialize)]
    struct Params {
        level: String,
    }
    let Params { level } = request.read()?;
    let level = LEVELS.iter().position(|known| *known == level);
    let level = level
        .ok_or_else(|| RpcError::new(INVALID_PARAMS, format!("level: one of {} was expected", LEVELS.join(", "))))?;
    if let Some(session) = &client.session {
        let mut levels = api.mcp.levels();
        if levels.len() >= LEVELS_KEPT_MAX {
            levels.clear();
        }
        levels.insert(session.clone(), level);
    }
    Ok(String::new())
}

async fn notified(api: &Api, ask: &Ask, method: &str, params: &Value) -> Result<(), RpcError> {
    if method != "notifications/cancelled" {
        return Ok(());
    }
    let Some(session) = client::header(&ask.headers, SESSION) else { return Ok(()) };
    Client::of_session(&ask.headers)?;
    let id = message::canonical(&params["requestId"]);
    let found = match find_call(api, session, &id).await? {
        Some(run) => Some(run),
        None => {
            tokio::time::sleep(RECORDED_BY).await;
            find_call(api, session, &id).await?
        }
    };
    // The request may have been answered in the meantime.
    if let Some(run) = found {
        api.runs.cancel_run(run, CANCELLED_BY_CLIENT).await?;
    }
    Ok(())
}

/// The run of a call in progress, here or at another replica.
async fn find_call(api: &Api, session: &str, id: &str) -> Result<Option<RunId>, RpcError> {
    if let Some(run) = api.mcp.calls.find(session, id) {
        return Ok(Some(run));
    }
    let held = api.runs.requests.newest(&RequestKey::mcp_call(session, id)).await;
    Ok(held.map_err(crate::admission::error::RequestError::from)?.taken.map(|taken| taken.run))
}

/// The answer to a question that a client was asked, at whichever replica.
async fn answered_question(api: &Api, ask: &Ask, id: &str, result: Option<Value>) -> Result<(), RpcError> {
    let Some((run, call)) = resume::question(id) else { return Ok(()) };
    let client = Client::of_session(&ask.headers)?;
    let known = api.runs.known(run).await?;
    let mut open = questions::open(api, &client, &known.run);
    // A client that cannot show the question has decided nothing about a call; a tool need not wait for it.
    open.retain(|open| open.call == call && (result.is_some() || open.is_of_tool()));
    let result = result.unwrap_or_else(|| json!({ "action": "cancel" }));
    let mut replies: Map<String, Value> = open.iter().map(|open| (open.key.clone(), result.clone())).collect();
    questions::answer(api, run, &open, &mut replies).await?;
    Ok(())
}
