//! Calls that are not executed before they are approved.

mod story;

use std::time::Duration;

use bytes::Bytes;
use story::{
    CALL_LIFE, START, Story, answered, approved, cancel_requested, client, completed, decided, dispatched, exclusive,
    id, rejected, repeatable, started, unapproved,
};
use toolyard_run::limit::ARGUMENTS_BYTES_MAX;
use toolyard_run::{
    Approval, CallIndex, CallSpec, Command, CommandError, Decider, Decision, DefaultDecision, Effect, ErrorKind, Event,
    Fact, FloorPolicy, Opening, Outcome, Run, RunStatus, Verdict,
};

const SOON: Duration = Duration::from_secs(60);

fn due(story: &Story) -> Vec<Effect> {
    story.run.outstanding(story.now)
}

fn approve(call: &str) -> (toolyard_run::CallId, Decision) {
    (id(call), Decision::Approved { arguments: None })
}

fn reject(call: &str, reason: &str) -> (toolyard_run::CallId, Decision) {
    (id(call), Decision::Rejected { reason: reason.into() })
}

fn decide<const N: usize>(
    story: &Story,
    decisions: [(toolyard_run::CallId, Decision); N],
) -> Result<Vec<Event>, CommandError> {
    story.run.decide(Command::Decide { decisions: decisions.into() }, story.now)
}

#[test]
fn a_single_call_that_awaits_approval_is_not_dispatched_as_its_run_is_opened() {
    let opening =
        |spec| Opening { calls: story::shared([spec]), deadline: START.after(CALL_LIFE), ..Opening::default() };
    assert_eq!(Run::open(opening(unapproved("a", SOON)), START).expect("it is fine").len(), 1);
    assert_eq!(Run::open(opening(repeatable("a")), START).expect("it is fine").len(), 2);
}

#[test]
fn nothing_runs_before_and_the_other_calls_go_on() {
    let mut story = Story::of([unapproved("a", SOON), repeatable("b")]);
    assert_eq!(story.state(0), "awaiting approval");
    assert_eq!(due(&story), [Effect::Dispatch { call: CallIndex(1) }]);
    // An unexpected job is not executed, and output of a worker that executes it is ignored.
    story.tell(dispatched(0));
    assert_eq!(story.call(0).verdict(1, story.now), Verdict::Drop);
    assert_eq!(story.tell(started(0, 1)), []);
    story.tell_all([dispatched(1), completed(1, 1, 0)]);
    assert_eq!(story.run.status(), RunStatus::RequiresAction);

    assert_eq!(story.tell(approved(0))[0], Fact::Decided { call: CallIndex(0) });
    assert_eq!((story.state(0), story.run.status()), ("accepted", RunStatus::InProgress));
    assert_eq!(due(&story), [Effect::Dispatch { call: CallIndex(0) }]);
}

#[test]
fn a_call_is_executed_with_the_arguments_with_which_it_was_approved() {
    let mut story = Story::of([unapproved("a", SOON)]);
    let arguments = Bytes::from_static(br#"{"other":1}"#);
    story.tell(decided(0, Decision::Approved { arguments: Some(arguments.clone()) }));
    assert_eq!(story.call(0).spec().arguments, arguments);
}

#[test]
fn a_call_that_is_rejected_fails_and_says_why() {
    let mut story = Story::of([unapproved("a", SOON), repeatable("b")]);
    story.tell(rejected(0, "too dear"));
    let Some(Outcome::Failed(error)) = story.call(0).outcome() else { panic!("{:?}", story.call(0)) };
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Rejected, "the call was rejected: too dear"));
    assert!(!story.call(0).is_parked());
    assert_eq!(story.state(1), "accepted");
}

#[test]
fn a_rejection_fails_a_run_that_fails_fast() {
    let mut story = Story::failing_fast([unapproved("a", SOON), repeatable("b")], false);
    story.tell(rejected(0, "no"));
    assert_eq!((story.state(1), story.run.status()), ("cancelled", RunStatus::Failed));
}

#[test]
fn where_nobody_decides_the_default_does() {
    let with = |default, deadline| {
        let approval = Approval { deadline, default };
        Story::of([CallSpec { approval: Some(approval), ..repeatable("a") }])
    };
    let decide = [Effect::Decide { call: CallIndex(0) }];
    let table = [
        (DefaultDecision::Reject, SOON, "failed"),
        (DefaultDecision::Approve, SOON, "accepted"),
        (DefaultDecision::Reject, CALL_LIFE, "failed"),
    ];
    for (default, within, expected) in table {
        let mut story = with(default, START.after(within));
        assert_eq!(story.run.next_deadline(), Some(START.after(within)));
        assert_eq!(due(&story), []);
        story.wait(within);
        assert_eq!(due(&story), decide);
        let event = story.run.decide_by_default(CallIndex(0)).expect("it awaits approval");
        story.tell(event.clone());
        assert_eq!(story.state(0), expected);
        assert_eq!(story.call(0).decided().expect("it was decided").by, Decider::Default);
        assert_eq!(story.tell(event), [], "once is enough");
    }
    // Approved as it expires, it would run too late.
    let mut late = with(DefaultDecision::Approve, START.after(CALL_LIFE));
    late.wait(CALL_LIFE);
    assert!(matches!(due(&late)[..], [Effect::Expire { .. }]));
}

#[test]
fn decisions_are_taken_once() {
    let mut story = Story::of([unapproved("a", SOON), unapproved("b", SOON), repeatable("c"), client("d")]);
    let events = decide(&story, [reject("b", "no"), approve("a"), approve("a")]).expect("they wait");
    assert_eq!(events, [approved(0), rejected(1, "no")], "approvals first, each once");
    let twice = decide(&story, [approve("a"), reject("a", "no")]);
    assert_eq!(twice, Err(CommandError::AlreadyDecided { call: id("a"), decision: "approved" }));
    for (decisions, refusal) in [
        ([approve("a"), approve("x")], CommandError::UnknownCall { call: id("x") }),
        ([approve("a"), approve("c")], CommandError::NotAwaitingApproval { call: id("c"), state: "accepted" }),
        (
            [approve("a"), approve("d")],
            CommandError::NotAwaitingApproval { call: id("d"), state: "waiting for the client" },
        ),
    ] {
        assert_eq!(decide(&story, decisions), Err(refusal));
    }
    assert_eq!(decide(&story, []), Err(CommandError::NoDecisions));
    let size = ARGUMENTS_BYTES_MAX + 1;
    let huge = Decision::Approved { arguments: Some(Bytes::from(vec![b' '; size])) };
    let refusal = CommandError::ArgumentsTooLarge { call: id("a"), size, limit: ARGUMENTS_BYTES_MAX };
    assert_eq!(decide(&story, [(id("a"), huge)]), Err(refusal));

    story.tell_all(events);
    assert_eq!(decide(&story, [approve("a"), reject("b", "no")]), Ok(vec![]), "the same again");
    let already = |call, decision| Err(CommandError::AlreadyDecided { call: id(call), decision });
    assert_eq!(decide(&story, [reject("a", "no")]), already("a", "approved"));
    assert_eq!(decide(&story, [reject("b", "never")]), already("b", "rejected"));
    let other = Decision::Approved { arguments: Some(Bytes::from_static(b"{}")) };
    assert_eq!(decide(&story, [(id("a"), other)]), already("a", "approved"));
}

#[test]
fn what_was_cancelled_or_answered_by_then_is_not_decided() {
    let mut story = Story::of([unapproved("a", SOON), client("b")]);
    story.tell_all([cancel_requested(0), answered(1, "yes")]);
    assert_eq!(story.state(0), "cancelled");
    let refusal = CommandError::NotAwaitingApproval { call: id("a"), state: "cancelled" };
    assert_eq!(decide(&story, [approve("a")]), Err(refusal));
    assert_eq!(story.tell(approved(0)), []);
}

#[test]
fn a_call_joins_the_line_when_it_is_approved() {
    let alone = CallSpec { approval: unapproved("x", SOON).approval, ..exclusive("a") };
    let mut story = Story::of([alone, repeatable("b"), repeatable("c")]);
    story.tell_all([dispatched(1), started(1, 1)]);
    story.tell(approved(0));
    assert_eq!(due(&story), [Effect::Dispatch { call: CallIndex(2) }], "it stands behind those that went ahead");
    story.tell_all([dispatched(2), completed(1, 1, 0), completed(2, 1, 0)]);
    assert_eq!(due(&story), [Effect::Dispatch { call: CallIndex(0) }]);
}

#[test]
fn its_time_in_the_queue_begins_when_it_is_approved() {
    let soon = Duration::from_secs(10);
    let mut story = Story::of([CallSpec { queue_deadline: Some(START.after(soon)), ..unapproved("a", SOON) }]);
    assert_eq!(story.run.next_deadline(), Some(START.after(SOON)));
    story.wait(SOON / 2);
    story.tell(approved(0));
    assert_eq!(story.run.next_deadline(), Some(story.now.after(soon)));
}

#[test]
fn who_speaks_by_turns_passes_over_what_awaits_approval() {
    let mut story = Story::of([unapproved("a", SOON), repeatable("b")]);
    story.tell_all([dispatched(1), completed(1, 1, 0), approved(0), dispatched(0), completed(0, 1, 0)]);
    let spoken = story.spoken(FloorPolicy::Submission);
    assert_eq!(spoken[1], "0 awaits approval");
    let place = |what: &str| spoken.iter().position(|spoken| spoken == what).expect(what);
    assert!(place("1 ended") < place("0 is decided") && place("0 is decided") < place("0 speaks"), "{spoken:?}");
    assert_eq!(story.call(0).decided().map(|decided| decided.by), Some(Decider::Person));
}
