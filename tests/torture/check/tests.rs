//! The checker finds each kind of violation in event lists that were forged to have it, and nothing in those that are
//! right.

use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy, RunEvent};

use super::{
    Answer, Asking, Broken, Effect, Evidence, Violation, effect_of_call, effects_of, found_effects, judge, read, same,
    weigh,
};
use crate::language::Language;
use crate::plan::{Cancel, Plan, PlannedCall, When, Work};
use crate::seed::Seed;

fn opened(calls: &[&str]) -> Event {
    let calls = calls.iter().map(|call| v1::OpenedCall { call_id: (*call).to_owned(), ..v1::OpenedCall::default() });
    Event::RunOpened(v1::RunOpened { calls: calls.collect(), ..v1::RunOpened::default() })
}

fn started(call_id: &str, attempt: u32) -> Event {
    Event::AttemptStarted(v1::AttemptStarted { call_id: call_id.to_owned(), attempt, ..v1::AttemptStarted::default() })
}

fn continues(call_id: &str, attempt: u32) -> Event {
    let call_id = call_id.to_owned();
    Event::AttemptStarted(v1::AttemptStarted { call_id, attempt, continues: true, ..v1::AttemptStarted::default() })
}

fn speaking(call_id: &str) -> Event {
    Event::CallSpeaking(v1::CallSpeaking { call_id: call_id.to_owned(), tool: String::new() })
}

fn content(text: &str) -> v1::Content {
    v1::Content::from(v1::content::Body::Text(text.to_owned()))
}

fn output(call_id: &str, attempt: u32, chunk: u32) -> Event {
    let piece = Some(v1::call_output::Piece::Content(content(&format!("r7{call_id}-{chunk} "))));
    Event::CallOutput(v1::CallOutput {
        call_id: call_id.to_owned(),
        attempt,
        chunk,
        piece,
        ..v1::CallOutput::default()
    })
}

fn withdrawn(call_id: &str, attempt: u32) -> Event {
    Event::CallOutputWithdrawn(v1::CallOutputWithdrawn { call_id: call_id.to_owned(), attempt })
}

fn ended(call_id: &str, state: CallState, result: &str) -> Event {
    let result = if result.is_empty() { Vec::new() } else { vec![content(result)] };
    let outcome = Some(v1::CallOutcome { state: state.into(), result, ..v1::CallOutcome::default() });
    Event::CallEnded(v1::CallEnded { call_id: call_id.to_owned(), outcome, ..v1::CallEnded::default() })
}

fn failed(call_id: &str, kind: CallErrorKind) -> Event {
    let error = Some(v1::CallError { kind: kind.into(), message: "no".to_owned(), ..v1::CallError::default() });
    let outcome = Some(v1::CallOutcome { state: CallState::Failed.into(), error, ..v1::CallOutcome::default() });
    Event::CallEnded(v1::CallEnded { call_id: call_id.to_owned(), outcome, ..v1::CallEnded::default() })
}

fn counted(call_id: &str) -> Event {
    ended(call_id, CallState::Completed, "counted to 2")
}

fn run_ended() -> Event {
    Event::RunEnded(v1::RunEnded {
        status: v1::RunStatus::Completed.into(),
        return_direct: false,
        extra_state: String::new(),
    })
}

fn numbered(events: Vec<Event>) -> Vec<RunEvent> {
    let time = Some(prost_types::Timestamp { seconds: 1, nanos: 0 });
    events.into_iter().zip(0..).map(|(event, sequence)| RunEvent { sequence, time, event: Some(event) }).collect()
}

/// A call that counts to two.
fn right() -> Vec<RunEvent> {
    numbered(vec![
        opened(&["c0"]),
        started("c0", 1),
        speaking("c0"),
        output("c0", 1, 0),
        output("c0", 1, 1),
        counted("c0"),
        run_ended(),
    ])
}

fn found(events: Vec<Event>) -> Vec<Broken> {
    kinds(&read(&numbered(events), FloorPolicy::Arrival, true).1)
}

fn kinds(violations: &[Violation]) -> Vec<Broken> {
    violations.iter().map(|violation| violation.broken).collect()
}

fn plan(work: Work) -> Plan {
    let calls = vec![PlannedCall { work, timeout: None, language: Language::Rust }];
    Plan { calls, cancel: None, fail_fast: false, number: 7, ..Plan::new(&Seed::new(1), 7) }
}

fn judged(plan: &Plan, events: &[RunEvent], evidence: &Evidence) -> (Vec<Effect>, Vec<Broken>) {
    let (story, wrong) = read(events, FloorPolicy::Arrival, true);
    assert_eq!(wrong, []);
    let (effects, found) = judge(plan, &story, evidence);
    (effects, kinds(&found))
}

#[test]
fn nothing_is_found_in_a_stream_that_is_right() {
    assert_eq!(read(&right(), FloorPolicy::Arrival, true).1, []);
    let (_, found) = judged(&plan(Work::Count { pieces: 2, every_ms: 0 }), &right(), &Evidence::default());
    assert_eq!(found, []);
}

#[test]
fn a_call_that_is_not_in_the_run_is_lost_unless_the_run_was_erased_before_it_was_read() {
    let (story, _) = read(&[], FloorPolicy::Arrival, false);
    for (was_erased, lost) in [(false, vec![Broken::Lost]), (true, vec![])] {
        let evidence = Evidence { was_erased, ..Evidence::default() };
        let (_, found) = judge(&plan(Work::Count { pieces: 2, every_ms: 0 }), &story, &evidence);
        assert_eq!(kinds(&found), lost);
    }
}

#[test]
fn nothing_is_found_where_an_older_attempt_was_withdrawn() {
    let events = vec![
        opened(&["c0"]),
        started("c0", 1),
        speaking("c0"),
        output("c0", 1, 0),
        started("c0", 2),
        withdrawn("c0", 1),
        output("c0", 2, 0),
        output("c0", 2, 1),
        counted("c0"),
        run_ended(),
    ];
    assert_eq!(found(events.clone()), []);
    let (story, _) = read(&numbered(events), FloorPolicy::Arrival, true);
    assert_eq!(story.calls["c0"].said, "r7c0-0 r7c0-1 ");
}

#[test]
fn an_attempt_that_continues_goes_on_with_the_next_chunk_and_withdraws_nothing() {
    let with = |after: [Event; 2]| {
        let before = [opened(&["c0"]), started("c0", 1), speaking("c0"), output("c0", 1, 0), continues("c0", 2)];
        found(before.into_iter().chain(after).chain([counted("c0"), run_ended()]).collect())
    };
    assert_eq!(with([output("c0", 2, 1), output("c0", 2, 2)]), []);
    assert_eq!(with([output("c0", 1, 1), output("c0", 2, 2)]), [], "what waited for the floor still counts");
    assert_eq!(with([output("c0", 2, 0), output("c0", 2, 1)]), [Broken::Doubled]);
    assert_eq!(with([output("c0", 2, 1), output("c0", 1, 2)]), [Broken::Zombie]);
}

#[test]
fn a_run_or_a_call_that_does_not_end_is_lost() {
    let mut events = right();
    events.pop();
    assert_eq!(kinds(&read(&events, FloorPolicy::Arrival, true).1), [Broken::Lost]);
    assert_eq!(read(&events, FloorPolicy::Arrival, false).1, []);
    assert_eq!(found(vec![opened(&["c0"]), run_ended()]), [Broken::Lost]);
}

#[test]
fn numbers_that_come_again_or_are_left_out_are_found() {
    let mut events = right();
    let again = events[3].clone();
    events.insert(4, again);
    assert!(kinds(&read(&events, FloorPolicy::Arrival, true).1).contains(&Broken::Doubled));
    let mut events = right();
    events[6].sequence = 9;
    assert_eq!(kinds(&read(&events, FloorPolicy::Arrival, true).1), [Broken::Reordered]);
}

#[test]
fn chunks_that_come_again_or_out_of_order_are_found() {
    let with = |chunks: [u32; 3]| {
        let said = chunks.map(|chunk| output("c0", 1, chunk));
        let before = [opened(&["c0"]), started("c0", 1), speaking("c0")];
        found(before.into_iter().chain(said).chain([counted("c0"), run_ended()]).collect())
    };
    assert_eq!(with([0, 1, 2]), []);
    assert_eq!(with([0, 0, 1]), [Broken::Doubled]);
    assert_eq!(with([0, 2, 3]), [Broken::Reordered]);
    assert_eq!(with([1, 2, 3]), [Broken::Reordered]);
}

#[test]
fn two_ends_are_found() {
    let events = vec![opened(&["c0"]), speaking("c0"), counted("c0"), counted("c0"), run_ended()];
    assert_eq!(found(events), [Broken::Doubled]);
    let events = vec![opened(&["c0"]), speaking("c0"), counted("c0"), run_ended(), run_ended()];
    assert_eq!(found(events), [Broken::Doubled]);
}

#[test]
fn output_of_an_older_attempt_that_was_not_withdrawn_is_found() {
    let before = [opened(&["c0"]), started("c0", 1), speaking("c0"), output("c0", 1, 0), started("c0", 2)];
    let after = [output("c0", 2, 0), counted("c0"), run_ended()];
    assert_eq!(found(before.iter().cloned().chain(after).collect()), [Broken::Doubled]);
    assert_eq!(found(before.into_iter().chain([counted("c0"), run_ended()]).collect()), [Broken::Doubled]);
}

#[test]
fn zombies_are_found() {
    let of_an_older_attempt =
        vec![opened(&["c0"]), started("c0", 1), started("c0", 2), speaking("c0"), output("c0", 1, 0)];
    assert!(found(of_an_older_attempt).contains(&Broken::Zombie));
    let after_the_end = vec![opened(&["c0"]), started("c0", 1), speaking("c0"), counted("c0"), output("c0", 1, 0)];
    assert!(found(after_the_end).contains(&Broken::Zombie));
    let started_after_the_end = vec![opened(&["c0"]), speaking("c0"), counted("c0"), started("c0", 2), run_ended()];
    assert_eq!(found(started_after_the_end), [Broken::Zombie]);
    let an_older_start = vec![opened(&["c0"]), started("c0", 2), started("c0", 1)];
    assert!(found(an_older_start).contains(&Broken::Zombie));
}

#[test]
fn a_call_that_speaks_while_another_has_the_floor_is_found_unless_there_is_no_floor() {
    let events = numbered(vec![
        opened(&["c0", "c1"]),
        started("c0", 1),
        started("c1", 1),
        speaking("c0"),
        speaking("c1"),
        output("c1", 1, 0),
        output("c0", 1, 0),
        counted("c1"),
        counted("c0"),
        run_ended(),
    ]);
    for policy in [FloorPolicy::Arrival, FloorPolicy::Submission] {
        assert!(kinds(&read(&events, policy, true).1).contains(&Broken::Reordered), "{policy:?}");
    }
    assert_eq!(read(&events, FloorPolicy::Interleaved, true).1, []);
}

#[test]
fn output_before_its_call_speaks_is_found_under_every_policy() {
    let events = numbered(vec![opened(&["c0"]), started("c0", 1), output("c0", 1, 0)]);
    assert!(kinds(&read(&events, FloorPolicy::Interleaved, false).1).contains(&Broken::Reordered));
}

#[test]
fn readers_that_differ_are_found() {
    assert_eq!(same(&right(), &right()), None);
    let mut other = right();
    other[5].time = None;
    assert_eq!(same(&right(), &other).map(|violation| violation.broken), Some(Broken::Differing));
    other = right();
    other.pop();
    assert_eq!(same(&right(), &other).map(|violation| violation.broken), Some(Broken::Differing));
}

#[test]
fn a_state_that_differs_from_the_stream_is_found() {
    for (outcome, broken) in [(None, Broken::Outdated), (Some(v1::CallOutcome::default()), Broken::Differing)] {
        let call = v1::Call { call_id: "c0".to_owned(), outcome, ..v1::Call::default() };
        let run = Some(v1::Run { calls: vec![call], ..v1::Run::default() });
        let evidence = Evidence { run, ..Evidence::default() };
        let (_, found) = judged(&plan(Work::Count { pieces: 2, every_ms: 0 }), &right(), &evidence);
        assert_eq!(found, [broken]);
    }
}

#[test]
fn wrong_content_is_found() {
    let three = plan(Work::Count { pieces: 3, every_ms: 0 });
    assert_eq!(judged(&three, &right(), &Evidence::default()).1, [Broken::WrongContent]);
    let other = Plan { number: 8, ..plan(Work::Count { pieces: 2, every_ms: 0 }) };
    assert_eq!(judged(&other, &right(), &Evidence::default()).1, [Broken::WrongContent], "another call's text");
}

#[test]
fn ends_that_nobody_asked_for_are_found() {
    let end = |event: Event| numbered(vec![opened(&["c0"]), speaking("c0"), event, run_ended()]);
    let judged = |work: Work, event: Event, evidence: &Evidence| judged(&plan(work), &end(event), evidence).1;
    let cancelled = || ended("c0", CallState::Cancelled, "");
    let asked = Evidence { cancels: vec![0], ..Evidence::default() };
    assert_eq!(judged(Work::Echo, cancelled(), &Evidence::default()), [Broken::WrongContent]);
    assert_eq!(judged(Work::Echo, cancelled(), &asked), []);
    assert_eq!(judged(Work::Echo, ended("c0", CallState::Expired, ""), &asked), [Broken::WrongContent]);
    let lost = failed("c0", CallErrorKind::WorkerLost);
    assert_eq!(judged(Work::Echo, lost, &asked), [Broken::WrongContent], "given up before its attempts were used up");
    let interrupted = failed("c0", CallErrorKind::Interrupted);
    assert_eq!(judged(Work::Echo, interrupted, &asked), [Broken::WrongContent], "echo is safe to repeat");
    let answered = Evidence { answered: vec![0], ..Evidence::default() };
    let ask = Work::Ask { answer_after: None };
    assert_eq!(judged(ask.clone(), ended("c0", CallState::Expired, ""), &answered), [Broken::WrongContent]);
    assert_eq!(judged(ask, ended("c0", CallState::Completed, "r7c0"), &Evidence::default()), [Broken::WrongContent]);
}

#[test]
fn how_often_a_call_may_act_depends_on_what_its_caller_was_told() {
    let effect = |event: Event, started_first: bool| {
        let cancel = Some(Cancel { call: None, when: When::Started });
        let plan = Plan { cancel, ..plan(Work::Write { then_wait_ms: 0 }) };
        let start = started_first.then(|| started("c0", 1));
        let events = [Some(opened(&["c0"])), start, Some(speaking("c0")), Some(event), Some(run_ended())];
        let evidence = Evidence { cancels: vec![0], ..Evidence::default() };
        let (effects, found) = judged(&plan, &numbered(events.into_iter().flatten().collect()), &evidence);
        assert_eq!(found, []);
        (effects[0].at_least, effects[0].at_most)
    };
    assert_eq!(effect(ended("c0", CallState::Completed, "Done"), true), (1, 1));
    assert_eq!(effect(ended("c0", CallState::Cancelled, ""), true), (0, 1));
    assert_eq!(effect(ended("c0", CallState::Cancelled, ""), false), (0, 0));
    assert_eq!(effect(failed("c0", CallErrorKind::Interrupted), true), (0, 1));
    assert_eq!(effect(ended("c0", CallState::Completed, "Done"), false), (1, 1));
}

// ---- requests that were not confirmed ----

fn refused() -> Answer {
    Answer::Refused("BROKER_UNAVAILABLE".to_owned())
}

fn named() -> Answer {
    Answer::Named("run_1".to_owned())
}

fn writing(has_request_id: bool) -> Plan {
    Plan { has_request_id, is_kept: true, ..plan(Work::Write { then_wait_ms: 0 }) }
}

/// What is found if requests got these answers, one after the other, and their calls wrote these lines. The line of a
/// request ends with its number, from 0.
fn weighed(plan: &Plan, answers: &[Answer], world: &[&str]) -> Vec<Broken> {
    let number = |number| if plan.has_request_id { 0 } else { number };
    let askings = answers.iter().cloned().zip(0..).map(|(answer, at)| Asking { number: number(at), answer });
    let effects = effects_of(plan, &askings.collect::<Vec<_>>(), false);
    let effects = effects.into_iter().map(|effect| ("run".to_owned(), effect)).collect();
    kinds(&weigh(effects, &world.join("\n")).into_iter().map(|(_, violation)| violation).collect::<Vec<_>>())
}

#[test]
fn what_a_refused_request_did_is_found_whenever_it_did_it() {
    let plan = writing(false);
    assert_eq!(weighed(&plan, &[refused()], &[]), []);
    assert_eq!(weighed(&plan, &[refused()], &["r7c0-0"]), [Broken::RefusedEffect]);
    let thrice = [refused(), refused(), refused()];
    let all = ["r7c0-0", "r7c0-1", "r7c0-2"];
    assert_eq!(weighed(&plan, &thrice, &all), [Broken::RefusedEffect; 3]);
}

#[test]
fn a_request_without_an_answer_may_act_once_and_not_twice() {
    let plan = writing(false);
    assert_eq!(weighed(&plan, &[Answer::Lost, refused()], &["r7c0-0"]), []);
    assert_eq!(weighed(&plan, &[Answer::Lost], &["r7c0-0", "r7c0-0"]), [Broken::RepeatedEffect]);
    assert_eq!(weighed(&plan, &[Answer::Lost, refused()], &["r7c0-1"]), [Broken::RefusedEffect]);
}

#[test]
fn requests_under_one_id_that_were_never_confirmed_act_once_in_all() {
    let plan = writing(true);
    assert_eq!(weighed(&plan, &[refused(), Answer::Lost, refused()], &["r7c0-0"]), []);
    assert_eq!(weighed(&plan, &[Answer::Lost, Answer::Lost], &["r7c0-0", "r7c0-0"]), [Broken::RepeatedEffect]);
    assert_eq!(weighed(&plan, &[refused(), refused()], &["r7c0-0"]), [Broken::RefusedEffect]);
    // The run that is confirmed in the end answers for all of them.
    assert_eq!(effects_of(&plan, &[Asking { number: 0, answer: Answer::Lost }], true), []);
}

#[test]
fn an_effect_that_nobody_asked_for_is_found() {
    assert_eq!(weighed(&writing(false), &[], &["r9c0-0"]), [Broken::RefusedEffect]);
}

#[test]
fn a_run_that_an_error_names_acts_at_most_once_and_not_at_all_if_it_is_never_found() {
    let plan = writing(false);
    let asking = Asking { number: 2, answer: named() };
    assert_eq!(effects_of(&plan, std::slice::from_ref(&asking), false), [], "its run answers for it");
    let most = |plan: &Plan, found| {
        let (effects, wrong) = found_effects(plan, &asking, found);
        assert_eq!(kinds(&wrong), []);
        (effects[0].line.clone(), effects[0].at_least, effects[0].at_most)
    };
    assert_eq!(most(&plan, None), ("r7c0-2".to_owned(), 0, 0));
    assert_eq!(most(&Plan { is_kept: false, ..plan.clone() }, None), ("r7c0-2".to_owned(), 0, 1), "it may be erased");
    let evidence = Evidence { asking: 2, may_be_void: true, ..Evidence::default() };
    let story = |event: Event, start: Option<Event>| {
        let events = [Some(opened(&["c0"])), start, Some(speaking("c0")), Some(event), Some(run_ended())];
        read(&numbered(events.into_iter().flatten().collect()), FloorPolicy::Arrival, true).0
    };
    let done = story(ended("c0", CallState::Completed, "Done"), Some(started("c0", 1)));
    assert_eq!(most(&plan, Some((&done, &evidence))), ("r7c0-2".to_owned(), 1, 1));
    let void = story(ended("c0", CallState::Expired, ""), None);
    assert_eq!(most(&plan, Some((&void, &evidence))), ("r7c0-2".to_owned(), 0, 0));
}

#[test]
fn a_run_expires_as_it_begins_only_if_its_client_was_told_of_doubt() {
    let events = numbered(vec![opened(&["c0"]), speaking("c0"), ended("c0", CallState::Expired, ""), run_ended()]);
    let found = |may_be_void| judged(&plan(Work::Echo), &events, &Evidence { may_be_void, ..Evidence::default() }).1;
    assert_eq!(found(true), []);
    assert_eq!(found(false), [Broken::WrongContent]);
}

#[test]
fn a_redriven_call_acts_once_more_and_no_oftener() {
    let plan = writing(false);
    let call = |why: &str| Effect {
        line: "r7c0-0".to_owned(),
        at_least: 0,
        at_most: 1,
        why: why.to_owned(),
        is_refused: false,
    };
    let effects = || vec![("first".to_owned(), call("interrupted")), ("second".to_owned(), call("redriven"))];
    assert_eq!(weigh(effects(), "r7c0-0\nr7c0-0"), []);
    let found = weigh(effects(), "r7c0-0\nr7c0-0\nr7c0-0");
    assert_eq!(
        found.iter().map(|(run, violation)| (run.as_str(), violation.broken)).collect::<Vec<_>>(),
        [("first", Broken::RepeatedEffect)]
    );
    let unsure = effect_of_call(&plan, 0, &Asking { number: 0, answer: Answer::Lost });
    assert_eq!(unsure.map(|effect| effect.at_most), Some(1));
}

#[test]
fn an_answer_is_told_from_a_refusal_by_the_coordinators_own_reason() {
    use tonic::{Code, Status};
    use tonic_types::{ErrorDetails, StatusExt as _};
    let with = |metadata: &[(&str, &str)]| {
        let metadata: std::collections::HashMap<String, String> =
            metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let details = ErrorDetails::with_error_info("UNCONFIRMED", "toolyard.dev", metadata);
        Answer::of(&Status::with_error_details(Code::Unavailable, "perhaps", details))
    };
    assert_eq!(with(&[]), Answer::Refused("UNCONFIRMED".to_owned()));
    assert_eq!(with(&[("run_id", "run_1")]), named());
    assert_eq!(Answer::of(&Status::unavailable("the connection broke")), Answer::Lost);
}
