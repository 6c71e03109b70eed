//! In which order the calls of a run begin.

mod story;

use story::{Story, cancel_requested, client, completed, dispatched, exclusive, failed_for_now, repeatable, started};
use toolyard_run::{CallIndex, CallSpec, Concurrency, Effect, Event};

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
        // Nobody stands in line for a client.
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
