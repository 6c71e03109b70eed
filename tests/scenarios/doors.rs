//! The gRPC API besides its services: health, reflection, heartbeats.

use harness::Yard;
use proto::v1::FloorPolicy;
use tonic::transport::Channel;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::{FIXTURE, question};

async fn channel(yard: &Yard) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{}", yard.coordinator.address())).expect("a URL");
    endpoint.connect().await.expect("the coordinator listens")
}

#[tokio::test]
async fn health_says_serving_for_each_service() {
    let yard = Yard::start(FIXTURE).await;
    let mut health = HealthClient::new(channel(&yard).await);
    for service in ["", "toolyard.v1.RunService", "toolyard.v1.ToolService"] {
        let answer = health.check(HealthCheckRequest { service: service.to_owned() }).await.expect("it is known");
        assert_eq!(answer.into_inner().status(), ServingStatus::Serving, "{service:?}");
    }
}

#[tokio::test]
async fn reflection_names_the_services() {
    let yard = Yard::start(FIXTURE).await;
    let mut reflection = ServerReflectionClient::new(channel(&yard).await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = reflection.server_reflection_info(futures::stream::iter([request])).await.expect("it is served");
    let answer = answers.into_inner().message().await.expect("it answers").expect("it answers once");
    let Some(MessageResponse::ListServicesResponse(services)) = answer.message_response else {
        panic!("services were asked for: {answer:?}");
    };
    let names: Vec<String> = services.service.into_iter().map(|service| service.name).collect();
    for service in ["toolyard.v1.RunService", "toolyard.v1.ToolService", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|name| name == service), "{service} is not among {names:?}");
    }
}

#[tokio::test]
async fn a_silent_stream_has_a_heartbeat_and_a_shutdown_has_a_last_word() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![question("ask")]).await;
    let mut stream = run.watch(FloorPolicy::Arrival).await;
    let beats = async {
        while stream.heartbeats == 0 {
            assert!(stream.next().await.expect("the stream does not break"), "the run waits");
        }
    };
    tokio::time::timeout(harness::PATIENCE, beats).await.expect("a heartbeat comes");
    let terminated = yard.coordinator.terminate();
    let read = async { while stream.next().await.expect("the stream ends in order") {} };
    tokio::join!(terminated, read);
    assert!(stream.ended);
}
