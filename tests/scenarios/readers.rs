//! Every reader of a run sees the same stream, whenever it comes and however often it comes back.

use harness::{Client, PATIENCE, Run, Yard, reason, unlike};
use proto::v1::run_event::Event;
use proto::v1::{FloorPolicy, RunEvent};

use crate::{FIXTURE, check, count, counted, question};

const POLICIES: [FloorPolicy; 3] = [FloorPolicy::Arrival, FloorPolicy::Submission, FloorPolicy::Interleaved];

/// Reads a run to its end with a new connection for every few events.
async fn in_pieces(run: &Run, policy: FloorPolicy, reconnects: usize) -> Vec<RunEvent> {
    let mut events: Vec<RunEvent> = Vec::new();
    for _ in 0..reconnects {
        let after = events.last().map(|event| event.sequence);
        let mut stream = run.watch_after(policy, after).await.expect("the run is there");
        // One message, then the connection is dropped in the middle of the next.
        if stream.next().await.expect("the stream does not break") {
            stream.seen.truncate(3);
        }
        events.extend(stream.seen);
    }
    let after = events.last().map(|event| event.sequence);
    let rest = run.watch_after(policy, after).await.expect("the run is there");
    events.extend(rest.to_end().await);
    events
}

#[tokio::test]
async fn an_early_a_late_and_a_returning_reader_see_the_same_under_every_policy() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let calls = vec![count("a", 30, 20), question("ask"), count("b", 20, 35), count("c", 40, 10)];
    let run = yard.client.create(calls).await;
    let early = POLICIES.map(|policy| {
        let run = run.clone();
        tokio::spawn(async move { run.watch(policy).await.to_end().await })
    });
    let returning = POLICIES.map(|policy| {
        let run = run.clone();
        tokio::spawn(async move { in_pieces(&run, policy, 20).await })
    });
    run.submit(vec![harness::client_answer("ask", "this one")]).await.expect("the call waits");
    for ((policy, early), returning) in POLICIES.into_iter().zip(early).zip(returning) {
        let early = early.await.expect("the reader does not panic");
        let returning = returning.await.expect("the reader does not panic");
        let late = run.watch(policy).await.to_end().await;
        check::whole(&early, policy != FloorPolicy::Interleaved);
        assert_eq!(early, late, "{policy:?}: early and late differ");
        assert_eq!(early, returning, "{policy:?}: early and returning differ");
        let said = check::said(&early);
        for (id, pieces) in [("a", 30), ("b", 20), ("c", 40)] {
            assert_eq!(said[id], counted(id, pieces), "{policy:?}");
        }
    }
}

#[tokio::test]
async fn readers_are_answered_while_the_broker_stands_still_and_read_the_run_when_it_is_back() {
    // More than may read the log at once.
    const READERS: usize = 50;
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![count("a", 5, 1), count("b", 5, 1)]).await;
    let early = run.watch(FloorPolicy::Arrival).await.to_end().await;
    let missing = Run { id: unlike(&run.id), ..run.clone() };
    // The coordinator has followed the run, and sends no request.
    yard.broker.pause();
    let followed = run.watch(FloorPolicy::Arrival).await.to_end().await;
    yard.broker.resume();
    assert_eq!(followed, early);
    // Another has followed nothing of the run, so it must read it.
    let another = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(another.address()).await;
    client.wait_for_tool("echo").await;
    let unread = Run { client, ..run.clone() };
    yard.broker.pause();
    let watching = futures::future::join_all((0..READERS).map(|_| unread.watch(FloorPolicy::Arrival)));
    let watching = futures::future::join(watching, missing.watch(FloorPolicy::Arrival));
    let watching = tokio::time::timeout(PATIENCE, watching).await;
    yard.broker.resume();
    let (late, mut missing) = watching.expect("they hear that they are waited for");
    for mut stream in late {
        assert!(stream.next().await.expect("the stream does not break") && stream.heartbeats == 1);
        assert_eq!(stream.to_end().await, early);
    }
    let refused = loop {
        match missing.next().await {
            Ok(_) => assert!(missing.seen.is_empty()),
            Err(refused) => break refused,
        }
    };
    assert_eq!(reason(&refused), "RUN_NOT_FOUND", "{refused:?}");
}

fn ids<'a>(events: &'a [RunEvent], of: impl Fn(&'a Event) -> Option<&'a str>) -> Vec<&'a str> {
    let mut ids = Vec::new();
    for id in check::kinds(events).into_iter().filter_map(of) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

fn speakers(events: &[RunEvent]) -> Vec<&str> {
    ids(events, |event| match event {
        Event::CallSpeaking(speaking) => Some(&speaking.call_id),
        _ => None,
    })
}

#[tokio::test]
async fn in_a_hundred_runs_the_next_speaker_is_the_one_that_the_policy_names() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(64).await;
    let runs = (0..100_u64).map(|run| {
        let pause = move |call: u64| (run * 7 + call * 13) % 17 + 1;
        let calls = vec![count("a", 3, pause(1)), count("b", 3, pause(2)), count("c", 3, pause(3))];
        let client = &yard.client;
        async move {
            let run = client.create(calls).await;
            let [arrival, submission, interleaved] = futures::future::join_all(POLICIES.map(|policy| {
                let run = run.clone();
                async move { run.watch(policy).await.to_end().await }
            }))
            .await
            .try_into()
            .expect("three streams");
            check::whole(&arrival, true);
            check::whole(&submission, true);
            // By arrival: the calls in the order of their first output in the log, which interleaved output shows.
            let first_outputs = ids(&interleaved, |event| match event {
                Event::CallOutput(output) => Some(&output.call_id),
                _ => None,
            });
            assert_eq!(speakers(&arrival), first_outputs, "{run:?}");
            assert_eq!(speakers(&submission), ["a", "b", "c"], "{run:?}");
        }
    });
    futures::future::join_all(runs).await;
}

#[tokio::test]
async fn calls_speak_in_the_order_in_which_they_were_asked_for_under_submission() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    // The first call is the slowest to send output.
    let run = yard.client.create(vec![count("slow", 2, 400), count("quick", 3, 5), count("mid", 2, 50)]).await;
    let events = run.watch(FloorPolicy::Submission).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(speakers(&events), ["slow", "quick", "mid"]);
}

#[tokio::test]
async fn a_reader_that_is_slower_than_the_tools_misses_nothing() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    // Far more than the ledger holds for a watcher, and than a connection buffers.
    let run = yard.client.create(vec![count("a", 60_000, 0), count("b", 60_000, 0)]).await;
    let mut stream = run.watch(FloorPolicy::Arrival).await;
    stream.until(|event| matches!(event, Event::CallSpeaking(_))).await;
    // Another reader sees the end while this one reads nothing.
    let quick = run.watch(FloorPolicy::Arrival).await.to_end().await;
    let slow = stream.to_end().await;
    assert!(quick == slow, "the slow reader saw something else");
    check::whole(&slow, true);
    assert_eq!(check::said(&slow)["b"], counted("b", 60_000));
}
