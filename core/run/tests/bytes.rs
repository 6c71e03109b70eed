//! The limit on the bytes of output and results of a run.

mod story;

use std::num::NonZeroU64;

use story::{
    Story, answered, attempt, client, completed, dispatched, ended, ended_as, failed_for_now, once, output, repeatable,
    started, text,
};
use toolyard_run::{AttemptId, AttemptOutcome, CallIndex, CallSpec, Effect, ErrorKind, Nonce, Outcome, Rules};

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

#[test]
fn the_end_of_an_earlier_attempt_that_is_stored_again_does_not_count() {
    let mut story = limited(4);
    story.tell_all([failed_for_now(0, 1), completed(0, 1, 0)]);
    assert_eq!(story.state(0), "queued");
    story.tell_all([started(0, 2), completed(0, 2, 0)]);
    assert_eq!(story.state(0), "completed");
}

#[test]
fn the_end_that_another_pool_or_an_unknown_attempt_stores_does_not_count() {
    let done = || AttemptOutcome::Completed(text("done").into());
    let unknown = AttemptId { nonce: Nonce(99), ..attempt(0, 1) };
    for foreign in [ended_as(attempt(0, 1), "beta", 0, done()), ended_as(unknown, "alpha", 0, done())] {
        let mut story = limited(4);
        story.tell_all([foreign, completed(0, 1, 0)]);
        assert_eq!(story.state(0), "completed");
    }
}

#[test]
fn output_that_is_stored_twice_counts_once() {
    let mut story = limited(14 + 4);
    story.tell_all([output(0, 1, 0..1), output(0, 1, 0..1), output(0, 1, 0..2), completed(0, 1, 2)]);
    assert_eq!(story.state(0), "completed");
    let mut story = limited(14 + 4);
    story.tell_all([output(0, 1, 1..2), output(0, 1, 1..2), output(0, 1, 0..1), completed(0, 1, 2)]);
    assert_eq!(story.state(0), "completed");
}

#[test]
fn what_is_withheld_does_not_count() {
    let rules = Rules { output_bytes_max: NonZeroU64::new(4), ..Rules::default() };
    let guarded = CallSpec { required_hooks: vec!["redact".into()], ..once("a") };
    let mut story = Story::under(rules, [guarded, repeatable("b")]);
    story.tell_all([dispatched(0), started(0, 1), dispatched(1), started(1, 1)]);
    story.tell_all([output(0, 1, 0..1), completed(0, 1, 1), completed(1, 1, 0)]);
    assert_eq!(kind(&story, 0), Some(ErrorKind::HookRequired));
    assert_eq!(story.state(1), "completed");
}
