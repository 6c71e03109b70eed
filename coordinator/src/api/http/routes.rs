//! The route table. The router and the OpenAPI document are generated from it.

use axum::body::Body;
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post};
use formats::tools::{Deferred, Format, export, make_strict, notes};
use futures::StreamExt as _;
use http::{HeaderValue, Method, StatusCode, header};
use proto::{json, v1};
use serde_json::Value;

use super::ask::Ask;
use super::{batch, objects, openapi, sse};
use crate::api::abandoned::Abandoned;
use crate::api::needs::needs;
use crate::api::problem::{Place, Problem};
use crate::api::{Api, MessageStream, mcp, output};
use crate::auth::callers::Role;

/// The parameter that names the tools whose definitions a model loads only when it finds them.
pub(super) const DEFER: &str = "defer_loading";

/// The parameter that asks for definitions which a vendor enforces.
pub(super) const STRICT: &str = "strict";

/// An operation of the HTTP API.
pub(crate) struct Operation {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) meaning: Meaning,
    pub(crate) handler: fn() -> MethodRouter<Api>,
}

pub(crate) enum Meaning {
    /// A method of the API, by its service and its name: its messages are the request and the response.
    Method(&'static str, &'static str),
    /// An operation that gRPC does not have: its name, the rights that it needs, and its part of the document.
    Other(&'static str, Needs, fn() -> Value),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// No authentication needed.
    Nothing,
    /// A caller; its rights are checked for what the request contains.
    Caller,
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

/// Cancelled calls in one answer that is not streamed: about 1 MiB of JSON. The work stops after that many.
const CANCELLED_MAX: usize = 10_000;

type Answered = Result<Response, Problem>;

/// A method that is answered with one message.
macro_rules! unary {
    ($route:ident, $call:ident) => {
        || {
            $route(|api: Api, ask: Ask| async move {
                let answer = api.$call(ask.read()?).await.map_err(|error| ask.problem(error))?;
                Answered::Ok(answered(&answer))
            })
        }
    };
}

#[rustfmt::skip]
pub(crate) const OPERATIONS: &[Operation] = &[
    Operation { method: Method::POST, path: "/v1/runs", handler: || post(create_run),
        meaning: Rpc("RunService", "CreateRun") },
    Operation { method: Method::GET, path: "/v1/runs", handler: unary!(get, list_runs),
        meaning: Rpc("IndexService", "ListRuns") },
    Operation { method: Method::GET, path: "/v1/runs/{run_id}", handler: unary!(get, get_run),
        meaning: Rpc("RunService", "GetRun") },
    Operation { method: Method::GET, path: "/v1/runs/{run_id}/events", handler: || get(events),
        meaning: Rpc("RunService", "WatchRun") },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/calls", handler: unary!(post, append_calls),
        meaning: Rpc("RunService", "AppendCalls") },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/close", handler: unary!(post, close_run),
        meaning: Rpc("RunService", "CloseRun") },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/outputs", handler: unary!(post, submit_tool_outputs),
        meaning: Rpc("RunService", "SubmitToolOutputs") },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/decisions", handler: unary!(post, decide_calls),
        meaning: Rpc("RunService", "DecideCalls") },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/cancel", handler: unary!(post, cancel_run),
        meaning: Rpc("RunService", "CancelRun") },
    Operation { method: Method::POST, path: "/v1/runs:erase", handler: unary!(post, erase_runs),
        meaning: Rpc("RunService", "EraseRuns") },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/calls/{call_id}/cancel",
        handler: unary!(post, cancel_call),
        meaning: Rpc("RunService", "CancelCall") },
    Operation { method: Method::GET, path: "/v1/runs/{run_id}/calls/{call_id}/why", handler: unary!(get, explain_call),
        meaning: Rpc("RunService", "ExplainCall") },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/calls/{call_id}/answer_token",
        handler: unary!(post, create_answer_token),
        meaning: Rpc("RunService", "CreateAnswerToken") },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/calls/{call_id}/redrive",
        handler: unary!(post, redrive_call),
        meaning: Rpc("RunService", "RedriveCall") },
    Operation { method: Method::POST, path: "/v1/runs/{run_id}/calls/{call_id}/drop", handler: unary!(post, drop_call),
        meaning: Rpc("RunService", "DropCall") },
    Operation { method: Method::GET, path: "/v1/calls", handler: unary!(get, list_calls),
        meaning: Rpc("IndexService", "ListCalls") },
    Operation { method: Method::POST, path: "/v1/calls/cancel", handler: || post(cancel_calls),
        meaning: Rpc("IndexService", "CancelCalls") },
    Operation { method: Method::GET, path: "/v1/counts", handler: unary!(get, count_runs),
        meaning: Rpc("IndexService", "CountRuns") },
    Operation { method: Method::POST, path: "/v1/index/verify", handler: || post(verify_index),
        meaning: Rpc("IndexService", "VerifyIndex") },
    Operation { method: Method::POST, path: "/v1/index/rebuild", handler: unary!(post, rebuild_index),
        meaning: Rpc("IndexService", "RebuildIndex") },
    Operation { method: Method::POST, path: "/v1/schedules", handler: || post(create_schedule),
        meaning: Rpc("ScheduleService", "CreateSchedule") },
    Operation { method: Method::GET, path: "/v1/schedules", handler: || get(list_schedules),
        meaning: Rpc("ScheduleService", "ListSchedules") },
    Operation { method: Method::GET, path: "/v1/schedules/{schedule_id}", handler: unary!(get, get_schedule),
        meaning: Rpc("ScheduleService", "GetSchedule") },
    Operation { method: Method::DELETE, path: "/v1/schedules/{schedule_id}", handler: unary!(delete, delete_schedule),
        meaning: Rpc("ScheduleService", "DeleteSchedule") },
    Operation { method: Method::POST, path: "/v1/schedules/{schedule_id}/pause",
        handler: unary!(post, pause_schedule),
        meaning: Rpc("ScheduleService", "PauseSchedule") },
    Operation { method: Method::POST, path: "/v1/schedules/{schedule_id}/resume",
        handler: unary!(post, resume_schedule),
        meaning: Rpc("ScheduleService", "ResumeSchedule") },
    Operation { method: Method::POST, path: "/v1/schedules/{schedule_id}/run",
        handler: unary!(post, run_schedule_now),
        meaning: Rpc("ScheduleService", "RunScheduleNow") },
    Operation { method: Method::GET, path: "/v1/webhooks/parked", handler: unary!(get, list_parked_webhooks),
        meaning: Rpc("WebhookService", "ListParkedWebhooks") },
    Operation { method: Method::POST, path: "/v1/webhooks/redrive", handler: unary!(post, redrive_webhooks),
        meaning: Rpc("WebhookService", "RedriveWebhooks") },
    Operation { method: Method::GET, path: "/v1/tools", handler: || get(list_tools),
        meaning: Rpc("ToolService", "ListTools") },
    Operation { method: Method::GET, path: "/v1/tools/{name}", handler: || get(get_tool),
        meaning: Rpc("ToolService", "GetTool") },
    Operation { method: Method::POST, path: "/v1/pauses", handler: unary!(post, pause),
        meaning: Rpc("FleetService", "Pause") },
    Operation { method: Method::GET, path: "/v1/pauses", handler: || get(list_pauses),
        meaning: Rpc("FleetService", "ListPauses") },
    Operation { method: Method::POST, path: "/v1/pauses/resume", handler: unary!(post, resume),
        meaning: Rpc("FleetService", "Resume") },
    Operation { method: Method::GET, path: "/v1/workers", handler: || get(list_workers),
        meaning: Rpc("FleetService", "ListWorkers") },
    Operation { method: Method::GET, path: "/v1/overview", handler: || get(get_overview),
        meaning: Rpc("FleetService", "GetOverview") },
    Operation { method: Method::POST, path: "/v1/workers/{worker_id}/drain", handler: unary!(post, drain_worker),
        meaning: Rpc("FleetService", "DrainWorker") },
    Operation { method: Method::POST, path: "/v1/objects", handler: || post(objects::create_object),
        meaning: Rpc("ObjectService", "CreateObject") },
    Operation { method: Method::GET, path: "/v1/objects/{object_id}", handler: || get(objects::read_object),
        meaning: Rpc("ObjectService", "ReadObject") },
    Operation { method: Method::DELETE, path: "/v1/objects/{object_id}", handler: unary!(delete, delete_object),
        meaning: Rpc("ObjectService", "DeleteObject") },
    Operation { method: Method::POST, path: "/v1/objects/{object_id}/link", handler: unary!(post, create_object_link),
        meaning: Rpc("ObjectService", "CreateObjectLink") },
    Operation { method: Method::GET, path: "/v1/links/{token}", handler: || get(objects::read_linked),
        meaning: Other("ReadLinkedObject", Needs::Nothing, objects::described) },
    Operation { method: Method::POST, path: "/v1/tool_calls:batch", handler: || post(batch::batch),
        meaning: Other("BatchToolCalls", Needs::Role(Role::Submit), batch::described) },
    Operation { method: Method::GET, path: "/v1/runs/{run_id}/messages", handler: || get(batch::messages),
        meaning: Other("GetRunMessages", Needs::Role(Role::Read), batch::messages_described) },
    Operation { method: Method::POST, path: "/mcp", handler: || post(mcp::posted),
        meaning: Other("PostMcpMessage", Needs::Caller, mcp::posted_described) },
    Operation { method: Method::GET, path: "/mcp", handler: || get(mcp::streamed),
        meaning: Other("StreamMcpEvents", Needs::Caller, mcp::events_described) },
    Operation { method: Method::GET, path: "/.well-known/oauth-protected-resource", handler: || get(mcp::metadata),
        meaning: Other("GetProtectedResource", Needs::Nothing, mcp::metadata_described) },
    Operation { method: Method::GET, path: "/.well-known/oauth-protected-resource/mcp", handler: || get(mcp::metadata),
        meaning: Other("GetProtectedResourceOfMcp", Needs::Nothing, mcp::metadata_of_mcp_described) },
    Operation { method: Method::GET, path: "/v1/openapi.json", handler: || get(openapi::serve),
        meaning: Other("GetDocument", Needs::Nothing, openapi::described) },
];

/// Accepts calls as a run. The answer is the accepted run, or its output if the client accepts events.
async fn create_run(api: Api, mut ask: Ask) -> Answered {
    let ((floor_policy, floor_policy_name), cancels) = (ask.take_floor_policy()?, ask.take_on_disconnect()?);
    let mut run: v1::CreateRunRequest = ask.read()?;
    run.request_id = ask.request_id(run.request_id)?;
    let may_be_repeated = !run.request_id.is_empty();
    if ask.wants_events() {
        let request = v1::ExecuteRunRequest { run: Some(run), floor_policy, floor_policy_name };
        let reader = api.execute_run(request).await.map_err(|error| ask.problem(error))?;
        let abandoned = || Abandoned::new(&api.abandoned, &api.runs, (reader.run().id(), Vec::new()));
        let abandoned = (cancels && !may_be_repeated).then(abandoned);
        return Ok(sse::output(reader, api.stop.clone(), abandoned));
    }
    let answer = api.create_run(run).await.map_err(|error| ask.problem(error))?;
    let mut response = answered(&answer);
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

async fn events(api: Api, ask: Ask) -> Answered {
    let mut request: v1::WatchRunRequest = ask.read()?;
    // The header is newer than the query: a browser that reconnects adds it to the same address.
    request.after_sequence = ask.last_event_id()?.or(request.after_sequence);
    let stop = api.stop.clone();
    let watched = output::watched(async move { api.watch_run(request).await }, stop, None).await;
    Ok(sse::response(watched.map_err(|error| ask.problem(error))?.map(sse::text)))
}

/// Cancels calls. The answer is a stream of events if the client accepts them, and one list otherwise.
async fn cancel_calls(api: Api, ask: Ask) -> Answered {
    let mut pages = api.cancel_calls(ask.read()?).map_err(|error| ask.problem(error))?;
    if ask.wants_events() {
        return Ok(told(pages));
    }
    let mut all = v1::CancelCallsResponse::default();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| ask.problem(error))?;
        all.calls.extend(page.calls);
        all.coverage = page.coverage;
        if all.calls.len() >= CANCELLED_MAX {
            // Dropping the stream ends the work.
            all.incomplete = true;
            break;
        }
    }
    Ok(answered(&all))
}

async fn verify_index(api: Api, ask: Ask) -> Answered {
    Ok(told(api.verify_index(ask.read()?).map_err(|error| ask.problem(error))?))
}

/// Tools by pages, or all of them in the form of a model vendor.
async fn list_tools(api: Api, mut ask: Ask) -> Answered {
    let Some(at) = ask.query.iter().position(|(name, _)| name == "format") else {
        return Ok(answered(&api.find_tools(&ask.read()?).await.map_err(|error| ask.problem(error))?));
    };
    let (name, wanted) = ask.query.remove(at);
    let mut take = |name: &str| {
        let at = ask.query.iter().position(|(given, _)| given == name)?;
        Some(ask.query.remove(at).1)
    };
    let (deferred, strict) = (take(DEFER), take(STRICT));
    let Some((_, format)) = Format::ALL.into_iter().find(|(format, _)| *format == wanted) else {
        let known: Vec<&str> = Format::ALL.iter().map(|(format, _)| *format).collect();
        let detail = format!("format: unknown value {wanted:?}; known values: {}", known.join(", "));
        return Err(Problem::malformed(Place::Parameter(name), detail));
    };
    let deferred = deferred
        .map(|names| Deferred::new(&names, format))
        .transpose()
        .map_err(|error| Problem::malformed(Place::Parameter(DEFER.to_owned()), format!("{DEFER}: {error}")))?;
    let wrong = |why: &str| Problem::malformed(Place::Parameter(STRICT.to_owned()), format!("{STRICT}: {why}"));
    let is_strict = match strict.as_deref() {
        None | Some("false") => false,
        Some("true") if format.has_strict() => true,
        Some("true") => return Err(wrong("the format has no strict definitions: openai and openai-chat have them")),
        Some(_) => return Err(wrong("neither true nor false")),
    };
    let mut request: v1::ListToolsRequest = ask.read()?;
    if request.page_size != 0 || !request.page_token.is_empty() {
        let detail = "format: definitions are not paged; leave the page parameters out";
        return Err(Problem::malformed(Place::Parameter(name), detail));
    }
    let mut tools = Vec::new();
    loop {
        let page = api.find_tools(&request).await.map_err(|error| ask.problem(error))?;
        tools.extend(page.tools);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    Ok(json_response(&definitions(&tools, format, (deferred.as_ref(), is_strict))))
}

/// Tool definitions. `names` maps the tools' names in the vendor's form to their own, if they differ; `notes` has what
/// the definitions cannot say, and `not_strict` why definitions are not strict.
fn definitions(tools: &[v1::Tool], format: Format, (deferred, is_strict): (Option<&Deferred>, bool)) -> Value {
    let mut exported = export(tools, format);
    let notes = notes(tools, &exported);
    let not_strict = is_strict.then(|| make_strict(&mut exported, format));
    deferred.into_iter().for_each(|deferred| deferred.mark(&mut exported));
    let renamed = exported.iter().filter(|exported| exported.name != exported.tool);
    let names: serde_json::Map<_, _> =
        renamed.map(|exported| (exported.name.clone(), Value::from(exported.tool.as_str()))).collect();
    let definitions: Vec<Value> = exported.into_iter().map(|exported| exported.definition).collect();
    let mut all = serde_json::json!({ "tools": definitions, "names": names, "notes": notes });
    if let Some(others) = not_strict {
        all["not_strict"] = others.into_iter().map(|(name, why)| (name, Value::from(why))).collect();
    }
    all
}

async fn get_tool(api: Api, ask: Ask) -> Answered {
    Ok(answered(&api.get_tool(&ask.read()?).map_err(|error| ask.problem(error))?))
}

async fn create_schedule(api: Api, ask: Ask) -> Answered {
    let mut request: v1::CreateScheduleRequest = ask.read()?;
    request.request_id = ask.request_id(request.request_id)?;
    let mut response = answered(&api.create_schedule(request).await.map_err(|error| ask.problem(error))?);
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

async fn list_schedules(api: Api, ask: Ask) -> Answered {
    Ok(answered(&api.list_schedules(&ask.read()?).map_err(|error| ask.problem(error))?))
}

async fn list_pauses(api: Api, ask: Ask) -> Answered {
    Ok(answered(&api.list_pauses(ask.read()?).map_err(|error| ask.problem(error))?))
}

async fn list_workers(api: Api, ask: Ask) -> Answered {
    Ok(answered(&api.list_workers(&ask.read()?).map_err(|error| ask.problem(error))?))
}

async fn get_overview(api: Api, ask: Ask) -> Answered {
    Ok(answered(&api.get_overview(ask.read()?).map_err(|error| ask.problem(error))?))
}

/// A message as a response.
pub(super) fn answered<M: prost::Message + prost::Name>(message: &M) -> Response {
    text_response(json::write(message))
}

/// Other JSON as a response.
pub(crate) fn json_response(value: &Value) -> Response {
    text_response(value.to_string())
}

pub(super) fn text_response(json: String) -> Response {
    let mut response = Response::new(Body::from(json));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Messages as events, and a last one named `end`.
fn told<M: prost::Message + prost::Name + 'static>(told: MessageStream<M>) -> Response {
    let words = told.map(|word| {
        let mut text = Vec::new();
        match word {
            Ok(word) => sse::event(&mut text, None, None, &json::write(&word)),
            Err(error) => sse::event(&mut text, None, Some("problem"), &Problem::from(error).json().to_string()),
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
