//! A coordinator that is killed loses nothing: the log has it all, and the next one goes on.

use harness::{Client, Yard, client_answer};
use proto::v1::{FloorPolicy, RunStatus, run_event::Event};

use crate::{FIXTURE, check, count, counted, question};

#[tokio::test]
async fn calls_end_and_readers_resume_after_the_coordinator_was_killed() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    // One call runs on its own, one waits for the client; the other run is in mid-stream.
    let parked = yard.client.create(vec![question("ask"), count("done", 2, 10)]).await;
    let mut stream = yard.client.execute(vec![count("a", 40, 50), count("b", 40, 50)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let run = stream.run(&yard.client);
    yard.coordinator.kill().await;
    // Messages on their way may still arrive; then the connection is gone.
    while stream.next().await.is_ok() {}
    let before = stream.seen;

    let address = yard.coordinator.address();
    yard.coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
    let client = Client::connect(address).await;
    let run = run.through(&client);
    let after = before.last().map(|event| event.sequence);
    let rest = run.watch_after(FloorPolicy::Arrival, after).await.expect("the run is there").to_end().await;
    let resumed = [before, rest].concat();
    check::whole(&resumed, true);
    assert_eq!(check::said(&resumed)["a"], counted("a", 40));
    assert_eq!(check::said(&resumed)["b"], counted("b", 40));
    assert_eq!(resumed, run.watch(FloorPolicy::Arrival).await.to_end().await, "a late reader sees the same");

    let parked = parked.through(&client);
    let mut watching = parked.watch(FloorPolicy::Arrival).await;
    watching.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "done")).await;
    assert_eq!(parked.get().await.status(), RunStatus::RequiresAction);
    parked.submit(vec![client_answer("ask", "still here")]).await.expect("the call waits");
    let events = watching.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["ask"]), "still here");
}

#[tokio::test]
async fn calls_accepted_before_a_kill_are_dispatched_after_it() {
    let mut yard = Yard::start(FIXTURE).await;
    let worker = yard.worker().await;
    drop(worker);
    // Many calls in one run: the kill comes between the event that accepts them and the jobs that follow from it.
    let calls = (0..100).map(|index| count(&format!("c{index}"), 1, 0)).collect();
    let run = yard.client.create(calls).await;
    yard.coordinator.kill().await;
    let address = yard.coordinator.address();
    yard.coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
    let client = Client::connect(address).await;
    let _worker = yard.fixture.worker(&yard.broker.url(), "main", 16).await;
    let events = run.through(&client).watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::outcomes(&events).len(), 100);
}
