//! A request that is sent twice makes one run, whoever takes it and whatever was restarted in between.

use harness::{Client, Yard, reason};
use proto::v1;

use crate::{FIXTURE, check, count};

fn request(id: &str, pieces: u32) -> v1::CreateRunRequest {
    let request_id = id.to_owned();
    v1::CreateRunRequest { calls: vec![count("c", pieces, 0)], request_id, ..v1::CreateRunRequest::default() }
}

async fn create(client: &Client, request: v1::CreateRunRequest) -> Result<String, tonic::Status> {
    let response = client.runs.clone().create_run(request).await?.into_inner();
    Ok(response.run.expect("the response has the run").run_id)
}

#[tokio::test]
async fn the_same_request_gives_the_same_run_on_any_coordinator_and_after_a_restart() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    let other = Client::connect(second.address()).await;
    let first = create(&yard.client, request("order 7", 3)).await.expect("accepted");
    assert_eq!(create(&yard.client, request("order 7", 3)).await.expect("known"), first);
    assert_eq!(create(&other, request("order 7", 3)).await.expect("known"), first);
    assert_ne!(create(&other, request("order 8", 3)).await.expect("accepted"), first);
    yard.coordinator.kill().await;
    yard.coordinator = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(yard.coordinator.address()).await;
    assert_eq!(create(&client, request("order 7", 3)).await.expect("known"), first);
    // Executing it again gives the output of the run that there is.
    let again = v1::ExecuteRunRequest {
        calls: vec![count("c", 3, 0)],
        request_id: "order 7".to_owned(),
        ..v1::ExecuteRunRequest::default()
    };
    let events = client.execute_request(again).await.expect("known").to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], "c-0 c-1 c-2 ");
}

#[tokio::test]
async fn another_request_under_the_same_id_is_refused_and_names_the_run() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let first = create(&yard.client, request("order 7", 3)).await.expect("accepted");
    let refused = create(&yard.client, request("order 7", 4)).await.expect_err("another body");
    assert_eq!((refused.code(), reason(&refused)), (tonic::Code::AlreadyExists, "REQUEST_ID_TAKEN".to_owned()));
    assert!(refused.message().contains(&first), "{}", refused.message());
    // Another tenant's id of the same name is another id.
    let theirs = v1::CreateRunRequest { tenant: "them".to_owned(), ..request("order 7", 4) };
    assert_ne!(create(&yard.client, theirs).await.expect("accepted"), first);
    // What is refused takes no id.
    let empty = v1::CreateRunRequest { calls: Vec::new(), ..request("order 9", 1) };
    create(&yard.client, empty).await.expect_err("a run needs calls");
    create(&yard.client, request("order 9", 1)).await.expect("the id is free");
}

#[tokio::test]
async fn a_request_sent_many_times_at_once_to_two_coordinators_makes_one_run() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    let clients = [yard.client.clone(), Client::connect(second.address()).await];
    let asked = (0..20).map(|index| {
        let client = clients[index % 2].clone();
        async move { create(&client, request("at once", 2)).await.expect("accepted") }
    });
    let mut runs = futures::future::join_all(asked).await;
    runs.dedup();
    assert_eq!(runs.len(), 1, "{runs:?}");
    let run = harness::Run { client: yard.client.clone(), id: runs.remove(0) };
    let events = run.watch(v1::FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], "c-0 c-1 ");
}
