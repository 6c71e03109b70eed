//! What is served where. One list, of which the routes are made.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use http::{HeaderValue, StatusCode, header};
use proto::{json, v1};

use super::ask::Ask;
use super::problem::Problem;
use super::sse;
use crate::door::Door;

/// Something that can be asked for.
pub(crate) struct Operation {
    pub(crate) path: &'static str,
    pub(crate) handler: fn() -> MethodRouter<Door>,
}

type Answered = Result<Response, Problem>;

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation { path: "/v1/runs", handler: || post(create_run) },
    Operation { path: "/v1/runs/{run_id}", handler: || get(get_run) },
    Operation { path: "/v1/runs/{run_id}/events", handler: || get(events) },
];

/// Accepts calls as a run: it is answered as it was accepted, or with its output for a client that accepts events.
async fn create_run(State(door): State<Door>, ask: Ask) -> Answered {
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

async fn get_run(State(door): State<Door>, ask: Ask) -> Answered {
    let answer = door.get_run(ask.read()?).await.map_err(|fault| ask.problem(fault))?;
    Ok(answered(&answer))
}

async fn events(State(door): State<Door>, ask: Ask) -> Answered {
    let mut request: v1::WatchRunRequest = ask.read()?;
    // It is newer than the query: a browser that comes back adds it to the same address.
    request.after_sequence = ask.last_event_id()?.or(request.after_sequence);
    let reader = door.watch_run(request).await.map_err(|fault| ask.problem(fault))?;
    Ok(sse::output(reader, door.stop.clone()))
}

/// A message as a response.
pub(crate) fn answered<M: prost::Message + prost::Name>(message: &M) -> Response {
    let mut response = Response::new(Body::from(json::write(message)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
