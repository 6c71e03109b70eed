//! How a call is tried again: from the beginning, from where it broke off, or unseen until it is done.

use harness::{Yard, call};
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy, RunEvent, run_event::Event};
use serde_json::json;

use crate::{FIXTURE, check, counted};

fn speech(tool: &str, pieces: u32, breaks_off_after: u32, failures: u32) -> v1::NewCall {
    let arguments = json!({
        "label": "s", "pieces": pieces, "every_ms": 5, "breaks_off_after": breaks_off_after, "failures": failures,
    });
    call("s", tool, arguments)
}

fn withdrawals(events: &[RunEvent]) -> usize {
    check::kinds(events).iter().filter(|kind| matches!(kind, Event::CallOutputWithdrawn(_))).count()
}

fn attempts(events: &[RunEvent]) -> Vec<(u32, bool)> {
    let started = check::kinds(events).into_iter().filter_map(|kind| match kind {
        Event::AttemptStarted(started) => Some((started.attempt, started.continues)),
        _ => None,
    });
    started.collect()
}

#[tokio::test]
async fn an_attempt_that_broke_off_starts_over_and_what_it_said_is_withdrawn() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let events = yard.client.execute(vec![speech("speech", 6, 3, 2)]).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["s"], counted("s", 6));
    assert_eq!(withdrawals(&events), 2);
    assert_eq!(attempts(&events), [(1, false), (2, false), (3, false)]);
}

#[tokio::test]
async fn a_tool_that_continues_goes_on_where_it_broke_off_and_nothing_is_withdrawn() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let mut stream = yard.client.execute(vec![speech("resuming", 8, 3, 2)]).await;
    stream.until(|event| matches!(event, Event::CallEnded(_))).await;
    let run = stream.run(&yard.client);
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["s"], counted("s", 8));
    assert_eq!(withdrawals(&events), 0);
    assert_eq!(attempts(&events), [(1, false), (2, true), (3, true)]);
    assert_eq!(check::text(&check::outcomes(&events)["s"]), "attempt 3 went from 6 to 8");
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await);
}

#[tokio::test]
async fn a_tool_that_continues_survives_the_kill_of_its_worker_in_mid_stream() {
    let yard = Yard::start(FIXTURE).await;
    let mut first = yard.worker().await;
    let arguments = json!({ "label": "s", "pieces": 40, "every_ms": 50 });
    let mut stream = yard.client.execute(vec![call("s", "resuming", arguments)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(output) if output.chunk == 4)).await;
    first.kill().await;
    let _second = yard.worker().await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["s"], counted("s", 40));
    assert_eq!(withdrawals(&events), 0);
    assert_eq!(attempts(&events), [(1, false), (2, true)]);
}

#[tokio::test]
async fn buffered_output_is_shown_when_the_call_ends_and_only_that_of_the_last_attempt() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let events = yard.client.execute(vec![speech("buffering", 6, 3, 2)]).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["s"], counted("s", 6));
    assert_eq!(withdrawals(&events), 0);
    let kinds = check::kinds(&events);
    let place = |wanted: fn(&Event) -> bool| kinds.iter().rposition(|kind| wanted(kind)).expect("it is there");
    let first_output = kinds.iter().position(|kind| matches!(kind, Event::CallOutput(_))).expect("it speaks");
    assert!(first_output > place(|kind| matches!(kind, Event::AttemptStarted(_))), "shown before the last attempt");
}

#[tokio::test]
async fn a_panic_is_tried_again_only_where_the_tool_says_so() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let calls = vec![call("shaky", "shaky", json!({})), call("panics", "panics", json!({}))];
    let outcomes = check::outcomes(&yard.client.execute(calls).await.to_end().await);
    assert_eq!(check::text(&outcomes["shaky"]), "steady");
    let error = outcomes["panics"].error.clone().expect("it failed");
    assert_eq!((outcomes["panics"].state(), error.kind()), (CallState::Failed, CallErrorKind::ToolPanicked));
}

/// When the attempts of a call ended and the next ones started, as pauses in seconds.
fn pauses(events: &[RunEvent], id: &str) -> Vec<f64> {
    let mut ended = None;
    let mut pauses = Vec::new();
    for event in events {
        let at = event.time.map(|time| time.seconds as f64 + f64::from(time.nanos) / 1e9).expect("it has a time");
        match &event.event {
            Some(Event::AttemptEnded(it)) if it.call_id == id => ended = Some(at),
            Some(Event::AttemptStarted(it)) if it.call_id == id => pauses.extend(ended.take().map(|ended| at - ended)),
            _ => {}
        }
    }
    pauses
}

#[tokio::test]
async fn the_pauses_between_attempts_double_with_jitter_and_the_last_message_is_told() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let fails = |id: &str, attempts: u32| call(id, "fails", json!({ "attempts": attempts }));
    let calls = vec![fails("mended", 2), fails("hopeless", 9)];
    let request = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
    let floor_policy = FloorPolicy::Interleaved.into();
    let request = v1::ExecuteRunRequest { run: Some(request), floor_policy, ..v1::ExecuteRunRequest::default() };
    let events = yard.client.execute_request(request).await.expect("it is accepted").to_end().await;
    for id in ["mended", "hopeless"] {
        let pauses = pauses(&events, id);
        let [first, second] = pauses[..] else { panic!("{id} has three attempts: {pauses:?}") };
        // A second and two, and up to a quarter more; a busy machine takes its time besides.
        assert!((1.0..6.0).contains(&first) && (2.0..8.0).contains(&second), "{id}: {pauses:?}");
    }
    let outcomes = check::outcomes(&events);
    assert_eq!(check::text(&outcomes["mended"]), "at last");
    assert_eq!(outcomes["hopeless"].error.as_ref().map(|error| error.message.as_str()), Some("not yet"));
}
