//! One port for gRPC and HTTP: both share connections, transport security, keepalive and shutdown.

use proto::v1;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::grpc::{fleet, index, objects, runs, tools, webhooks};
use super::port::{connections, counted, deadline, gate, incoming, is_grpc, pages, places, trace, unread};
use super::{Api, REQUEST_BYTES_MAX, http};

/// The services whose health is reported: the whole, with the empty name, and each service.
const SERVICES: [&str; 4] = [
    "",
    <v1::run_service_server::RunServiceServer<runs::RunDoor> as NamedService>::NAME,
    <v1::tool_service_server::ToolServiceServer<tools::ToolDoor> as NamedService>::NAME,
    <v1::object_service_server::ObjectServiceServer<objects::ObjectDoor> as NamedService>::NAME,
];

/// Reports whether clients are served, until `stop`: then they are not. `ready` is called once, after the first report
/// that they are.
async fn report_health(
    health: HealthReporter,
    mut served: watch::Receiver<bool>,
    ready: impl FnOnce() + Send,
    stop: CancellationToken,
) {
    let mut ready = Some(ready);
    loop {
        let is_serving = *served.borrow_and_update() && !stop.is_cancelled();
        let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        tracing::debug!(is_serving, "health");
        for service in SERVICES {
            health.set_service_status(service, status).await;
        }
        if is_serving && let Some(ready) = ready.take() {
            ready();
        }
        if stop.is_cancelled() {
            return;
        }
        let changed = async {
            if served.changed().await.is_err() {
                // The task that watches the log has ended, and the coordinator ends with it.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = changed => {}
            () = stop.cancelled() => {}
        }
    }
}

/// The port of the API.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<crate::auth::tls::Current>,
    pub(crate) connections_max: usize,
    /// The host names under which HTTP is served.
    pub(crate) hosts: telemetry::hosts::Hosts,
}

/// Serves until `stop`, then lets requests in progress end. Its health reports whether clients are
/// [served](crate::monitor::health); `ready` is called when they first are.
pub(crate) async fn serve(port: Port, api: Api, served: watch::Receiver<bool>, ready: impl FnOnce() + Send) {
    let Port { listener, tls, connections_max, hosts } = port;
    let (health, health_service) = tonic_health::server::health_reporter();
    let is_tls = tls.is_some();
    let incoming = incoming::Incoming::new(listener, tls, places::Places::new(connections_max));
    let stopped = report_health(health, served, ready, api.stop.clone());
    let routes = routes(&api).add_service(health_service).prepare();
    // Innermost first.
    let service = gate::Gate::new(routes, api.runs.callers.clone(), is_tls);
    let service = trace::Traces::new(deadline::Deadlines::new(service));
    let service = counted::Counted::new(pages::Pages::new(service, hosts));
    let service = unread::Unread::new(service);
    connections::serve(incoming, service, stopped).await;
}

/// All services but health. The size of messages is checked [as they arrive](bodies).
fn routes(api: &Api) -> Routes {
    use v1::fleet_service_server::FleetServiceServer;
    use v1::index_service_server::IndexServiceServer;
    use v1::object_service_server::ObjectServiceServer;
    use v1::run_service_server::RunServiceServer;
    use v1::tool_service_server::ToolServiceServer;
    use v1::webhook_service_server::WebhookServiceServer;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the descriptors were made by the build of this very program");
    let runs = RunServiceServer::new(runs::RunDoor(api.clone())).max_decoding_message_size(REQUEST_BYTES_MAX);
    let objects = ObjectServiceServer::new(objects::ObjectDoor(api.clone()));
    Routes::from(http::router(api.clone()).fallback(no_such_route))
        .add_service(reflection)
        .add_service(runs)
        .add_service(ToolServiceServer::new(tools::ToolDoor(api.clone())))
        .add_service(IndexServiceServer::new(index::IndexDoor(api.clone())))
        .add_service(FleetServiceServer::new(fleet::FleetDoor(api.clone())))
        .add_service(objects.max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(WebhookServiceServer::new(webhooks::WebhookDoor(api.clone())))
}

/// Answers an unknown path, in the client's protocol.
async fn no_such_route(request: ::http::Request<axum::body::Body>) -> axum::response::Response {
    if is_grpc(request.headers()) {
        return Status::unimplemented("no such method").into_http();
    }
    http::no_such_route(&request)
}
