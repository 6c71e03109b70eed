//! Calls that may not begin before a time that their caller chose. The last part holds them against random histories.

#[allow(dead_code, reason = "the histories use more of it")]
mod reader;
mod story;
#[allow(dead_code, unused_imports, reason = "the histories use more of it")]
mod world;

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use reader::log::{for_each_entry, pooled};
use story::{
    CALL_LIFE, RUN_LIFE, START, Story, approved, cancel_requested, client, completed, delay_ended, delayed, dispatched,
    exclusive, expired_by, id, refused, repeatable, run_cancel_requested, shared, started, unapproved,
};
use toolyard_run::limit::{EXECUTION_MAX, RUN_LIFE_MAX};
use toolyard_run::{
    CallIndex, CallSpec, CallState, Command, CommandError, Concurrency, DeadlineKind, Effect, Event, Fact, FloorPolicy,
    Opening, Outcome, Rules, Run, RunStatus, Stopped, Timestamp, Verdict,
};
use world::{garbage, histories, whole_histories};

const SOON: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(1);

fn due(story: &Story) -> Vec<Effect> {
    story.run.outstanding(story.now)
}

fn open(spec: CallSpec, deadline: Timestamp) -> Result<Vec<Event>, CommandError> {
    Run::open(Opening { calls: shared([spec]), deadline, ..Opening::default() }, START)
}

#[test]
fn a_delayed_call_is_accepted_and_not_dispatched_before_its_time() {
    let mut story = Story::of([delayed("a", SOON)]);
    assert_eq!((story.state(0), story.run.status()), ("delayed", RunStatus::InProgress));
    assert_eq!((due(&story), story.run.next_deadline()), (vec![], Some(START.after(SOON))));
    // An unexpected job is not executed, and output of a worker that executes it is ignored.
    story.tell(dispatched(0));
    assert_eq!(story.call(0).verdict(1, story.now), Verdict::Drop);
    assert_eq!(story.tell(started(0, 1)), []);

    story.wait(SOON);
    assert_eq!(due(&story), [Effect::EndDelay { call: CallIndex(0) }]);
    assert_eq!(story.tell(delay_ended(0)), [Fact::DelayEnded { call: CallIndex(0) }]);
    assert_eq!((story.state(0), due(&story)), ("accepted", vec![Effect::Dispatch { call: CallIndex(0) }]));
    assert_eq!(story.tell(delay_ended(0)), [], "once is enough");
    story.tell_all([dispatched(0), completed(0, 1, 0)]);
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn the_end_of_a_delay_counts_by_the_time_of_the_log_and_is_repeated_if_it_came_early() {
    let mut story = Story::of([delayed("a", SOON)]);
    story.wait(SOON - MOMENT);
    assert_eq!(story.tell(delay_ended(0)), [], "the clock of its owner is ahead");
    assert_eq!(story.state(0), "delayed");
    let revision = story.call(0).revision();
    assert_eq!(Some(revision), story.log.last().map(|entry| entry.sequence), "the next one expects it");
    story.wait(MOMENT);
    assert_eq!(due(&story), [Effect::EndDelay { call: CallIndex(0) }]);
}

#[test]
fn the_only_call_of_a_run_is_dispatched_with_the_opening_only_if_its_time_has_come() {
    let deadline = START.after(CALL_LIFE);
    assert_eq!(open(delayed("a", SOON), deadline).expect("it is fine").len(), 1);
    // Whether a time that is now has come by the clock of the log too is seen when the run is stored.
    let now = CallSpec { not_before: Some(START), ..repeatable("a") };
    assert_eq!(open(now.clone(), deadline).expect("it is fine").len(), 1);
    assert_eq!(Story::of([now]).state(0), "accepted");
    for past in [Timestamp(START.0 - 1000), Timestamp(0)] {
        let events = open(CallSpec { not_before: Some(past), ..repeatable("a") }, deadline).expect("it is fine");
        assert_eq!(events, open(repeatable("a"), deadline).expect("it is fine"), "a time in the past is no delay");
    }
}

#[test]
fn a_delay_must_end_before_the_call_and_its_run_do() {
    let limit_s = RUN_LIFE_MAX.as_secs();
    let too_long = |delay: Duration, left: Duration| {
        let (delay_s, left_s) = (delay.as_secs(), left.as_secs());
        Err(CommandError::DelayTooLong { call: id("a"), delay_s, left_s, limit_s })
    };
    let life = START.after(RUN_LIFE);
    assert_eq!(open(delayed("a", CALL_LIFE), life), too_long(CALL_LIFE, CALL_LIFE), "the deadline of the call");
    assert_eq!(open(delayed("a", SOON), START.after(SOON)), too_long(SOON, SOON), "the deadline of the run");
    assert!(open(delayed("a", SOON), START.after(SOON + MOMENT)).is_ok());
    let never = CallSpec { not_before: Some(Timestamp(u64::MAX)), deadline: Timestamp(u64::MAX), ..repeatable("a") };
    assert!(matches!(open(never, START.after(RUN_LIFE_MAX)), Err(CommandError::DelayTooLong { .. })));

    let story = Story::open([]);
    let append = |spec| story.run.decide(Command::AppendCalls { calls: shared([spec]) }, story.now);
    assert_eq!(append(delayed("a", CALL_LIFE)), too_long(CALL_LIFE, CALL_LIFE));
    assert!(append(delayed("a", SOON)).is_ok());
    let past = CallSpec { not_before: Some(Timestamp(0)), ..repeatable("a") };
    let [Event::CallsAppended { calls }] = &append(past).expect("it is fine")[..] else { panic!("one event") };
    assert_eq!(calls[0].not_before, None);
}

#[test]
fn a_call_that_its_client_answers_has_no_delay_and_a_refused_one_ends_at_once() {
    let not_before = Some(START.after(SOON));
    let refusal = Err(CommandError::ClientCallDelayed { call: id("a") });
    for not_before in [not_before, Some(Timestamp(0))] {
        assert_eq!(open(CallSpec { not_before, ..client("a") }, START.after(RUN_LIFE)), refusal);
    }
    let story = Story::of([CallSpec { not_before, ..refused("a") }]);
    assert_eq!(story.state(0), "failed");
}

#[test]
fn cancelling_ends_it_at_once_and_nothing_ran() {
    for cancel in [cancel_requested(0), run_cancel_requested()] {
        let mut story = Story::of([delayed("a", SOON)]);
        story.tell(cancel);
        let Some(Outcome::Cancelled { stopped, .. }) = story.call(0).outcome() else { panic!("{:?}", story.call(0)) };
        assert_eq!((*stopped, story.run.status().is_final()), (Stopped::NotRunning, true));
        story.wait(SOON);
        assert_eq!(story.tell(delay_ended(0)), []);
    }
}

#[test]
fn it_blocks_no_call_before_its_time_and_joins_the_turn_order_then() {
    let alone = CallSpec { concurrency: Concurrency::Exclusive, ..delayed("a", SOON) };
    let mut story = Story::of([alone, repeatable("b"), exclusive("c")]);
    assert_eq!(due(&story), [Effect::Dispatch { call: CallIndex(1) }]);
    story.tell_all([dispatched(1), completed(1, 1, 0), dispatched(2), started(2, 1)]);
    story.wait(SOON);
    story.tell(delay_ended(0));
    assert_eq!(due(&story), [], "it stands behind those that went ahead");
    assert_eq!(story.run.waits_for(story.call(0)).map(|ahead| ahead.index()), Some(CallIndex(2)));
    story.tell(completed(2, 1, 0));
    assert_eq!(due(&story), [Effect::Dispatch { call: CallIndex(0) }]);
}

#[test]
fn it_takes_no_room_of_the_run_before_its_time() {
    let rules = Rules { running_max: Some(1), ..Rules::default() };
    let story = Story::under(rules, [delayed("a", SOON), repeatable("b")]);
    assert_eq!(due(&story), [Effect::Dispatch { call: CallIndex(1) }]);
}

#[test]
fn an_approval_and_a_delay_must_both_be_over() {
    let call = || CallSpec { not_before: Some(START.after(SOON / 2)), ..unapproved("a", SOON) };
    let mut early = Story::of([call()]);
    assert_eq!(early.state(0), "awaiting approval");
    let delayed = Fact::Delayed { call: CallIndex(0) };
    assert_eq!(early.tell(approved(0))[..2], [Fact::Decided { call: CallIndex(0) }, delayed]);
    assert_eq!((early.state(0), early.run.next_deadline()), ("delayed", Some(START.after(SOON / 2))));
    early.wait(SOON / 2);
    early.tell(delay_ended(0));
    assert_eq!(due(&early), [Effect::Dispatch { call: CallIndex(0) }]);

    let mut late = Story::of([call()]);
    late.wait(SOON / 2);
    assert_eq!(due(&late), [], "it still awaits approval");
    late.tell(approved(0));
    assert_eq!(due(&late), [Effect::Dispatch { call: CallIndex(0) }]);
}

#[test]
fn its_time_in_the_queue_begins_when_its_delay_was_to_end_or_it_is_approved() {
    let soon = Duration::from_secs(10);
    let until = START.after(SOON / 2);
    let of = |spec: CallSpec| CallSpec { not_before: Some(until), queue_deadline: Some(until.after(soon)), ..spec };
    let mut story = Story::of([of(repeatable("a"))]);
    story.wait(SOON / 2 + soon / 2);
    // The owner was dead for a while.
    story.tell(delay_ended(0));
    assert_eq!(story.run.next_deadline(), Some(until.after(soon)));

    let mut early = Story::of([of(unapproved("a", SOON))]);
    early.tell(approved(0));
    early.wait(SOON / 2);
    early.tell(delay_ended(0));
    assert_eq!(early.run.next_deadline(), Some(until.after(soon)));

    let mut late = Story::of([of(unapproved("a", SOON))]);
    late.wait(SOON / 2 + soon / 2);
    late.tell(approved(0));
    assert_eq!(late.run.next_deadline(), Some(late.now.after(soon)));
}

#[test]
fn a_call_whose_owner_was_dead_until_its_deadline_expires() {
    let queue = SOON + Duration::from_secs(10);
    let mut story = Story::of([CallSpec { queue_deadline: Some(START.after(queue)), ..delayed("a", SOON) }]);
    story.wait(queue);
    let deadline = DeadlineKind::Queue;
    assert_eq!(due(&story), [Effect::Expire { call: CallIndex(0), deadline }]);
    story.tell(expired_by(0, deadline));
    assert!(matches!(story.call(0).outcome(), Some(Outcome::Expired(DeadlineKind::Queue))));

    let mut story = Story::of([delayed("a", SOON)]);
    story.wait(CALL_LIFE);
    assert_eq!(due(&story), [Effect::Expire { call: CallIndex(0), deadline: DeadlineKind::Call }]);
}

#[test]
fn a_reader_that_takes_the_order_of_submission_passes_over_a_delayed_call() {
    let mut story = Story::of([delayed("a", SOON), repeatable("b")]);
    story.tell_all([dispatched(1), completed(1, 1, 0)]);
    story.wait(SOON);
    story.tell_all([delay_ended(0), dispatched(0), completed(0, 1, 0)]);
    for policy in [FloorPolicy::Submission, FloorPolicy::Arrival] {
        let floor = story.floor(policy);
        assert_eq!(floor, ["1 speaks", "1 ended", "0 speaks", "0 ended"]);
    }
}

#[test]
fn the_explanation_names_the_time_that_is_left() {
    let mut story = Story::of([delayed("a", SOON)]);
    let why = |story: &Story| story.run.why(story.call(0), story.now, Some(1));
    let expected = "is delayed: it begins in 1 min 0 s at the earliest (`not_before`), and expires in 30 min 0 s";
    assert_eq!(why(&story), expected);
    story.wait(SOON);
    assert_eq!(why(&story), "its delay is over; the owner of its shard is about to append that");
    assert_eq!(*story.call(0).state(), CallState::Delayed);
}

fn cases(count: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let rng_algorithm = RngAlgorithm::XorShift;
    ProptestConfig { cases: count.max(default.cases), failure_persistence: None, rng_algorithm, ..default }
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn no_delayed_call_is_in_turn_before_its_time_by_the_clock_of_the_log(
        history in prop_oneof![histories(), garbage()],
    ) {
        let mut latest = Timestamp(0);
        for_each_entry(&history.log, |entry, _, run, _| {
            latest = latest.max(entry.at);
            for call in run.calls().iter().filter(|call| pooled(call).is_some()) {
                let has_come = call.spec().not_before.is_none_or(|until| until <= latest);
                let began = call.attempts_used() > 0
                    || matches!(call.state(), CallState::Accepted | CallState::Queued { .. } | CallState::Running(_));
                assert!(has_come || !began, "{call:?}");
                let blocks = run.calls().iter().any(|other| run.waits_for(other) == Some(call));
                assert!(has_come || !blocks, "{call:?} blocks another call");
            }
        });
    }
}

/// Properties of dull histories prove little.
#[test]
fn delays_end_and_do_not_end_in_the_histories() {
    let mut runner = TestRunner::new_with_rng(cases(1), TestRng::deterministic_rng(RngAlgorithm::XorShift));
    let (mut ended, mut ran, mut cut_off) = (0, 0, 0);
    for _ in 0..1000 {
        let history = whole_histories().new_tree(&mut runner).expect("a history").current();
        for_each_entry(&history.log, |_, before, run, heard| {
            let is_end = |fact: &&Fact| matches!(fact, Fact::DelayEnded { .. });
            ended += heard.iter().filter(is_end).count();
            let delayed = before.calls().iter().filter(|call| *call.state() == CallState::Delayed);
            cut_off +=
                delayed.filter(|call| run.call(call.index()).is_some_and(|call| call.outcome().is_some())).count();
        });
        let delayed = |call: &&toolyard_run::Call| call.spec().not_before.is_some() && call.attempts_used() > 0;
        ran += history.fold().calls().iter().filter(delayed).count();
    }
    assert!(ended >= 10 && ran >= 10 && cut_off >= 10, "{ended} ended, {ran} ran, {cut_off} ended before their time");
}

#[test]
fn a_run_may_wait_for_a_month_and_a_call_that_is_executed_ends_a_day_after_its_dispatch() {
    let month = START.after(RUN_LIFE_MAX);
    let waits = |spec: CallSpec| CallSpec { deadline: month, ..spec };
    let opening = Opening {
        calls: shared([waits(client("asks")), waits(repeatable("works"))]),
        deadline: month,
        ..Opening::default()
    };
    let mut story = Story::unopened();
    story.tell_all(Run::open(opening, START).expect("it is fine"));
    story.wait(SOON);
    story.tell_all([dispatched(1), started(1, 1)]);
    let ends = story.now.after(EXECUTION_MAX);
    assert_eq!((story.call(0).deadline(), story.call(1).deadline()), (month, ends));
    story.wait(EXECUTION_MAX - MOMENT);
    assert!(!due(&story).contains(&Effect::Expire { call: CallIndex(1), deadline: DeadlineKind::Call }));
    story.wait(MOMENT);
    assert!(due(&story).contains(&Effect::Expire { call: CallIndex(1), deadline: DeadlineKind::Call }));
    story.tell(expired_by(1, DeadlineKind::Call));
    assert_eq!((story.state(0), story.state(1)), ("waiting for the client", "expired"));
}
