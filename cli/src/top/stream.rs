//! A run that is followed: its calls with their states, and its ordered output as lines that are safe to show.

use formats::openai::share::call_of;
use proto::v1;
use proto::v1::call_output::Piece;
use proto::v1::run_event::Event;

use super::lines::{Kind, Line, Lines, Source};
use crate::story::{named, outcome_line};
use crate::tally::Tally;
use crate::terminal::Paint;
use crate::words::{brief, content, contents, counted, error, is_brief, progress, run_status, was_approved};

/// Bytes that are shown one by one; more of them are only counted.
const BYTES_SHOWN: usize = 64;

/// The state of a call of the run, as far as its events were received.
#[derive(Debug, Clone)]
pub(super) struct Phase {
    pub(super) state: v1::CallState,
    pub(super) attempt: u32,
    pub(super) worker_id: String,
    /// It runs, and a cancellation was requested.
    pub(super) is_cancelling: bool,
    /// The arguments that await approval.
    pub(super) approval: Option<String>,
}

impl Default for Phase {
    fn default() -> Self {
        let (attempt, worker_id, is_cancelling, approval) = (0, String::new(), false, None);
        Self { state: v1::CallState::Accepted, attempt, worker_id, is_cancelling, approval }
    }
}

impl Phase {
    fn take(&mut self, event: &Event) {
        match event {
            Event::CallWaiting(_) => self.state = v1::CallState::WaitingForClient,
            Event::CallAwaitingApproval(awaits) => {
                self.state = v1::CallState::AwaitingApproval;
                self.approval = Some(awaits.arguments.clone());
            }
            Event::CallApproved(_) => {
                self.state = v1::CallState::Accepted;
                self.approval = None;
            }
            Event::AttemptStarted(started) => {
                self.state = v1::CallState::Running;
                self.attempt = started.attempt;
                self.worker_id.clone_from(&started.worker_id);
            }
            Event::AttemptEnded(_) => self.state = v1::CallState::Queued,
            Event::CancelRequested(_) => self.is_cancelling = true,
            Event::CallEnded(ended) => {
                self.state = ended.outcome.as_ref().map_or(v1::CallState::Failed, v1::CallOutcome::state);
                self.approval = None;
                self.is_cancelling = false;
            }
            _ => {}
        }
    }
}

/// Which lines of the output are on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scroll {
    /// The newest ones.
    Tail,
    /// Those from this one on, counted among the lines that pass the filter.
    From(usize),
}

#[derive(Debug)]
pub(super) struct Followed {
    pub(super) tally: Tally,
    /// In the order of the calls of the tally.
    pub(super) phases: Vec<Phase>,
    pub(super) lines: Lines,
    /// The number of the last event.
    pub(super) last: Option<u64>,
    pub(super) status: v1::RunStatus,
    /// Its last event was received.
    pub(super) is_over: bool,
    /// Why its output cannot be read.
    pub(super) error: Option<String>,
    /// The position of the selected call.
    pub(super) selected: usize,
    /// Only lines of the selected call are shown.
    pub(super) only_selected: bool,
    pub(super) filter: String,
    pub(super) scroll: Scroll,
    /// Columns of each line that are left of the screen.
    pub(super) left: usize,
}

impl Followed {
    pub(super) fn new(run_id: String) -> Self {
        Self {
            tally: Tally::of_run(run_id),
            phases: Vec::new(),
            lines: Lines::default(),
            last: None,
            status: v1::RunStatus::Unspecified,
            is_over: false,
            error: None,
            selected: 0,
            only_selected: false,
            filter: String::new(),
            scroll: Scroll::Tail,
            left: 0,
        }
    }

    pub(super) fn run_id(&self) -> &str {
        &self.tally.run_id
    }

    /// The id of the selected call and its state.
    pub(super) fn selected_call(&self) -> Option<(&str, &Phase)> {
        Some((self.tally.calls.get(self.selected)?.id.as_str(), self.phases.get(self.selected)?))
    }

    /// The lines that pass the filter, the oldest first.
    pub(super) fn shown(&self) -> Vec<&Line> {
        let (filter, only) = (self.filter.to_lowercase(), self.only_selected.then_some(self.selected));
        let passes = |line: &&Line| {
            only.is_none_or(|call| line.call == Some(call))
                && (filter.is_empty() || line.text.to_lowercase().contains(&filter))
        };
        self.lines.all().filter(passes).collect()
    }

    /// Takes an event in. One that was received before changes nothing.
    pub(super) fn take(&mut self, event: &v1::RunEvent) {
        if self.last.is_some_and(|last| event.sequence <= last) {
            return;
        }
        self.last = Some(event.sequence);
        self.tally.note(event);
        self.phases.resize_with(self.tally.calls.len(), Phase::default);
        let Some(event) = &event.event else { return };
        self.phase(event);
        match event {
            Event::RunOpened(opened) => {
                let text = format!("{} · {}", opened.run_id, counted(opened.calls.len(), "call"));
                self.lines.note(None, &text);
            }
            Event::CallsAppended(appended) => {
                self.lines.note(None, &format!("{} more", counted(appended.calls.len(), "call")));
            }
            Event::CallSpeaking(speaking) => {
                let (call, who) = self.who(&speaking.call_id);
                self.lines.add(call, Kind::Head, &who);
            }
            Event::CallOutput(output) => self.output(output),
            Event::CallOutputWithdrawn(withdrawn) => {
                let (call, _) = self.who(&withdrawn.call_id);
                self.lines.withdraw(call, withdrawn.attempt);
                self.lines.note(call, "the output above is void, it starts again");
            }
            Event::CallEnded(ended) => self.ended(ended),
            Event::RunEnded(ended) => {
                let is_good = ended.status() == v1::RunStatus::Completed;
                let (kind, mark) = if is_good { (Kind::Good, '✓') } else { (Kind::Bad, '✗') };
                self.lines.add(None, kind, &format!("{mark} run {}", run_status(ended.status())));
            }
            event => self.about(event),
        }
    }

    /// Notes about a call that are not its output.
    fn about(&mut self, event: &Event) {
        let (id, text) = match event {
            Event::CallWaiting(waiting) => (&waiting.call_id, "waits for an answer".to_owned()),
            Event::CallAwaitingApproval(awaits) => {
                (&awaits.call_id, format!("awaits approval: {}", brief(&awaits.arguments)))
            }
            Event::CallApproved(approved) => (&approved.call_id, was_approved(approved)),
            Event::CallRejected(rejected) => (&rejected.call_id, format!("was rejected: {}", brief(&rejected.reason))),
            Event::AttemptStarted(started) if started.attempt > 1 => {
                (&started.call_id, format!("attempt {} on {}", started.attempt, started.worker_id))
            }
            Event::AttemptEnded(ended) => {
                let why = ended.error.as_ref().map_or_else(|| "was given back by its worker".to_owned(), error);
                (&ended.call_id, format!("attempt {}: {}; another one follows", ended.attempt, brief(&why)))
            }
            Event::CancelRequested(requested) => (&requested.call_id, "is being cancelled".to_owned()),
            Event::CancelAcknowledged(cancel) => (&cancel.call_id, "its worker is stopping it".to_owned()),
            _ => return,
        };
        let (call, who) = self.who(id);
        self.lines.note(call, &format!("{who} {text}"));
    }

    /// The position of a call, and its tool and id.
    fn who(&self, call_id: &str) -> (Option<usize>, String) {
        (self.tally.call(call_id).map(|(index, _)| index), named(call_id, &self.tally))
    }

    fn output(&mut self, output: &v1::CallOutput) {
        let (call, _) = self.who(&output.call_id);
        let source = Source { call, attempt: output.attempt, channel: output.channel.clone() };
        match &output.piece {
            Some(Piece::Content(said)) => match &said.body {
                // The text itself, because the lines show each of its characters.
                Some(v1::content::Body::Text(text) | v1::content::Body::Json(text)) => self.lines.text(&source, text),
                // Bytes between texts, as a program writes that does not write UTF-8.
                Some(v1::content::Body::Data(data)) if data.data.len() <= BYTES_SHOWN => {
                    self.lines.text(&source, &data.data.escape_ascii().to_string());
                }
                _ => self.lines.text(&source, &content(said)),
            },
            Some(Piece::Progress(made)) => self.lines.progress(&source, &progress(made)),
            None => {}
        }
    }

    fn ended(&mut self, ended: &v1::CallEnded) {
        let (position, _) = self.who(&ended.call_id);
        let (Some(outcome), Some((_, call))) = (&ended.outcome, self.tally.call(&ended.call_id)) else { return };
        let result = contents(&outcome.result);
        let told = call.said || is_brief(&result);
        let is_good = outcome.state() == v1::CallState::Completed;
        let line = outcome_line(Paint(false), outcome, call, told);
        if is_good && !told {
            self.lines.text(&Source { call: position, attempt: u32::MAX, channel: String::new() }, &result);
        }
        self.lines.add(position, if is_good { Kind::Good } else { Kind::Bad }, &line);
    }

    /// Changes the state of the run, and of the call that an event is about.
    fn phase(&mut self, event: &Event) {
        match event {
            Event::RunOpened(opened) => self.opened(&opened.calls),
            Event::CallsAppended(appended) => self.opened(&appended.calls),
            Event::RunStatusChanged(changed) => self.status = changed.status(),
            Event::RunEnded(ended) => self.status = ended.status(),
            event => {
                let index = call_of(event).and_then(|id| self.tally.call(id)).map(|(index, _)| index);
                if let Some(phase) = index.and_then(|index| self.phases.get_mut(index)) {
                    phase.take(event);
                }
            }
        }
    }

    fn opened(&mut self, calls: &[v1::OpenedCall]) {
        for opened in calls {
            let Some((index, _)) = self.tally.call(&opened.call_id) else { continue };
            if let Some(phase) = self.phases.get_mut(index) {
                phase.state = match opened {
                    _ if opened.waits_for_client => v1::CallState::WaitingForClient,
                    _ if opened.awaits_approval => v1::CallState::AwaitingApproval,
                    _ if opened.not_before.is_some() => v1::CallState::Delayed,
                    _ => v1::CallState::Accepted,
                };
            }
        }
    }
}
