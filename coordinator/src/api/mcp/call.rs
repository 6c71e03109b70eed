//! `tools/call`: opens a run with one call and follows it.

use std::time::Duration;

use axum::response::Response;
use formats::mcp::tools::{NEEDS, TASK, TASK_REQUIRED, headers};
use proto::v1;
use run::{RunId, ToolName};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use telemetry::trace;
use tokio::time::Instant;

use super::client::{self, Client, decoded};
use super::follow::{Following, Step};
use super::message::{HEADER_MISMATCH, INVALID_PARAMS, Request, RpcError, json_response};
use super::progress::Progress;
use super::resume::Place;
use super::seal::State;
use super::traced::Traced;
use super::{MAIN, questions, stream};
use crate::api::Api;
use crate::api::abandoned::Abandoned;
use crate::api::http::ask::Ask;
use crate::fleet::registry::Entry;

/// A call that ends within this time is answered without a stream.
const QUICK: Duration = Duration::from_secs(1);
/// A call that lasts longer becomes a task, if its client can follow one.
const SYNC_WINDOW: Duration = Duration::from_secs(5);

/// The header of a request that may be repeated.
const KEY: &str = "idempotency-key";

#[derive(Deserialize)]
struct Params<'a> {
    name: String,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(rename = "inputResponses")]
    input_responses: Option<Value>,
    #[serde(rename = "requestState")]
    request_state: Option<String>,
}

/// What the tags of a tool demand.
struct Terms {
    tool: ToolName,
    is_task: bool,
}

pub(super) async fn called(api: Api, client: Client, request: Request, ask: &Ask) -> Result<Response, RpcError> {
    let params: Params<'_> = request.read()?;
    let terms = terms(&api, &client, &params, ask)?;
    let replies = match &params.input_responses {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(replies)) => replies.clone(),
        Some(_) => return Err(RpcError::new(INVALID_PARAMS, "inputResponses: an object was expected")),
    };
    let mut traced = Traced::begin(&request, terms.tool.as_str(), &client.version);
    // Others may follow the run of such a request, or its client repeats it after its connection broke.
    let may_be_repeated = params.request_state.is_some() || ask.headers.contains_key(KEY);
    let begun = match &params.request_state {
        Some(state) => continued(&api, &client, (&request, state), replies).await,
        None => opened(&api, &terms, &params, (ask, traced.as_ref())).await.map(|reader| {
            let mut following = Following::new(api.clone(), client.clone(), request.id.clone(), reader);
            following.given = replies;
            following
        }),
    };
    let mut following = begun.inspect_err(|error| {
        if let Some(traced) = &mut traced {
            traced.fail(&error.code.to_string());
        }
    })?;
    following.traced = traced;
    following.progress = request.meta.progress_token.clone().map(|token| Progress::new(token, Instant::now()));
    if client.is_modern() {
        following.params = client.capabilities.elicitation.then(|| request.params.clone());
        let abandoned = || Abandoned::new(&api.abandoned, &api.runs, (following.run, Vec::new()));
        following.abandoned = (!may_be_repeated).then(abandoned);
        let window = if terms.is_task { Duration::ZERO } else { SYNC_WINDOW };
        following.convert_at = client.capabilities.tasks.then(|| Instant::now() + window);
    }
    following.has_stream = ask.wants_events();
    answer(following).await
}

/// The tool that the client may call, and how.
fn terms(api: &Api, client: &Client, params: &Params<'_>, ask: &Ask) -> Result<Terms, RpcError> {
    let registry = std::sync::Arc::clone(&api.runs.registry.borrow());
    let shows = api.runs.callers.shows(&api.runs.caller);
    let visible = |entry: &&Entry| !entry.hosted.manifest.result_use.hidden && shows(entry);
    let name = api.runs.own_name(&params.name);
    let found = name.as_ref().and_then(|name| registry.catalog_of(api.runs.caller.tenant()).find(name)).filter(visible);
    let entry = found.ok_or_else(|| RpcError::new(INVALID_PARAMS, format!("Unknown tool: {}", params.name)))?;
    let manifest = &entry.hosted.manifest;
    if client.is_modern() {
        check_arguments_in_headers(&manifest.input_schema, params, ask)?;
    }
    let has = |tag: &str| manifest.tags.iter().any(|known| known == tag);
    if has(TASK_REQUIRED) {
        client.capabilities.must("tasks")?;
    }
    for needed in manifest.tags.iter().filter_map(|tag| tag.strip_prefix(NEEDS)) {
        client.capabilities.must(needed)?;
    }
    Ok(Terms { tool: entry.name.clone(), is_task: has(TASK) || has(TASK_REQUIRED) })
}

/// Arguments that the tool's schema marks must be repeated in headers.
fn check_arguments_in_headers(schema: &str, params: &Params<'_>, ask: &Ask) -> Result<(), RpcError> {
    let marked = headers(schema);
    if marked.is_empty() {
        return Ok(());
    }
    let arguments: Value = params.arguments.and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default();
    for (argument, suffix) in marked {
        let name = format!("mcp-param-{}", suffix.to_ascii_lowercase());
        let expected = match &arguments[argument.as_str()] {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        let given = client::header(&ask.headers, &name);
        let agrees = match (&expected, given) {
            (None, None) => true,
            (Some(expected), given) => decoded(given).as_ref() == Some(expected),
            (None, Some(_)) => false,
        };
        if !agrees {
            let message = format!("the header Mcp-Param-{suffix} does not repeat the argument {argument:?}");
            return Err(RpcError::new(HEADER_MISMATCH, message));
        }
    }
    Ok(())
}

/// Opens the run.
async fn opened(
    api: &Api,
    terms: &Terms,
    params: &Params<'_>,
    (ask, traced): (&Ask, Option<&Traced>),
) -> Result<Box<crate::readers::Reader>, RpcError> {
    let arguments = params.arguments.map_or("{}", RawValue::get);
    let call = v1::NewCall {
        call_id: MAIN.to_owned(),
        tool: terms.tool.to_string(),
        arguments: arguments.to_owned(),
        ..v1::NewCall::default()
    };
    let request_id = ask.request_id(String::new())?;
    // A client of MCP names a tool that was listed to it, and its protocol attaches none.
    let tenant = api.runs.callers.tools_of(api.runs.caller.tenant());
    let attaches_only = api.runs.attaches_only(tenant.as_deref());
    let tools = if attaches_only { vec![terms.tool.to_string()] } else { Vec::new() };
    let run = v1::CreateRunRequest { calls: vec![call], request_id, tools, ..v1::CreateRunRequest::default() };
    let policy = v1::FloorPolicy::Interleaved.into();
    let request = v1::ExecuteRunRequest { run: Some(run), floor_policy: policy, ..v1::ExecuteRunRequest::default() };
    let opening = api.execute_run(request);
    // Not in the call's metadata: a repeated request has another span, and is the same request nevertheless.
    Ok(match traced {
        Some(traced) => Box::pin(trace::scope(traced.context(), opening)).await?,
        None => opening.await?,
    })
}

/// Goes on with the run of a request that needed input.
async fn continued(
    api: &Api,
    client: &Client,
    (request, state): (&Request, &str),
    mut replies: Map<String, Value>,
) -> Result<Following, RpcError> {
    let State { run, by, request: of, after, .. } = api.mcp.seals.open(&api.runs.requests, state).await?;
    let caller = api.runs.caller.name().map(ToString::to_string).unwrap_or_default();
    if by != caller || of != digest(&request.params) {
        return Err(RpcError::new(INVALID_PARAMS, "requestState belongs to another request or another caller"));
    }
    let run: RunId = run.parse().map_err(|error: run::InvalidId| RpcError::new(INVALID_PARAMS, error.to_string()))?;
    let known = api.runs.known(run).await?;
    let open = questions::open(api, client, &known.run);
    questions::answer(api, run, &open, &mut replies).await?;
    let mut following = watched(api, client, request.id.clone(), run).await?;
    following.reported = after;
    following.given = replies;
    Ok(following)
}

/// Goes on with a stream that broke off.
pub(super) async fn resumed(api: Api, client: Client, event: &str) -> Result<Response, RpcError> {
    let invalid = || RpcError::new(INVALID_PARAMS, format!("Last-Event-ID: {event:?} is no event of this service"));
    let Place { run, id, progress_token, after } = Place::read(event).ok_or_else(invalid)?;
    let mut following = watched(&api, &client, id, run).await?;
    following.reported = after;
    following.progress = progress_token.map(|token| Progress::new(token, Instant::now()));
    Ok(stream::response(following, None))
}

async fn watched(api: &Api, client: &Client, id: Box<RawValue>, run: RunId) -> Result<Following, RpcError> {
    let policy = v1::FloorPolicy::Interleaved.into();
    let request =
        v1::WatchRunRequest { run_id: run.to_string(), floor_policy: policy, ..v1::WatchRunRequest::default() };
    let reader = api.watch_run(request).await?;
    Ok(Following::new(api.clone(), client.clone(), id, reader))
}

/// The answer at once if there is one soon, and otherwise a stream.
async fn answer(mut following: Following) -> Result<Response, RpcError> {
    let has_stream = following.has_stream;
    if following.progress.is_some() && has_stream {
        return Ok(stream::response(following, None));
    }
    let until = has_stream.then(|| Instant::now() + QUICK);
    loop {
        match following.next(until).await? {
            Step::Done(text) => return Ok(json_response(text)),
            Step::Waited => return Ok(stream::response(following, None)),
            step @ Step::Messages(_) if has_stream => return Ok(stream::response(following, Some(step))),
            // A client without a stream is not notified.
            Step::Messages(_) | Step::Silence => {}
            Step::Cut => return Ok(super::accepted()),
        }
    }
}

/// The digest of what is called. Clients may write the same arguments differently when they repeat a request.
pub(super) fn digest(params: &RawValue) -> String {
    #[derive(Default, Deserialize)]
    struct Called {
        name: String,
        #[serde(default)]
        arguments: Value,
    }
    let Called { name, arguments } = serde_json::from_str(params.get()).unwrap_or_default();
    let mut hash = Sha256::new();
    hash.update(name);
    hash.update([0]);
    hash.update(arguments.to_string());
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
