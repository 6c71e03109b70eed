//! The HTTP door: the API as JSON, in the [one form](proto::json) that its messages have, and its streams as server-sent events.
//! It is served by the port of the gRPC door.

pub(crate) mod ask;
mod batch;
mod openai;
mod openapi;
pub(crate) mod problem;
mod routes;
pub(crate) mod sse;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;

use self::problem::Problem;
use crate::door::Door;

/// Everything that is served over HTTP; who asks for anything else is to be told so by [`no_such_route`].
pub(crate) fn router(door: Door) -> Router {
    let routes = routes::OPERATIONS.iter().fold(Router::new(), |routes, operation| {
        let handler = (operation.handler)();
        routes.route(operation.path, handler)
    });
    routes.merge(openai::routes()).method_not_allowed_fallback(no_such_method).with_state(door)
}

pub(crate) fn no_such_route(request: &http::Request<Body>) -> Response {
    let message = format!("nothing is served at {:?}", request.uri().path());
    Problem::new(StatusCode::NOT_FOUND, "NO_SUCH_ROUTE", message).into_response()
}

async fn no_such_method(request: Request) -> Problem {
    let message = format!("{:?} is not served with {}", request.uri().path(), request.method());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message)
}
