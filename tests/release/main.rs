//! Programs of the previous release and of this one on one broker. `tests/release/run` builds the previous ones, names them in
//! `TOOLYARD_PREVIOUS`, and runs these tests, which are ignored otherwise.

mod carried;
mod log;
mod together;

use harness::{Client, Coordinator, Fixture, Run, Worker, call, check, client_answer};
use local::{Broker, BrokerOptions};
use proto::v1::{self, CallState, FloorPolicy, RunEvent, RunStatus, run_event::Event};
use serde_json::json;

/// The program of the previous release.
fn previous() -> Fixture {
    Fixture::new(&std::env::var("TOOLYARD_PREVIOUS").expect("tests/release/run names the program"))
}

fn present() -> Fixture {
    Fixture::new(env!("CARGO_BIN_EXE_fixture"))
}

async fn broker() -> Broker {
    Broker::start(BrokerOptions::default(), |_| {}).await.expect("a broker starts")
}

fn count(id: &str, pieces: u32, every_ms: u64) -> v1::NewCall {
    call(id, "count", json!({ "label": id, "pieces": pieces, "every_ms": every_ms }))
}

fn counted(id: &str, pieces: u32) -> String {
    (0..pieces).map(|piece| format!("{id}-{piece} ")).collect()
}

/// A call that breaks off after two pieces, twice.
fn retried(id: &str) -> v1::NewCall {
    let input = json!({ "label": id, "pieces": 4, "every_ms": 10, "breaks_off_after": 2, "failures": 2 });
    call(id, "speech", input)
}

fn question(id: &str) -> v1::NewCall {
    call(id, "ask_user", json!({ "question": "Which one?" }))
}

fn confirmed(id: &str) -> v1::NewCall {
    call(id, "confirms", json!({ "text": "agreed" }))
}

async fn approve(run: &Run, id: &str) {
    let decision = Some(v1::call_decision::Decision::Approve(v1::CallApproval::default()));
    let decisions = vec![v1::CallDecision { call_id: id.to_owned(), decision }];
    let request = v1::DecideCallsRequest { run_id: run.id.clone(), decisions };
    run.client.runs.clone().decide_calls(request).await.expect("the call awaits approval");
}

/// The events of a run that ends.
async fn events(run: &Run) -> Vec<RunEvent> {
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    events
}

/// Waits until a run wants something of its client.
async fn until_action_is_required(run: &Run) {
    let mut stream = run.watch(FloorPolicy::Arrival).await;
    let required =
        |event: &Event| matches!(event, Event::RunStatusChanged(to) if to.status() == RunStatus::RequiresAction);
    stream.until(required).await;
}

/// Calls, retries, cancels, an answer, an approval, and a worker that is killed while its call runs: `another` takes its place.
async fn everything_works(client: &Client, mut worker: Worker, another: impl AsyncFnOnce() -> Worker) -> Worker {
    let echo = call("echo", "echo", json!({ "text": "hello" }));
    let run = client.create(vec![count("a", 5, 10), echo, retried("again")]).await;
    let seen = events(&run).await;
    let (outcomes, said) = (check::outcomes(&seen), check::said(&seen));
    assert!(outcomes.values().all(|outcome| outcome.state() == CallState::Completed), "{outcomes:#?}");
    assert_eq!((said["a"].as_str(), said["again"].as_str()), (&*counted("a", 5), &*counted("again", 4)));
    assert_eq!(check::text(&outcomes["echo"]), "hello");
    let attempts = seen
        .iter()
        .filter(|event| matches!(&event.event, Some(Event::AttemptStarted(started)) if started.call_id == "again"));
    assert_eq!(attempts.count(), 3);

    let run = client.create(vec![count("endless", 10_000, 100)]).await;
    run.watch(FloorPolicy::Arrival).await.until(|event| matches!(event, Event::CallOutput(_))).await;
    run.cancel("no longer needed").await;
    assert_eq!(check::outcomes(&events(&run).await)["endless"].state(), CallState::Cancelled);

    let run = client.create(vec![question("ask"), confirmed("agree")]).await;
    until_action_is_required(&run).await;
    run.submit(vec![client_answer("ask", "the left one")]).await.expect("it waits");
    approve(&run, "agree").await;
    let outcomes = check::outcomes(&events(&run).await);
    assert_eq!(
        (check::text(&outcomes["ask"]), check::text(&outcomes["agree"])),
        ("the left one".into(), "agreed".into())
    );

    // Its worker is killed: nothing of the first attempt shows beside the second.
    let run =
        client.create(vec![call("lost", "speech", json!({ "label": "lost", "pieces": 20, "every_ms": 50 }))]).await;
    run.watch(FloorPolicy::Arrival).await.until(|event| matches!(event, Event::CallOutput(_))).await;
    worker.kill().await;
    let another = another().await;
    let seen = events(&run).await;
    assert_eq!(check::outcomes(&seen)["lost"].state(), CallState::Completed, "{seen:#?}");
    assert_eq!(check::said(&seen)["lost"], counted("lost", 20));
    another
}

async fn coordinator_and_worker(coordinators: Fixture, workers: Fixture) {
    let broker = broker().await;
    let mut coordinator: Coordinator = coordinators.coordinator(&broker.url()).await;
    let client = Client::connect(coordinator.address()).await;
    let worker = workers.worker(&broker.url(), "main", 16).await;
    client.wait_for_tool("echo").await;
    let mut worker = everything_works(&client, worker, async || workers.worker(&broker.url(), "main", 16).await).await;
    worker.terminate().await;
    coordinator.terminate().await;
}

#[tokio::test]
#[ignore = "needs the previous release: tests/release/run"]
async fn a_previous_coordinator_works_with_a_present_worker() {
    coordinator_and_worker(previous(), present()).await;
}

#[tokio::test]
#[ignore = "needs the previous release: tests/release/run"]
async fn a_present_coordinator_works_with_a_previous_worker() {
    coordinator_and_worker(present(), previous()).await;
}
