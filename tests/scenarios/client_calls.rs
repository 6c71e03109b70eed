//! Calls that only the client can answer park the run; any connection can answer them.

use harness::{Client, Yard, client_answer, reason};
use proto::v1::{self, CallState, FloorPolicy, RunStatus, run_event::Event};

use crate::{FIXTURE, check, count, question};

#[tokio::test]
async fn a_client_call_parks_the_run_and_any_connection_can_answer_it() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let mut stream = yard.client.execute(vec![count("work", 3, 10), question("ask")]).await;
    stream
        .until(
            |event| matches!(event, Event::RunStatusChanged(changed) if changed.status() == RunStatus::RequiresAction),
        )
        .await;
    let waiting = check::kinds(&stream.seen).into_iter().find_map(|kind| match kind {
        Event::CallWaiting(waiting) => Some(waiting.clone()),
        _ => None,
    });
    let waiting = waiting.expect("the client is told which call waits");
    assert_eq!((waiting.call_id.as_str(), waiting.tool.as_str()), ("ask", "ask_user"));
    assert!(waiting.arguments.contains("Which one?"));

    let other = Client::connect(yard.coordinator.address()).await;
    let run = stream.run(&other);
    assert_eq!(run.get().await.status(), RunStatus::RequiresAction);
    let answered = run.submit(vec![client_answer("ask", "the left one")]).await.expect("the call waits");
    assert_eq!(answered.status(), RunStatus::Completed);
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::text(&check::outcomes(&events)["ask"]), "the left one");
}

#[tokio::test]
async fn the_same_answer_twice_is_fine_and_another_one_is_refused() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![question("ask"), question("other")]).await;
    for _ in 0..2 {
        let again = run.submit(vec![client_answer("ask", "yes")]).await.expect("equal answers are one answer");
        assert_eq!(again.calls[0].state(), CallState::Completed);
    }
    let refused = run.submit(vec![client_answer("ask", "no")]).await.expect_err("another answer is refused");
    assert_eq!(reason(&refused), "CALL_ALREADY_ANSWERED");
    // All or none: the second answer is not taken either.
    let both = vec![client_answer("other", "fine"), client_answer("ask", "no")];
    run.submit(both).await.expect_err("one of the answers is refused");
    let state = run.get().await;
    assert_eq!(state.calls[1].state(), CallState::WaitingForClient);
    assert_eq!(check::text(state.calls[0].outcome.as_ref().expect("it ended")), "yes");
    // After the end as well.
    run.submit(vec![client_answer("other", "fine")]).await.expect("the call waits");
    let again = run.submit(vec![client_answer("other", "fine")]).await.expect("equal answers are one answer");
    assert_eq!(again.status(), RunStatus::Completed);
    let refused = run.submit(vec![client_answer("other", "late")]).await.expect_err("another answer is refused");
    assert_eq!(reason(&refused), "CALL_ALREADY_ANSWERED");
}

#[tokio::test]
async fn an_answer_to_a_call_that_does_not_wait_changes_nothing() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![count("work", 5, 50), question("ask")]).await;
    let refused = run.submit(vec![client_answer("work", "me first")]).await.expect_err("a worker runs it");
    assert_eq!(reason(&refused), "CALL_NOT_WAITING");
    let refused = run.submit(vec![client_answer("nobody", "hello")]).await.expect_err("there is no such call");
    assert_eq!(reason(&refused), "CALL_NOT_FOUND");
    let refused = run.submit(Vec::new()).await.expect_err("nothing is answered");
    assert_eq!(reason(&refused), "NO_ANSWERS");
    let failing = v1::ToolOutput { call_id: "ask".to_owned(), error: "nobody is here".to_owned(), result: Vec::new() };
    run.submit(vec![failing]).await.expect("a client may answer with an error");
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    let outcomes = check::outcomes(&events);
    assert_eq!(outcomes["work"].state(), CallState::Completed);
    let error = outcomes["ask"].error.clone().expect("a failure has an error");
    assert_eq!((error.kind(), error.message.as_str()), (v1::CallErrorKind::ClientFailed, "nobody is here"));
}

#[tokio::test]
async fn a_waiting_call_outlives_a_kill_of_everything_and_another_expires_meanwhile() {
    let mut yard = Yard::start(FIXTURE).await;
    let mut worker = yard.worker().await;
    let timeout = Some(proto::convert::duration(std::time::Duration::from_secs(4)));
    let hurried = v1::NewCall { timeout, ..question("hurried") };
    let run = yard.client.create(vec![count("work", 3, 1), question("ask"), hurried]).await;
    let mut before = run.watch(FloorPolicy::Arrival).await;
    before.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "work")).await;
    let address = yard.coordinator.address();
    yard.coordinator.kill().await;
    worker.kill().await;
    yard.broker.kill().await;
    yard.broker.restart().await.expect("the broker comes back");
    yard.coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
    let run = run.through(&Client::connect(address).await);
    let mut stream = run.watch(FloorPolicy::Arrival).await;
    stream.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "hurried")).await;
    assert_eq!(run.get().await.status(), RunStatus::RequiresAction, "the other one still waits");
    run.submit(vec![client_answer("ask", "still here")]).await.expect("the call waits");
    let events = stream.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert_eq!((outcomes["hurried"].state(), check::text(&outcomes["ask"])), (CallState::Expired, "still here".into()));
    assert!(events.starts_with(&before.seen), "what was seen before is seen again");
}
