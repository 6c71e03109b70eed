//! Calls that require hooks of their workers.

mod story;

use story::{Story, attempt, completed, dispatched, ended, output, repeatable, returned, started, text};
use toolyard_run::{
    AttemptOutcome, CallError, CallSpec, Completion, ErrorKind, Fact, Fields, FloorPolicy, Outcome, Stopped,
};

fn requiring(name: &str) -> CallSpec {
    CallSpec { required_hooks: vec!["redact".to_owned()], ..repeatable(name) }
}

fn story() -> Story {
    let mut story = Story::of([requiring("a")]);
    story.tell(dispatched(0));
    story
}

fn error(story: &Story) -> &CallError {
    match story.call(0).outcome() {
        Some(Outcome::Failed(error)) => error,
        other => panic!("it did not fail: {other:?}"),
    }
}

#[test]
fn output_and_result_of_a_worker_that_runs_the_required_hooks_count() {
    let mut story = story();
    story.tell_hooked([started(0, 1), output(0, 1, 0..2)]);
    story.tell_hooked([completed(0, 1, 2)]);
    assert_eq!(story.call(0).outcome(), Some(&Outcome::Completed(text("done"))));
    assert!(story.spoken(FloorPolicy::Arrival).iter().any(|said| said == "0 says 0..2 of attempt 1"));
}

#[test]
fn nothing_of_a_worker_that_lacks_them_is_heard_and_its_result_is_withheld() {
    let mut story = story();
    story.tell(started(0, 1));
    let heard = story.tell(output(0, 1, 0..2));
    assert!(!heard.iter().any(|fact| matches!(fact, Fact::Output { .. })), "{heard:?}");
    let fields = [("key".to_owned(), "\"secret\"".to_owned())];
    let completion = Completion { result: text("secret"), extra_state: fields.into_iter().collect() };
    story.tell(ended(0, 1, AttemptOutcome::Completed(completion)));
    let error = error(&story);
    assert_eq!(error.kind, ErrorKind::HookRequired);
    assert!(error.message.contains("redact") && !error.message.contains("secret"), "{}", error.message);
    assert_eq!(*story.call(0).extra_state(), Fields::default());
    let spoken = story.spoken(FloorPolicy::Arrival);
    assert!(!spoken.iter().any(|said| said.contains("says")), "{spoken:?}");
}

#[test]
fn the_text_of_its_error_is_withheld_too_and_the_call_is_not_tried_again() {
    let mut story = story();
    story.tell(started(0, 1));
    let secret = CallError::new(ErrorKind::ToolFailed, "secret").retryable();
    story.tell(ended(0, 1, AttemptOutcome::Failed(secret)));
    assert_eq!(error(&story).kind, ErrorKind::HookRequired);
    assert!(!error(&story).message.contains("secret"));
}

#[test]
fn an_end_without_content_means_what_it_meant() {
    let mut given_back = story();
    given_back.tell(started(0, 1));
    given_back.tell(returned(0, 1));
    assert_eq!(given_back.state(0), "queued");
    let mut lost = story();
    lost.tell(started(0, 1));
    let effect_unknown = CallError::new(ErrorKind::Interrupted, "secret");
    lost.tell(ended(0, 1, AttemptOutcome::Failed(effect_unknown)));
    assert_eq!(error(&lost).kind, ErrorKind::Interrupted);
    assert!(!error(&lost).message.contains("secret"), "{}", error(&lost).message);
    let mut cancelled = story();
    cancelled.tell(started(0, 1));
    cancelled.tell(story::cancel_requested(0));
    cancelled.tell(ended(0, 1, AttemptOutcome::Cancelled));
    let expected = Outcome::Cancelled { reason: "not needed".to_owned(), stopped: Stopped::Confirmed };
    assert_eq!(cancelled.call(0).outcome(), Some(&expected));
}

#[test]
fn a_worker_with_the_hooks_goes_on_after_one_without_them() {
    let mut story = story();
    story.tell_together([started(0, 1), output(0, 1, 0..1)]);
    story.tell(returned(0, 1));
    story.tell_hooked([started(0, 2), output(0, 2, 0..1)]);
    story.tell_hooked([completed(0, 2, 1)]);
    assert_eq!(story.state(0), "completed");
    assert_eq!(story.call(0).newest_attempt(), Some(attempt(0, 2).number));
}

#[test]
fn a_call_that_requires_none_hears_every_worker() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), started(0, 1), output(0, 1, 0..1), completed(0, 1, 1)]);
    assert_eq!(story.state(0), "completed");
}
