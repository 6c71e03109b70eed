//! Questions of running tools: who may ask, how long a question stays open, and what it does to the run, its deadlines
//! and the floor. The last part holds them against random histories.

#[allow(dead_code, reason = "the histories use more of it")]
mod reader;
mod story;
#[allow(dead_code, unused_imports, reason = "the histories use more of it")]
mod world;

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use reader::log::for_each_entry;
use story::*;
use toolyard_run::{
    Answer, AskError, AskedBy, AttemptId, AttemptNumber, AttemptOutcome, Call, CallIndex, CallSpec, CallState, Command,
    CommandError, DeadlineKind, Effect, Effects, ErrorKind, Event, Fact, FloorPolicy, NewQuestion, Nonce, Outcome,
    OutputKind, Policy, ResultUse, Rules, RunStatus, Sequencer, limit,
};
use world::{histories, whole_histories};

const POLICIES: [FloorPolicy; 3] = [FloorPolicy::Arrival, FloorPolicy::Submission, FloorPolicy::Interleaved];
const SOON: Duration = Duration::from_secs(1);

fn question(call: u16, number: u32, nth: u16) -> NewQuestion {
    let asked_by = AskedBy { attempt: attempt(call, number), number: nth };
    NewQuestion { asked_by, arguments: Bytes::from_static(b"{\"message\":\"Which one?\"}"), timeout: None }
}

fn asks(story: &Story, question: &NewQuestion) -> Result<Option<Event>, AskError> {
    story.run.ask(&pool("alpha"), question, story.now)
}

fn asked(story: &mut Story, question: &NewQuestion) -> Vec<Fact> {
    let event = asks(story, question).expect("it may ask").expect("it is a new question");
    story.tell(event)
}

/// A run whose only call runs and asks: the question is call 1.
fn asking(spec: CallSpec) -> Story {
    let mut story = Story::of([spec]);
    story.tell_all([dispatched(0), started(0, 1)]);
    asked(&mut story, &question(0, 1, 1));
    story
}

#[test]
fn a_running_call_asks_and_goes_on_with_the_answer_although_its_run_is_closed() {
    let mut story = asking(once("a"));
    assert!(!story.run.is_open());
    assert_eq!(story.run.status(), RunStatus::RequiresAction);
    assert_eq!((story.state(0), story.state(1)), ("running", "waiting for the client"));
    assert_eq!(story.call(1).spec().id, id("ask_0_1_1"));
    story.tell(answered(1, "this one"));
    assert_eq!(story.run.status(), RunStatus::InProgress);
    story.tell(completed(0, 1, 0));
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn a_question_is_asked_once_however_often_it_is_requested() {
    let mut story = asking(once("a"));
    assert_eq!(asks(&story, &question(0, 1, 1)), Ok(None));
    story.tell(answered(1, "this one"));
    assert_eq!(asks(&story, &question(0, 1, 1)), Ok(None), "its answer is there");
    assert!(matches!(asks(&story, &question(0, 1, 2)), Ok(Some(_))), "another question");
}

#[test]
fn only_the_attempt_that_counts_may_ask() {
    let story = Story::of([repeatable("a"), client("b")]);
    assert_eq!(asks(&story, &question(0, 1, 1)), Err(AskError::NotStarted), "its start is on its way");
    assert_eq!(asks(&story, &question(1, 1, 1)), Err(AskError::Superseded), "no pool executes it");
    assert_eq!(asks(&story, &question(7, 1, 1)), Err(AskError::NotStarted), "the call may be on its way");
    let mut story = story;
    story.tell_all([dispatched(0), started(0, 1), started(0, 2)]);
    assert_eq!(asks(&story, &question(0, 1, 1)), Err(AskError::Superseded), "a zombie");
    assert_eq!(story.run.ask(&pool("beta"), &question(0, 2, 1), story.now), Err(AskError::Superseded));
    let twin = AskedBy { attempt: AttemptId { nonce: Nonce(9), ..attempt(0, 2) }, number: 1 };
    let of_twin = NewQuestion { asked_by: twin, ..question(0, 2, 1) };
    assert_eq!(asks(&story, &of_twin), Err(AskError::Superseded), "an attempt of the same number");
    story.tell(cancel_requested(0));
    assert_eq!(asks(&story, &question(0, 2, 1)), Err(AskError::Stopping));
    story.tell(ended(0, 2, AttemptOutcome::Cancelled));
    assert_eq!(asks(&story, &question(0, 2, 1)), Err(AskError::Superseded), "the call has ended");
}

#[test]
fn nothing_of_a_zombies_question_is_shown_that_was_stored_behind_its_successors_start() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), started(0, 1)]);
    let stored = asks(&story, &question(0, 1, 1)).expect("it counts").expect("it is new");
    story.tell_all([started(0, 2), stored]);
    assert_eq!(story.run.status(), RunStatus::InProgress);
    assert_eq!((story.state(1), &*story.call(1).spec().arguments), ("cancelled", &b"{}"[..]));
    assert!(!story.call(0).is_asking());
}

#[test]
fn an_open_question_ends_with_its_attempt() {
    let ends: [(&str, Vec<Event>); 8] = [
        ("completed", vec![completed(0, 1, 0)]),
        ("failed", vec![failed(0, 1)]),
        ("failed for now", vec![failed_for_now(0, 1)]),
        ("returned", vec![returned(0, 1)]),
        ("another attempt", vec![started(0, 2)]),
        ("cancel requested", vec![cancel_requested(0)]),
        ("expired", vec![expired(0)]),
        ("run cancelled", vec![run_cancel_requested()]),
    ];
    for (how, events) in ends {
        let mut story = asking(repeatable("a"));
        story.tell_all(events);
        assert_eq!(story.state(1), "cancelled", "{how}");
        story.tell(answered(1, "too late"));
        assert_eq!(story.state(1), "cancelled", "{how}");
    }
}

#[test]
fn a_retry_asks_anew() {
    let mut story = asking(repeatable("a"));
    story.tell_all([failed_for_now(0, 1), started(0, 2)]);
    asked(&mut story, &question(0, 2, 1));
    assert_eq!((story.state(1), story.state(2)), ("cancelled", "waiting for the client"));
    assert_eq!(story.call(2).spec().id, id("ask_0_2_1"));
}

#[test]
fn the_deadlines_of_an_attempt_rest_while_it_asks_and_those_of_its_call_do_not() {
    let mut story = asking(with_idle_timeout("a", SOON));
    let policy = Policy::of(Effects { idempotent: true, ..Default::default() });
    story.wait(policy.attempt_timeout * 2);
    assert_eq!(story.run.outstanding(story.now), []);
    // An owner that had not seen the question.
    story.tell(expired_by(0, DeadlineKind::Idle(AttemptNumber(1))));
    assert_eq!(story.state(0), "running");
    assert_eq!(story.run.next_deadline(), Some(story.call(0).spec().deadline));
    story.tell(answered(1, "at last"));
    assert_eq!(story.run.outstanding(story.now), [], "its time goes on where it rested");
    story.wait(SOON * 2 + Duration::from_secs(10));
    let deadline = DeadlineKind::Idle(AttemptNumber(1));
    assert_eq!(story.run.outstanding(story.now), [Effect::Expire { call: CallIndex(0), deadline }]);

    let mut story = asking(once("a"));
    story.wait(CALL_LIFE);
    let expire = |call, deadline| Effect::Expire { call: CallIndex(call), deadline };
    let both = [expire(0, DeadlineKind::Call), expire(1, DeadlineKind::Client)];
    assert_eq!(story.run.outstanding(story.now), both);
}

#[test]
fn a_question_has_a_deadline_of_its_own_that_ends_nothing_else() {
    let mut story = Story::failing_fast([once("a")], false);
    story.tell_all([dispatched(0), started(0, 1)]);
    asked(&mut story, &NewQuestion { timeout: Some(SOON), ..question(0, 1, 1) });
    story.wait(SOON);
    let expire = Effect::Expire { call: CallIndex(1), deadline: DeadlineKind::Client };
    assert_eq!(story.run.outstanding(story.now), [expire]);
    story.tell(expired_by(1, DeadlineKind::Client));
    assert_eq!((story.state(0), story.state(1)), ("running", "expired"));
    assert_eq!(story.run.status(), RunStatus::InProgress);
}

#[test]
fn a_question_that_the_client_cannot_answer_fails_no_run() {
    for rules in [Rules::default(), Rules { fails_with_call: true, ..Rules::default() }] {
        let mut story = Story::under(rules, [once("a")]);
        story.tell_all([dispatched(0), started(0, 1)]);
        asked(&mut story, &question(0, 1, 1));
        story.tell(Event::ClientAnswered { call: CallIndex(1), answer: Err(error(ErrorKind::ClientFailed)) });
        assert_eq!((story.state(0), story.state(1)), ("running", "failed"));
        story.tell(completed(0, 1, 0));
        assert_eq!(story.run.status(), RunStatus::Completed);
    }
}

#[test]
fn a_question_is_no_result_and_no_call_of_the_model() {
    let direct = CallSpec { result_use: ResultUse { return_direct: true, ..ResultUse::default() }, ..once("a") };
    let mut story = asking(direct);
    story.tell_all([answered(1, "yes"), completed(0, 1, 0)]);
    assert!(story.run.returns_direct());
    assert_eq!(story.run.requested_calls().count(), 1);
    assert_eq!(story.run.calls().len(), 2);
}

#[test]
fn questions_have_limits_of_their_own() {
    let mut story = Story::open((0..limit::CALLS_PER_RUN_MAX).map(|call| repeatable(&call.to_string())));
    for call in 0..9 {
        story.tell_all([dispatched(call), started(call, 1)]);
    }
    for nth in 1..=16 {
        asked(&mut story, &question(0, 1, nth));
    }
    assert_eq!(asks(&story, &question(0, 1, 17)), Err(AskError::TooMany { limit: 16 }));
    story.tell_all([failed_for_now(0, 1), started(0, 2)]);
    assert_eq!(asks(&story, &question(0, 2, 1)), Err(AskError::TooMany { limit: 16 }), "its attempts together");
    for (call, nth) in (1..8).flat_map(|call| (1..=16).map(move |nth| (call, nth))) {
        asked(&mut story, &question(call, 1, nth));
    }
    assert_eq!(asks(&story, &question(8, 1, 1)), Err(AskError::TooManyInRun { limit: 128 }));
    let large = NewQuestion { arguments: vec![b' '; limit::QUESTION_BYTES_MAX + 1].into(), ..question(8, 1, 1) };
    assert!(matches!(asks(&story, &large), Err(AskError::TooLarge { .. })));
    let no_time = NewQuestion { timeout: Some(Duration::ZERO), ..question(9, 1, 1) };
    story.tell_all([dispatched(9), started(9, 1)]);
    assert_eq!(asks(&story, &no_time), Err(AskError::TooManyInRun { limit: 128 }));
}

#[test]
fn questions_take_no_room_from_the_calls_of_a_run() {
    let mut story = Story::open((0..limit::CALLS_PER_RUN_MAX - 1).map(|call| once(&call.to_string())));
    story.tell_all([dispatched(0), started(0, 1)]);
    asked(&mut story, &question(0, 1, 1));
    let append = |name: &str| Command::AppendCalls { calls: shared([once(name)]) };
    let last = story.run.decide(append("last"), story.now).expect("there is room for one more");
    story.tell_all(last);
    let full = story.run.decide(append("beyond"), story.now);
    assert!(matches!(full, Err(CommandError::TooManyCalls { .. })), "{full:?}");
}

#[test]
fn a_client_that_gave_a_call_the_id_of_a_question_is_asked_under_another() {
    let mut story = Story::of([once("a"), client("ask_0_1_1")]);
    story.tell_all([dispatched(0), started(0, 1)]);
    asked(&mut story, &question(0, 1, 1));
    assert_eq!(story.call(2).spec().id, id("ask_0_1_1_0000000000000001"));
}

#[test]
fn a_question_is_answered_once_and_the_same_answer_again_changes_nothing() {
    let mut story = asking(once("a"));
    let answer = |output: &str| Command::SubmitOutputs {
        answers: vec![Answer { call: id("ask_0_1_1"), output: Ok(text(output)) }],
        all_required: true,
    };
    let events = story.run.decide(answer("this"), story.now).expect("it waits");
    story.tell_all(events);
    assert_eq!(story.run.decide(answer("this"), story.now), Ok(vec![]));
    let other = story.run.decide(answer("that"), story.now);
    assert_eq!(other, Err(CommandError::AlreadyAnswered { call: id("ask_0_1_1") }));
}

#[test]
fn a_question_is_visible_while_its_call_has_the_floor() {
    for policy in POLICIES {
        let mut story = Story::of([once("a"), once("b")]);
        story.tell_all([dispatched(0), dispatched(1), started(0, 1), output(0, 1, 0..1), started(1, 1)]);
        story.tell(output(1, 1, 0..1));
        asked(&mut story, &question(0, 1, 1));
        asked(&mut story, &question(1, 1, 1));
        let spoken = story.spoken(policy);
        assert!(spoken.contains(&"2 waits".to_owned()) && spoken.contains(&"3 waits".to_owned()), "{spoken:?}");
        assert_eq!(spoken.last().map(String::as_str), Some("run is RequiresAction"));
        story.tell(answered(3, "yes"));
        let spoken = story.spoken(policy);
        let end = [spoken[spoken.len() - 2].as_str(), spoken[spoken.len() - 1].as_str()];
        assert_eq!(end, ["3 ended", "run is InProgress"], "its end waits for nobody either");
        story.tell_all([answered(2, "no"), completed(1, 1, 1), completed(0, 1, 1)]);
        let spoken = story.spoken(policy);
        assert!(!spoken.iter().any(|line| line == "2 speaks" || line == "3 speaks"), "{spoken:?}");
        assert!(spoken.contains(&"1 says 0..1 of attempt 1".to_owned()), "the floor passes as ever: {spoken:?}");
        assert_eq!(spoken.last().map(String::as_str), Some("run ended Completed"));
    }
}

#[test]
fn a_question_that_came_too_late_changes_nothing() {
    let mut story = Story::of([once("a")]);
    story.tell_all([dispatched(0), started(0, 1)]);
    let event = asks(&story, &question(0, 1, 1)).expect("it may ask").expect("it is new");
    assert_eq!(story.tell_late([event]), []);
    assert_eq!(story.run.calls().len(), 1);
    assert!(matches!(asks(&story, &question(0, 1, 1)), Ok(Some(_))), "it may be asked again");
}

#[test]
fn why_a_call_waits_names_the_question() {
    let mut story = asking(once("a"));
    story.wait(SOON * 90);
    let why = story.run.why(story.call(0), story.now, None);
    assert!(why.contains("waiting for the client's answer to ask_0_1_1 for 1 min 30 s"), "{why}");
}

fn cases(count: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let rng_algorithm = RngAlgorithm::XorShift;
    ProptestConfig { cases: count.max(default.cases), failure_persistence: None, rng_algorithm, ..default }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn a_question_is_open_only_while_its_attempt_counts(history in histories()) {
        for_each_entry(&history.log, |_, _, run, _| {
            let mut asking = Vec::new();
            for question in run.calls().iter().filter(|call| *call.state() == CallState::WaitingForClient) {
                let Some(AskedBy { attempt, .. }) = question.spec().asked_by else { continue };
                let asker = run.call(attempt.call).expect("it asked");
                assert!(matches!(asker.state(), CallState::Running(running) if running.attempt == attempt));
                assert!(asker.is_asking() && !asker.cancel_requested(), "{asker:?}");
                asking.push(attempt.call);
            }
            for call in run.calls() {
                assert_eq!(call.is_asking(), asking.contains(&call.index()), "{call:?}");
            }
        });
    }

    #[test]
    fn a_run_requires_action_if_nothing_goes_on_but_what_waits_for_the_client(history in histories()) {
        for_each_entry(&history.log, |_, _, run, _| {
            let open = run.calls().iter().filter(|call| call.outcome().is_none());
            let waits = open.map(|call| match call.state() {
                CallState::WaitingForClient | CallState::AwaitingApproval => true,
                CallState::Running(_) => call.is_asking(),
                CallState::Accepted | CallState::Delayed | CallState::Queued { .. } | CallState::Ended(_) => false,
            });
            let waits: Vec<bool> = waits.collect();
            let requires = !waits.is_empty() && waits.iter().all(|waits| *waits);
            assert_eq!(run.status() == RunStatus::RequiresAction, requires, "{run:?}");
        });
    }

    #[test]
    fn a_question_and_its_end_are_emitted_at_once(history in whole_histories()) {
        for policy in POLICIES {
            let mut sequencer = Sequencer::new(policy);
            for_each_entry(&history.log, |entry, _, run, heard| {
                let mut spoken = Vec::new();
                sequencer.observe(entry.at, heard, &mut spoken);
                let is_question = |call| run.call(call).is_some_and(Call::is_question);
                for fact in heard {
                    let expected = match *fact {
                        Fact::QuestionAsked { call } => OutputKind::CallWaits { call },
                        Fact::CallEnded { call } if is_question(call) => OutputKind::CallEnded { call },
                        _ => continue,
                    };
                    assert!(spoken.iter().any(|spoken| spoken.what == expected), "{expected:?} is not in {spoken:?}");
                }
                let speaks = |call| !is_question(call);
                assert!(spoken.iter().all(|spoken| match spoken.what {
                    OutputKind::Speaks { call } => speaks(call),
                    _ => true,
                }));
            });
        }
    }
}

/// Properties of dull histories prove little.
#[test]
fn questions_happen_in_the_histories() {
    let mut runner = TestRunner::new_with_rng(cases(1), TestRng::deterministic_rng(RngAlgorithm::XorShift));
    let (mut answered, mut ended, mut unheard) = (0, 0, 0);
    for _ in 0..3000 {
        let history = whole_histories().new_tree(&mut runner).expect("a history").current();
        for_each_entry(&history.log, |entry, _, run, heard| {
            let asks = |call: &&Event| matches!(call, Event::CallsAppended { calls } if calls[0].asked_by.is_some());
            let is_question = |call: &CallIndex| run.call(*call).is_some_and(Call::is_question);
            let void = |fact: &Fact| matches!(fact, Fact::CallEnded { call } if is_question(call));
            unheard += usize::from(entry.events.iter().any(|event| asks(&event)) && heard.iter().any(void));
        });
        for call in history.fold().calls().iter().filter(|call| call.is_question()) {
            match call.outcome().expect("it ended") {
                Outcome::Completed(_) => answered += 1,
                Outcome::Failed(_) | Outcome::Cancelled { .. } | Outcome::Expired(_) => ended += 1,
            }
        }
    }
    assert!(answered >= 10 && ended >= 10 && unheard >= 10, "{answered} answered, {ended} ended, {unheard} void");
}
