//! The limit on the bytes of output and results of a run.

mod story;

use std::num::NonZeroU64;

use story::{Story, answered, client, completed, dispatched, ended, output, repeatable, started};
use toolyard_run::{AttemptOutcome, CallIndex, Effect, ErrorKind, Outcome, Rules};

/// A run whose calls `a` and `b` run. Each chunk of output takes 7 bytes, and each result 4.
fn limited(max: u64) -> Story {
    let rules = Rules { output_bytes_max: NonZeroU64::new(max), ..Rules::default() };
    let mut story = Story::under(rules, [repeatable("a"), repeatable("b"), client("c")]);
    story.tell_all([dispatched(0), started(0, 1), dispatched(1), started(1, 1)]);
    story
}

fn kind(story: &Story, index: u16) -> Option<ErrorKind> {
    match story.call(index).outcome() {
        Some(Outcome::Failed(error)) => Some(error.kind),
        _ => None,
    }
}

#[test]
fn output_up_to_the_limit_stops_nothing() {
    let mut story = limited(7 + 4);
    story.tell_all([output(0, 1, 0..1), completed(0, 1, 1)]);
    assert_eq!(story.state(0), "completed");
    assert!(!story.call(1).cancel_requested());
}

#[test]
fn the_call_that_exceeds_it_is_stopped_and_fails_and_results_from_before_are_kept() {
    let mut story = limited(20);
    story.tell_all([output(0, 1, 0..1), completed(0, 1, 1), output(1, 1, 0..2)]);
    let stop = |effect: &Effect| matches!(effect, Effect::Stop { attempt } if attempt.call == CallIndex(1));
    assert!(story.run.outstanding(story.now).iter().any(stop), "its worker is told to stop");
    story.tell(ended(1, 1, AttemptOutcome::Cancelled));
    assert_eq!(kind(&story, 1), Some(ErrorKind::LimitExceeded));
    assert_eq!(story.state(0), "completed");
}

#[test]
fn a_result_that_exceeds_it_is_withheld() {
    let mut story = limited(3);
    story.tell(completed(0, 1, 0));
    assert_eq!(kind(&story, 0), Some(ErrorKind::LimitExceeded));
}

#[test]
fn answers_of_the_client_do_not_count() {
    let mut story = limited(3);
    story.tell(answered(2, "a long answer"));
    assert_eq!(story.state(2), "completed");
}

#[test]
fn a_call_that_fails_by_itself_keeps_its_error() {
    let mut story = limited(3);
    story.tell_all([output(0, 1, 0..1), story::failed(0, 1)]);
    assert_eq!(kind(&story, 0), Some(ErrorKind::ToolFailed));
}
