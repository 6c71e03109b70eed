//! The history that a tool receives of earlier calls: as many as fit, in order, and never more than a job can hold.

use std::sync::Arc;

use bytes::Bytes;
use run::{
    CallError, CallId, CallIndex, CallSpec, Content, Entry, ErrorKind, Event, Fields, Policy, Route, Run, RunOpened,
    Timestamp, limit,
};
use toolyard_proto::convert::fields::{fields_in, fields_out};
use toolyard_proto::history::{NONE, PastCall, PastContent, PastOutcome, TOOL_CALL_HISTORY, job};

fn spec(id: &str, route: Route) -> CallSpec {
    CallSpec::new(id.parse().expect("an id"), "tool".parse().expect("a tool"), r#"{"n":1}"#, route, Timestamp(9_000))
}

/// A run in which the client gave these answers, and whose last call requests the history.
fn asked(answers: Vec<Result<Vec<Content>, CallError>>) -> Vec<PastCall> {
    let route = Route::Pool {
        pool: "main".parse().expect("a pool"),
        policy: Policy::of(run::Effects::default()),
        version: None,
    };
    let mut context = Fields::default();
    context.set(TOOL_CALL_HISTORY, NONE);
    context.set("user", "\"ada\"");
    let wants = CallSpec { context, ..spec("wants", route) };
    let mut calls: Vec<CallSpec> = (0..answers.len()).map(|call| spec(&format!("c{call}"), Route::Client)).collect();
    calls.push(wants);
    let opened = RunOpened {
        deadline: Timestamp(9_000),
        calls: calls.into_iter().map(Arc::new).collect(),
        ..RunOpened::default()
    };
    let mut run = Run::new("run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071".parse().expect("a run"));
    let answered = (0..).zip(answers).map(|(call, answer)| Event::ClientAnswered { call: CallIndex(call), answer });
    // The calls are answered in reverse order.
    let mut events: Vec<Event> = answered.collect();
    events.reverse();
    run.apply(
        &Entry {
            sequence: 1,
            at: Timestamp(1),
            not_after: None,
            hooked: false,
            events: vec![Event::RunOpened(opened)],
        },
        &mut Vec::new(),
    );
    run.apply(&Entry { sequence: 2, at: Timestamp(2), not_after: None, hooked: false, events }, &mut Vec::new());
    let id: CallId = "wants".parse().expect("an id");
    let job = job(&run, run.find(&id).expect("it is there")).spec;
    assert_eq!(job.context.get("user"), Some("\"ada\""));
    let history = job.context.get(TOOL_CALL_HISTORY).expect("it was asked for");
    let room = limit::HISTORY_BYTES_MAX + 128 * 1024;
    assert!(history.len() <= room, "{} bytes", history.len());
    assert_eq!(fields_in(&fields_out(&job.context)).as_ref(), Ok(&job.context), "a worker can read it");
    serde_json::from_str(history).expect("it is a history")
}

fn text(text: impl Into<String>) -> Result<Vec<Content>, CallError> {
    Ok(vec![Content::Text(text.into())])
}

#[test]
fn calls_stand_in_their_order_with_what_became_of_them() {
    let data = Content::Data { media_type: "image/png".to_owned(), data: Bytes::from_static(&[1, 2, 3]) };
    let answers = vec![
        text("first"),
        Err(CallError::new(ErrorKind::ClientFailed, "no")),
        Ok(vec![Content::Json("{\"a\":[1]}".to_owned()), data]),
    ];
    let told = asked(answers);
    let ids: Vec<&str> = told.iter().map(|past| past.call_id.as_str()).collect();
    assert_eq!(ids, ["c0", "c1", "c2"]);
    assert!(told.iter().all(|past| past.tool == "tool" && past.arguments["n"] == 1 && !past.left_out));
    let first = PastOutcome::Completed { result: vec![PastContent::Text("first".to_owned())] };
    let second = PastOutcome::Failed { kind: "CLIENT_FAILED".to_owned(), message: "no".to_owned() };
    let third = PastOutcome::Completed {
        result: vec![
            PastContent::Json(serde_json::json!({ "a": [1] })),
            PastContent::Data { media_type: "image/png".to_owned(), bytes: 3 },
        ],
    };
    let outcomes: Vec<PastOutcome> = told.into_iter().map(|past| past.outcome).collect();
    assert_eq!(outcomes, [first, second, third]);
}

#[test]
fn what_does_not_fit_is_named_and_the_latest_fit_first() {
    let large = "x".repeat(limit::HISTORY_BYTES_MAX / 2 - 1000);
    let told = asked(vec![text(&*large), text("small"), text(&*large), text(&*large)]);
    let left_out: Vec<bool> = told.iter().map(|past| past.left_out).collect();
    assert_eq!(left_out, [true, false, false, false]);
    assert_eq!(told[0].outcome, PastOutcome::Completed { result: Vec::new() });
    // Even with the highest number of calls and the largest contents, the names of all calls fit.
    let told = asked((0..127).map(|_| text("\u{1}".repeat(limit::RESULT_BYTES_MAX))).collect());
    assert_eq!((told.len(), told.iter().filter(|past| !past.left_out).count()), (127, 0));
}

#[test]
fn what_is_nested_too_deeply_for_readers_is_told_as_text() {
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    for (levels, as_text) in [(100, false), (101, true), (127, true), (5000, true)] {
        let told = asked(vec![Ok(vec![Content::Json(deep(levels))])]);
        let PastOutcome::Completed { result } = &told[0].outcome else { panic!("it completed") };
        assert_eq!(matches!(result[0], PastContent::Text(_)), as_text, "{levels} levels");
    }
}

#[test]
fn a_call_that_asks_for_no_history_is_stored_as_it_is() {
    let route = Route::Pool {
        pool: "main".parse().expect("a pool"),
        policy: Policy::of(run::Effects::default()),
        version: None,
    };
    let calls = vec![Arc::new(spec("c", route))];
    let opened = RunOpened { deadline: Timestamp(9_000), calls: calls.clone(), ..RunOpened::default() };
    let mut run = Run::new("run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071".parse().expect("a run"));
    run.apply(
        &Entry {
            sequence: 1,
            at: Timestamp(1),
            not_after: None,
            hooked: false,
            events: vec![Event::RunOpened(opened)],
        },
        &mut Vec::new(),
    );
    assert!(Arc::ptr_eq(&job(&run, &run.calls()[0]).spec, &calls[0]));
}
