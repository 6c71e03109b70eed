//! When a run of which nothing is kept is to be erased.

#[allow(dead_code, reason = "the world is made of a part of it")]
mod reader;
mod story;
#[allow(dead_code, unused_imports, reason = "each test file uses a part of it")]
mod world;

use std::time::Duration;

use proptest::prelude::*;
use story::{RUN_LIFE, START, Story, completed, dispatched, repeatable, run_erase_requested, shared, started};
use toolyard_run::{CallIndex, Command, Effect, Entry, Erasure, Event, Run, RunOpened, RunStatus, Verdict};
use world::{History, fold, garbage, histories, pick};

const AFTER: Duration = Duration::from_secs(60);

fn any_history() -> impl Strategy<Value = History> {
    prop_oneof![histories(), garbage()]
}

fn story(erasure: Option<Erasure>) -> Story {
    let mut story = Story::unopened();
    let calls = shared([repeatable("a")]);
    story.tell(Event::RunOpened(RunOpened { deadline: START.after(RUN_LIFE), calls, erasure, ..RunOpened::default() }));
    story
}

#[test]
fn it_is_due_a_stated_time_after_the_end_by_the_logs_own_clock() {
    let mut story = story(Some(Erasure { after: AFTER, request: None }));
    story.tell_all([dispatched(0), started(0, 1)]);
    assert_eq!(story.run.erase_at(), None, "it has not ended");
    story.wait(Duration::from_secs(7));
    story.tell(completed(0, 1, 0));
    let due = Some(START.after(Duration::from_secs(7)).after(AFTER));
    assert_eq!(story.run.erase_at(), due);
    story.wait(Duration::from_secs(1));
    story.tell(Event::CallDropped { call: CallIndex(0) });
    assert_eq!(story.run.erase_at(), due, "what comes late moves nothing");
    assert!(story.run.outstanding(START.after(RUN_LIFE)).is_empty());
}

#[test]
fn a_run_that_ends_without_its_calls_is_erased_too() {
    for end in [Event::RunExpired { without_worker: Vec::new() }, Event::RunCancelRequested { reason: "enough".into() }]
    {
        let mut story = story(Some(Erasure { after: AFTER, request: None }));
        story.tell(end);
        assert_eq!(story.run.erase_at(), Some(START.after(AFTER)));
    }
}

#[test]
fn a_run_that_is_kept_is_never_erased() {
    let mut story = story(None);
    story.tell_all([dispatched(0), started(0, 1), completed(0, 1, 0)]);
    assert_eq!((story.run.erasure(), story.run.erase_at()), (None, None));
    assert_eq!(Run::new(story.run.id()).erase_at(), None);
}

#[test]
fn an_operators_request_cancels_an_open_run_and_has_an_ended_one_erased_at_once() {
    let mut open = story(None);
    open.tell_all([dispatched(0), run_erase_requested()]);
    assert_eq!(open.run.status(), RunStatus::Cancelled);
    assert_eq!(open.run.erase_at(), Some(START));
    assert!(open.run.outstanding(START).is_empty());
    for erasure in [None, Some(Erasure { after: AFTER, request: None })] {
        let mut ended = story(erasure);
        ended.tell_all([dispatched(0), started(0, 1), completed(0, 1, 0)]);
        ended.wait(Duration::from_secs(9));
        ended.tell(run_erase_requested());
        assert_eq!(ended.run.status(), RunStatus::Completed, "what it came to stays until it is erased");
        assert_eq!(ended.run.erase_at(), Some(START.after(Duration::from_secs(9))));
    }
}

#[test]
fn a_running_call_is_stopped_before_its_run_is_erased() {
    let mut story = story(None);
    story.tell_all([dispatched(0), started(0, 1), run_erase_requested()]);
    assert_eq!((story.run.status(), story.run.erase_at()), (RunStatus::InProgress, None));
    assert!(matches!(story.run.outstanding(START)[..], [Effect::Stop { .. }]));
    story.tell(completed(0, 1, 0));
    assert!(story.run.status().is_final() && story.run.erase_at().is_some());
}

#[test]
fn a_request_is_decided_once_and_carries_what_the_owner_of_an_ended_run_needs() {
    let mut story = story(Some(Erasure { after: AFTER, request: Some([7; 32]) }));
    let erase = || Command::EraseRun { reason: "enough".into(), bytes: 500 };
    let events = story.run.decide(erase(), START).expect("it may always be asked for");
    let [Event::RunEraseRequested(request)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((request.bytes, request.request, request.continuations), (500, Some([7; 32]), 0));
    assert!(request.not_before > START, "a job that is dispatched just now may be stored a second time");
    story.tell_all(events.clone());
    assert_eq!(story.run.decide(erase(), START), Ok(vec![]));
}

proptest! {
    #[test]
    fn nothing_begins_once_an_erasure_is_requested_and_nothing_revives(history in any_history(), at in pick()) {
        let (first, rest) = history.log.split_at(at.among(history.log.len() + 1));
        let (mut run, mut heard) = (fold(first), Vec::new());
        prop_assume!(run.opened_at().is_some());
        let (sequence, now) = first.last().map_or((1, START), |entry| (entry.sequence, entry.at));
        let request = Entry { sequence, at: now, not_after: None, hooked: false, events: vec![run_erase_requested()] };
        for entry in std::iter::once(&request).chain(rest) {
            let was_final = run.status().is_final();
            run.apply(entry, &mut heard);
            prop_assert!(run.is_erase_requested());
            prop_assert!(!was_final || run.status().is_final(), "revived by {entry:?}");
            let effects = run.outstanding(entry.at);
            prop_assert!(!effects.iter().any(|effect| matches!(effect, Effect::Dispatch { .. })), "{effects:?}");
            for call in run.calls() {
                let verdict = call.verdict(1, entry.at);
                prop_assert!(!matches!(verdict, Verdict::Go { .. }), "{verdict:?} after {entry:?}");
            }
        }
    }
}
