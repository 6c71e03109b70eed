//! A run as text for people: the speaking call, its output, and its end. Returns text and writes nothing.

use client::agent::TURN_TOOL;
use proto::v1;
use proto::v1::call_output::Piece;
use proto::v1::run_event::Event;

use crate::prompt::Question;
use crate::tally::{CallTally, Tally};
use crate::terminal::Paint;
use crate::words::{
    brief, content, contents, counted, duration, error, harmless, is_brief, progress, run_status, was_approved,
};

#[derive(Debug)]
pub(crate) struct Story {
    paint: Paint,
    /// A line may be painted over: it is a terminal that reads this.
    repaints: bool,
    /// No user answers the client's calls here, so the output explains how to.
    hints: bool,
    /// It is about a run that a call made, whose opening and end need no lines of their own.
    is_child: bool,
    /// The call whose block is open.
    speaker: Option<String>,
    /// The channel of the line that is not ended yet.
    unended: Option<String>,
    /// The last line gives way to whatever comes next.
    passing: bool,
    text: String,
}

impl Story {
    pub(crate) fn new(paint: Paint, repaints: bool, hints: bool) -> Self {
        let (speaker, unended) = (None, None);
        Self { paint, repaints, hints, is_child: false, speaker, unended, passing: false, text: String::new() }
    }

    /// The story of a run that a call made.
    pub(crate) fn of_child(paint: Paint) -> Self {
        Self { is_child: true, ..Self::new(paint, false, true) }
    }

    /// Ends the line that is not ended yet, because other text follows.
    pub(crate) fn leave(&mut self) -> String {
        self.end_line();
        std::mem::take(&mut self.text)
    }

    /// A quiet line about something that is not told here.
    pub(crate) fn note(&mut self, line: &str) -> String {
        self.aside(line);
        std::mem::take(&mut self.text)
    }

    fn delayed(&mut self, calls: &[v1::OpenedCall], tally: &Tally) {
        for (call, until) in calls.iter().filter_map(|call| Some((call, call.not_before?))) {
            self.aside(&format!("{} is delayed until {until}", named(&call.call_id, tally)));
        }
    }

    /// The text about an event that the tally has counted.
    pub(crate) fn tell(&mut self, event: &v1::RunEvent, tally: &Tally) -> String {
        if self.is_child && is_told_elsewhere(event, tally) {
            return String::new();
        }
        match &event.event {
            Some(Event::RunOpened(opened)) if self.is_child => self.delayed(&opened.calls, tally),
            Some(Event::CallsAppended(appended)) if self.is_child => self.delayed(&appended.calls, tally),
            Some(Event::RunOpened(opened)) => {
                self.aside(&format!("{} · {}", opened.run_id, counted(opened.calls.len(), "call")));
                self.delayed(&opened.calls, tally);
            }
            Some(Event::CallsAppended(appended)) => {
                self.aside(&format!("{} more", counted(appended.calls.len(), "call")));
                self.delayed(&appended.calls, tally);
            }
            Some(Event::CallWaiting(waiting)) => self.waits(waiting, tally),
            Some(Event::CallAwaitingApproval(awaits)) => {
                let who = named(&awaits.call_id, tally);
                self.aside(&format!("{who} awaits approval: {}", brief(&harmless(&awaits.arguments))));
                self.aside(&format!("decide: toolyard calls approve|reject {} {}", tally.run_id, awaits.call_id));
            }
            Some(Event::CallApproved(approved)) => {
                self.aside(&format!("{} {}", named(&approved.call_id, tally), was_approved(approved)));
            }
            Some(Event::AttemptStarted(started)) if started.attempt > 1 => {
                let who = named(&started.call_id, tally);
                let place = Some(&started.worker_id).filter(|id| !id.is_empty());
                let place = place.map_or_else(String::new, |id| format!(" on {id}"));
                self.aside(&format!("{who}: attempt {}{place}", started.attempt));
            }
            Some(Event::AttemptEnded(ended)) => self.attempt_ended(ended, tally),
            Some(Event::CancelRequested(requested)) => {
                let who = named(&requested.call_id, tally);
                self.aside(&format!("{who} is being cancelled"));
            }
            Some(Event::CallSpeaking(speaking)) => self.open(&speaking.call_id, tally),
            Some(Event::CallOutput(output)) => self.output(output, tally),
            Some(Event::CallOutputWithdrawn(withdrawn)) => {
                self.open(&withdrawn.call_id, tally);
                self.line(&self.paint.dim("↺ the output above is void, it starts again"));
            }
            Some(Event::CallEnded(ended)) => self.ended(ended, tally),
            Some(Event::RunEnded(ended)) => self.run_ended(ended.status(), tally),
            Some(
                Event::AttemptStarted(_)
                | Event::CallRejected(_)
                | Event::CancelDelivered(_)
                | Event::CancelAcknowledged(_)
                | Event::RunClosed(_)
                | Event::RunStatusChanged(_),
            )
            | None => {}
        }
        std::mem::take(&mut self.text)
    }

    /// Opens the block of a call, unless it is open.
    fn open(&mut self, call_id: &str, tally: &Tally) {
        if self.speaker.as_deref() == Some(call_id) {
            return;
        }
        self.speaker = Some(call_id.to_owned());
        self.line("");
        let index = tally.call(call_id).map_or(0, |(index, _)| index);
        let (mark, who) = (self.paint.hue(index, "●"), self.paint.bold(&named(call_id, tally)));
        self.line(&format!("{mark} {who}"));
    }

    fn output(&mut self, output: &v1::CallOutput, tally: &Tally) {
        self.open(&output.call_id, tally);
        let index = tally.call(&output.call_id).map_or(0, |(index, _)| index);
        match &output.piece {
            Some(Piece::Content(said)) => self.say(index, &output.channel, &content(said)),
            Some(Piece::Progress(made)) if self.repaints => {
                self.end_line();
                self.text.push_str(&self.paint.dim(&format!("{}{}", bar(""), brief(&progress(made)))));
                self.passing = true;
            }
            Some(Piece::Progress(made)) => self.line(&format!("{}{}", bar(""), progress(made))),
            None => {}
        }
    }

    /// Returns text of a call, each line behind a bar. A line may come in pieces.
    fn say(&mut self, index: usize, channel: &str, text: &str) {
        if self.passing || self.unended.as_deref().is_some_and(|unended| unended != channel) {
            self.end_line();
        }
        for piece in text.split_inclusive('\n') {
            if self.unended.is_none() {
                let bar = bar(channel);
                let bar = if channel == "stderr" { self.paint.bad(&bar) } else { self.paint.hue(index, &bar) };
                self.text.push_str(&bar);
            }
            self.text.push_str(piece);
            self.unended = (!piece.ends_with('\n')).then(|| channel.to_owned());
        }
    }

    fn ended(&mut self, ended: &v1::CallEnded, tally: &Tally) {
        self.open(&ended.call_id, tally);
        let (Some(outcome), Some((index, call))) = (&ended.outcome, tally.call(&ended.call_id)) else { return };
        let result = contents(&outcome.result);
        let told = call.said || is_brief(&result);
        if outcome.state() == v1::CallState::Completed && !told {
            self.say(index, "", &result);
        }
        self.line(&outcome_line(self.paint, outcome, call, told));
        self.speaker = None;
    }

    fn waits(&mut self, waiting: &v1::CallWaiting, tally: &Tally) {
        if self.hints {
            self.end_line();
            self.text.push_str(&Question::of(waiting).show(self.paint));
            self.aside(&format!("answer it: toolyard submit {} {} TEXT", tally.run_id, waiting.call_id));
        } else {
            self.aside(&format!("{} waits for your answer", named(&waiting.call_id, tally)));
        }
    }

    fn attempt_ended(&mut self, ended: &v1::AttemptEnded, tally: &Tally) {
        let who = named(&ended.call_id, tally);
        let why = ended
            .error
            .as_ref()
            .map_or_else(|| "was given back by its worker".to_owned(), |e| format!("failed, {}", error(e)));
        self.aside(&format!("{who}: attempt {} {}; another one follows", ended.attempt, brief(&why)));
    }

    fn run_ended(&mut self, status: v1::RunStatus, tally: &Tally) {
        if self.is_child {
            if status != v1::RunStatus::Completed {
                self.line(&format!("{} run {}", self.paint.bad("✗"), run_status(status)));
            }
            return;
        }
        let is_completed = |call: &&CallTally| {
            call.outcome.as_ref().is_some_and(|outcome| outcome.state() == v1::CallState::Completed)
        };
        let completed = tally.calls.iter().filter(is_completed).count();
        let mut told = vec![format!("{} of {} completed", completed, counted(tally.calls.len(), "call"))];
        told.extend(tally.took().map(duration));
        let status = run_status(status);
        let all = completed == tally.calls.len();
        let mark = if all { self.paint.good("✓") } else { self.paint.bad("✗") };
        self.line("");
        self.line(&format!("{mark} run {status} · {}", told.join(" · ")));
    }

    /// A quiet line that belongs to no block.
    fn aside(&mut self, line: &str) {
        self.line(&self.paint.dim(&format!("· {line}")));
    }

    fn line(&mut self, line: &str) {
        self.end_line();
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Goes to the beginning of a line of its own.
    fn end_line(&mut self) {
        if std::mem::take(&mut self.passing) {
            self.text.push_str("\r\x1b[K");
        }
        if self.unended.take().is_some() {
            self.text.push('\n');
        }
    }
}

/// The prefix of a call's lines.
fn bar(channel: &str) -> String {
    match channel {
        "" | "stdout" => "│ ".to_owned(),
        "stderr" => "! ".to_owned(),
        other => format!("│ {}: ", harmless(other)),
    }
}

/// Whether an event is about a message of an agent's model, whose text is output of the call that made the run, or
/// names a run, which is shown itself.
fn is_told_elsewhere(event: &v1::RunEvent, tally: &Tally) -> bool {
    if client::named_run(event).is_some() {
        return true;
    }
    let call_id = match &event.event {
        Some(Event::CallWaiting(waiting)) => &waiting.call_id,
        Some(Event::CallSpeaking(speaking)) => &speaking.call_id,
        Some(Event::CallOutput(output)) => &output.call_id,
        Some(Event::CallEnded(ended)) => &ended.call_id,
        Some(Event::CancelRequested(requested)) => &requested.call_id,
        Some(
            Event::RunOpened(_)
            | Event::CallsAppended(_)
            | Event::RunClosed(_)
            | Event::CallAwaitingApproval(_)
            | Event::CallApproved(_)
            | Event::CallRejected(_)
            | Event::AttemptStarted(_)
            | Event::AttemptEnded(_)
            | Event::CancelDelivered(_)
            | Event::CancelAcknowledged(_)
            | Event::CallOutputWithdrawn(_)
            | Event::RunStatusChanged(_)
            | Event::RunEnded(_),
        )
        | None => return false,
    };
    tally.call(call_id).is_some_and(|(_, call)| call.tool == TURN_TOOL)
}

pub(crate) fn named(call_id: &str, tally: &Tally) -> String {
    let tool = tally.call(call_id).map(|(_, call)| call.tool.as_str()).filter(|tool| !tool.is_empty());
    match tool {
        Some(tool) => format!("{} · {}", harmless(tool), harmless(call_id)),
        None => harmless(call_id),
    }
}

/// The end of a call, on one line unless an error needs more; with its short result if `with_result`.
pub(crate) fn outcome_line(paint: Paint, outcome: &v1::CallOutcome, call: &CallTally, with_result: bool) -> String {
    let took = call.took().map(duration);
    let parts = match outcome.state() {
        v1::CallState::Completed => {
            let result = with_result.then(|| brief(&contents(&outcome.result)));
            [took, result]
        }
        v1::CallState::Failed => {
            let why = outcome.error.as_ref().map(|e| error(e).replace('\n', "\n  "));
            [took, why]
        }
        v1::CallState::Cancelled => [Some(after("cancelled", took)), Some(harmless(&outcome.reason))],
        v1::CallState::Expired => [Some(after("expired", took)), Some(harmless(&outcome.reason))],
        v1::CallState::Unspecified
        | v1::CallState::Accepted
        | v1::CallState::WaitingForClient
        | v1::CallState::AwaitingApproval
        | v1::CallState::Delayed
        | v1::CallState::Queued
        | v1::CallState::Running => [took, None],
    };
    let parts: Vec<String> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    let good = outcome.state() == v1::CallState::Completed;
    let mark = if good { paint.good("✓") } else { paint.bad("✗") };
    format!("{mark} {}", parts.join(" · "))
}

fn after(what: &str, took: Option<String>) -> String {
    took.map_or_else(|| what.to_owned(), |took| format!("{what} after {took}"))
}

#[cfg(test)]
mod tests;
