//! The outstanding effects of a run, and its next deadline.

mod story;

use std::time::Duration;

use story::{
    CALL_LIFE, RUN_LIFE, START, Story, attempt, cancel_requested, client, completed, dispatched, expired_by, failed,
    failed_for_now, output, refused, repeatable, returned, run_cancel_requested, started, with_idle_timeout,
};
use toolyard_run::limit::{CANCEL_GRACE, OVERRUN_GRACE};
use toolyard_run::{AttemptNumber, CallIndex, CallSpec, DeadlineKind, Effect, Event, Policy, Timestamp};

const CALL: CallIndex = CallIndex(0);
const MS: Duration = Duration::from_millis(1);

fn overrun() -> Duration {
    Policy::ATTEMPT_TIMEOUT + OVERRUN_GRACE
}

fn overdue() -> Duration {
    CANCEL_GRACE + OVERRUN_GRACE
}

fn at(time: Duration) -> Timestamp {
    START.after(time)
}

fn before(time: Duration) -> Timestamp {
    at(time.checked_sub(MS).expect("a later time"))
}

#[test]
fn what_is_to_be_done_and_when() {
    let expire = |deadline| vec![Effect::Expire { call: CALL, deadline }];
    let story = |call, events: Vec<Event>| {
        let mut story = Story::of([call]);
        story.tell_all(events);
        story
    };
    let accepted = || story(repeatable("a"), vec![]);
    let waiting = || story(client("a"), vec![]);
    let queued = || story(repeatable("a"), vec![dispatched(0)]);
    let running = || story(repeatable("a"), vec![dispatched(0), started(0, 1)]);
    let stopping = || story(repeatable("a"), vec![dispatched(0), started(0, 1), cancel_requested(0)]);
    let ended = || story(repeatable("a"), vec![dispatched(0), completed(0, 1, 0)]);
    let stop = || vec![Effect::Stop { attempt: attempt(0, 1) }];
    let soon = Duration::from_secs(3);
    let hurried = |call: CallSpec| CallSpec { queue_deadline: Some(at(soon)), ..call };
    let late = |call: CallSpec| CallSpec { queue_deadline: Some(at(CALL_LIFE + MS)), ..call };
    let begun = |end: Event| story(hurried(repeatable("a")), vec![dispatched(0), started(0, 1), end]);
    let silent = |idle| story(with_idle_timeout("a", idle), vec![dispatched(0), started(0, 1)]);
    let silence = soon + OVERRUN_GRACE;
    let table = [
        (accepted(), START, vec![Effect::Dispatch { call: CALL }]),
        (accepted(), at(CALL_LIFE), expire(DeadlineKind::Call)),
        (waiting(), before(CALL_LIFE), vec![]),
        (waiting(), at(CALL_LIFE), expire(DeadlineKind::Client)),
        (queued(), before(CALL_LIFE), vec![]),
        (queued(), at(CALL_LIFE), expire(DeadlineKind::Call)),
        (running(), before(overrun()), vec![]),
        (running(), at(overrun()), expire(DeadlineKind::Attempt(AttemptNumber(1)))),
        (running(), at(CALL_LIFE), expire(DeadlineKind::Call)),
        (stopping(), START, stop()),
        (stopping(), before(overdue()), stop()),
        (stopping(), at(overdue()), vec![Effect::Cancel { call: CALL }]),
        (stopping(), at(CALL_LIFE), expire(DeadlineKind::Call)),
        (story(hurried(repeatable("a")), vec![]), before(soon), vec![Effect::Dispatch { call: CALL }]),
        (story(hurried(repeatable("a")), vec![]), at(soon), expire(DeadlineKind::Queue)),
        (story(hurried(repeatable("a")), vec![dispatched(0)]), before(soon), vec![]),
        (story(hurried(repeatable("a")), vec![dispatched(0)]), at(soon), expire(DeadlineKind::Queue)),
        (story(hurried(repeatable("a")), vec![dispatched(0)]), at(CALL_LIFE), expire(DeadlineKind::Call)),
        (story(late(repeatable("a")), vec![dispatched(0)]), at(CALL_LIFE), expire(DeadlineKind::Call)),
        (story(hurried(client("a")), vec![]), at(soon), vec![]),
        (begun(output(0, 1, 0..1)), at(soon), vec![]),
        (begun(failed_for_now(0, 1)), at(soon), vec![]),
        (begun(returned(0, 1)), at(soon), vec![]),
        (silent(soon), before(silence), vec![]),
        (silent(soon), at(silence), expire(DeadlineKind::Idle(AttemptNumber(1)))),
        (silent(Policy::ATTEMPT_TIMEOUT), at(overrun()), expire(DeadlineKind::Attempt(AttemptNumber(1)))),
        (running(), at(RUN_LIFE), vec![Effect::ExpireRun]),
        (Story::open([]), before(RUN_LIFE), vec![]),
        (Story::open([]), at(RUN_LIFE), vec![Effect::ExpireRun]),
        (ended(), at(RUN_LIFE), vec![]),
        (story(refused("a"), vec![]), at(RUN_LIFE), vec![]),
    ];
    for (story, now, expected) in table {
        assert_eq!(story.run.outstanding(now), expected, "{:?} at {now:?}", story.run.calls());
    }
}

#[test]
fn each_call_has_its_own_effect() {
    let mut story = Story::of([repeatable("a"), client("b"), repeatable("c"), repeatable("d")]);
    story.tell_all([dispatched(2), started(2, 1), cancel_requested(2)]);
    let expected = [
        Effect::Stop { attempt: attempt(2, 1) },
        Effect::Dispatch { call: CallIndex(0) },
        Effect::Dispatch { call: CallIndex(3) },
    ];
    assert_eq!(story.run.outstanding(START), expected);
}

#[test]
fn the_next_deadline_is_the_nearest() {
    let near = Duration::from_secs(3);
    let soon = |call: CallSpec| CallSpec { deadline: at(near), ..call };
    let mut story = Story::of([repeatable("a"), client("b")]);
    assert_eq!(story.run.next_deadline(), Some(at(CALL_LIFE)));
    story.tell_all([dispatched(0), started(0, 1)]);
    assert_eq!(story.run.next_deadline(), Some(at(overrun())));
    story.tell(run_cancel_requested());
    assert_eq!(story.run.next_deadline(), Some(at(overdue())));
    story.tell(Event::CallCancelled { call: CALL });
    assert_eq!(story.run.next_deadline(), None);

    assert_eq!(Story::of([repeatable("a"), soon(client("b"))]).run.next_deadline(), Some(at(near)));
    assert_eq!(Story::open([]).run.next_deadline(), Some(at(RUN_LIFE)));
}

#[test]
fn a_queue_deadline_is_looked_at_only_while_it_counts() {
    let near = Duration::from_secs(3);
    let hurried = |call: CallSpec| CallSpec { queue_deadline: Some(at(near)), ..call };
    let mut story = Story::of([hurried(repeatable("a"))]);
    assert_eq!(story.run.next_deadline(), Some(at(near)));
    story.tell_all([dispatched(0), started(0, 1)]);
    assert_eq!(story.run.next_deadline(), Some(at(overrun())));
    story.tell(returned(0, 1));
    assert_eq!(story.run.next_deadline(), Some(at(CALL_LIFE)));
    // It is in no queue: an owner who woke for it would find nothing to do, and wake again at once.
    assert_eq!(Story::of([hurried(client("a"))]).run.next_deadline(), Some(at(CALL_LIFE)));
}

#[test]
fn whatever_an_attempt_says_ends_its_silence() {
    let idle = Duration::from_secs(60);
    let mut story = Story::of([with_idle_timeout("a", idle)]);
    story.tell_all([dispatched(0), started(0, 1)]);
    story.wait(Duration::from_secs(50));
    story.tell(output(0, 1, 0..1));
    assert_eq!(story.run.next_deadline(), Some(story.now.after(idle + OVERRUN_GRACE)));
    // An owner that has not read it yet ends nothing.
    story.wait(Duration::from_secs(20));
    story.tell(expired_by(0, DeadlineKind::Idle(AttemptNumber(1))));
    assert_eq!(story.state(0), "running");
    story.wait(Duration::from_secs(40));
    story.tell(expired_by(0, DeadlineKind::Idle(AttemptNumber(1))));
    assert_eq!(story.state(0), "queued", "another attempt follows");
}

#[test]
fn a_run_that_fails_is_closed_by_its_owner() {
    let mut story = Story::failing_fast([repeatable("a"), repeatable("b"), client("c")], true);
    story.tell_all([dispatched(0), dispatched(1), started(1, 1), failed(0, 1)]);
    let stop = Effect::Stop { attempt: attempt(1, 1) };
    assert_eq!(story.run.outstanding(story.now), [Effect::Close, stop]);
    story.tell(Event::RunClosed);
    assert_eq!(story.run.outstanding(story.now), [stop]);
}

#[test]
fn a_deadline_that_was_met_is_not_looked_at_again() {
    let mut story = Story::of([repeatable("a"), client("b")]);
    story.tell_all([dispatched(0), started(0, 1), completed(0, 1, 0)]);
    assert_eq!(story.run.next_deadline(), Some(at(CALL_LIFE)));
}

/// Else the owner would wake at a time that has passed, find nothing to do, and wake again at once.
#[test]
fn an_attempt_that_is_being_stopped_is_looked_at_when_its_grace_is_over_and_not_when_it_overruns() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), started(0, 1)]);
    story.wait(Policy::ATTEMPT_TIMEOUT);
    story.tell(cancel_requested(0));
    let next = story.run.next_deadline().expect("the run goes on");
    assert_eq!(next, story.now.after(overdue()));
    assert_eq!(story.run.outstanding(next), [Effect::Cancel { call: CALL }]);
}
