//! One call: the effect of each event in each state, and the verdict on its job.

mod story;

use std::time::Duration;

use bytes::Bytes;
use story::{
    START, Story, answered, attempt, cancel_requested, client, completed, dispatched, ended, ended_as, error, expired,
    expired_by, failed, failed_for_now, id, no_worker_lives, once, opened, output, output_as, refused, repeatable,
    returned, run_cancel_requested, run_erase_requested, run_id, started, started_as, stopping, text, with_policy,
    worker,
};
use toolyard_run::{
    AttemptId, AttemptNumber, AttemptOutcome, Backoff, CallError, CallIndex, CallState, ChunkIndex, DeadlineKind,
    Effects, ErrorKind, Event, Fact, Nonce, Outcome, Policy, Retry, RetryOn, RunStatus, StopStage, Stopped, Verdict,
    after_failure, limit,
};

// ---- transitions ----

/// Call 0 in each of its states, beside call 1 that keeps the run open.
fn states() -> [Story; 6] {
    let accepted = Story::of([repeatable("a"), client("other")]);
    let waiting = Story::of([client("a"), client("other")]);
    let after = |story: &Story, event| {
        let mut story = story.clone();
        story.tell(event);
        story
    };
    let queued = after(&accepted, dispatched(0));
    let running = after(&queued, started(0, 1));
    let stopping = after(&running, cancel_requested(0));
    let ended = after(&running, failed(0, 1));
    [accepted, waiting, queued, running, stopping, ended]
}

#[test]
fn every_event_in_every_state() {
    let claims_more = completed(0, 1, 5);
    let newer = ended_as(attempt(0, 7), "alpha", 0, AttemptOutcome::Completed(text("done").into()));
    let stopped = ended(0, 1, AttemptOutcome::Cancelled);
    let waited_too_long = expired_by(0, DeadlineKind::Queue);
    let silent_too_long = expired_by(0, DeadlineKind::Idle(AttemptNumber(1)));
    let told = stopping(0, 1, StopStage::Delivered);
    let redriven = Event::CallRedriven { call: CallIndex(0), into: run_id() };
    let dropped = Event::CallDropped { call: CallIndex(0) };
    let call_cancelled = Event::CallCancelled { call: CallIndex(0) };
    let refusal = Event::ClientAnswered { call: CallIndex(0), answer: Err(error(ErrorKind::ClientFailed)) };
    #[rustfmt::skip]
    let table = [
        // event                                          accepted  waiting   queued    running   stopping  ended
        ("dispatched",            dispatched(0),          "queued    waiting   queued    running   running   failed"),
        ("started",               started(0, 1),          "accepted  waiting   running   running   running   failed"),
        ("a newer one started",   started(0, 2),          "accepted  waiting   running   running   running   failed"),
        ("output",                output(0, 1, 0..1),     "accepted  waiting   running   running   running   failed"),
        ("completed",             completed(0, 1, 0),     "accepted  waiting   completed completed completed failed"),
        ("a newer one completed", newer,                  "accepted  waiting   completed completed completed failed"),
        ("completed, with gaps",  claims_more,            "accepted  waiting   failed    failed    failed    failed"),
        ("failed",                failed(0, 1),           "accepted  waiting   failed    failed    failed    failed"),
        ("failed for now",        failed_for_now(0, 1),   "accepted  waiting   queued    queued    cancelled failed"),
        ("returned",              returned(0, 1),         "accepted  waiting   queued    queued    cancelled failed"),
        ("stopped",               stopped,                "accepted  waiting   cancelled cancelled cancelled failed"),
        ("cancel requested",      cancel_requested(0),    "cancelled cancelled cancelled running   running   failed"),
        ("run cancel requested",  run_cancel_requested(), "cancelled cancelled cancelled running   running   failed"),
        ("run erase requested",   run_erase_requested(),  "cancelled cancelled cancelled running   running   failed"),
        ("cancelled",             call_cancelled,         "cancelled cancelled cancelled cancelled cancelled failed"),
        ("expired",               expired(0),             "expired   expired   expired   expired   expired   failed"),
        ("expired in the queue",  waited_too_long,        "expired   waiting   expired   running   running   failed"),
        ("expired in silence",    silent_too_long,        "accepted  waiting   queued    running   running   failed"),
        ("no worker lives",       no_worker_lives(0),     "failed    waiting   failed    running   running   failed"),
        ("told to stop",          told,                   "accepted  waiting   queued    running   running   failed"),
        ("redriven",              redriven,               "accepted  waiting   queued    running   running   failed"),
        ("dropped",               dropped,                "accepted  waiting   queued    running   running   failed"),
        ("run expired",           Event::RunExpired { without_worker: Vec::new() },      "expired   expired   expired   expired   expired   failed"),
        ("answered",              answered(0, "yes"),     "accepted  completed queued    running   running   failed"),
        ("answered with error",   refusal,                "accepted  failed    queued    running   running   failed"),
        ("opened again",          opened([], true),       "accepted  waiting   queued    running   running   failed"),
        ("closed",                Event::RunClosed,       "accepted  waiting   queued    running   running   failed"),
    ];
    for (name, event, expected) in table {
        let expected: Vec<&str> = expected.split_whitespace().collect();
        assert_eq!(expected.len(), states().len());
        for (mut story, expected) in states().into_iter().zip(expected) {
            let before = story.state(0);
            story.tell(event.clone());
            assert_eq!(story.state(0).split(' ').next(), Some(expected), "{name}, in state {before}");
        }
    }
}

#[test]
fn an_ended_call_is_changed_by_nothing_but_its_revision() {
    let [.., ended_story] = states();
    let events = [
        started(0, 2),
        output(0, 2, 0..1),
        completed(0, 2, 0),
        cancel_requested(0),
        expired(0),
        answered(0, "late"),
        Event::CallCancelled { call: CallIndex(0) },
    ];
    for event in events {
        let mut story = ended_story.clone();
        assert_eq!(story.tell(event.clone()), [], "{event:?}");
        assert_eq!(story.call(0).state(), ended_story.call(0).state());
        assert!(!story.call(0).cancel_requested());
    }
}

#[test]
fn nothing_is_heard_of_a_run_before_it_is_opened() {
    let mut story = Story::unopened();
    let before = story.run.clone();
    assert_eq!(
        story.tell_together([
            Event::RunExpired { without_worker: Vec::new() },
            run_cancel_requested(),
            started(0, 1),
            Event::RunClosed
        ]),
        []
    );
    assert_eq!(story.run, before);
    assert_eq!((story.run.opened_at(), story.run.next_deadline()), (None, None));
    assert_eq!(story.run.outstanding(story.now), []);
    assert_eq!(story.tell(opened([client("a")], false))[0], Fact::RunOpened);
}

#[test]
fn a_call_is_queued_by_the_entry_that_opens_its_run() {
    let mut story = Story::unopened();
    story.tell_together([opened([repeatable("a")], false), dispatched(0)]);
    assert_eq!(story.call(0).state(), &CallState::Queued { since: story.now });
    assert_eq!(story.run.revision(), 0, "the entry stands on the call's subject");
}

#[test]
fn a_refused_call_has_ended_as_it_is_accepted() {
    let story = Story::of([refused("a")]);
    assert_eq!(story.call(0).outcome(), Some(&Outcome::Failed(error(ErrorKind::UnknownTool))));
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn outcomes_keep_the_words_they_came_with() {
    let mut story = Story::of([repeatable("a"), client("b"), client("c"), client("d"), once("e")]);
    story.tell_all([dispatched(0), completed(0, 1, 0), answered(1, "yes"), cancel_requested(2), dispatched(4)]);
    story.tell(started(4, 2));
    story.tell(Event::CallExpired { call: CallIndex(4), deadline: DeadlineKind::Attempt(AttemptNumber(1)) });
    assert!(story.call(4).outcome().is_none(), "a newer attempt is not ended by the overrun of an older one");
    story.tell(expired_by(4, DeadlineKind::Attempt(AttemptNumber(2))));
    story.tell(Event::RunExpired { without_worker: Vec::new() });
    let outcomes: Vec<_> = story.run.calls().iter().map(|call| call.outcome().expect("all ended").clone()).collect();
    let expected = [
        Outcome::Completed(text("done")),
        Outcome::Completed(text("yes")),
        Outcome::Cancelled { reason: "not needed".into(), stopped: Stopped::NotRunning },
        Outcome::Expired(DeadlineKind::Run),
        Outcome::Expired(DeadlineKind::Attempt(AttemptNumber(2))),
    ];
    assert_eq!(outcomes, expected);
}

#[test]
fn an_attempt_whose_worker_is_silent_is_followed_by_another_where_its_policy_has_it_so() {
    let overran = |number| expired_by(0, DeadlineKind::Attempt(AttemptNumber(number)));
    let expired = |number| Some(Outcome::Expired(DeadlineKind::Attempt(AttemptNumber(number))));
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), started(0, 1), output(0, 1, 0..2), overran(1)]);
    assert_eq!(story.call(0).last_failure().expect("it is remembered").kind, ErrorKind::AttemptTimeout);
    story.tell_all([output(0, 1, 2..3), completed(0, 1, 3)]);
    assert_eq!(story.state(0), "queued", "what the silent one says later is not heard");
    story.tell_all([started(0, 2), overran(1), overran(2), started(0, 3), overran(3)]);
    assert_eq!(story.call(0).outcome().cloned(), expired(3), "it has used up its attempts");

    let mut story = Story::of([once("a")]);
    story.tell_all([dispatched(0), started(0, 1), overran(1)]);
    assert_eq!(story.call(0).outcome().cloned(), expired(1), "it must not be repeated");

    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), started(0, 1), cancel_requested(0), overran(1)]);
    let unconfirmed = Outcome::Cancelled { reason: "not needed".into(), stopped: Stopped::Unconfirmed };
    assert_eq!(story.call(0).outcome(), Some(&unconfirmed));
}

#[test]
fn a_call_whose_deadline_comes_while_it_runs_expires_by_its_workers_word() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), started(0, 1), ended(0, 1, AttemptOutcome::Expired)]);
    assert_eq!(story.call(0).outcome(), Some(&Outcome::Expired(DeadlineKind::Call)));
}

#[test]
fn a_cancelled_call_gives_the_reason_that_was_asked_for() {
    let table = [
        (Event::CallCancelled { call: CallIndex(0) }, Stopped::Unconfirmed),
        (returned(0, 1), Stopped::Confirmed),
        (failed_for_now(0, 1), Stopped::Confirmed),
    ];
    for (end, stopped) in table {
        let [.., mut stopping, _] = states();
        stopping.tell(end);
        assert_eq!(stopping.call(0).outcome(), Some(&Outcome::Cancelled { reason: "not needed".into(), stopped }));
    }
}

#[test]
fn the_first_cancel_request_is_the_one_that_counts() {
    let [.., mut stopping, _] = states();
    stopping.wait(Duration::from_secs(1));
    assert_eq!(stopping.tell(cancel_requested(0)), []);
    assert_eq!(stopping.run.next_deadline(), Some(story::START.after(limit::CANCEL_GRACE + limit::OVERRUN_GRACE)));
}

// ---- attempts ----

#[test]
fn output_may_overtake_the_start() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), output(0, 1, 0..1)]);
    assert_eq!(story.run.running_on(&worker("worker-1")).count(), 0);
    story.tell(started(0, 1));
    let running: Vec<_> = story.run.running_on(&worker("worker-1")).collect();
    assert_eq!(running, [(attempt(0, 1), &Bytes::from_static(b"lease"))]);
    assert_eq!(story.run.running_on(&worker("worker-2")).count(), 0);
    assert_eq!(story.call(0).attempts_used(), 1);
}

#[test]
fn an_older_attempt_is_not_heard_once_a_newer_one_began() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), started(0, 1), started(0, 3)]);
    let before = story.run.clone();
    for event in [started(0, 1), output(0, 2, 0..1), completed(0, 1, 0), failed(0, 2), returned(0, 2)] {
        assert_eq!(story.tell(event), []);
    }
    assert_eq!(story.run, before);
}

#[test]
fn of_two_attempts_with_one_number_the_first_is_heard() {
    let mut story = Story::of([repeatable("a")]);
    let twin = AttemptId { nonce: Nonce(99), ..attempt(0, 1) };
    story.tell_all([dispatched(0), started(0, 1)]);
    assert_eq!(story.tell(started_as(twin, "alpha")), []);
    assert_eq!(story.tell(output_as(twin, "alpha", 0..1)), []);
    story.tell(failed_for_now(0, 1));
    assert_eq!(story.tell(started_as(twin, "alpha")), [], "nor after the first has ended");
}

#[test]
fn an_attempt_that_ended_is_not_heard_again() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), output(0, 1, 0..2), failed_for_now(0, 1)]);
    let before = story.run.clone();
    for event in [started(0, 1), output(0, 1, 0..2), output(0, 1, 2..3), failed_for_now(0, 1)] {
        assert_eq!(story.tell(event), []);
    }
    assert_eq!(story.run, before);
}

#[test]
fn another_pool_is_not_heard() {
    for mut story in states() {
        let before = story.run.clone();
        let forged = attempt(0, 9);
        let outcome = AttemptOutcome::Completed(text("forged").into());
        story.tell(started_as(forged, "beta"));
        story.tell(output_as(forged, "beta", 0..1));
        story.tell(ended_as(forged, "beta", 0, outcome));
        assert_eq!(story.run, before);
    }
}

#[test]
fn a_call_that_the_run_does_not_have_is_not_heard_of() {
    let mut story = Story::of([repeatable("a")]);
    let before = story.run.clone();
    let unknown = CallIndex(u16::MAX);
    story.tell_all([
        dispatched(7),
        started(7, 1),
        output(7, 1, 0..1),
        completed(7, 1, 0),
        answered(7, "x"),
        expired(7),
    ]);
    story.tell_all([cancel_requested(7), Event::CallCancelled { call: unknown }]);
    assert_eq!(story.run, before);
}

#[test]
fn a_newer_attempt_uses_up_one_more_and_one_given_back_none() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), started(0, 1)]);
    assert_eq!(story.call(0).attempts_used(), 1);
    story.tell(started(0, 2));
    assert_eq!(story.call(0).attempts_used(), 2);
    story.tell(returned(0, 2));
    assert_eq!((story.call(0).attempts_used(), story.state(0)), (1, "queued"));
}

#[test]
fn retries_end_with_the_last_attempt_and_its_error() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), failed_for_now(0, 1), failed_for_now(0, 2)]);
    assert_eq!(story.state(0), "queued");
    assert_eq!(story.call(0).last_failure(), Some(&error(ErrorKind::ToolFailed).retryable()));
    let heard = story.tell(failed_for_now(0, 3));
    assert_eq!(story.call(0).outcome(), Some(&Outcome::Failed(error(ErrorKind::ToolFailed).retryable())));
    let ended = Fact::CallEnded { call: CallIndex(0) };
    let status = Fact::StatusChanged(RunStatus::Completed);
    assert_eq!(heard, [Fact::AttemptStarted { attempt: attempt(0, 3), continues: false }, ended, status]);
}

#[test]
fn a_result_whose_output_did_not_all_arrive_is_a_failure() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), output(0, 1, 0..1), output(0, 1, 2..3), completed(0, 1, 3)]);
    let Some(Outcome::Failed(failure)) = story.call(0).outcome() else { panic!("the worker took it for done") };
    assert_eq!(failure.kind, ErrorKind::OutputIncomplete);
    assert_eq!(failure.message, "1 of 3 chunks of output reached the log");
}

#[test]
fn a_result_that_comes_with_more_output_than_it_says_is_not_believed_either() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), output(0, 1, 0..2), completed(0, 1, 1)]);
    let Some(Outcome::Failed(failure)) = story.call(0).outcome() else { panic!("the worker took it for done") };
    assert_eq!(failure.kind, ErrorKind::OutputIncomplete);
}

#[test]
fn a_call_that_is_not_repeatable_is_not_tried_again_whatever_its_policy_allows_otherwise() {
    let policy = Policy { attempts_max: 3, ..Policy::of(Effects::default()) };
    for end in [failed_for_now(0, 1), completed(0, 1, 2)] {
        let mut story = Story::of([with_policy("a", policy.clone())]);
        story.tell_all([dispatched(0), started(0, 1), end]);
        assert_eq!(story.state(0), "failed");
        assert_eq!(story.call(0).verdict(2, START), Verdict::Drop);
    }
}

/// Two attempts of such a call happen where an owner that lags answers for it. The second was given back, but of the
/// first nobody knows how far it came.
#[test]
fn a_call_that_is_not_repeatable_is_interrupted_where_an_earlier_attempt_was_lost() {
    let mut story = Story::of([once("a")]);
    story.tell_all([dispatched(0), started(0, 1), started(0, 2), returned(0, 2)]);
    let Some(Outcome::Failed(failure)) = story.call(0).outcome() else { panic!("it must not run again") };
    assert_eq!(failure.kind, ErrorKind::Interrupted);

    let mut cancelled = Story::of([once("a")]);
    cancelled.tell_all([dispatched(0), started(0, 1), started(0, 2), cancel_requested(0), returned(0, 2)]);
    assert_eq!(cancelled.state(0), "cancelled");
}

// ---- verdicts ----

fn lost(kind: ErrorKind, message: &str) -> Verdict {
    Verdict::End { attempt: attempt(0, 1), outcome: AttemptOutcome::Failed(CallError::new(kind, message)) }
}

fn go(number: u32, used: u32) -> Verdict {
    Verdict::Go { number: AttemptNumber(number), used, from: ChunkIndex(0) }
}

fn verdict_after(spec: toolyard_run::CallSpec, events: impl IntoIterator<Item = Event>, delivered: u32) -> Verdict {
    let mut story = Story::of([spec]);
    story.tell_all(events);
    story.call(0).verdict(delivered, START)
}

#[test]
fn verdicts() {
    let interrupted = lost(
        ErrorKind::Interrupted,
        "the worker was lost while it ran tool, which is not safe to repeat: its effect may have happened",
    );
    let stopped = lost(ErrorKind::WorkerLost, "1 attempt was made, the last one was lost with its worker");
    let lost_for_good = stopped.clone();
    let overdue = |call: toolyard_run::CallSpec| toolyard_run::CallSpec { deadline: START, ..call };
    let hurried = |call: toolyard_run::CallSpec| toolyard_run::CallSpec { queue_deadline: Some(START), ..call };
    let policy = Policy::of(Effects { idempotent: true, ..Effects::default() });
    let not_when_lost = with_policy("a", Policy { retry_on: RetryOn { lost: false, ..policy.retry_on }, ..policy });
    let on = || vec![dispatched(0), started(0, 1)];
    let and = |more: Vec<Event>| on().into_iter().chain(more).collect::<Vec<_>>();
    let superseded = vec![dispatched(0), started(0, 1), started(0, 2), started(0, 3)];
    let used_up = Verdict::End {
        attempt: attempt(0, 3),
        outcome: AttemptOutcome::Failed(CallError::new(
            ErrorKind::WorkerLost,
            "3 attempts were made, the last one was lost with its worker",
        )),
    };
    let table = [
        ("first delivery, the job not yet seen here", repeatable("a"), vec![], 1, go(1, 0)),
        ("first delivery", repeatable("a"), vec![dispatched(0)], 1, go(1, 0)),
        ("redelivered, no start on record", once("a"), vec![dispatched(0)], 2, go(2, 0)),
        ("redelivered while running, repeatable", repeatable("a"), on(), 2, go(2, 1)),
        ("delivered more often than attempted", repeatable("a"), on(), 9, go(9, 1)),
        ("delivery count reset by the broker", repeatable("a"), on(), 1, go(2, 1)),
        ("redelivered while running, not repeatable", once("a"), on(), 2, interrupted.clone()),
        ("cancelled, repeatable", repeatable("a"), and(vec![cancel_requested(0)]), 2, stopped),
        ("cancelled, not repeatable", once("a"), and(vec![cancel_requested(0)]), 2, interrupted.clone()),
        ("cancelled in the queue", repeatable("a"), vec![dispatched(0), cancel_requested(0)], 1, Verdict::Drop),
        ("ended", repeatable("a"), and(vec![completed(0, 1, 0)]), 2, Verdict::Drop),
        ("expired", once("a"), and(vec![expired(0)]), 2, Verdict::Drop),
        ("attempts used up", repeatable("a"), superseded, 4, used_up),
        ("returned, repeatable", repeatable("a"), and(vec![returned(0, 1)]), 2, go(2, 0)),
        ("returned, not repeatable", once("a"), and(vec![returned(0, 1)]), 2, go(2, 0)),
        ("failed for now", repeatable("a"), and(vec![failed_for_now(0, 1)]), 2, go(2, 1)),
        ("overdue in the queue", overdue(repeatable("a")), vec![dispatched(0)], 1, Verdict::Drop),
        ("lost when it is overdue, repeatable", overdue(repeatable("a")), on(), 2, Verdict::Drop),
        ("lost when it is overdue, not repeatable", overdue(once("a")), on(), 2, interrupted),
        ("in the queue for too long", hurried(repeatable("a")), vec![dispatched(0)], 1, Verdict::Drop),
        ("in the queue again, for too long", hurried(repeatable("a")), and(vec![returned(0, 1)]), 2, go(2, 0)),
        ("lost, and not tried again for that", not_when_lost, on(), 2, lost_for_good),
        ("delivered unbelievably often", repeatable("a"), on(), u32::MAX, go(1 + limit::ATTEMPTS_SKIPPED_MAX, 1)),
        ("waits for the client", client("a"), vec![], 1, Verdict::Drop),
        ("refused", refused("a"), vec![], 1, Verdict::Drop),
    ];
    for (name, spec, events, delivered, expected) in table {
        assert_eq!(verdict_after(spec, events, delivered), expected, "{name}");
    }
}

#[test]
fn an_interrupted_call_fails_and_says_that_it_may_have_happened() {
    let mut story = Story::of([once("a")]);
    story.tell_all([dispatched(0), started(0, 1), output(0, 1, 0..2)]);
    let Verdict::End { attempt, outcome } = story.call(0).verdict(2, START) else { panic!("it must not run again") };
    story.tell(ended_as(attempt, "alpha", 0, outcome));
    let Some(Outcome::Failed(failure)) = story.call(0).outcome() else { panic!("it failed") };
    assert_eq!((failure.kind, failure.retryable), (ErrorKind::Interrupted, false));
}

#[test]
fn the_word_of_a_worker_taken_for_lost_counts_if_it_comes_first() {
    let mut story = Story::of([once("a")]);
    story.tell_all([dispatched(0), started(0, 1)]);
    let Verdict::End { attempt, outcome } = story.call(0).verdict(2, START) else { panic!("it must not run again") };
    story.tell(completed(0, 1, 0));
    assert_eq!(story.tell(ended_as(attempt, "alpha", 0, outcome)), []);
    assert_eq!(story.state(0), "completed");
}

// ---- retries ----

#[test]
fn the_rule_of_retrying() {
    let [passing, lasting] = [error(ErrorKind::ToolFailed).retryable(), error(ErrorKind::ToolFailed)];
    let repeatable = Policy::of(Effects { read_only: true, ..Effects::default() });
    let turned_round = RetryOn { retryable: false, timeout: false, panic: true, lost: false, other: true };
    let bold = Policy { retry_on: turned_round, ..repeatable };
    let once = Policy { attempts_max: 3, ..Policy::of(Effects { destructive: true, ..Effects::default() }) };
    let table = [
        (&repeatable, 1, &passing, Retry::Again { used: 1 }),
        (&repeatable, 2, &passing, Retry::Again { used: 2 }),
        (&repeatable, 3, &passing, Retry::GiveUp),
        (&repeatable, 1, &lasting, Retry::GiveUp),
        (&once, 1, &passing, Retry::GiveUp),
        (&repeatable, 1, &error(ErrorKind::AttemptTimeout), Retry::Again { used: 1 }),
        (&repeatable, 1, &error(ErrorKind::IdleTimeout), Retry::Again { used: 1 }),
        (&repeatable, 1, &error(ErrorKind::WorkerLost), Retry::Again { used: 1 }),
        (&repeatable, 1, &error(ErrorKind::ToolPanicked), Retry::GiveUp),
        (&bold, 1, &error(ErrorKind::ToolPanicked), Retry::Again { used: 1 }),
        (&bold, 1, &lasting, Retry::Again { used: 1 }),
        (&bold, 1, &passing, Retry::GiveUp),
        (&bold, 1, &error(ErrorKind::AttemptTimeout), Retry::GiveUp),
        (&bold, 1, &error(ErrorKind::ArgumentsInvalid), Retry::GiveUp),
        (&bold, 1, &error(ErrorKind::OutputIncomplete), Retry::GiveUp),
    ];
    for (policy, used, error, expected) in table {
        assert_eq!(after_failure(policy, used, error), expected, "{used} used, {policy:?}");
    }
}

#[test]
fn only_a_tool_that_says_so_is_repeatable() {
    let none = Effects::default();
    assert!(Effects { read_only: true, ..none }.repeatable());
    assert!(Effects { idempotent: true, destructive: true, ..none }.repeatable());
    assert!(!Effects { destructive: true, open_world: true, ..none }.repeatable());
    assert!(!none.repeatable());
    assert_eq!((Policy::of(none).attempts_max, Policy::of(none).repeatable), (1, false));
}

#[test]
fn waits_double_up_to_the_longest_and_jitter_only_lengthens() {
    let backoff = Backoff::default();
    let seconds: Vec<u64> = (1..=8).map(|failures| backoff.wait(failures, 0.0).as_secs()).collect();
    assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(backoff.wait(0, 0.0), Duration::from_secs(1));
    assert_eq!(backoff.wait(u32::MAX, 1.0), Duration::from_secs(75));
    assert_eq!(backoff.wait(1, 7.0), Duration::from_millis(1250));
}

#[test]
fn an_error_may_ask_for_a_longer_wait_and_never_for_a_shorter_one() {
    let (backoff, seconds) = (Backoff::default(), Duration::from_secs);
    let asked = |wait| error(ErrorKind::RateLimited).retryable_after(wait);
    assert_eq!(backoff.wait_after(&asked(seconds(20)), 1, 0.0), seconds(20));
    assert_eq!(backoff.wait_after(&asked(seconds(20)), 1, 1.0), seconds(25));
    assert_eq!(backoff.wait_after(&asked(seconds(20)), 6, 0.0), seconds(32));
    assert_eq!(backoff.wait_after(&error(ErrorKind::ToolFailed), 1, 0.0), seconds(1));
    assert_eq!(backoff.wait_after(&asked(seconds(1 << 40)), 1, 0.0), limit::RETRY_AFTER_MAX);
}

#[test]
fn only_what_another_attempt_may_mend_is_tried_again() {
    let policy = Policy::of(Effects { read_only: true, ..Effects::default() });
    let again = |error: CallError| after_failure(&policy, 1, &error) == Retry::Again { used: 1 };
    assert!(again(error(ErrorKind::RateLimited).retryable_after(Duration::ZERO)));
    assert!(!again(error(ErrorKind::ModelRetry).retryable()));
    assert!(!again(error(ErrorKind::NeedsInput).retryable()));
}

#[test]
fn the_longest_conceivable_wait_does_not_overflow() {
    let forever = Backoff { first: Duration::MAX, longest: Duration::MAX, jitter_percent: 25 };
    assert_eq!(forever.wait(u32::MAX, 1.0), Duration::MAX);
}

#[test]
fn calls_are_found_by_the_clients_id() {
    let story = Story::of([repeatable("a"), client("b")]);
    assert_eq!(story.run.find(&id("b")).map(toolyard_run::Call::index), Some(CallIndex(1)));
    assert!(story.run.find(&id("c")).is_none());
}
