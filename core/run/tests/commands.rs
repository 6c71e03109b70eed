//! Commands on a run: their events, and every rejection.

mod story;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use story::{
    RUN_LIFE, START, Story, answered, attempt, cancel_requested, client, completed, dispatched, ended, error, expired,
    expired_by, failed, failed_for_now, id, no_worker_lives, once, opened, refused, repeatable, run_cancel_requested,
    shared, started, text,
};
use toolyard_run::limit::{
    ARGUMENTS_BYTES_MAX, CALLS_PER_RUN_MAX, METADATA_BYTES_MAX, OPENING_BYTES_MAX, RESULT_BYTES_MAX, RUN_LIFE_MAX,
};
use toolyard_run::{
    Answer, AttemptNumber, AttemptOutcome, CallError, CallIndex, CallSpec, Command, CommandError, Content,
    DeadlineKind, Entry, ErrorKind, Event, Fact, Opening, Outcome, Requester, Role, Roles, Run, RunStatus,
};

#[test]
fn a_run_keeps_who_asked_for_it() {
    let requester = Requester {
        tenant: Some("acme".parse().unwrap()),
        caller: Some("shop/ada".parse().unwrap()),
        roles: Roles::from_iter([Role::Submit, Role::Read]),
    };
    let Requester { tenant, caller, roles } = requester.clone();
    let opening = Opening { tenant, caller, roles, ..opening([repeatable("a")]) };
    let events = Run::open(opening, START).unwrap();
    let mut run = Run::new("run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().unwrap());
    run.apply(&Entry { sequence: 1, at: START, not_after: None, hooked: false, events }, &mut Vec::new());
    assert_eq!(run.requester(), requester);
}

fn opening(calls: impl IntoIterator<Item = CallSpec>) -> Opening {
    Opening { calls: shared(calls), deadline: START.after(RUN_LIFE), ..Opening::default() }
}

fn with_metadata(name: &str, size: usize) -> CallSpec {
    let metadata = [("k".to_owned(), " ".repeat(size - 1))].into();
    CallSpec { metadata, ..repeatable(name) }
}

fn with_arguments(name: &str, size: usize) -> CallSpec {
    CallSpec { arguments: Bytes::from(vec![b' '; size]), ..repeatable(name) }
}

fn many(count: usize) -> Vec<CallSpec> {
    (0..count).map(|index| repeatable(&index.to_string())).collect()
}

fn append(calls: impl IntoIterator<Item = CallSpec>) -> Command {
    Command::AppendCalls { calls: shared(calls) }
}

fn answer(call: &str, output: Result<Vec<Content>, CallError>) -> Answer {
    Answer { call: id(call), output }
}

fn answers(answers: impl IntoIterator<Item = Answer>) -> Command {
    Command::SubmitOutputs { answers: answers.into_iter().collect(), all_required: false }
}

fn cancel(call: &str) -> Command {
    Command::CancelCall { call: id(call), reason: "not needed".into() }
}

fn cancel_run() -> Command {
    Command::CancelRun { reason: "not needed".into() }
}

fn decide(story: &Story, command: Command) -> Result<Vec<Event>, CommandError> {
    story.run.decide(command, story.now)
}

// ---- opening ----

#[test]
fn a_single_call_for_a_pool_is_dispatched_as_it_is_opened() {
    let alone = opening([repeatable("a")]);
    let opened_alone = opened([repeatable("a")], false);
    assert_eq!(Run::open(alone.clone(), START), Ok(vec![opened_alone, dispatched(0)]));
    for calls in [vec![client("a")], vec![refused("a")], vec![repeatable("a"), repeatable("b")]] {
        assert_eq!(Run::open(opening(calls.clone()), START), Ok(vec![opened(calls, false)]));
    }
    let to_be_continued = Opening { open: true, ..alone };
    assert_eq!(Run::open(to_be_continued, START), Ok(vec![opened([repeatable("a")], true)]));
}

#[test]
fn openings_that_are_refused() {
    let soon = |deadline| Opening { deadline, ..opening([repeatable("a")]) };
    let limit_s = RUN_LIFE_MAX.as_secs();
    let large = || (0..4).map(|index| with_arguments(&index.to_string(), ARGUMENTS_BYTES_MAX));
    let table = [
        (opening([]), CommandError::NoCalls),
        (soon(START), CommandError::DeadlinePassed),
        (soon(START.after(RUN_LIFE_MAX + Duration::from_millis(1))), CommandError::DeadlineTooFar { limit_s }),
        (
            opening(many(CALLS_PER_RUN_MAX + 1)),
            CommandError::TooManyCalls { count: CALLS_PER_RUN_MAX + 1, limit: CALLS_PER_RUN_MAX },
        ),
        (opening([repeatable("a"), client("b"), once("a")]), CommandError::DuplicateCallId { call: id("a") }),
        (
            opening([with_arguments("a", ARGUMENTS_BYTES_MAX + 1)]),
            CommandError::ArgumentsTooLarge {
                call: id("a"),
                size: ARGUMENTS_BYTES_MAX + 1,
                limit: ARGUMENTS_BYTES_MAX,
            },
        ),
        (
            opening([with_metadata("a", METADATA_BYTES_MAX + 1)]),
            CommandError::MetadataTooLarge { call: id("a"), size: METADATA_BYTES_MAX + 1, limit: METADATA_BYTES_MAX },
        ),
        (opening(large()), CommandError::RequestTooLarge { size: 4 * ARGUMENTS_BYTES_MAX, limit: OPENING_BYTES_MAX }),
    ];
    for (opening, rejection) in table {
        assert_eq!(Run::open(opening, START), Err(rejection));
    }
}

#[test]
fn openings_at_their_limits_are_taken() {
    let large = (0..3).map(|index| with_arguments(&index.to_string(), ARGUMENTS_BYTES_MAX));
    let table = [
        Opening { deadline: START.after(RUN_LIFE_MAX), ..opening([repeatable("a")]) },
        Opening { deadline: START.after(Duration::from_millis(1)), ..opening([repeatable("a")]) },
        Opening { open: true, ..opening([]) },
        opening(many(CALLS_PER_RUN_MAX)),
        opening(large),
    ];
    for opening in table {
        assert!(Run::open(opening, START).is_ok());
    }
}

// ---- appending and closing ----

#[test]
fn calls_are_appended_to_a_run_that_is_open() {
    let mut story = Story::open([repeatable("a")]);
    let events = decide(&story, append([client("b"), refused("c")])).expect("the run is open");
    let heard = story.tell_together(events);
    let expected = [
        Fact::CallsAppended { first: CallIndex(1), count: 2 },
        Fact::CallWaits { call: CallIndex(1) },
        Fact::CallEnded { call: CallIndex(2) },
    ];
    assert_eq!(heard, expected);
    assert_eq!(story.run.calls().len(), 3);
}

#[test]
fn calls_that_are_not_appended() {
    let open = || Story::open([repeatable("a")]);
    let late = {
        let mut story = open();
        story.wait(RUN_LIFE);
        story
    };
    let cancelled = {
        let mut story = open();
        story.tell_all([dispatched(0), started(0, 1), run_cancel_requested()]);
        story
    };
    let over = {
        let mut story = open();
        story.tell(Event::RunExpired { without_worker: Vec::new() });
        story
    };
    let full = Story::open(many(CALLS_PER_RUN_MAX));
    let too_many = CommandError::TooManyCalls { count: CALLS_PER_RUN_MAX + 1, limit: CALLS_PER_RUN_MAX };
    let table = [
        (open(), append([]), CommandError::NoCalls),
        (late, append([repeatable("b")]), CommandError::DeadlinePassed),
        (Story::of([repeatable("a")]), append([repeatable("b")]), CommandError::RunClosed),
        (cancelled, append([repeatable("b")]), CommandError::RunClosed),
        (over, append([repeatable("b")]), CommandError::RunEnded),
        (Story::unopened(), append([repeatable("b")]), CommandError::RunClosed),
        (full, append([repeatable("b")]), too_many),
        (open(), append([repeatable("a")]), CommandError::DuplicateCallId { call: id("a") }),
        (open(), append([repeatable("b"), repeatable("b")]), CommandError::DuplicateCallId { call: id("b") }),
    ];
    for (story, command, rejection) in table {
        assert_eq!(decide(&story, command), Err(rejection));
    }
}

#[test]
fn calls_appended_to_a_closed_run_are_not_heard() {
    let mut story = Story::of([client("a")]);
    let calls = vec![Arc::new(repeatable("b"))];
    assert_eq!(story.tell(Event::CallsAppended { calls }), []);
    assert_eq!(story.run.calls().len(), 1);
}

#[test]
fn a_run_is_closed_once() {
    let mut story = Story::open([]);
    assert_eq!(decide(&story, Command::Close), Ok(vec![Event::RunClosed]));
    let heard = story.tell(Event::RunClosed);
    assert_eq!(heard, [Fact::RunClosed, Fact::StatusChanged(RunStatus::Completed)]);
    assert_eq!(decide(&story, Command::Close), Ok(vec![]));
    assert_eq!(story.tell(Event::RunClosed), []);
}

// ---- answering ----

#[test]
fn answers_end_the_calls_that_wait_for_them() {
    let mut story = Story::of([client("a"), client("b")]);
    let failure = error(ErrorKind::ClientFailed);
    let command = answers([answer("b", Err(failure.clone())), answer("a", Ok(text("yes")))]);
    let events = decide(&story, command.clone()).expect("both wait");
    let refusal = Event::ClientAnswered { call: CallIndex(1), answer: Err(failure.clone()) };
    assert_eq!(events, [answered(0, "yes"), refusal], "an error may fail the run: it comes last");
    story.tell_all(events);
    assert_eq!(story.call(0).outcome(), Some(&Outcome::Completed(text("yes"))));
    assert_eq!(story.call(1).outcome(), Some(&Outcome::Failed(failure)));
    assert_eq!(decide(&story, command), Ok(vec![]), "the same answers again change nothing");
}

#[test]
fn one_answer_given_twice_in_a_request_counts_once() {
    let story = Story::of([client("a")]);
    let twice = answers([answer("a", Ok(text("yes"))), answer("a", Ok(text("yes")))]);
    assert_eq!(decide(&story, twice), Ok(vec![answered(0, "yes")]));
}

#[test]
fn an_answer_as_large_as_may_be_is_taken() {
    let story = Story::of([client("a")]);
    let half = Content::Text("x".repeat(RESULT_BYTES_MAX / 2));
    assert!(decide(&story, answers([answer("a", Ok(vec![half.clone(), half]))])).is_ok());
}

#[test]
fn answers_that_are_refused() {
    let fresh = || Story::of([client("a"), repeatable("b"), refused("c"), client("d")]);
    let after = |event| {
        let mut story = fresh();
        story.tell(event);
        story
    };
    let refusal = Event::ClientAnswered { call: CallIndex(0), answer: Err(error(ErrorKind::ClientFailed)) };
    let not_waiting = |call: &str, state| CommandError::CallNotWaiting { call: id(call), state };
    let already = || CommandError::AlreadyAnswered { call: id("a") };
    let yes = |call: &str| answer(call, Ok(text("yes")));
    let no = |call: &str| answer(call, Ok(text("no")));
    let size = RESULT_BYTES_MAX + 1;
    let large = vec![Content::Text("x".into()), Content::Json("x".repeat(RESULT_BYTES_MAX))];
    let table = [
        (fresh(), vec![], CommandError::NoAnswers),
        (fresh(), vec![yes("x")], CommandError::UnknownCall { call: id("x") }),
        (
            fresh(),
            vec![answer("a", Ok(large))],
            CommandError::OutputTooLarge { call: id("a"), size, limit: RESULT_BYTES_MAX },
        ),
        (fresh(), vec![yes("b")], not_waiting("b", "accepted")),
        (after(dispatched(1)), vec![yes("b")], not_waiting("b", "queued")),
        (fresh(), vec![yes("c")], not_waiting("c", "failed")),
        (after(cancel_requested(0)), vec![yes("a")], not_waiting("a", "cancelled")),
        (after(expired(0)), vec![yes("a")], not_waiting("a", "expired")),
        (after(answered(0, "no")), vec![yes("a")], already()),
        (after(refusal), vec![yes("a")], already()),
        (fresh(), vec![yes("a"), no("a")], already()),
        (fresh(), vec![yes("a"), yes("d"), yes("b")], not_waiting("b", "accepted")),
    ];
    for (story, given, rejection) in table {
        assert_eq!(decide(&story, answers(given)), Err(rejection));
    }
}

// ---- cancelling ----

#[test]
fn cancelling_asks_once_and_only_what_can_still_be_stopped() {
    let mut story = Story::of([repeatable("a"), client("b")]);
    story.tell_all([dispatched(0), started(0, 1)]);
    assert_eq!(decide(&story, cancel("a")), Ok(vec![cancel_requested(0)]));
    assert_eq!(decide(&story, cancel_run()), Ok(vec![run_cancel_requested()]));
    story.tell(cancel_requested(0));
    assert_eq!(decide(&story, cancel("a")), Ok(vec![]));
    story.tell(run_cancel_requested());
    assert_eq!((story.state(0), story.state(1)), ("running", "cancelled"));
    assert_eq!(decide(&story, cancel_run()), Ok(vec![]));
    story.tell(Event::CallCancelled { call: CallIndex(0) });
    assert_eq!(story.run.status(), RunStatus::Cancelled);
    assert_eq!(decide(&story, cancel("a")), Ok(vec![]));
    assert_eq!(decide(&story, cancel("x")), Err(CommandError::UnknownCall { call: id("x") }));
}

#[test]
fn cancelling_a_run_that_ended_does_not_rewrite_its_end() {
    let mut story = Story::of([client("a")]);
    story.tell(answered(0, "yes"));
    assert_eq!(decide(&story, cancel_run()), Ok(vec![]));
    assert_eq!(story.tell_together([run_cancel_requested(), Event::RunExpired { without_worker: Vec::new() }]), []);
    assert_eq!(story.run.status(), RunStatus::Completed);
}

// ---- failing fast ----

#[test]
fn a_call_that_fails_takes_the_others_along_where_that_was_asked_for() {
    let calls = || [repeatable("a"), repeatable("b"), client("c"), repeatable("d")];
    for end in [failed(0, 1), expired(0), completed(0, 1, 9)] {
        let mut story = Story::failing_fast(calls(), false);
        story.tell_all([dispatched(0), dispatched(1), started(1, 1), started(0, 1), end]);
        let states = [0, 1, 2, 3].map(|call| story.state(call));
        assert_eq!(states[1..], ["running", "cancelled", "cancelled"]);
        let reason = &story.call(1).cancelling().expect("it is told to stop").reason;
        assert_eq!(reason, "call a failed, and the run fails with it");
        assert_eq!(story.run.status(), RunStatus::InProgress);
        story.tell(Event::CallCancelled { call: CallIndex(1) });
        assert_eq!(story.run.status(), RunStatus::Failed);
    }
    let mut patient = Story::of(calls());
    patient.tell_all([dispatched(0), failed(0, 1)]);
    assert_eq!(patient.state(2), "waiting for the client");
}

#[test]
fn a_call_that_is_refused_fails_its_run_as_it_is_accepted() {
    let story = Story::failing_fast([repeatable("a"), refused("b"), client("c")], false);
    assert_eq!([story.state(0), story.state(2)], ["cancelled", "cancelled"]);
    assert_eq!(story.run.status(), RunStatus::Failed);
}

#[test]
fn what_its_caller_cancelled_or_answered_well_fails_no_run() {
    let mut story = Story::failing_fast([client("a"), client("b"), client("c")], false);
    story.tell_all([cancel_requested(0), answered(1, "yes")]);
    assert_eq!(story.run.status(), RunStatus::RequiresAction);
}

#[test]
fn what_came_first_says_how_a_run_ended() {
    let running = || {
        let mut story = Story::failing_fast([repeatable("a"), repeatable("b")], false);
        story.tell_all([dispatched(0), dispatched(1), started(0, 1), started(1, 1)]);
        story
    };
    let over = || Event::CallCancelled { call: CallIndex(1) };
    let table = [
        (vec![failed(0, 1), run_cancel_requested(), over()], RunStatus::Failed),
        (vec![run_cancel_requested(), failed(0, 1), over()], RunStatus::Cancelled),
        (vec![failed(0, 1), Event::RunExpired { without_worker: Vec::new() }], RunStatus::Expired),
        (vec![Event::RunExpired { without_worker: Vec::new() }], RunStatus::Expired),
    ];
    for (events, status) in table {
        let mut story = running();
        story.tell_all(events.clone());
        assert_eq!(story.run.status(), status, "after {events:?}");
    }
}

/// Calls are appended to the run's subject and fail on their own: no compare-and-set sees the two meet.
#[test]
fn calls_that_are_appended_as_the_run_fails_end_with_it() {
    let mut story = Story::failing_fast([repeatable("a")], true);
    let appended = decide(&story, append([client("b"), repeatable("c")])).expect("the run is open");
    story.tell_all([dispatched(0), failed(0, 1)]);
    assert_eq!(decide(&story, append([client("d")])), Err(CommandError::RunClosed));
    story.tell_together(appended);
    assert_eq!([story.state(1), story.state(2)], ["cancelled", "cancelled"]);
    assert_eq!(story.run.status(), RunStatus::InProgress, "until its owner closes it");
    story.tell(Event::RunClosed);
    assert_eq!(story.run.status(), RunStatus::Failed);
}

// ---- parked calls ----

#[test]
fn calls_that_another_attempt_might_have_helped_are_parked() {
    let with = |call: CallSpec, events: Vec<Event>| {
        let mut story = Story::of([call]);
        story.tell(dispatched(0));
        story.tell_all(events);
        story
    };
    let fail = |kind| vec![started(0, 1), ended(0, 1, AttemptOutcome::Failed(error(kind)))];
    let table = [
        (with(once("a"), fail(ErrorKind::Interrupted)), true),
        (with(once("a"), fail(ErrorKind::WorkerLost)), true),
        (with(once("a"), vec![failed_for_now(0, 1)]), true),
        (with(repeatable("a"), vec![no_worker_lives(0)]), true),
        (with(repeatable("a"), vec![expired_by(0, DeadlineKind::Queue)]), true),
        (with(repeatable("a"), vec![started(0, 1), expired_by(0, DeadlineKind::Attempt(AttemptNumber(1)))]), false),
        (with(once("a"), vec![started(0, 1), expired_by(0, DeadlineKind::Attempt(AttemptNumber(1)))]), true),
        (with(repeatable("a"), vec![completed(0, 1, 5)]), true),
        (with(repeatable("a"), vec![failed(0, 1)]), false),
        (with(repeatable("a"), vec![expired(0)]), false),
        (with(repeatable("a"), vec![cancel_requested(0)]), false),
        (with(repeatable("a"), vec![completed(0, 1, 0)]), false),
        (with(repeatable("a"), vec![]), false),
        (Story::of([refused("a")]), false),
        (Story::of([client("a")]), false),
    ];
    for (story, parked) in table {
        assert_eq!(story.call(0).is_parked(), parked, "{:?}", story.call(0).state());
    }
}

#[test]
fn a_parked_call_is_redriven_or_dropped_once() {
    let redrive = |into: &str| Command::Redrive { call: id("a"), into: into.parse().expect("a run id") };
    let drop = || Command::Drop { call: id("a") };
    let (one, other) = ("run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6072", "run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6073");
    let parked = || Story::of([once("a")]).told(dispatched(0)).told(failed_for_now(0, 1));
    for (command, others) in [(redrive(one), [redrive(other), drop()]), (drop(), [redrive(one), redrive(other)])] {
        let mut story = parked();
        let events = decide(&story, command.clone()).expect("it is parked");
        for event in events {
            assert_eq!(story.tell(event.clone()), [], "its run has ended");
            story.tell(event);
        }
        assert!(!story.call(0).is_parked());
        assert_eq!(decide(&story, command), Ok(vec![]));
        let fate = story.call(0).fate();
        for other in others {
            let rejection = decide(&story, other).expect_err("it was decided");
            assert!(matches!(rejection, CommandError::NotParkedAnyMore { .. }), "{rejection}");
        }
        story.tell_all([Event::CallDropped { call: CallIndex(0) }, started(0, 2)]);
        assert_eq!(story.call(0).fate(), fate, "the first word counts");
    }
    let queued = Story::of([once("a")]).told(dispatched(0));
    for command in [redrive(one), drop()] {
        let rejection = CommandError::NotParked { call: id("a"), state: "queued" };
        assert_eq!(decide(&queued, command), Err(rejection));
    }
    let missing = Command::Drop { call: id("x") };
    assert_eq!(decide(&queued, missing), Err(CommandError::UnknownCall { call: id("x") }));
}

// ---- the run as a function of its calls ----

#[test]
fn the_status_of_a_run() {
    let all = || [repeatable("a"), client("b")];
    let both = || [dispatched(0), completed(0, 1, 0), answered(1, "yes")];
    let table = [
        (Story::of([]), vec![], RunStatus::Completed),
        (Story::open([]), vec![], RunStatus::InProgress),
        (Story::of([refused("a")]), vec![], RunStatus::Completed),
        (Story::open([refused("a")]), vec![], RunStatus::InProgress),
        (Story::of([client("a")]), vec![], RunStatus::RequiresAction),
        (Story::open([client("a")]), vec![], RunStatus::RequiresAction),
        (Story::of(all()), vec![], RunStatus::InProgress),
        (Story::of(all()), vec![dispatched(0), started(0, 1)], RunStatus::InProgress),
        (Story::of(all()), vec![dispatched(0), completed(0, 1, 0)], RunStatus::RequiresAction),
        (Story::of(all()), both().into(), RunStatus::Completed),
        (Story::open(all()), both().into(), RunStatus::InProgress),
        (Story::of(all()), vec![cancel_requested(0), cancel_requested(1)], RunStatus::Completed),
        (Story::of(all()), vec![run_cancel_requested()], RunStatus::Cancelled),
        (Story::open([]), vec![run_cancel_requested()], RunStatus::Cancelled),
        (Story::of(all()), vec![dispatched(0), started(0, 1), run_cancel_requested()], RunStatus::InProgress),
        (Story::of(all()), vec![Event::RunExpired { without_worker: Vec::new() }], RunStatus::Expired),
        (Story::open([]), vec![Event::RunExpired { without_worker: Vec::new() }], RunStatus::Expired),
        (
            Story::of(all()),
            vec![
                dispatched(0),
                started(0, 1),
                run_cancel_requested(),
                Event::RunExpired { without_worker: Vec::new() },
            ],
            RunStatus::Expired,
        ),
    ];
    for (mut story, events, status) in table {
        story.tell_all(events.clone());
        assert_eq!(story.run.status(), status, "after {events:?}");
        assert_eq!(story.run.next_deadline().is_none(), status.is_final());
        assert!(!(status.is_final() && story.run.is_open()));
    }
}

#[test]
fn a_status_is_reported_when_it_changes() {
    let mut story = Story::of([repeatable("a"), client("b")]);
    let changes = |heard: Vec<Fact>| heard.into_iter().filter(|fact| matches!(fact, Fact::StatusChanged(_))).count();
    let events = [(dispatched(0), 0), (started(0, 1), 0), (completed(0, 1, 0), 1), (answered(1, "yes"), 1)];
    for (event, expected) in events {
        assert_eq!(changes(story.tell(event)), expected);
    }
}

#[test]
fn revisions_follow_the_subject_that_commands_append_to() {
    let mut story = Story::open([repeatable("a"), client("b")]);
    let last = |story: &Story| story.log.last().expect("not empty").sequence;
    assert_eq!(story.run.revision(), last(&story));
    for event in [dispatched(0), started(0, 1), completed(0, 1, 0)] {
        let before = story.run.revision();
        story.tell(event);
        assert_eq!((story.run.revision(), story.call(0).revision()), (before, 0), "not of the control subjects");
    }
    for event in [cancel_requested(1), answered(1, "late"), expired(1)] {
        let before = story.run.revision();
        story.tell(event);
        assert_eq!((story.run.revision(), story.call(1).revision()), (before, last(&story)));
    }
    // An opening that was stored twice, since its publisher lost the connection in between, moves the subject too.
    let again = opened([], true);
    for event in [
        again,
        Event::CallsAppended { calls: vec![] },
        Event::RunClosed,
        run_cancel_requested(),
        Event::RunExpired { without_worker: Vec::new() },
    ] {
        story.tell(event);
        assert_eq!(story.run.revision(), last(&story), "even where nothing else changes");
    }
    assert_eq!(story.call(0).state_name(), "completed");
    assert_eq!(attempt(0, 1).call, story.call(0).index());
}

#[test]
fn a_run_that_expires_fails_the_calls_that_no_worker_could_run() {
    let mut story = Story::of([repeatable("queued"), repeatable("runs"), client("asks")]);
    for event in [dispatched(0), dispatched(1), started(1, 1)] {
        story.tell(event);
    }
    story.tell(Event::RunExpired { without_worker: vec![CallIndex(0), CallIndex(1), CallIndex(9)] });
    assert_eq!([0, 1, 2].map(|call| story.call(call).state_name()), ["failed", "expired", "expired"]);
    let Some(Outcome::Failed(error)) = story.call(0).outcome() else { panic!("it failed") };
    assert_eq!((error.kind, story.run.status()), (ErrorKind::NoWorker, RunStatus::Expired));
}

#[test]
fn a_refusal_lasts_if_nothing_that_happens_can_lift_it() {
    let call: toolyard_run::CallId = "a".parse().expect("an id");
    for (state, lasts) in [("running", false), ("awaiting approval", false), ("completed", true), ("expired", true)] {
        for refusal in [
            CommandError::CallNotWaiting { call: call.clone(), state },
            CommandError::NotAwaitingApproval { call: call.clone(), state },
            CommandError::NotParked { call: call.clone(), state },
        ] {
            assert_eq!(refusal.lasts(), lasts, "{refusal}");
        }
    }
    assert!(!CommandError::UnknownCall { call }.lasts() && CommandError::RunEnded.lasts());
}
