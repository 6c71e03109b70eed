//! Entries that were stored after the moment until which they count.

mod story;

use std::time::Duration;

use story::{
    RUN_LIFE, START, Story, answered, approved, cancel_requested, client, completed, dispatched, once, opened,
    repeatable, run_cancel_requested, run_erase_requested, run_id, shared, started, unapproved,
};
use toolyard_run::{
    CallIndex, DeadlineKind, Entry, Erasure, Event, FloorPolicy, NEVER_OPENED_AFTER, OPENED_WITHIN, Outcome, Run,
    RunOpened, RunStatus, STORED_WITHIN, Timestamp, counts_until,
};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_run_that_is_opened_too_late_expires_as_it_begins_and_nothing_of_it_is_to_be_done() {
    let calls = || [once("a"), repeatable("b"), client("c"), unapproved("d", SOON)];
    for open in [false, true] {
        let mut story = Story::unopened();
        story.tell_late([opened(calls(), open)]);
        assert_eq!(story.run.status(), RunStatus::Expired);
        assert!(!story.run.is_open());
        for call in story.run.calls() {
            assert_eq!(call.outcome(), Some(&Outcome::Expired(DeadlineKind::Opening)), "{call:?}");
        }
        for now in [START, START.after(RUN_LIFE)] {
            assert!(story.run.outstanding(now).is_empty());
        }
        assert_eq!(story.run.next_deadline(), None);
        let told = story.spoken(FloorPolicy::Arrival);
        assert_eq!(told.first().map(String::as_str), Some("run opened"), "{told:?}");
        assert_eq!(told.last().map(String::as_str), Some("run ended Expired"), "{told:?}");
        // Nothing that comes now brings it back: no job, no second opening in time, no worker that began all the same.
        let before = story.run.calls().to_vec();
        story.tell_all([opened(calls(), true), dispatched(0), started(0, 1), completed(0, 1, 0), approved(3)]);
        assert_eq!((story.run.status(), story.run.is_open()), (RunStatus::Expired, false));
        for (old, new) in before.iter().zip(story.run.calls()) {
            assert_eq!(old.state(), new.state());
        }
    }
}

#[test]
fn a_run_that_is_opened_too_late_is_erased_once_no_other_copy_of_its_opening_counts() {
    let mut story = Story::unopened();
    story.tell_late([opened([once("a")], false)]);
    assert!(story.run.is_void());
    let never_opened = story.run.id().created_at().after(NEVER_OPENED_AFTER);
    assert_eq!(story.run.erase_at(), Some(never_opened));
    let mut in_time = Story::unopened();
    in_time.tell(opened([once("a")], false));
    assert!(!in_time.run.is_void());
}

#[test]
fn an_opening_that_is_its_only_calls_job_is_as_void_as_one_that_is_not() {
    let mut story = Story::unopened();
    story.tell_late([opened([once("a")], false), dispatched(0)]);
    assert_eq!((story.run.status(), story.state(0)), (RunStatus::Expired, "expired"));
}

#[test]
fn what_is_stored_by_its_moment_counts_and_so_does_what_names_none() {
    for not_after in [None, Some(START), Some(START.after(STORED_WITHIN))] {
        let mut story = Story::unopened();
        story.tell_by(not_after, [opened([once("a")], false), dispatched(0)]);
        assert_eq!(story.state(0), "queued");
    }
}

#[test]
fn a_run_without_calls_that_is_opened_too_late_takes_none() {
    let mut story = Story::unopened();
    story.tell_late([opened([], true)]);
    story.tell(Event::CallsAppended { calls: shared([once("a")]) });
    assert_eq!((story.run.status(), story.run.calls().len()), (RunStatus::Expired, 0));
}

#[test]
fn a_command_that_comes_too_late_changes_nothing_but_what_the_next_one_must_expect() {
    let late = [
        Event::CallsAppended { calls: shared([once("more")]) },
        Event::RunClosed,
        run_cancel_requested(),
        run_erase_requested(),
        Event::RunExpired { without_worker: Vec::new() },
        cancel_requested(0),
        approved(1),
        answered(2, "yes"),
        dispatched(0),
    ];
    for event in late {
        let mut story = Story::open([once("a"), unapproved("b", SOON), client("c")]);
        let before = story.run.clone();
        let heard = story.tell_late([event.clone()]);
        assert!(heard.is_empty(), "{event:?}: {heard:?}");
        let states = |run: &Run| run.calls().iter().map(|call| call.state().clone()).collect::<Vec<_>>();
        assert_eq!(states(&before), states(&story.run), "{event:?}");
        assert_eq!((before.status(), before.is_open()), (story.run.status(), story.run.is_open()), "{event:?}");
        let sequence = story.log.last().expect("it was stored").sequence;
        let expected = |run: &Run| {
            run.calls().iter().map(|call| call.revision()).chain([run.revision()]).max().unwrap_or_default()
        };
        let moved = expected(&story.run) == sequence;
        assert_eq!(moved, !matches!(event, Event::CallDispatched { .. }), "{event:?}");
        // In time it counts.
        let heard = story.tell_by(Some(story.now), [event.clone()]);
        assert!(!heard.is_empty() || matches!(event, Event::CallDispatched { .. }), "{event:?}");
    }
}

#[test]
fn a_run_is_not_erased_while_a_copy_of_its_opening_or_of_a_job_would_count() {
    let erasure = Some(Erasure { after: Duration::from_secs(1), request: None });
    let calls = shared([repeatable("a")]);
    let deadline = START.after(RUN_LIFE);
    let mut story = Story::unopened();
    let until = START.after(STORED_WITHIN);
    story.tell_by(Some(until), [Event::RunOpened(RunOpened { deadline, calls, erasure, ..RunOpened::default() })]);
    story.wait(Duration::from_secs(2));
    let until = story.now.after(STORED_WITHIN);
    story.tell_by(Some(until), [dispatched(0)]);
    story.tell_all([started(0, 1), completed(0, 1, 0)]);
    let due = story.run.erase_at().expect("it has ended");
    assert!(due > until, "{due:?} {until:?}");
    // What else is said of it moves nothing: a copy of that would find something else on its subject.
    story.wait(Duration::from_secs(1));
    story.tell_by(Some(story.now.after(STORED_WITHIN)), [Event::CallDropped { call: CallIndex(0) }]);
    assert_eq!(story.run.erase_at(), Some(due));
}

#[test]
fn an_opening_never_counts_long_after_its_id_was_made_so_that_a_request_id_can_be_given_anew() {
    let run = run_id();
    let made = run.created_at();
    let events = [opened([], true)];
    assert_eq!(counts_until(run, &events, made), made.after(STORED_WITHIN));
    let last = made.after(OPENED_WITHIN);
    for now in [last, last.after(NEVER_OPENED_AFTER), Timestamp(u64::MAX)] {
        assert_eq!(counts_until(run, &events, now), last);
    }
    // What is said of an open run counts however old it is.
    let now = made.after(OPENED_WITHIN * 10);
    assert_eq!(counts_until(run, &[Event::RunClosed], now), now.after(STORED_WITHIN));
    let opened = |at| Entry { sequence: 1, at, not_after: Some(last), hooked: false, events: events.to_vec() };
    let mut run = Run::new(run);
    run.apply(&opened(last.after(Duration::from_millis(1))), &mut Vec::new());
    assert_eq!(run.status(), RunStatus::Expired);
}
