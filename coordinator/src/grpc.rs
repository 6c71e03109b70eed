//! The gRPC door: requests become commands, refusals become statuses with reasons. Nothing is decided here.

mod deadline;
mod runs;
mod status;
mod tools;

use std::time::Duration;

use proto::v1;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

/// Largest request: the arguments of a run's calls, with room for the rest.
const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Requests under way on one connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 4096;

#[derive(Debug, thiserror::Error)]
#[error("the gRPC server failed: {0}")]
pub struct ServeError(#[from] tonic::transport::Error);

/// Serves until told to stop, then lets what is under way end.
pub(crate) async fn serve(
    listener: TcpListener,
    runs: crate::runs::Runs,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<v1::run_service_server::RunServiceServer<runs::RunDoor>>().await;
    health.set_serving::<v1::tool_service_server::ToolServiceServer<tools::ToolDoor>>().await;
    let run_service = runs::RunDoor { runs: runs.clone(), stop: stop.clone() };
    let run_service =
        v1::run_service_server::RunServiceServer::new(run_service).max_decoding_message_size(REQUEST_BYTES_MAX);
    let tool_service = v1::tool_service_server::ToolServiceServer::new(tools::ToolDoor { runs });
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the descriptors were made by the build of this very program");
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let stopped = async move {
        stop.cancelled().await;
        health.set_not_serving::<v1::run_service_server::RunServiceServer<runs::RunDoor>>().await;
        health.set_not_serving::<v1::tool_service_server::ToolServiceServer<tools::ToolDoor>>().await;
        health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
    };
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .max_concurrent_streams(Some(STREAMS_PER_CONNECTION_MAX))
        .layer(tower::layer::layer_fn(deadline::Deadlines::new))
        .add_service(health_service)
        .add_service(reflection)
        .add_service(run_service)
        .add_service(tool_service)
        .serve_with_incoming_shutdown(incoming, stopped)
        .await?;
    Ok(())
}
