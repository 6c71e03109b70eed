//! The explanation of a call for people: one line, in every state.

mod story;

use std::time::Duration;

use story::{
    START, Story, answered, cancel_requested, client, completed, dispatched, ended, exclusive, expired_by,
    failed_for_now, no_worker_lives, once, refused, repeatable, returned, started, stopping,
};
use toolyard_run::{
    AttemptOutcome, CallError, CallIndex, CallSpec, DeadlineKind, ErrorKind, Event, StopStage, WithoutWorker,
};

#[test]
fn what_a_call_waits_for_or_why_it_ended() {
    let with = |call: CallSpec, events: Vec<Event>| {
        let mut story = Story::of([call]);
        story.tell_all(events);
        story.wait(Duration::from_secs(3));
        story
    };
    let on = |call: CallSpec, events: Vec<Event>| {
        with(call, [dispatched(0), started(0, 1)].into_iter().chain(events).collect())
    };
    let hasty = CallSpec { without_worker: WithoutWorker::Fail, ..repeatable("a") };
    let guarded = || CallSpec { required_hooks: vec!["redact".into(), "log".into()], ..repeatable("a") };
    let many_words = CallError::new(ErrorKind::ToolFailed, format!("first line\nsecond {}", "x".repeat(200)));
    let told = |reason: &str| Event::CallCancelRequested { call: CallIndex(0), reason: reason.into() };
    #[rustfmt::skip]
    let table = [
        (with(repeatable("a"), vec![]), None, "accepted 3.0 s ago; the owner of its shard"),
        (with(client("a"), vec![]), None, "has been waiting for its client for 3.0 s; without an answer it expires in 29 min 57 s"),
        (with(repeatable("a"), vec![dispatched(0)]), None, "has been queued in pool alpha for 3.0 s: it waits for a worker of the pool"),
        (with(repeatable("a"), vec![dispatched(0)]), Some(0), "no worker of the pool that hosts the tool takes calls: start one"),
        (with(repeatable("a"), vec![dispatched(0)]), Some(1), "the only worker that hosts the tool has no free slot"),
        (with(repeatable("a"), vec![dispatched(0)]), Some(5), "none of the 5 workers that host the tool has a free slot"),
        (with(hasty, vec![dispatched(0)]), Some(0), "it is about to fail"),
        (with(guarded(), vec![dispatched(0)]), Some(0), "that hosts the tool and runs the required hooks (redact, log) takes calls: start one with the file"),
        (with(guarded(), vec![dispatched(0)]), Some(2), "none of the 2 workers that host the tool and run the required hooks (redact, log) has"),
        (on(repeatable("a"), vec![returned(0, 1)]), None, "a worker that shut down returned it"),
        (on(repeatable("a"), vec![failed_for_now(0, 1)]), None, "attempt 1 failed (TOOL_FAILED: it broke), and the next one begins"),
        (on(repeatable("a"), vec![]), None, "attempt 1 has been running on worker-1 for 3.0 s, its last output was 3.0 s ago, and it has 4 min 57 s left"),
        (on(repeatable("a"), vec![cancel_requested(0)]), None, "cancelling has been requested for 3.0 s (not needed): its worker has not confirmed it yet"),
        (on(repeatable("a"), vec![cancel_requested(0), stopping(0, 1, StopStage::Delivered)]), None, "its worker has notified the tool"),
        (on(repeatable("a"), vec![cancel_requested(0), stopping(0, 1, StopStage::Acknowledged)]), None, "about to end"),
        (on(repeatable("a"), vec![completed(0, 1, 0)]), None, "completed 0.0 s after it was accepted, in 1 attempt"),
        (on(repeatable("a"), vec![ended(0, 1, AttemptOutcome::Failed(many_words))]), None, "failed (TOOL_FAILED: first line …)"),
        (on(once("a"), vec![told("two\nlines"), ended(0, 1, AttemptOutcome::Cancelled)]), None, "cancelled (two …); its attempt has stopped"),
        (on(once("a"), vec![told(""), Event::CallCancelled { call: CallIndex(0) }]), None, "its effect may have happened"),
        (on(once("a"), vec![told(""), ended(0, 1, AttemptOutcome::Cancelled)]), None, "cancelled; its attempt has stopped"),
        (with(once("a"), vec![cancel_requested(0)]), None, "it was not running"),
        (with(client("a"), vec![answered(0, "yes")]), None, "completed"),
        (with(refused("a"), vec![]), None, "failed (UNKNOWN_TOOL: it broke) 0.0 s after it was accepted, without an attempt"),
        (with(once("a"), vec![dispatched(0), no_worker_lives(0)]), None, "parked: redrive or drop it"),
        (with(once("a"), vec![dispatched(0), no_worker_lives(0), Event::CallDropped { call: CallIndex(0) }]), None, "parked and dropped"),
        (with(once("a"), vec![expired_by(0, DeadlineKind::Queue)]), None, "expired: no worker took it up before its queue deadline"),
    ];
    for (story, workers, expected) in table {
        let why = story.run.why(story.call(0), story.now, workers);
        assert!(why.contains(expected), "{why:?} does not say {expected:?}");
        assert_eq!(why.lines().count(), 1);
    }
}

#[test]
fn a_call_that_waits_for_its_turn_says_behind_whom() {
    let mut story = Story::of([repeatable("a"), exclusive("b"), repeatable("c")]);
    story.tell_all([dispatched(0), started(0, 1)]);
    let why = |index| story.run.why(story.call(index), story.now, None);
    assert!(why(1).contains(
        "for its turn for 0.0 s: call a is ahead of it and running, and this call is exclusive; it expires in"
    ));
    assert!(why(2).contains("call b is ahead of it and accepted, and that call is exclusive"), "{}", why(2));
}

#[test]
fn a_clock_that_runs_behind_the_log_spoils_nothing() {
    let story = Story::of([once("a")]).told(dispatched(0)).told(started(0, 1));
    let earlier = toolyard_run::Timestamp(START.0 - 60_000);
    assert!(story.run.why(story.call(0), earlier, None).contains("for 0.0 s"));
}
