//! Many runs over one stream.

use std::collections::BTreeMap;

use futures::channel::mpsc;
use harness::{Yard, call};
use proto::v1::{self, RunEvent, StreamEndReason};
use serde_json::json;

use crate::{FIXTURE, check, count, counted};

type Asking = mpsc::UnboundedSender<v1::ExecuteRunsRequest>;

async fn open(yard: &Yard) -> (Asking, tonic::Streaming<v1::ExecuteRunsResponse>) {
    let (asking, requests) = mpsc::unbounded();
    let answers = yard.client.runs.clone().execute_runs(requests).await.expect("the stream opens");
    (asking, answers.into_inner())
}

fn ask(asking: &Asking, tag: u64, calls: Vec<v1::NewCall>) {
    let run = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
    let run = Some(run.into());
    asking.unbounded_send(v1::ExecuteRunsRequest { tag, run }).expect("the stream is open");
}

/// The messages about each run until the stream ended, and its end.
type Said = BTreeMap<u64, (Vec<RunEvent>, Result<StreamEndReason, v1::RunRefusal>)>;

async fn to_end(mut answers: tonic::Streaming<v1::ExecuteRunsResponse>) -> Said {
    let (mut said, mut open): (Said, BTreeMap<u64, Vec<RunEvent>>) = (BTreeMap::new(), BTreeMap::new());
    while let Some(message) = answers.message().await.expect("the stream does not break") {
        for piece in message.pieces {
            assert!(!said.contains_key(&piece.tag), "something is said of run {} after its end", piece.tag);
            open.entry(piece.tag).or_default().extend(piece.events);
            let end = match (piece.end, piece.refusal) {
                (Some(end), None) => Ok(end.reason()),
                (None, Some(refusal)) => Err(refusal),
                (None, None) => continue,
                (Some(_), Some(_)) => panic!("run {} ended and was refused", piece.tag),
            };
            said.insert(piece.tag, (open.remove(&piece.tag).unwrap_or_default(), end));
        }
    }
    assert!(open.is_empty(), "runs without an end: {:?}", open.keys());
    said
}

#[tokio::test]
async fn runs_of_one_stream_are_each_whole_and_a_refused_one_harms_no_other() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let (asking, answers) = open(&yard).await;
    for tag in 0..200 {
        ask(&asking, tag, vec![count("a", 5, 1), count("b", 3, 2)]);
    }
    ask(&asking, 1_000, Vec::new());
    ask(
        &asking,
        1_001,
        vec![call("same", "echo", json!({ "text": "a" })), call("same", "echo", json!({ "text": "b" }))],
    );
    asking.unbounded_send(v1::ExecuteRunsRequest { tag: 1_002, run: None }).expect("the stream is open");
    // The stream ends when its runs have, for nothing more is asked for.
    drop(asking);
    let mut said = to_end(answers).await;
    let mut refusal = |tag| said.remove(&tag).expect("it is answered").1.expect_err("it is refused");
    let refusals = [1_000, 1_001, 1_002].map(&mut refusal);
    let reasons = refusals.each_ref().map(|refusal| refusal.reason.as_str());
    assert_eq!(reasons, ["NO_CALLS", "DUPLICATE_CALL_ID", "MALFORMED"]);
    assert!(refusals.iter().all(|refusal| refusal.code == i32::from(tonic::Code::InvalidArgument)));
    assert_eq!(said.len(), 200);
    for (events, end) in said.values() {
        assert_eq!(*end, Ok(StreamEndReason::RunEnded));
        check::whole(events, true);
        let words = check::said(events);
        assert_eq!((words["a"].as_str(), words["b"].as_str()), (counted("a", 5).as_str(), counted("b", 3).as_str()));
    }
}

#[tokio::test]
async fn a_stream_of_many_runs_ends_with_its_coordinator_and_its_runs_go_on() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let other = yard.fixture.coordinator(&yard.broker.url()).await;
    let (asking, answers) = open(&yard).await;
    ask(&asking, 7, vec![count("a", 20, 200)]);
    let mut answers = answers;
    let first = answers.message().await.expect("an answer").expect("the run was opened");
    let Some(v1::run_event::Event::RunOpened(opened)) = first.pieces[0].events[0].event.clone() else {
        panic!("a run begins with its opening")
    };
    let ending = tokio::spawn(to_end(answers));
    yard.coordinator.terminate().await;
    let said = ending.await.expect("the reader does not panic");
    assert_eq!(said[&7].1, Ok(StreamEndReason::Shutdown));
    let client = harness::Client::connect(other.address()).await;
    let mut watched = client
        .runs
        .clone()
        .watch_run(v1::WatchRunRequest { run_id: opened.run_id, ..v1::WatchRunRequest::default() })
        .await
        .expect("the run goes on")
        .into_inner();
    let mut events = Vec::new();
    while let Some(message) = watched.message().await.expect("the stream does not break") {
        events.extend(message.events);
    }
    check::whole(&events, true);
    assert_eq!(check::said(&events)["a"], counted("a", 20));
}
