//! What is served where. One list, of which the routes are made, and the document that describes them.

use axum::body::Body;
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post};
use futures::StreamExt as _;
use http::{HeaderValue, Method, StatusCode, header};
use proto::export::{Format, export};
use proto::{json, v1};
use serde_json::Value;

use super::ask::Ask;
use super::problem::{Place, Problem};
use super::{batch, objects, openapi, sse};
use crate::callers::Role;
use crate::door::needs::needs;
use crate::door::{Door, Told, output};

/// Something that can be asked for.
pub(crate) struct Operation {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) meaning: Meaning,
    pub(crate) handler: fn() -> MethodRouter<Door>,
}

pub(crate) enum Meaning {
    /// A method of the API, by its service and its name: its messages are what is sent and answered.
    Method(&'static str, &'static str),
    /// What gRPC does not have: its name, what it needs, and the operation that the document has of it.
    Other(&'static str, Needs, fn() -> Value),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// It is open to all.
    Nothing,
    Role(Role),
}

impl Meaning {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Rpc(_, name) | Other(name, ..) => name,
        }
    }

    pub(crate) fn needs(&self) -> Needs {
        match self {
            Rpc(service, name) => Needs::Role(needs(service, name)),
            Other(_, needs, _) => *needs,
        }
    }
}

use Meaning::{Method as Rpc, Other};

/// Cancelled calls in one answer that is not streamed: about 1 MiB of JSON. After these the work stops.
const CANCELLED_MAX: usize = 10_000;

type Answered = Result<Response, Problem>;

/// A method that is answered with one message.
macro_rules! unary {
    ($route:ident, $call:ident) => {
        || {
            $route(|door: Door, ask: Ask| async move {
                let answer = door.$call(ask.read()?).await.map_err(|fault| ask.problem(fault))?;
                Answered::Ok(answered(&answer))
            })
        }
    };
}

#[rustfmt::skip]
pub(crate) const OPERATIONS: &[Operation] = &[
    Operation { method: Method::POST, path: "/v1/runs", meaning: Rpc("RunService", "CreateRun"), handler: || post(create_run) },
    Operation { method: Method::GET, path: "/v1/runs", meaning: Rpc("IndexService", "ListRuns"), handler: unary!(get, list_runs) },
    Operation { method: Method::GET, path: "/v1/runs/{run_id}", meaning: Rpc("RunService", "GetRun"), handler: unary!(get, get_run) },
    Operation { method: Method::GET, path: "/v1/runs/{run_id}/events", meaning: Rpc("RunService", "WatchRun"), handler: || get(events) },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/calls", meaning: Rpc("RunService", "AppendCalls"), handler: unary!(post, append_calls) },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/close", meaning: Rpc("RunService", "CloseRun"), handler: unary!(post, close_run) },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/outputs", meaning: Rpc("RunService", "SubmitToolOutputs"), handler: unary!(post, submit_tool_outputs) },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/decisions", meaning: Rpc("RunService", "DecideCalls"), handler: unary!(post, decide_calls) },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/cancel", meaning: Rpc("RunService", "CancelRun"), handler: unary!(post, cancel_run) },
    Operation { method: Method::POST, path: "/v1/runs:erase", meaning: Rpc("RunService", "EraseRuns"), handler: unary!(post, erase_runs) },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/calls/{call_id}/cancel", meaning: Rpc("RunService", "CancelCall"), handler: unary!(post, cancel_call) },
    Operation { method: Method::GET, path: "/v1/runs/{run_id}/calls/{call_id}/why", meaning: Rpc("RunService", "ExplainCall"), handler: unary!(get, explain_call) },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/calls/{call_id}/answer_token", meaning: Rpc("RunService", "CreateAnswerToken"), handler: unary!(post, create_answer_token) },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/calls/{call_id}/redrive", meaning: Rpc("RunService", "RedriveCall"), handler: unary!(post, redrive_call) },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/calls/{call_id}/drop", meaning: Rpc("RunService", "DropCall"), handler: unary!(post, drop_call) },
    Operation { method: Method::GET, path: "/v1/calls", meaning: Rpc("IndexService", "ListCalls"), handler: unary!(get, list_calls) },
    Operation { method: Method::POST, path: "/v1/calls/cancel", meaning: Rpc("IndexService", "CancelCalls"), handler: || post(cancel_calls) },
    Operation { method: Method::GET, path: "/v1/counts", meaning: Rpc("IndexService", "CountRuns"), handler: unary!(get, count_runs) },
    Operation { method: Method::POST, path: "/v1/index/verify", meaning: Rpc("IndexService", "VerifyIndex"), handler: || post(verify_index) },
    Operation { method: Method::POST, path: "/v1/index/rebuild", meaning: Rpc("IndexService", "RebuildIndex"), handler: unary!(post, rebuild_index) },
    Operation { method: Method::GET, path: "/v1/webhooks/parked", meaning: Rpc("WebhookService", "ListParkedWebhooks"), handler: unary!(get, list_parked_webhooks) },
    Operation { method: Method::POST, path: "/v1/webhooks/redrive", meaning: Rpc("WebhookService", "RedriveWebhooks"), handler: unary!(post, redrive_webhooks) },
    Operation { method: Method::GET, path: "/v1/tools", meaning: Rpc("ToolService", "ListTools"), handler: || get(list_tools) },
    Operation { method: Method::GET, path: "/v1/tools/{name}", meaning: Rpc("ToolService", "GetTool"), handler: || get(get_tool) },
    Operation { method: Method::POST, path: "/v1/pauses", meaning: Rpc("FleetService", "Pause"), handler: unary!(post, pause) },
    Operation { method: Method::GET, path: "/v1/pauses", meaning: Rpc("FleetService", "ListPauses"), handler: || get(list_pauses) },
    Operation { method: Method::POST, path: "/v1/pauses/resume", meaning: Rpc("FleetService", "Resume"), handler: unary!(post, resume) },
    Operation { method: Method::GET, path: "/v1/workers", meaning: Rpc("FleetService", "ListWorkers"), handler: || get(list_workers) },
    Operation { method: Method::POST, path: "/v1/workers/{worker_id}/drain", meaning: Rpc("FleetService", "DrainWorker"), handler: unary!(post, drain_worker) },
    Operation { method: Method::POST, path: "/v1/objects", meaning: Rpc("ObjectService", "CreateObject"), handler: || post(objects::create_object) },
    Operation { method: Method::GET, path: "/v1/objects/{object_id}", meaning: Rpc("ObjectService", "ReadObject"), handler: || get(objects::read_object) },
    Operation { method: Method::DELETE, path: "/v1/objects/{object_id}", meaning: Rpc("ObjectService", "DeleteObject"), handler: unary!(delete, delete_object) },
    Operation { method: Method::POST, path: "/v1/objects/{object_id}/link", meaning: Rpc("ObjectService", "CreateObjectLink"), handler: unary!(post, create_object_link) },
    Operation { method: Method::GET, path: "/v1/links/{token}", meaning: Other("ReadLinkedObject", Needs::Nothing, objects::described), handler: || get(objects::read_linked) },
    Operation { method: Method::POST, path: "/v1/tool_calls:batch", meaning: Other("BatchToolCalls", Needs::Role(Role::Submit), batch::described), handler: || post(batch::batch) },
    Operation { method: Method::GET, path: "/v1/openapi.json", meaning: Other("GetDocument", Needs::Nothing, openapi::described), handler: || get(openapi::serve) },
];

/// Accepts calls as a run: it is answered as it was accepted, or with its output for a client that accepts events.
async fn create_run(door: Door, ask: Ask) -> Answered {
    if ask.wants_events() {
        let mut request: v1::ExecuteRunRequest = ask.read()?;
        request.request_id = ask.request_id(request.request_id)?;
        let reader = door.execute_run(request).await.map_err(|fault| ask.problem(fault))?;
        return Ok(sse::output(reader, door.stop.clone()));
    }
    let mut request: v1::CreateRunRequest = ask.read()?;
    request.request_id = ask.request_id(request.request_id)?;
    let answer = door.create_run(request).await.map_err(|fault| ask.problem(fault))?;
    let mut response = answered(&answer);
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

async fn events(door: Door, ask: Ask) -> Answered {
    let mut request: v1::WatchRunRequest = ask.read()?;
    // It is newer than the query: a browser that comes back adds it to the same address.
    request.after_sequence = ask.last_event_id()?.or(request.after_sequence);
    let stop = door.stop.clone();
    let watched = output::watched(async move { door.watch_run(request).await }, stop, None).await;
    Ok(sse::response(watched.map_err(|fault| ask.problem(fault))?.map(sse::text)))
}

/// Cancels calls: as events for a client that accepts them, and else as one answer that lists them.
async fn cancel_calls(door: Door, ask: Ask) -> Answered {
    let mut pages = door.cancel_calls(ask.read()?).map_err(|fault| ask.problem(fault))?;
    if ask.wants_events() {
        return Ok(told(pages));
    }
    let mut all = v1::CancelCallsResponse::default();
    while let Some(page) = pages.next().await {
        all.calls.extend(page.map_err(|fault| ask.problem(fault))?.calls);
        if all.calls.len() >= CANCELLED_MAX {
            // Dropping the stream ends the work.
            all.incomplete = true;
            break;
        }
    }
    Ok(answered(&all))
}

async fn verify_index(door: Door, ask: Ask) -> Answered {
    Ok(told(door.verify_index(ask.read()?).map_err(|fault| ask.problem(fault))?))
}

/// Tools by pages as they are, or all of them as a vendor of models wants them described.
async fn list_tools(door: Door, mut ask: Ask) -> Answered {
    let Some(at) = ask.query.iter().position(|(name, _)| name == "format") else {
        return Ok(answered(&door.list_tools(&ask.read()?).map_err(|fault| ask.problem(fault))?));
    };
    let (name, wanted) = ask.query.remove(at);
    let Some((_, format)) = Format::ALL.into_iter().find(|(format, _)| *format == wanted) else {
        let known: Vec<&str> = Format::ALL.iter().map(|(format, _)| *format).collect();
        let detail = format!("format: {wanted:?} is none: {} are", known.join(", "));
        return Err(Problem::malformed(Place::Parameter(name), detail));
    };
    let mut request: v1::ListToolsRequest = ask.read()?;
    if request.page_size != 0 || !request.page_token.is_empty() {
        let detail = "format: definitions come all at once, without pages";
        return Err(Problem::malformed(Place::Parameter(name), detail));
    }
    let mut tools = Vec::new();
    loop {
        let page = door.list_tools(&request).map_err(|fault| ask.problem(fault))?;
        tools.extend(page.tools);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    Ok(json_response(&definitions(&tools, format)))
}

/// What the tools are called in the vendor's form is said where it is not their own name.
fn definitions(tools: &[v1::Tool], format: Format) -> Value {
    let exported = export(tools, format);
    let renamed = exported.iter().filter(|exported| exported.name != exported.tool);
    let names: serde_json::Map<_, _> =
        renamed.map(|exported| (exported.name.clone(), Value::from(exported.tool.as_str()))).collect();
    let definitions: Vec<Value> = exported.into_iter().map(|exported| exported.definition).collect();
    serde_json::json!({ "tools": definitions, "names": names })
}

async fn get_tool(door: Door, ask: Ask) -> Answered {
    Ok(answered(&door.get_tool(&ask.read()?).map_err(|fault| ask.problem(fault))?))
}

async fn list_pauses(door: Door, ask: Ask) -> Answered {
    Ok(answered(&door.list_pauses(ask.read()?).map_err(|fault| ask.problem(fault))?))
}

async fn list_workers(door: Door, ask: Ask) -> Answered {
    Ok(answered(&door.list_workers(&ask.read()?).map_err(|fault| ask.problem(fault))?))
}

/// A message as a response.
pub(super) fn answered<M: prost::Message + prost::Name>(message: &M) -> Response {
    text_response(json::write(message))
}

/// JSON of another kind as a response.
pub(crate) fn json_response(value: &Value) -> Response {
    text_response(value.to_string())
}

pub(super) fn text_response(json: String) -> Response {
    let mut response = Response::new(Body::from(json));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Messages as events, and a last one that is named `end`.
fn told<M: prost::Message + prost::Name + 'static>(told: Told<M>) -> Response {
    let words = told.map(|word| {
        let mut text = Vec::new();
        match word {
            Ok(word) => sse::event(&mut text, None, None, &json::write(&word)),
            Err(fault) => sse::event(&mut text, None, Some("problem"), &Problem::from(fault).json().to_string()),
        }
        text.into()
    });
    let end = futures::stream::once(async {
        let mut text = Vec::new();
        sse::event(&mut text, None, Some("end"), "{}");
        text.into()
    });
    sse::response(words.chain(end))
}
