//! The HTTP door: the API as JSON, in the [one form](proto::json) that its messages have, and its streams as server-sent events.
//! It is served by the port of the gRPC door.

pub(crate) mod ask;
mod batch;
mod objects;
mod openai;
mod openapi;
pub(crate) mod problem;
mod routes;
pub(crate) mod sse;

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
use http::StatusCode;
use http::request::Parts;

use self::problem::Problem;
use self::routes::{Needs, OPERATIONS};
use crate::audit;
use crate::callers::Role;
use crate::door::{Door, Fault};
use crate::grpc::counted::Answers;
use crate::runs::Refusal;

/// Everything that is served over HTTP; who asks for anything else is to be told so by [`no_such_route`].
pub(crate) fn router(door: Door) -> Router {
    let routes = OPERATIONS.iter().fold(Router::new(), |routes, operation| {
        let handler = (operation.handler)();
        let handler = match operation.meaning.needs() {
            Needs::Nothing => handler,
            Needs::Role(role) => {
                let name = operation.meaning.name();
                let judge = move |door: Door, request: Request, next: Next| judged((name, role), door, request, next);
                handler.route_layer(from_fn_with_state(door.clone(), judge))
            }
        };
        routes.route(operation.path, answering(handler, operation.meaning.name()))
    });
    routes.merge(openai::routes(&door)).method_not_allowed_fallback(no_such_method).with_state(door)
}

/// Has each answer say which method it answers, for those who count.
fn answering(handler: MethodRouter<Door>, name: &'static str) -> MethodRouter<Door> {
    handler.route_layer(map_response(move |mut response: Response| {
        response.extensions_mut().insert(Answers(name));
        std::future::ready(response)
    }))
}

/// Who asks for this is not asked who they are.
pub(crate) fn is_open(path: &str) -> bool {
    let is_at = |template: &str| match template.strip_suffix("{token}") {
        Some(stem) => path.strip_prefix(stem).is_some_and(|token| !token.contains('/')),
        None => path == template,
    };
    OPERATIONS.iter().any(|operation| operation.meaning.needs() == Needs::Nothing && is_at(operation.path))
}

/// Passes on a request if its caller may make requests of this kind.
async fn judged(
    (operation, role): (&'static str, Role),
    door: Door,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let caller = &door.runs.caller;
    if let Err(denied) = caller.must(role) {
        audit::refused(caller, operation, denied.reason);
        return Err(Fault::from(Refusal::from(denied)).into());
    }
    Ok(next.run(request).await)
}

/// The door for whoever asks.
impl FromRequestParts<Self> for Door {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, door: &Self) -> Result<Self, Infallible> {
        Ok(door.by(&parts.extensions))
    }
}

pub(crate) fn no_such_route(request: &http::Request<Body>) -> Response {
    let message = format!("nothing is served at {:?}", request.uri().path());
    Problem::new(StatusCode::NOT_FOUND, "NO_SUCH_ROUTE", message).into_response()
}

async fn no_such_method(request: Request) -> Problem {
    let message = format!("{:?} is not served with {}", request.uri().path(), request.method());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message)
}
