//! When a run of which nothing is kept is to be erased.

mod story;

use std::time::Duration;

use story::{RUN_LIFE, START, Story, completed, dispatched, repeatable, shared, started};
use toolyard_run::{CallIndex, Erasure, Event, Run, RunOpened};

const AFTER: Duration = Duration::from_secs(60);

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
    for end in [Event::RunExpired, Event::RunCancelRequested { reason: "enough".into() }] {
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
