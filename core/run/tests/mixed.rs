//! Runs in which some calls are executed and others are the client's.

mod story;

use story::{
    START, Story, answered, cancel_requested, client, completed, dispatched, failed, id, repeatable, run_id, shared,
    text, unapproved,
};
use toolyard_run::{Answer, CallId, CallSpec, Command, CommandError, Event, FloorPolicy, Opening, Run, RunStatus};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Ok,
    Fails,
    Client,
}

const KINDS: [Kind; 3] = [Kind::Ok, Kind::Fails, Kind::Client];

/// Every word of three kinds: each kind first, in the middle, last, and not at all.
fn words() -> impl Iterator<Item = [Kind; 3]> {
    KINDS.iter().flat_map(|a| KINDS.iter().flat_map(move |b| KINDS.iter().map(move |c| [*a, *b, *c])))
}

fn call(kind: Kind, name: &str) -> CallSpec {
    if kind == Kind::Client { client(name) } else { repeatable(name) }
}

type Part = fn(&mut Story, [Kind; 3], u16);

fn execute(story: &mut Story, word: [Kind; 3], index: u16) {
    match word[usize::from(index)] {
        Kind::Ok => story.tell_all([dispatched(index), completed(index, 1, 0)]),
        Kind::Fails => story.tell_all([dispatched(index), failed(index, 1)]),
        Kind::Client => {}
    }
}

fn answer(story: &mut Story, word: [Kind; 3], index: u16) {
    if word[usize::from(index)] == Kind::Client {
        story.tell(answered(index, "mine"));
    }
}

#[test]
fn every_mix_ends_whether_the_client_answers_first_or_last() {
    for word in words() {
        for client_first in [true, false] {
            for order in [[0, 1, 2], [2, 1, 0]] {
                let mut story = Story::of(word.iter().zip(["a", "b", "c"]).map(|(kind, name)| call(*kind, name)));
                let [first, then]: [Part; 2] = if client_first { [answer, execute] } else { [execute, answer] };
                order.iter().for_each(|index| first(&mut story, word, *index));
                if !client_first && word.contains(&Kind::Client) {
                    assert_eq!(story.run.status(), RunStatus::RequiresAction, "{word:?}");
                }
                order.iter().for_each(|index| then(&mut story, word, *index));
                assert_eq!(story.run.status(), RunStatus::Completed, "{word:?}");
                for (index, kind) in (0..).zip(word) {
                    let expected = if kind == Kind::Fails { "failed" } else { "completed" };
                    assert_eq!(story.state(index), expected, "{word:?}");
                }
                let spoken = story.spoken(FloorPolicy::Submission);
                assert_eq!(spoken.last().map(String::as_str), Some("run ended Completed"), "{word:?}");
            }
        }
    }
}

fn answers(story: &Story, calls: &[&str]) -> Result<Vec<Event>, CommandError> {
    let answers = calls.iter().map(|call| Answer { call: id(call), output: Ok(text("yes")) }).collect();
    story.run.decide(Command::SubmitOutputs { answers, all_required: true }, story.now)
}

#[test]
fn where_all_answers_are_required_some_are_refused() {
    let mut story = Story::of([client("a"), client("b"), repeatable("c"), unapproved("d", story::CALL_LIFE)]);
    let missing = |calls: &[&str]| {
        Err(CommandError::AnswersMissing { calls: calls.iter().map(|call| id(call)).collect::<Vec<CallId>>() })
    };
    assert_eq!(answers(&story, &["a"]), missing(&["b"]));
    assert_eq!(answers(&story, &["a", "b"]), Ok(vec![answered(0, "yes"), answered(1, "yes")]));
    story.tell(answered(1, "yes"));
    assert_eq!(answers(&story, &["b"]), missing(&["a"]), "what was answered before is not what is required");
    story.tell(cancel_requested(0));
    assert_eq!(answers(&story, &["b"]), Ok(vec![]), "nothing is missing any more");
}

#[test]
fn a_run_remembers_that_nothing_of_it_is_executed() {
    let opening = Opening {
        calls: shared([client("a")]),
        deadline: START.after(story::RUN_LIFE),
        client_only: true,
        ..Opening::default()
    };
    let mut run = Run::new(run_id());
    let events = Run::open(opening, START).expect("it is fine");
    run.apply(&toolyard_run::Entry { sequence: 1, at: START, not_after: None, hooked: false, events }, &mut Vec::new());
    assert!(run.is_client_only());
}
