//! A broker that is killed and comes back has kept the log; everybody goes on.

use harness::{Yard, call};
use proto::v1::{FloorPolicy, run_event::Event};
use serde_json::json;
use tonic::Streaming;
use tonic::transport::Channel;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_client::HealthClient};

use crate::{FIXTURE, check, count, counted};

#[tokio::test]
async fn calls_end_and_readers_go_on_after_the_broker_was_killed_and_came_back() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let mut stream = yard.client.execute(vec![count("a", 60, 50), count("b", 60, 50)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let run = stream.run(&yard.client);
    yard.broker.kill().await;
    yard.broker.restart().await.expect("the broker comes back");
    let events = stream.to_end().await;
    check::whole(&events, true);
    let said = check::said(&events);
    assert_eq!((&said["a"], &said["b"]), (&counted("a", 60), &counted("b", 60)));
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await);
    let next = yard.client.execute(vec![call("next", "echo", json!({ "text": "after" }))]).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&next)["next"]), "after");
}

/// Waits until all of them say it.
async fn until(watches: &mut [Streaming<HealthCheckResponse>], wanted: ServingStatus) {
    for health in watches {
        let turned = async {
            while health.message().await.expect("the coordinator lives").expect("it goes on").status() != wanted {}
        };
        tokio::time::timeout(harness::PATIENCE, turned).await.expect("health turns");
    }
}

#[tokio::test]
async fn health_turns_with_the_broker_and_returns_with_it() {
    let mut yard = Yard::start(FIXTURE).await;
    let endpoint = Channel::from_shared(format!("http://{}", yard.coordinator.address())).expect("a URL");
    let mut client = HealthClient::new(endpoint.connect().await.expect("the coordinator listens"));
    let mut watches = Vec::new();
    for service in ["", "toolyard.v1.RunService", "toolyard.v1.ToolService"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        watches.push(client.watch(request).await.expect("it is known").into_inner());
    }
    until(&mut watches, ServingStatus::Serving).await;
    yard.broker.kill().await;
    until(&mut watches, ServingStatus::NotServing).await;
    yard.broker.restart().await.expect("the broker comes back");
    until(&mut watches, ServingStatus::Serving).await;
}
