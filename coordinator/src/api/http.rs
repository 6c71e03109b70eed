//! The HTTP API: messages as JSON, in the [one form](proto::json) that they have, and streams as server-sent events. It
//! is served on the same port as gRPC.

pub(crate) mod ask;
mod batch;
mod console;
mod objects;
mod openai;
mod openapi;
mod routes;
pub(crate) mod sse;
pub(super) mod stored;
pub(super) mod unread;

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
use http::request::Parts;
use proto::Reason;

use self::routes::{Needs, OPERATIONS};
use super::problem::Problem;
use crate::admission::error::RequestError;
use crate::api::port::counted::Answers;
use crate::api::{Api, ApiError};
use crate::auth::audit;
use crate::auth::callers::Role;

/// The router of all HTTP routes; any other path is answered by [`no_such_route`].
pub(crate) fn router(api: Api) -> Router {
    let routes = OPERATIONS.iter().fold(Router::new(), |routes, operation| {
        let handler = (operation.handler)();
        let handler = match operation.meaning.needs() {
            Needs::Nothing | Needs::Caller => handler,
            Needs::Role(role) => {
                let name = operation.meaning.name();
                let judge = move |api: Api, request: Request, next: Next| judged((name, role), api, request, next);
                handler.route_layer(from_fn_with_state(api.clone(), judge))
            }
        };
        routes.route(operation.path, answering(handler, operation.meaning.name()))
    });
    let routes = match &api.console {
        Some(options) => routes.merge(console::routes(options)),
        None => routes,
    };
    routes.merge(openai::routes(&api)).method_not_allowed_fallback(no_such_method).with_state(api)
}

/// Adds the method's name to each response, for the metrics.
fn answering(handler: MethodRouter<Api>, name: &'static str) -> MethodRouter<Api> {
    handler.route_layer(map_response(move |mut response: Response| {
        response.extensions_mut().insert(Answers(name));
        std::future::ready(response)
    }))
}

/// Paths that need no authentication.
pub(crate) fn is_open(path: &str) -> bool {
    let is_at = |template: &str| match template.strip_suffix("{token}") {
        Some(stem) => path.strip_prefix(stem).is_some_and(|token| !token.contains('/')),
        None => path == template,
    };
    crate::api::mcp::is_metadata(path)
        || console::has(path)
        || OPERATIONS.iter().any(|operation| operation.meaning.needs() == Needs::Nothing && is_at(operation.path))
}

/// Passes on a request if its caller has the right to this method.
async fn judged(
    (operation, role): (&'static str, Role),
    api: Api,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let caller = &api.runs.caller;
    if let Err(denied) = caller.must(role) {
        audit::refused(caller, operation, denied.reason);
        return Err(ApiError::from(RequestError::from(denied)).into());
    }
    Ok(next.run(request).await)
}

/// The API in the name of the caller in the request's extensions.
impl FromRequestParts<Self> for Api {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Self) -> Result<Self, Infallible> {
        Ok(api.by(&parts.extensions))
    }
}

pub(crate) fn no_such_route(request: &http::Request<Body>) -> Response {
    let message = format!("nothing is served at {:?}", request.uri().path());
    Problem::new(Reason::NoSuchRoute, message).into_response()
}

async fn no_such_method(request: Request) -> Problem {
    let message = format!("{:?} does not allow {}", request.uri().path(), request.method());
    Problem::new(Reason::MethodNotAllowed, message)
}
