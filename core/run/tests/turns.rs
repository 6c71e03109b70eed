//! In which order the calls of a run begin.

mod story;

use story::{Story, cancel_requested, client, completed, dispatched, exclusive, failed_for_now, repeatable, started};
use toolyard_run::{AttemptNumber, CallIndex, CallSpec, Concurrency, DeadlineKind, Effect, Event, Rules};

/// The calls whose jobs the owner should append now.
fn due(story: &Story) -> Vec<u16> {
    let effects = story.run.outstanding(story.now).into_iter();
    effects.filter_map(|effect| if let Effect::Dispatch { call } = effect { Some(call.0) } else { None }).collect()
}

/// The owner appends the jobs that are due, and the calls complete.
fn finish_due(story: &mut Story) -> Vec<u16> {
    let due = due(story);
    story.tell_all(due.iter().map(|call| dispatched(*call)));
    story.tell_all(due.iter().map(|call| completed(*call, 1, 0)));
    due
}

#[test]
fn an_exclusive_call_has_the_run_to_itself() {
    let read = repeatable;
    let table: [(Vec<CallSpec>, &[&[u16]]); 6] = [
        (vec![read("a"), read("b"), exclusive("c"), read("d")], &[&[0, 1], &[2], &[3]]),
        (vec![exclusive("a"), exclusive("b"), read("c"), read("d")], &[&[0], &[1], &[2, 3]]),
        (vec![read("a"), exclusive("b"), read("c"), exclusive("d")], &[&[0], &[1], &[2], &[3]]),
        (vec![read("a"), read("b")], &[&[0, 1]]),
        (vec![exclusive("a")], &[&[0]]),
        // No call waits for a client call.
        (vec![client("a"), exclusive("b"), client("c"), read("d")], &[&[1], &[3]]),
    ];
    for (calls, expected) in table {
        let mut story = Story::of(calls.clone());
        for turn in expected {
            assert_eq!(finish_due(&mut story), *turn, "of {calls:?}");
        }
        assert_eq!(due(&story), []);
    }
}

#[test]
fn a_call_that_is_tried_again_keeps_its_turn() {
    let mut story = Story::of([CallSpec { concurrency: Concurrency::Exclusive, ..repeatable("a") }, repeatable("b")]);
    story.tell_all([dispatched(0), started(0, 1), failed_for_now(0, 1)]);
    assert_eq!((story.state(0), due(&story)), ("queued", vec![]));
    story.tell(completed(0, 2, 0));
    assert_eq!(due(&story), [1]);
}

#[test]
fn a_call_that_ends_in_line_holds_nobody_up() {
    let mut story = Story::of([repeatable("a"), exclusive("b"), repeatable("c")]);
    story.tell_all([dispatched(0), started(0, 1), cancel_requested(1)]);
    assert_eq!(due(&story), [2]);
}

#[test]
fn no_more_calls_begin_at_once_than_their_run_may_have() {
    let read = repeatable;
    type Case<'a> = (u16, Vec<CallSpec>, &'a [&'a [u16]]);
    let table: [Case<'_>; 4] = [
        (2, vec![read("a"), read("b"), read("c"), read("d"), read("e")], &[&[0, 1], &[2, 3], &[4]]),
        (1, vec![read("a"), client("b"), read("c")], &[&[0], &[2]]),
        (2, vec![read("a"), exclusive("b"), read("c"), read("d"), read("e")], &[&[0], &[1], &[2, 3], &[4]]),
        (9, vec![read("a"), read("b")], &[&[0, 1]]),
    ];
    for (running_max, calls, expected) in table {
        let mut story = Story::under(Rules { running_max: Some(running_max), ..Rules::default() }, calls);
        for turn in expected {
            assert_eq!(finish_due(&mut story), *turn, "{running_max} at once");
        }
        assert_eq!(due(&story), []);
    }
}

#[test]
fn a_place_that_becomes_free_is_taken_at_once() {
    let rules = Rules { running_max: Some(2), ..Rules::default() };
    let mut story = Story::under(rules, [repeatable("a"), repeatable("b"), repeatable("c")]);
    story.tell_all([dispatched(0), dispatched(1), started(0, 1), failed_for_now(0, 1)]);
    assert_eq!(due(&story), [], "one that is tried again keeps its place");
    let why = story.run.why(story.call(2), story.now, None);
    assert!(
        why.contains("call a is ahead of it and queued, and the run's limit of concurrent calls is reached"),
        "{why}"
    );
    story.tell(completed(1, 1, 0));
    assert_eq!(due(&story), [2]);
}

#[test]
fn calls_that_are_appended_stand_behind() {
    let mut story = Story::open([repeatable("a")]);
    story.tell_all([dispatched(0), started(0, 1)]);
    story.tell(Event::CallsAppended { calls: story::shared([exclusive("b"), repeatable("c")]) });
    assert_eq!(due(&story), []);
    let ahead = |call| story.run.waits_for(story.call(call)).map(toolyard_run::Call::index);
    assert_eq!((ahead(1), ahead(2)), (Some(CallIndex(0)), Some(CallIndex(1))));
    story.tell(completed(0, 1, 0));
    assert_eq!(due(&story), [1]);
}

/// An exclusive call whose worker is silent, ended by its owner, with another exclusive call behind it.
fn ended_without_its_word() -> Story {
    let mut story = Story::of([exclusive("a"), exclusive("b")]);
    story.tell_all([dispatched(0), started(0, 1), cancel_requested(0), Event::CallCancelled { call: CallIndex(0) }]);
    assert_eq!(story.state(0), "cancelled");
    story
}

#[test]
fn an_exclusive_call_does_not_begin_beside_a_tool_that_has_not_stopped() {
    let mut story = ended_without_its_word();
    assert_eq!(due(&story), [], "the tool of the first may still run");
    let waits_for = story.run.waits_for(story.run.call(CallIndex(1)).unwrap()).unwrap();
    assert_eq!(waits_for.index(), CallIndex(0));
    let why = story.run.why(story.run.call(CallIndex(1)).unwrap(), story.now, None);
    assert!(why.contains("its tool has not stopped"), "{why}");
    // Its worker reports it when the tool is gone. That changes no outcome.
    story.tell(completed(0, 1, 0));
    assert_eq!((story.state(0), due(&story)), ("cancelled", vec![1]));
}

#[test]
fn a_tool_whose_worker_is_lost_holds_nobody_up_any_more() {
    let mut story = ended_without_its_word();
    let overrun = |number| DeadlineKind::Attempt(AttemptNumber(number));
    story.tell(Event::CallExpired { call: CallIndex(0), deadline: overrun(2) });
    assert_eq!(due(&story), [], "that is another attempt");
    story.tell(Event::CallExpired { call: CallIndex(0), deadline: overrun(1) });
    assert_eq!((story.state(0), due(&story)), ("cancelled", vec![1]));
}

#[test]
fn a_call_that_waits_for_a_tool_that_never_stops_ends_by_its_own_deadline() {
    let story = ended_without_its_word();
    let waiting = story.run.call(CallIndex(1)).unwrap();
    let effects = story.run.outstanding(waiting.spec().deadline);
    let ends = |effect: &Effect| {
        matches!(effect, Effect::Expire { call, .. } if *call == CallIndex(1)) || *effect == Effect::ExpireRun
    };
    assert!(effects.iter().any(ends), "{effects:?}");
    assert!(story.run.next_deadline().is_some());
}
