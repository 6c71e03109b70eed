//! The port: gRPC here, and HTTP beside it on the same connections, so that transport security, keepalive and shutdown are
//! shared. A gRPC request goes to what all doors share; its fault becomes a status.

mod deadline;
mod fleet;
mod gate;
mod incoming;
mod index;
mod many;
mod objects;
mod pages;
mod runs;
mod status;
mod tools;
mod trace;
mod unread;
mod webhooks;

use std::time::Duration;

use proto::v1;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::door::{Door, REQUEST_BYTES_MAX};

const KEEPALIVE: Duration = Duration::from_secs(20);
/// Requests under way on one connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 4096;

#[derive(Debug, thiserror::Error)]
#[error("the gRPC server failed: {0}")]
pub struct ServeError(#[from] tonic::transport::Error);

/// What health is told of: the whole, as the empty name says, and each service.
const SERVICES: [&str; 4] = [
    "",
    <v1::run_service_server::RunServiceServer<runs::RunDoor> as NamedService>::NAME,
    <v1::tool_service_server::ToolServiceServer<tools::ToolDoor> as NamedService>::NAME,
    <v1::object_service_server::ObjectServiceServer<objects::ObjectDoor> as NamedService>::NAME,
];

/// Says in the health whether the log can be reached, until told to stop: then nothing is served any more.
async fn tell_health(health: HealthReporter, mut reached: watch::Receiver<bool>, stop: CancellationToken) {
    loop {
        let serving = *reached.borrow_and_update() && !stop.is_cancelled();
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        tracing::debug!(serving, "health");
        for service in SERVICES {
            health.set_service_status(service, status).await;
        }
        if stop.is_cancelled() {
            return;
        }
        let changed = async {
            if reached.changed().await.is_err() {
                // Whoever looks at the log has ended, and the coordinator with it.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = changed => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Serves until told to stop, then lets what is under way end. Its health is that of the way to the log.
pub(crate) async fn serve(
    (listener, tls): (TcpListener, Option<crate::tls::Current>),
    door: Door,
    reached: watch::Receiver<bool>,
) -> Result<(), ServeError> {
    let callers = door.runs.callers.clone();
    let (health, health_service) = tonic_health::server::health_reporter();
    let run_service = v1::run_service_server::RunServiceServer::new(runs::RunDoor(door.clone()))
        .max_decoding_message_size(REQUEST_BYTES_MAX);
    let tool_service = v1::tool_service_server::ToolServiceServer::new(tools::ToolDoor(door.clone()));
    let object_service = v1::object_service_server::ObjectServiceServer::new(objects::ObjectDoor(door.clone()))
        .max_decoding_message_size(REQUEST_BYTES_MAX);
    let index_service = v1::index_service_server::IndexServiceServer::new(index::IndexDoor(door.clone()));
    let fleet_service = v1::fleet_service_server::FleetServiceServer::new(fleet::FleetDoor(door.clone()));
    let webhook_service = v1::webhook_service_server::WebhookServiceServer::new(webhooks::WebhookDoor(door.clone()));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the descriptors were made by the build of this very program");
    let is_local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let stopped = tell_health(health, reached, door.stop.clone());
    let routes = Routes::from(crate::http::router(door).fallback(no_such_route));
    Server::builder()
        .accept_http1(true)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .max_concurrent_streams(Some(STREAMS_PER_CONNECTION_MAX))
        .layer(tower::layer::layer_fn(unread::Unread::new))
        .layer(tower::layer::layer_fn(move |inner| pages::Pages::new(inner, is_local)))
        .layer(tower::layer::layer_fn(trace::Traces::new))
        .layer(tower::layer::layer_fn(deadline::Deadlines::new))
        .layer(tower::layer::layer_fn(move |inner| gate::Gate::new(inner, callers.clone())))
        .add_routes(routes)
        .add_service(health_service)
        .add_service(reflection)
        .add_service(run_service)
        .add_service(tool_service)
        .add_service(index_service)
        .add_service(fleet_service)
        .add_service(object_service)
        .add_service(webhook_service)
        .serve_with_incoming_shutdown(incoming::incoming(listener, tls), stopped)
        .await?;
    Ok(())
}

/// A path that nobody serves, told in the protocol of whoever asked.
async fn no_such_route(request: http::Request<axum::body::Body>) -> axum::response::Response {
    if is_grpc(request.headers()) {
        return Status::unimplemented("no such method").into_http();
    }
    crate::http::no_such_route(&request)
}

fn is_grpc(headers: &http::HeaderMap) -> bool {
    let kind = headers.get(http::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
