//! The calls of one request in a run that several requests share.

use formats::openai::assistants;
use formats::openai::responses::{Answered, Asked, Continued, Event, Items, ResponseId, Stream};
use formats::openai::share::{Share, SharedRun};
use run::{CallSpec, Event as Stored, FloorPolicy};
use serde_json::{Value, json};

use crate::story::{
    Story, answered, client, completed, dispatched, failed_for_now, output, repeatable, run_id, shared, started,
};
use crate::told::{tell, tell_by, tell_share};

fn share(story: &Story, calls: &[&str]) -> SharedRun {
    let share = Share::of(&story.run, calls.iter().copied());
    SharedRun { run: run_id(), share: Some(share.expect("the calls follow each other")) }
}

fn append(calls: impl IntoIterator<Item = CallSpec>) -> Stored {
    Stored::CallsAppended { calls: shared(calls) }
}

fn events(story: &Story, of: SharedRun) -> Vec<Event> {
    let mut stream = Stream::new(of, Items::OneByOne);
    let told = match of.share {
        Some(share) => tell_share(&story.log, share, FloorPolicy::Arrival),
        None => tell(&story.log),
    };
    told.iter().flat_map(|told| stream.take(&told.event, &told.run)).collect()
}

/// The responses at their ends: the id, the status, and the calls of the items.
fn ends(story: &Story, of: SharedRun) -> Vec<(String, String, Vec<String>)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let end = |event: Event| {
        let response = &event.data["response"];
        let calls = response["output"].as_array().into_iter().flatten().map(|item| text(&item["call_id"])).collect();
        (text(&response["id"]), text(&response["status"]), calls)
    };
    events(story, of).into_iter().filter(Event::is_last).map(end).collect()
}

#[test]
fn a_response_has_the_calls_of_its_request_alone_and_ends_with_them() {
    let mut story = Story::open([repeatable("other")]);
    story.tell_all([append([repeatable("a"), client("b")]), append([repeatable("later")])]);
    let of = share(&story, &["a", "b"]);
    story.tell_all([dispatched(0), dispatched(1), started(0, 1), started(1, 1), dispatched(3), started(3, 1)]);
    story.tell_all([completed(0, 1, 0), completed(1, 1, 0)]);
    let id = "resp_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071_c1x2";
    let first = (id.to_owned(), "completed".to_owned(), vec!["b".to_owned(), "a".to_owned()]);
    assert_eq!(ends(&story, of), std::slice::from_ref(&first), "it waits for its client, although another call runs");
    story.tell(output(3, 1, 0..1));
    story.tell(answered(2, "blue"));
    let second = (format!("{id}_1"), "completed".to_owned(), vec![]);
    assert_eq!(ends(&story, of), [first, second], "it has ended, although the run is open");
    assert_eq!(format!("{id}_1").parse::<ResponseId>().map(|id| id.to_string()).ok(), Some(format!("{id}_1")));
    let said = format!("{:?}", events(&story, of));
    assert!(!said.contains("other") && !said.contains("later"), "{said}");
}

#[test]
fn calls_that_several_requests_have_added_are_no_share() {
    let mut story = Story::open([repeatable("a")]);
    story.tell_all([append([repeatable("b")]), append([repeatable("c")])]);
    let of = |calls: &[&str]| Share::of(&story.run, calls.iter().copied()).map(|share| share.to_string());
    assert_eq!((of(&["b"]), of(&["c", "b"])), (Some("c1x1".into()), Some("c1x2".into())));
    assert_eq!((of(&["a", "c"]), of(&["z"]), of(&[])), (None, None, None));
}

#[test]
fn a_run_of_the_assistants_api_answers_for_its_own_calls() {
    let mut story = Story::open([client("other")]);
    story.tell(append([client("a"), client("b")]));
    let of = share(&story, &["a", "b"]);
    let mut stream = assistants::Stream::new(of, "thread_1");
    let told = tell_share(&story.log, of.share.expect("a share"), FloorPolicy::Arrival);
    let told: Vec<_> = told.iter().flat_map(|told| stream.take(&told.event, &told.run)).collect();
    assert_eq!(told.last().map(|event| event.kind), Some("thread.run.requires_action"));
    let run = stream.run();
    let calls = run["required_action"]["submit_tool_outputs"]["tool_calls"].as_array().expect("a list");
    assert_eq!(calls.iter().map(|call| &call["id"]).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(run["id"], of.to_string());
    let outputs = |ids: &[&str]| {
        let outputs: Vec<Value> = ids.iter().map(|id| json!({ "tool_call_id": id, "output": "x" })).collect();
        let body = json!({ "tool_outputs": outputs }).to_string();
        let (request, _) = assistants::tool_outputs(body.as_bytes(), "run").expect("it can be read");
        stream.check_outputs(&request).map_err(|error| (error.reason.code(), error.pointer))
    };
    assert_eq!(outputs(&["b", "a"]), Ok(()));
    assert_eq!(outputs(&["a"]), Err(("ANSWERS_MISSING", "/tool_outputs".to_owned())));
    assert_eq!(outputs(&["a", "b", "other"]), Err(("CALL_NOT_FOUND", "/tool_outputs/2".to_owned())));
}

fn continued(previous: &str, calls: &[&str]) -> Continued {
    let output = |id: &&str| json!({ "type": "function_call_output", "call_id": id, "output": "x" });
    let body = json!({ "previous_response_id": previous, "input": calls.iter().map(output).collect::<Vec<_>>() });
    match Asked::read(body.to_string().as_bytes(), &|_: &str| None) {
        Ok(Asked::Continued(continued)) => continued,
        other => panic!("{other:?}"),
    }
}

/// The part of a whole run in which the answers of a request were given.
fn part(story: &Story, calls: &[&str]) -> Option<u32> {
    let continued = continued("resp_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071", calls);
    let mut answered = Answered::new(&continued);
    for told in tell_by(&story.log, FloorPolicy::Interleaved) {
        answered.take(&told.event, &told.run);
    }
    answered.part()
}

#[test]
fn answers_belong_to_the_response_during_which_they_were_given_however_often_they_are_repeated() {
    let mut story = Story::of([client("a"), client("b"), client("c"), repeatable("worker")]);
    story.tell_all([dispatched(3), started(3, 1), output(3, 1, 0..1), failed_for_now(3, 1)]);
    assert_eq!(part(&story, &["a"]), None, "nothing was answered yet");
    // All others wait for the next attempt, which is no response of its own. Then the worker's call ends.
    story.tell_all([answered(0, "x"), started(3, 2), completed(3, 2, 0)]);
    assert_eq!(part(&story, &["a"]), Some(0));
    story.tell(answered(1, "x"));
    assert_eq!((part(&story, &["a"]), part(&story, &["b"]), part(&story, &["a", "b"])), (Some(0), Some(1), Some(1)));
    let before = [part(&story, &["a"]), part(&story, &["b"])];
    story.tell(answered(2, "x"));
    assert_eq!([part(&story, &["a"]), part(&story, &["b"])], before, "later events change nothing");
    assert_eq!(part(&story, &["a", "z"]), None, "z is no call of the run");
    let parts: Vec<u32> = events(&story, run_id().into()).iter().filter(|it| it.is_last()).map(|it| it.part).collect();
    assert_eq!(parts, [0, 1]);
}
