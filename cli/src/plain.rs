//! One call's output for shells: the tool's output goes to stdout, everything else to stderr. Returns pieces and writes
//! nothing.

use proto::v1;
use proto::v1::call_output;
use proto::v1::content::Body;
use proto::v1::run_event::Event;

use crate::guard::Guard;
use crate::prompt::Question;
use crate::story::outcome_line;
use crate::tally::Tally;
use crate::terminal::Paint;
use crate::words::{brief, contents, error, harmless, is_brief, progress, was_approved};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// For standard output, as it is.
    Output(Vec<u8>),
    /// For standard error, as it is.
    Beside(Vec<u8>),
    /// A line for the person.
    Note(String),
    /// A line about an error.
    Problem(String),
}

/// The kind of reader and its stream.
#[derive(Debug)]
pub(crate) struct Setting {
    /// The tool speaks while it runs, so that its result is not its output.
    pub(crate) streaming: bool,
    /// No user answers the client's calls here, so the output explains how to.
    pub(crate) hints: bool,
    /// The output is for a person.
    pub(crate) to_terminal: bool,
    /// Messages on stderr are for people.
    pub(crate) notes_to_terminal: bool,
    pub(crate) paint: Paint,
}

#[derive(Debug)]
pub(crate) struct Plain {
    setting: Setting,
    /// Between the tool and a terminal.
    guards: Guards,
    /// The output's last line is not ended.
    unended: bool,
    /// There is a line of progress, which gives way to whatever comes next.
    passing: bool,
}

impl Plain {
    pub(crate) fn new(setting: Setting) -> Self {
        Self { setting, guards: Guards::default(), unended: false, passing: false }
    }

    /// The text about an event that the tally has counted.
    pub(crate) fn tell(&mut self, event: &v1::RunEvent, tally: &Tally) -> Vec<Piece> {
        let passing = std::mem::take(&mut self.passing);
        let mut pieces = self.pieces(event, tally);
        if passing && pieces.is_empty() {
            self.passing = true;
        } else if passing {
            pieces.insert(0, Piece::Beside(b"\r\x1b[K".to_vec()));
        }
        pieces
    }

    /// Ends the line that is not ended yet, because other text follows.
    pub(crate) fn leave(&mut self) -> Vec<Piece> {
        if std::mem::take(&mut self.passing) {
            return vec![Piece::Beside(b"\r\x1b[K".to_vec())];
        }
        self.end_line()
    }

    fn pieces(&mut self, event: &v1::RunEvent, tally: &Tally) -> Vec<Piece> {
        match &event.event {
            Some(Event::RunOpened(opened)) => {
                let id = self.setting.notes_to_terminal.then(|| Piece::Note(opened.run_id.clone()));
                let until = opened.calls.iter().find_map(|call| call.not_before);
                let delayed = until.map(|until| Piece::Note(format!("it is delayed until {until}")));
                id.into_iter().chain(delayed).collect()
            }
            Some(Event::CallWaiting(waiting)) if self.setting.hints => vec![
                Piece::Beside(Question::of(waiting).show(self.setting.paint).into_bytes()),
                Piece::Note(format!("answer it: toolyard submit {} {} TEXT", tally.run_id, waiting.call_id)),
            ],
            Some(Event::CallAwaitingApproval(awaits)) => {
                let command = format!("toolyard calls approve|reject {} {}", tally.run_id, awaits.call_id);
                let arguments = brief(&harmless(&awaits.arguments));
                vec![Piece::Note(format!("it awaits approval: {arguments}")), Piece::Note(format!("decide: {command}"))]
            }
            Some(Event::CallApproved(approved)) => vec![Piece::Note(format!("it {}", was_approved(approved)))],
            Some(Event::AttemptEnded(ended)) => {
                let why = ended.error.as_ref().map_or_else(|| "was given back by its worker".to_owned(), error);
                vec![Piece::Note(format!("attempt {}: {}; another one follows", ended.attempt, brief(&why)))]
            }
            Some(Event::CallOutput(output)) => self.output(output).into_iter().collect(),
            Some(Event::CallOutputWithdrawn(_)) => {
                let mut pieces = self.end_line();
                pieces.push(Piece::Note("the output above is void, it starts again".to_owned()));
                pieces
            }
            Some(Event::CallEnded(ended)) => self.ended(ended, tally),
            Some(
                Event::CallsAppended(_)
                | Event::RunClosed(_)
                | Event::CallWaiting(_)
                | Event::CallRejected(_)
                | Event::AttemptStarted(_)
                | Event::CancelRequested(_)
                | Event::CancelDelivered(_)
                | Event::CancelAcknowledged(_)
                | Event::CallSpeaking(_)
                | Event::RunStatusChanged(_)
                | Event::RunEnded(_),
            )
            | None => Vec::new(),
        }
    }

    fn output(&mut self, output: &v1::CallOutput) -> Option<Piece> {
        let said = match output.piece.as_ref()? {
            call_output::Piece::Content(said) => said,
            call_output::Piece::Progress(made) => return self.progress(made),
        };
        if output.channel == "stderr" {
            return Some(Piece::Beside(self.guards.beside(said, self.setting.notes_to_terminal)));
        }
        let bytes = self.guards.output(said, self.setting.to_terminal);
        self.unended = !bytes.ends_with(b"\n");
        Some(Piece::Output(bytes))
    }

    /// Only for a person, and never over a line of output.
    fn progress(&mut self, made: &v1::Progress) -> Option<Piece> {
        self.passing = self.setting.notes_to_terminal && !(self.setting.to_terminal && self.unended);
        self.passing.then(|| Piece::Beside(self.setting.paint.dim(&brief(&progress(made))).into_bytes()))
    }

    fn ended(&mut self, ended: &v1::CallEnded, tally: &Tally) -> Vec<Piece> {
        if tally.call(&ended.call_id).is_some_and(|(_, call)| call.is_question) {
            return Vec::new();
        }
        let mut pieces = self.end_line();
        let (Some(outcome), Some((_, call))) = (&ended.outcome, tally.call(&ended.call_id)) else { return pieces };
        match (outcome.state(), &outcome.error) {
            (v1::CallState::Completed, _) => {
                let is_output = !call.said && !self.setting.streaming;
                if is_output {
                    pieces.push(Piece::Output(self.result(&outcome.result)));
                }
                if !is_output || self.setting.notes_to_terminal {
                    pieces.push(Piece::Note(outcome_line(Paint(false), outcome, call, !is_output)));
                }
                let result = contents(&outcome.result);
                if !is_output && !is_brief(&result) {
                    pieces.push(Piece::Beside(format!("{result}\n").into_bytes()));
                }
            }
            (_, Some(failed)) => pieces.push(Piece::Problem(error(failed))),
            (state, None) => {
                let how = if state == v1::CallState::Cancelled { "was cancelled" } else { "expired" };
                let why = Some(harmless(&outcome.reason)).filter(|why| !why.is_empty());
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                pieces.push(Piece::Problem(format!("the call {how}{why}")));
            }
        }
        pieces
    }

    /// A result as output. Text ends with a line break; bytes stay as they are.
    fn result(&mut self, contents: &[v1::Content]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for content in contents {
            bytes.extend(self.guards.output(content, self.setting.to_terminal));
            let is_text = matches!(content.body, Some(Body::Text(_) | Body::Json(_) | Body::Object(_)));
            if (is_text || self.setting.to_terminal) && !bytes.ends_with(b"\n") {
                bytes.push(b'\n');
            }
        }
        bytes
    }

    /// On a terminal, moves to the beginning of a line. Programs receive only the tool's output.
    fn end_line(&mut self) -> Vec<Piece> {
        self.guards = Guards::default();
        let unended = std::mem::take(&mut self.unended);
        if unended && self.setting.to_terminal { vec![Piece::Output(b"\n".to_vec())] } else { Vec::new() }
    }
}

/// What stands between output and a terminal, which would take parts of it for commands.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    output: Guard,
    beside: Guard,
}

impl Guards {
    /// For standard output.
    pub(crate) fn output(&mut self, content: &v1::Content, to_terminal: bool) -> Vec<u8> {
        guarded(&mut self.output, content, to_terminal)
    }

    /// For standard error.
    pub(crate) fn beside(&mut self, content: &v1::Content, to_terminal: bool) -> Vec<u8> {
        guarded(&mut self.beside, content, to_terminal)
    }
}

fn guarded(guard: &mut Guard, content: &v1::Content, to_terminal: bool) -> Vec<u8> {
    let bytes = bytes(content, to_terminal);
    if to_terminal { guard.pass(&String::from_utf8_lossy(&bytes)).into_bytes() } else { bytes }
}

/// Content as it is, but bytes only in words for a terminal.
fn bytes(content: &v1::Content, to_terminal: bool) -> Vec<u8> {
    match &content.body {
        Some(Body::Text(text) | Body::Json(text)) => text.clone().into_bytes(),
        Some(Body::Object(object)) => object.preview.clone().into_bytes(),
        Some(Body::Data(_)) if to_terminal => crate::words::content(content).into_bytes(),
        Some(Body::Data(data)) => data.data.to_vec(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> v1::Content {
        v1::Content::from(Body::Text(text.to_owned()))
    }

    fn said(channel: &str, said: &str) -> Event {
        let piece = Some(call_output::Piece::Content(text(said)));
        let (call_id, channel) = ("a".to_owned(), channel.to_owned());
        Event::CallOutput(v1::CallOutput { call_id, channel, piece, ..v1::CallOutput::default() })
    }

    fn ended(outcome: v1::CallOutcome) -> Event {
        Event::CallEnded(v1::CallEnded { call_id: "a".to_owned(), outcome: Some(outcome), ..v1::CallEnded::default() })
    }

    fn completed(result: &str) -> Event {
        let state = v1::CallState::Completed.into();
        ended(v1::CallOutcome { state, result: vec![text(result)], ..v1::CallOutcome::default() })
    }

    fn told(streaming: bool, events: Vec<Event>) -> Vec<Piece> {
        let paint = Paint(false);
        told_in(Setting { streaming, hints: true, to_terminal: false, notes_to_terminal: false, paint }, events)
    }

    fn told_in(setting: Setting, events: Vec<Event>) -> Vec<Piece> {
        let mut plain = Plain::new(setting);
        let mut tally = Tally::default();
        let mut pieces = Vec::new();
        for event in events {
            let event = v1::RunEvent { sequence: 0, time: None, event: Some(event) };
            tally.note(&event);
            pieces.extend(plain.tell(&event, &tally));
        }
        pieces
    }

    #[test]
    fn the_result_of_a_silent_tool_is_the_output() {
        assert_eq!(told(false, vec![completed("noon")]), [Piece::Output(b"noon\n".to_vec())]);
    }

    #[test]
    fn output_is_passed_on_as_it_is_and_the_result_stands_beside_it() {
        let events = vec![said("stdout", "a\nb"), said("stderr", "oops\n"), completed("exit 0")];
        let expected =
            [Piece::Output(b"a\nb".to_vec()), Piece::Beside(b"oops\n".to_vec()), Piece::Note("✓ exit 0".to_owned())];
        assert_eq!(told(true, events), expected);
    }

    #[test]
    fn bytes_on_standard_error_are_passed_on_as_they_are() {
        let data = v1::Data { media_type: "application/octet-stream".to_owned(), data: vec![0, 0xff, 0xfe].into() };
        let piece = Some(call_output::Piece::Content(v1::Content::from(Body::Data(data))));
        let channel = "stderr".to_owned();
        let output = v1::CallOutput { call_id: "a".to_owned(), channel, piece, ..v1::CallOutput::default() };
        assert_eq!(told(true, vec![Event::CallOutput(output)]), [Piece::Beside(vec![0, 0xff, 0xfe])]);
    }

    #[test]
    fn progress_is_for_a_person_and_gives_way() {
        let progress = v1::Progress { done: 1.0, total: Some(2.0), message: "files".to_owned() };
        let piece = Some(call_output::Piece::Progress(progress));
        let made = Event::CallOutput(v1::CallOutput { call_id: "a".to_owned(), piece, ..v1::CallOutput::default() });
        assert_eq!(told(true, vec![made.clone()]), []);
        let paint = Paint(false);
        let setting = Setting { streaming: true, hints: false, to_terminal: true, notes_to_terminal: true, paint };
        let expected =
            [Piece::Beside(b"50% files".to_vec()), Piece::Beside(b"\r\x1b[K".to_vec()), Piece::Output(b"x".to_vec())];
        // After the last piece the line is not ended, so that no progress may stand there.
        assert_eq!(told_in(setting, vec![made.clone(), said("", "x"), made]), expected);
    }

    #[test]
    fn a_streaming_tool_that_said_nothing_has_no_output() {
        assert_eq!(told(true, vec![completed("no file")]), [Piece::Note("✓ no file".to_owned())]);
    }

    #[test]
    fn an_error_is_a_problem_and_no_output() {
        let error = v1::CallError {
            kind: v1::CallErrorKind::UnknownTool.into(),
            message: "there is no tool x".to_owned(),
            ..v1::CallError::default()
        };
        let state = v1::CallState::Failed.into();
        let failed = ended(v1::CallOutcome { state, error: Some(error), ..v1::CallOutcome::default() });
        assert_eq!(told(false, vec![failed]), [Piece::Problem("unknown_tool: there is no tool x".to_owned())]);
    }
}
