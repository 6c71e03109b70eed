//! The text of a run for people, line by line.

use super::*;

fn text(text: &str) -> v1::Content {
    v1::Content::from(v1::content::Body::Text(text.to_owned()))
}

fn opened(calls: &[(&str, &str)]) -> Event {
    let calls = calls.iter().map(|(call_id, tool)| v1::OpenedCall {
        call_id: (*call_id).to_owned(),
        tool: (*tool).to_owned(),
        waits_for_client: false,
        awaits_approval: false,
        hidden: false,
        asked_by_call_id: String::new(),
        not_before: None,
    });
    Event::RunOpened(v1::RunOpened { run_id: "run_1".to_owned(), deadline: None, calls: calls.collect() })
}

fn output(call_id: &str, channel: &str, said: &str) -> Event {
    let piece = Some(Piece::Content(text(said)));
    let (call_id, channel) = (call_id.to_owned(), channel.to_owned());
    Event::CallOutput(v1::CallOutput { call_id, attempt: 1, chunk: 0, channel, piece })
}

fn progress_made(call_id: &str, done: f64) -> Event {
    let piece = Some(Piece::Progress(v1::Progress { done, total: Some(4.0), message: "files".to_owned() }));
    Event::CallOutput(v1::CallOutput { call_id: call_id.to_owned(), piece, ..v1::CallOutput::default() })
}

fn completed(call_id: &str, result: &str) -> Event {
    let outcome = v1::CallOutcome {
        state: v1::CallState::Completed.into(),
        result: vec![text(result)],
        ..v1::CallOutcome::default()
    };
    Event::CallEnded(v1::CallEnded { call_id: call_id.to_owned(), outcome: Some(outcome), ..v1::CallEnded::default() })
}

/// Emits events that are 100 ms apart.
fn told(repaints: bool, events: Vec<Event>) -> String {
    let (mut story, mut tally) = (Story::new(Paint(false), repaints, true), Tally::default());
    let events = events.into_iter().zip(0..).map(|(event, number)| v1::RunEvent {
        sequence: number,
        time: Some(proto::convert::api::timestamp(run::Timestamp(number * 100))),
        event: Some(event),
    });
    let mut text = String::new();
    for event in events {
        tally.note(&event);
        text.push_str(&story.tell(&event, &tally));
    }
    text
}

#[test]
fn a_speaker_has_a_header_bars_and_an_outcome() {
    let events = vec![
        opened(&[("a", "bash"), ("b", "time")]),
        output("a", "stdout", "one\ntw"),
        output("a", "stdout", "o\nthree"),
        output("a", "stderr", "oops\n"),
        completed("a", "exit 0"),
        completed("b", "noon"),
        Event::RunEnded(v1::RunEnded {
            status: v1::RunStatus::Completed.into(),
            return_direct: false,
            extra_state: String::new(),
        }),
    ];
    let expected = "\
· run_1 · 2 calls

● bash · a
│ one
│ two
│ three
! oops
✓ 400 ms · exit 0

● time · b
✓ 500 ms · noon

✓ run completed · 2 of 2 calls completed · 600 ms
";
    assert_eq!(told(false, events), expected);
}

#[test]
fn a_long_result_of_a_silent_call_is_its_output() {
    let events = vec![opened(&[("a", "glob")]), completed("a", "x.rs\ny.rs")];
    assert_eq!(told(false, events), "· run_1 · 1 call\n\n● glob · a\n│ x.rs\n│ y.rs\n✓ 100 ms\n");
}

#[test]
fn calls_without_a_floor_are_told_apart_piece_by_piece() {
    let events = vec![output("a", "", "1"), output("b", "", "2"), output("a", "", "3")];
    assert_eq!(told(false, events), "\n● a\n│ 1\n\n● b\n│ 2\n\n● a\n│ 3");
}

#[test]
fn a_retry_is_told_quietly_and_voids_what_was_said() {
    let error = v1::CallError {
        kind: v1::CallErrorKind::ToolFailed.into(),
        message: "not yet".to_owned(),
        ..v1::CallError::default()
    };
    let call_id = || "a".to_owned();
    let events = vec![
        output("a", "", "half"),
        Event::AttemptEnded(v1::AttemptEnded { call_id: call_id(), attempt: 1, error: Some(error) }),
        Event::AttemptStarted(v1::AttemptStarted {
            call_id: call_id(),
            attempt: 2,
            worker_id: "w".to_owned(),
            continues: false,
        }),
        Event::CallOutputWithdrawn(v1::CallOutputWithdrawn { call_id: call_id(), attempt: 1 }),
        output("a", "", "whole\n"),
    ];
    let expected = "
● a
│ half
· a: attempt 1 failed, tool_failed: not yet; another one follows
· a: attempt 2 on w
↺ the output above is void, it starts again
│ whole
";
    assert_eq!(told(false, events), expected);
}

#[test]
fn progress_gives_way_only_on_a_terminal() {
    let events = || vec![progress_made("a", 1.0), progress_made("a", 2.0), completed("a", "done")];
    assert_eq!(told(false, events()), "\n● a\n│ 25% files\n│ 50% files\n✓ done\n");
    assert_eq!(told(true, events()), "\n● a\n│ 25% files\r\x1b[K│ 50% files\r\x1b[K✓ done\n");
}

#[test]
fn a_question_is_told_with_the_way_to_answer_it() {
    let waiting = v1::CallWaiting {
        asked_by_call_id: String::new(),
        call_id: "a".to_owned(),
        tool: "ask_user".to_owned(),
        arguments: r#"{"question":"Which?"}"#.to_owned(),
        deadline: None,
    };
    let events = vec![opened(&[("a", "ask_user")]), Event::CallWaiting(waiting)];
    let expected = "· run_1 · 1 call\n? Which? ask_user · a\n· answer it: toolyard submit run_1 a TEXT\n";
    assert_eq!(told(false, events), expected);
}
