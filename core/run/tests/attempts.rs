//! Attempts of a call and their output: continuing, holding back, stopping, and unknown numbers.

mod story;

use std::time::Duration;

use story::{
    START, Story, attempt, cancel_requested, client, completed, continued, dispatched, ended, ended_as, error, expired,
    failed_for_now, in_mode, once, output, output_as, repeatable, returned, run_cancel_requested, started, stopping,
};
use toolyard_run::FloorPolicy::{Arrival, Interleaved, Submission};
use toolyard_run::{
    AfterPartialOutput, AttemptId, AttemptNumber, AttemptOutcome, CallIndex, CallSpec, ChunkIndex, Concurrency,
    ErrorKind, Event, Fact, Nonce, Outcome, StopStage, Stopped, Timestamp, Verdict, limit,
};

fn going_on() -> Story {
    let mut story = Story::of([in_mode("a", AfterPartialOutput::Continue)]);
    story.tell_all([dispatched(0), started(0, 1), output(0, 1, 0..2)]);
    story
}

fn holding_back() -> Story {
    let mut story = Story::of([in_mode("a", AfterPartialOutput::Buffer)]);
    story.tell_all([dispatched(0), started(0, 1), output(0, 1, 0..2)]);
    story
}

fn assert_floor(story: &Story, expected: &[&str]) {
    for policy in [Arrival, Submission, Interleaved] {
        assert_eq!(story.floor(policy), expected, "{policy:?}");
    }
}

fn go_on_from(story: &Story) -> u32 {
    let Verdict::Go { from: ChunkIndex(from), .. } = story.call(0).verdict(2, START) else { panic!("it goes on") };
    from
}

// ---- going on ----

#[test]
fn an_attempt_goes_on_where_the_one_before_it_broke_off() {
    for mut story in [going_on(), { going_on().told(failed_for_now(0, 1)) }, { going_on().told(returned(0, 1)) }] {
        assert_eq!(go_on_from(&story), 2);
        story.tell_all([continued(0, 2, 2), output(0, 2, 2..4), completed(0, 2, 4)]);
        let expected = ["0 speaks", "0 says 0..2 of attempt 1", "0 says 2..4 of attempt 2", "0 ended"];
        assert_floor(&story, &expected);
        assert_eq!(story.state(0), "completed");
    }
}

#[test]
fn an_attempt_that_has_nothing_to_add_ends_with_what_was_said_before() {
    let story = going_on().told(continued(0, 2, 2)).told(completed(0, 2, 2));
    assert_eq!(story.state(0), "completed");
    let story = going_on().told(continued(0, 2, 2)).told(completed(0, 2, 0));
    assert_eq!(story.state(0), "failed", "the number of its next chunk is what it ends with");
}

#[test]
fn a_lost_attempt_is_not_heard_once_another_goes_on() {
    let mut story = going_on().told(continued(0, 2, 2));
    assert_eq!(story.tell(output(0, 1, 2..3)), []);
    story.tell_all([output(0, 2, 2..3), output(0, 1, 3..4), completed(0, 2, 3)]);
    assert_floor(&story, &["0 speaks", "0 says 0..2 of attempt 1", "0 says 2..3 of attempt 2", "0 ended"]);
}

#[test]
fn what_waited_for_an_earlier_chunk_is_not_gone_on_from() {
    let mut story = going_on().told(output(0, 1, 3..4));
    assert_eq!(go_on_from(&story), 2);
    story.tell_all([continued(0, 2, 2), output(0, 2, 2..3)]);
    assert_eq!(go_on_from(&story), 3, "the lost attempt's chunk 3 is not taken for its own");
}

/// Its start was not stored behind the last output, as it should be. Nothing is said twice or left out unnoticed.
#[test]
fn an_attempt_that_goes_on_from_elsewhere_is_not_believed() {
    for from in [1, 3, u32::MAX] {
        let mut story = going_on();
        let heard = story.tell(continued(0, 2, from));
        assert_eq!(heard, [Fact::AttemptStarted { attempt: attempt(0, 2), continues: false }]);
        story.tell_all([output(0, 2, 3..4), completed(0, 2, 4)]);
        let Some(Outcome::Failed(failure)) = story.call(0).outcome() else { panic!("it lacks chunks") };
        assert_eq!(failure.kind, ErrorKind::OutputIncomplete);
        assert_floor(&story, &["0 speaks", "0 says 0..2 of attempt 1", "0 withdraws attempt 1", "0 ended"]);
    }
}

#[test]
fn only_where_its_tool_can_does_an_attempt_go_on() {
    for mode in [AfterPartialOutput::Restart, AfterPartialOutput::Buffer] {
        let mut story = Story::of([in_mode("a", mode)]);
        story.tell_all([dispatched(0), output(0, 1, 0..2)]);
        assert_eq!(go_on_from(&story), 0);
        let heard = story.tell(continued(0, 2, 2));
        assert_eq!(heard, [Fact::AttemptStarted { attempt: attempt(0, 2), continues: false }]);
        story.tell_all([output(0, 2, 0..1), completed(0, 2, 1)]);
        assert_eq!(story.state(0), "completed");
    }
}

#[test]
fn an_attempt_that_begins_anew_withdraws_all_that_was_gone_on_from() {
    let mut story = going_on();
    story.tell_all([continued(0, 2, 2), output(0, 2, 2..3), started(0, 3), output(0, 3, 0..1), completed(0, 3, 1)]);
    let expected = [
        "0 speaks",
        "0 says 0..2 of attempt 1",
        "0 says 2..3 of attempt 2",
        "0 withdraws attempt 2",
        "0 says 0..1 of attempt 3",
        "0 ended",
    ];
    assert_floor(&story, &expected);
}

#[test]
fn what_is_gone_on_from_keeps_its_place_in_the_queue_for_the_floor() {
    let mut story = Story::of([repeatable("a"), in_mode("b", AfterPartialOutput::Continue)]);
    story.tell_all([dispatched(0), dispatched(1), output(0, 1, 0..1), output(1, 1, 0..2), continued(1, 2, 2)]);
    story.tell_all([output(1, 2, 2..3), completed(0, 1, 1), completed(1, 2, 3)]);
    for policy in [Arrival, Submission] {
        let expected = ["1 speaks", "1 says 0..2 of attempt 1", "1 says 2..3 of attempt 2", "1 ended"];
        assert_eq!(story.floor(policy)[3..], expected);
    }
}

// ---- holding back ----

#[test]
fn what_is_held_back_is_said_once_as_the_call_ends() {
    let mut story = holding_back();
    story.tell_all([output(0, 1, 1..3), output(0, 1, 0..2)]);
    assert_floor(&story, &[]);
    story.tell(completed(0, 1, 3));
    assert_floor(&story, &["0 speaks", "0 says 0..2 of attempt 1", "0 says 2..3 of attempt 1", "0 ended"]);
}

#[test]
fn of_what_is_held_back_only_the_last_attempts_is_said_and_nothing_withdrawn() {
    let mut story = holding_back();
    story.tell_all([failed_for_now(0, 1), output(0, 2, 0..1), output(0, 1, 2..3), completed(0, 2, 1)]);
    assert_floor(&story, &["0 speaks", "0 says 0..1 of attempt 2", "0 ended"]);
}

#[test]
fn what_is_held_back_is_said_however_the_call_ends() {
    let incomplete = completed(0, 1, 9);
    let cancelled = Event::CallCancelled { call: CallIndex(0) };
    for end in [ended(0, 1, AttemptOutcome::Failed(error(ErrorKind::ToolFailed))), expired(0), incomplete, cancelled] {
        assert_floor(&holding_back().told(end), &["0 speaks", "0 says 0..2 of attempt 1", "0 ended"]);
    }
    let waiting = holding_back().told(failed_for_now(0, 1)).told(expired(0));
    assert_floor(&waiting, &["0 speaks", "0 says 0..2 of attempt 1", "0 ended"]);
}

// ---- stopping ----

#[test]
fn each_stage_of_stopping_is_heard_once_and_only_where_it_was_asked_for() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), started(0, 1)]);
    assert_eq!(story.tell(stopping(0, 1, StopStage::Delivered)), [], "nobody asked");
    story.tell(cancel_requested(0));
    for stage in [StopStage::Delivered, StopStage::Acknowledged] {
        let heard = Fact::AttemptStopping { attempt: attempt(0, 1), stage };
        assert_eq!(story.tell(stopping(0, 1, stage)), [heard]);
        assert_eq!(story.tell(stopping(0, 1, stage)), []);
    }
    let cancelling = story.call(0).cancelling().expect("it was asked for");
    assert_eq!((cancelling.delivered_at, cancelling.acknowledged_at), (Some(START), Some(START)));
}

#[test]
fn what_an_older_attempt_heard_of_stopping_the_newer_did_not() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), started(0, 1), cancel_requested(0), stopping(0, 1, StopStage::Acknowledged)]);
    story.tell(started(0, 2));
    assert_eq!(story.tell(stopping(0, 1, StopStage::Delivered)), []);
    assert_eq!(story.tell(stopping(0, 3, StopStage::Delivered)), [], "nor is an attempt introduced by it");
    let cancelling = story.call(0).cancelling().expect("it was asked for");
    assert_eq!((cancelling.delivered_at, cancelling.acknowledged_at), (None, None));
}

#[test]
fn another_pool_is_not_heard_about_stopping() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), started(0, 1), cancel_requested(0)]);
    let (attempt, pool) = (attempt(0, 1), story::pool("beta"));
    assert_eq!(story.tell(Event::AttemptStopping { attempt, pool, stage: StopStage::Delivered }), []);
}

#[test]
fn what_is_known_of_a_cancelled_calls_execution() {
    let lost = |kind| ended(0, 1, AttemptOutcome::Failed(error(kind)));
    let again = |end| vec![started(0, 1), started(0, 2), cancel_requested(0), end];
    let stopping = |end| vec![started(0, 1), cancel_requested(0), end];
    let stopped = |number| ended(0, number, AttemptOutcome::Cancelled);
    let given_up = || Event::CallCancelled { call: CallIndex(0) };
    let table = [
        (once("a"), vec![cancel_requested(0)], Stopped::NotRunning),
        // A worker calls a repeatable tool before the start is in the log.
        (repeatable("a"), vec![cancel_requested(0)], Stopped::Unconfirmed),
        (repeatable("a"), vec![started(0, 1), returned(0, 1), cancel_requested(0)], Stopped::Unconfirmed),
        (once("a"), stopping(stopped(1)), Stopped::Confirmed),
        (once("a"), stopping(returned(0, 1)), Stopped::Confirmed),
        (once("a"), stopping(lost(ErrorKind::Interrupted)), Stopped::Unconfirmed),
        (repeatable("a"), stopping(lost(ErrorKind::WorkerLost)), Stopped::Unconfirmed),
        (once("a"), stopping(given_up()), Stopped::Unconfirmed),
        (repeatable("a"), again(stopped(2)), Stopped::Confirmed),
        // Of the first of the two nobody knows.
        (once("a"), again(stopped(2)), Stopped::Unconfirmed),
        (once("a"), again(returned(0, 2)), Stopped::Unconfirmed),
    ];
    for (call, events, expected) in table {
        let mut story = Story::of([call]);
        story.tell(dispatched(0));
        story.tell_all(events.clone());
        let Some(Outcome::Cancelled { stopped, .. }) = story.call(0).outcome() else { panic!("after {events:?}") };
        assert_eq!(*stopped, expected, "after {events:?}");
    }
}

#[test]
fn a_cancelled_call_was_not_running_only_if_its_job_cannot_be_in_the_log() {
    let stopped = |story: &Story, call: u16| match story.call(call).outcome() {
        Some(Outcome::Cancelled { stopped, .. }) => *stopped,
        other => panic!("call {call} is {other:?}"),
    };

    let alone = |id| CallSpec { concurrency: Concurrency::Exclusive, ..repeatable(id) };
    let mut story = Story::of([alone("turn"), alone("held"), client("asks"), once("also held")]);
    story.tell(run_cancel_requested());
    assert_eq!(stopped(&story, 0), Stopped::Unconfirmed, "an owner may have dispatched it just before");
    assert_eq!(stopped(&story, 1), Stopped::NotRunning, "its turn comes with the cancel of the call ahead of it");
    assert_eq!(stopped(&story, 2), Stopped::NotRunning);
    assert_eq!(stopped(&story, 3), Stopped::NotRunning);

    let mut story = Story::of([alone("turn"), alone("held")]);
    story.tell(cancel_requested(1));
    assert_eq!(stopped(&story, 1), Stopped::NotRunning);
    story.tell(cancel_requested(0));
    assert_eq!(stopped(&story, 0), Stopped::Unconfirmed);
}

// ---- numbers ----

#[test]
fn a_number_that_nobody_gave_does_not_stop_the_honest() {
    let mut story = Story::of([repeatable("a")]);
    story.tell(dispatched(0));
    for number in [0, u32::MAX, limit::ATTEMPTS_SKIPPED_MAX + 1] {
        assert_eq!(story.tell(started(0, number)), []);
        assert_eq!(story.tell(completed(0, number, 0)), []);
    }
    story.tell_all([started(0, 1), started(0, u32::MAX), output(0, 1, 0..1), completed(0, 1, 1)]);
    assert_eq!(story.state(0), "completed");
}

#[test]
fn a_number_as_high_as_may_be_is_heard_and_so_is_the_next() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), started(0, limit::ATTEMPTS_SKIPPED_MAX)]);
    let Verdict::Go { number, .. } = story.call(0).verdict(2, START) else { panic!("it goes on") };
    assert_eq!(number, AttemptNumber(limit::ATTEMPTS_SKIPPED_MAX + 1));
    story.tell(started(0, number.0));
    assert_eq!(story.call(0).attempts_used(), 2);
}

#[test]
fn an_end_introduces_its_attempt_but_not_that_of_a_twin() {
    let mut story = Story::of([once("a")]);
    story.tell_all([dispatched(0), returned(0, 1)]);
    assert_eq!((story.state(0), story.call(0).attempts_used()), ("queued", 0));
    let twin = AttemptId { nonce: Nonce(99), ..attempt(0, 1) };
    assert_eq!(story.tell(ended_as(twin, "alpha", 0, AttemptOutcome::Cancelled)), []);
    assert_eq!(story.tell(output_as(twin, "alpha", 0..1)), []);
}

#[test]
fn the_latest_failures_are_kept_and_no_more() {
    let mut story = Story::of([repeatable("a")]);
    story.tell(dispatched(0));
    for number in 1..=limit::FAILURES_KEPT_MAX as u32 + 3 {
        story.wait(Duration::from_secs(1));
        story.tell(started(0, number));
    }
    let kept: Vec<u32> = story.call(0).failures().iter().map(|failure| failure.number.0).collect();
    assert_eq!(kept, (3..3 + limit::FAILURES_KEPT_MAX as u32).collect::<Vec<_>>());
    assert!(story.call(0).failures().iter().all(|failure| failure.at > Timestamp(0)));
}
