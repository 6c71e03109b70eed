//! Runs that calls of other runs made.

use run::{CallId, ParentCall};

use super::*;

const ABOVE: u8 = 1;
const BELOW: u8 = 2;

/// A run of a tenant, made by the first call of another run.
fn made_by(parent: RunId, tenant: Option<&str>) -> Event {
    let Event::RunOpened(opened) = opening(vec![spec("below")]) else { unreachable!("it opens a run") };
    let call: CallId = "above".parse().expect("a call id");
    let tenant = tenant.map(|tenant| tenant.parse().expect("a tenant"));
    Event::RunOpened(RunOpened { parent: Some(Box::new(ParentCall { run: parent, call })), tenant, ..opened })
}

/// The runs that are to be cancelled.
fn cancelled(actions: &[Action]) -> Vec<RunId> {
    let cancels = |action: &Action| match action {
        Action::Append(append) if matches!(append.event, Event::RunCancelRequested { .. }) => Some(append.run),
        _ => None,
    };
    actions.iter().filter_map(cancels).collect()
}

#[test]
fn a_run_is_cancelled_once_when_the_call_that_made_it_has_ended() {
    let mut story = Story::begin();
    let (above, below) = (run_id(ABOVE), run_id(BELOW));
    story.log(above, vec![opening(vec![spec("above"), spec("other")])]);
    story.log(below, vec![made_by(above, None)]);
    assert!(cancelled(&story.check_workers()).is_empty());
    // The worker is lost, and another one goes on with the call.
    story.log(above, vec![Event::CallDispatched { call: CALL, pool: pool() }]);
    story.log(above, vec![started(1, "w1")]);
    story.log(above, vec![started(2, "w2")]);
    assert!(cancelled(&story.check_workers()).is_empty(), "the call is open");
    story.log(above, vec![Event::CallExpired { call: CALL, deadline: DeadlineKind::Call }]);
    assert!(story.owner.run(above).is_some(), "the other call is open");
    let actions = story.check_workers();
    assert_eq!(cancelled(&actions), [below]);
    assert!(cancelled(&story.check_workers()).is_empty(), "it is in flight");
    story.done(&actions);
    assert_eq!(cancelled(&story.check_workers()), [below], "the log has not shown it");
    story.log(below, vec![Event::RunCancelRequested { reason: String::new() }]);
    story.done(&actions);
    assert!(cancelled(&story.check_workers()).is_empty());
}

#[test]
fn a_run_is_cancelled_if_the_call_that_made_it_is_in_no_open_run_of_its_tenant() {
    let mut story = Story::begin();
    let (above, below) = (run_id(ABOVE), run_id(BELOW));
    story.log(below, vec![made_by(above, None)]);
    assert_eq!(cancelled(&story.check_workers()), [below], "there is no such run");
    let mut story = Story::begin();
    story.log(above, vec![opening(vec![spec("above")])]);
    story.log(below, vec![made_by(above, Some("stranger"))]);
    assert_eq!(cancelled(&story.check_workers()), [below], "it is another tenant's");
}

#[test]
fn a_run_stays_while_it_is_not_known_whether_the_call_that_made_it_has_ended() {
    let mut story = Story::begin();
    let (above, below) = (run_id(ABOVE), run_id(BELOW));
    // A newer release opened it.
    let noted = story.owner.handle_unreadable((above, SubjectKind::Run), 1, story.now, || false);
    assert!(matches!(noted, Noted::Kept), "{noted:?}");
    story.sequence = 1;
    story.log(below, vec![made_by(above, None)]);
    assert!(cancelled(&story.check_workers()).is_empty());
    // The call may have been added by an entry of a newer release.
    let mut story = Story::begin();
    story.log(above, vec![opening(vec![spec("else")])]);
    story.log(below, vec![made_by(above, None)]);
    assert!(cancelled(&story.check_workers()).is_empty());
    // The owner of another shard knows whether this one has ended.
    let elsewhere = RunId::new(Shard(7), above.uuid());
    let mut story = Story::begin();
    story.log(below, vec![made_by(elsewhere, None)]);
    assert!(cancelled(&story.check_workers()).is_empty());
    let mut story = Story::begin();
    story.log(below, vec![made_by(above, None)]);
    story.world.holds.set(false);
    assert!(cancelled(&story.check_workers()).is_empty(), "its lease has run out");
}
