//! Follows a run to its end: shows its output, sees to it that the client's calls are answered, cancels on Ctrl-C.

use std::time::Duration;

use proto::Reason;
use proto::v1;
use proto::v1::run_event::Event;

use crate::children::{Children, ShowArgs};
use crate::exit::Failure;
use crate::interrupts::Interrupts;
use crate::json::Object;
use crate::plain::{Piece, Plain};
use crate::prompt::{Keyboard, Question};
use crate::story::{Story, named};
use crate::tally::{CallTally, Tally};
use crate::terminal::Terminal;
use crate::words::harmless;
use tokio::time::{Instant, sleep_until};

use client::{Client, Nested, NestedWatch, Place, Watch, reason};

/// How a run's output is shown.
#[derive(Debug)]
pub(crate) enum View {
    Story(Story),
    Plain(Plain),
    Json,
}

impl View {
    /// The story of a run, or its events for programs.
    pub(crate) fn of_run(terminal: &Terminal, hints: bool) -> Self {
        if terminal.is_json() {
            return Self::Json;
        }
        Self::Story(Story::new(terminal.paint(), terminal.stdout_is_terminal(), hints))
    }

    /// Whether the runs below are shown unless the user says otherwise. A program gets them only if it asks, because
    /// each event then needs its run.
    fn usually_has_children(&self, terminal: &Terminal) -> bool {
        match self {
            Self::Story(_) => true,
            Self::Plain(_) => terminal.stderr_is_terminal(),
            Self::Json => false,
        }
    }
}

/// Shows a run, and the runs that its calls made.
#[derive(Debug)]
pub(crate) struct Show<'a> {
    terminal: &'a Terminal,
    view: View,
    /// `None`: runs below are not shown.
    children: Option<Children>,
    /// Calls of hidden tools are shown.
    hidden: bool,
}

impl<'a> Show<'a> {
    pub(crate) fn new(terminal: &'a Terminal, view: View, wanted: ShowArgs) -> Self {
        let paint = if matches!(view, View::Plain(_)) { terminal.paint_notes() } else { terminal.paint() };
        let has_children = wanted.children_or(view.usually_has_children(terminal));
        // A program gets every event.
        let hidden = wanted.hidden || matches!(view, View::Json);
        Self { terminal, view, children: has_children.then(|| Children::new(paint, hidden)), hidden }
    }

    pub(crate) fn has_children(&self) -> bool {
        self.children.is_some()
    }

    /// The output of a run as it is to be shown.
    pub(crate) fn follow(&self, client: &Client, watch: Watch) -> NestedWatch {
        NestedWatch::new(client, watch).depth_max(if self.children.is_some() { client::DEPTH_MAX } else { 0 })
    }

    /// Shows an event that the tally has taken in.
    pub(crate) fn event(&mut self, event: &v1::RunEvent, tally: &Tally) -> Result<(), Failure> {
        if let Some(call) = tally.hidden(event).filter(|_| !self.hidden) {
            return self.passed_over(call, event, tally);
        }
        let left = self.children.as_mut().map(Children::leave).unwrap_or_default();
        match &mut self.view {
            // The run is shown itself.
            View::Story(_) if self.children.is_some() && client::named_run(event).is_some() => {
                self.terminal.write(left.as_bytes())
            }
            View::Story(story) => {
                let told = story.tell(event, tally);
                self.terminal.write((left + &told).as_bytes())
            }
            View::Plain(plain) => {
                self.terminal.aside(&left);
                let pieces = plain.tell(event, tally);
                self.pieces(pieces)
            }
            View::Json if self.children.is_some() => self.terminal.json(&placed(&tally.run_id, None, event)),
            View::Json => self.terminal.message(event),
        }
    }

    /// Shows no more of a hidden tool's call than its end.
    fn passed_over(&mut self, call: &CallTally, event: &v1::RunEvent, tally: &Tally) -> Result<(), Failure> {
        if !matches!(event.event, Some(Event::CallEnded(_))) {
            return Ok(());
        }
        let left = self.children.as_mut().map(Children::leave).unwrap_or_default();
        let line = format!("{} has ended; its tool is hidden: --hidden shows what it said", named(&call.id, tally));
        match &mut self.view {
            View::Story(story) => {
                let told = story.note(&line);
                self.terminal.write((left + &told).as_bytes())
            }
            View::Plain(_) | View::Json => {
                self.terminal.aside(&left);
                self.terminal.note(&line);
                Ok(())
            }
        }
    }

    /// Shows an event of a run below. `tally`: of the run that is watched.
    pub(crate) fn below(&mut self, place: &Place, event: &v1::RunEvent, tally: &Tally) -> Result<(), Failure> {
        let Some(children) = &mut self.children else { return Ok(()) };
        if matches!(self.view, View::Json) {
            return self.terminal.json(&placed(&place.run_id, Some(place), event));
        }
        let text = children.tell(place, event, tally);
        self.beside(&text)
    }

    /// Shows that a run below cannot be read.
    pub(crate) fn unreadable(&mut self, place: &Place, error: client::Error) {
        let failure = Failure::from(error);
        let call = harmless(&place.parent_call_id);
        self.terminal.note(&format!("the run {} of the call {call} cannot be shown: {failure}", place.run_id));
    }

    /// Writes text of runs below, on lines of its own.
    fn beside(&mut self, text: &str) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        match &mut self.view {
            View::Story(story) => {
                let left = story.leave();
                self.terminal.write((left + text).as_bytes())
            }
            View::Plain(plain) => {
                let pieces = plain.leave();
                self.pieces(pieces)?;
                self.terminal.aside(text);
                Ok(())
            }
            View::Json => Ok(()),
        }
    }

    fn pieces(&self, pieces: Vec<Piece>) -> Result<(), Failure> {
        pieces.into_iter().try_for_each(|piece| match piece {
            Piece::Output(bytes) => self.terminal.write(&bytes),
            Piece::Beside(text) => {
                self.terminal.aside(&text);
                Ok(())
            }
            Piece::Note(line) => {
                self.terminal.note(&line);
                Ok(())
            }
            Piece::Problem(line) => {
                self.terminal.problem(&line);
                Ok(())
            }
        })
    }
}

/// An event with its run, and with the call that made the run, as JSON.
fn placed(run_id: &str, below: Option<&Place>, event: &v1::RunEvent) -> String {
    let of = Object::default()
        .field("run_id", run_id)
        .maybe("parent_run_id", below.map(|place| &place.parent_run_id))
        .maybe("parent_call_id", below.map(|place| &place.parent_call_id))
        .field("depth", below.map_or(0, |place| place.depth));
    let (of, event) = (of.to_string(), proto::json::write(event));
    // Both are objects with members.
    format!("{},{}", of.trim_end_matches('}'), event.trim_start_matches('{'))
}

/// How the client's calls are answered.
#[derive(Debug)]
pub(crate) enum Answers {
    /// The person at the keyboard.
    Person(Keyboard),
    /// Always the same.
    Given(String),
    /// No user is there: the first option of each question.
    FirstOption,
    /// Another program answers, with `toolyard submit`.
    Elsewhere,
}

/// A run that is followed.
#[derive(Debug)]
pub(crate) struct Follow<'a> {
    client: &'a Client,
    terminal: &'a Terminal,
    show: Show<'a>,
    answers: Answers,
    tally: Tally,
    /// Nothing goes on but the client's calls.
    idle: bool,
    /// Calls that were answered from here.
    answered: Vec<String>,
    /// The question that the user is being asked.
    asking: Option<Question>,
    /// When the reason is looked up why no call begins.
    explain_at: Option<Instant>,
    interrupted: bool,
}

/// How long calls may wait before the reason is shown.
const WAIT_SHOWN: Duration = Duration::from_secs(1);
/// The pause before it is shown again, if they still wait.
const WAIT_SHOWN_AGAIN: Duration = Duration::from_secs(60);

/// A run that has ended.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) tally: Tally,
    /// It was cancelled from here.
    pub(crate) interrupted: bool,
}

enum Step {
    Events(Nested),
    Shown,
    Ended,
    Typed(Option<String>),
    Waits,
    Interrupt,
}

impl<'a> Follow<'a> {
    pub(crate) fn new(client: &'a Client, show: Show<'a>, answers: Answers) -> Self {
        let (tally, answered, terminal) = (Tally::default(), Vec::new(), show.terminal);
        let (asking, explain_at, interrupted) = (None, None, false);
        Self { client, terminal, show, answers, tally, idle: false, answered, asking, explain_at, interrupted }
    }

    /// Follows the run until it has ended. An interrupt cancels it, a second one leaves at once.
    pub(crate) async fn until_end(mut self, watch: Watch, interrupts: &mut Interrupts) -> Result<Followed, Failure> {
        let mut watch = self.show.follow(self.client, watch);
        loop {
            let mut step = tokio::select! {
                events = watch.next() => events?.map_or(Step::Ended, Step::Events),
                line = typed(&mut self.answers), if self.asking.is_some() => Step::Typed(line),
                () = reached(self.explain_at) => Step::Waits,
                () = interrupts.next() => Step::Interrupt,
            };
            if let Step::Events(events) = step {
                if let Err(failure) = self.take(events) {
                    return Err(self.leave(failure).await);
                }
                step = Step::Shown;
            }
            let answered = async {
                match &mut step {
                    Step::Events(_) | Step::Shown | Step::Ended => self.answer().await,
                    Step::Typed(line) => self.typed(line.take()).await,
                    Step::Waits => {
                        self.explain_wait().await;
                        Ok(())
                    }
                    Step::Interrupt => Ok(()),
                }
            };
            tokio::select! {
                answered = answered => answered?,
                // The coordinator may be unavailable when an answer is sent.
                () = interrupts.next() => step = Step::Interrupt,
            }
            match step {
                Step::Ended => return Ok(Followed { tally: self.tally, interrupted: self.interrupted }),
                Step::Events(_) | Step::Shown | Step::Typed(_) | Step::Waits => {}
                Step::Interrupt => self.cancel(interrupts).await?,
            }
        }
    }

    fn take(&mut self, events: Nested) -> Result<(), Failure> {
        match events {
            Nested::Events(place, events) if place.depth > 0 => {
                events.iter().try_for_each(|event| self.show.below(&place, event, &self.tally))
            }
            Nested::Events(_, events) => self.note(&events),
            Nested::Unreadable(place, error) => {
                self.show.unreadable(&place, error);
                Ok(())
            }
        }
    }

    fn note(&mut self, events: &[v1::RunEvent]) -> Result<(), Failure> {
        for event in events {
            self.tally.note(event);
            if let Some(Event::RunOpened(opened)) = &event.event {
                crate::last::keep(&opened.run_id);
                self.explain_at = Some(Instant::now() + WAIT_SHOWN).filter(|_| !self.terminal.is_json());
            }
            if self.tally.has_begun() {
                self.explain_at = None;
            }
            if let Some(Event::CallEnded(ended)) = &event.event {
                self.stop_asking(&ended.call_id);
            }
            self.show.event(event, &self.tally)?;
            if let Some(Event::RunStatusChanged(changed)) = &event.event {
                self.idle = changed.status() == v1::RunStatus::RequiresAction;
            }
        }
        Ok(())
    }

    /// Shows why no call begins: a person would wait for hours without knowing that no worker lives.
    async fn explain_wait(&mut self) {
        self.explain_at = None;
        let Some(call) = self.tally.calls.iter().find(|call| !call.for_client) else { return };
        let Ok(explained) = self.client.explain(&self.tally.run_id, &call.id).await else { return };
        let state = explained.call.map_or(v1::CallState::Unspecified, |call| call.state());
        if matches!(state, v1::CallState::Accepted | v1::CallState::Queued) {
            let why = harmless(&explained.why);
            self.terminal.note(&format!("waiting: {}", why.strip_prefix("waiting: ").unwrap_or(&why)));
            self.explain_at = Some(Instant::now() + WAIT_SHOWN_AGAIN);
        }
    }

    /// A call that was answered elsewhere or has expired is not asked about any more.
    fn stop_asking(&mut self, call_id: &str) {
        if self.asking.take_if(|question| question.call_id == call_id).is_some() {
            // The prompt's line is over.
            self.terminal.aside("\n");
        }
    }

    /// Answers the client's calls, or begins to ask the user. Only if no other call has output, so that questions do
    /// not mix with it.
    async fn answer(&mut self) -> Result<(), Failure> {
        if !self.idle || self.interrupted || self.asking.is_some() {
            return Ok(());
        }
        let open = self.tally.questions().filter(|waiting| !self.answered.contains(&waiting.call_id));
        for question in open.map(Question::of).collect::<Vec<_>>() {
            let answer = match &self.answers {
                Answers::Person(_) => {
                    if matches!(self.show.view, View::Story(_)) {
                        self.terminal.aside("\n");
                    }
                    question.ask(self.terminal);
                    self.asking = Some(question);
                    return Ok(());
                }
                Answers::Given(text) => text.clone(),
                Answers::FirstOption => {
                    let answer = question.options.first().cloned().unwrap_or_else(|| "yes".to_owned());
                    self.terminal.note(&format!("nobody is at the keyboard; the answer is {answer:?}"));
                    answer
                }
                Answers::Elsewhere => return Ok(()),
            };
            self.submit(question.call_id, Ok(answer)).await?;
        }
        Ok(())
    }

    async fn typed(&mut self, line: Option<String>) -> Result<(), Failure> {
        let Some(question) = self.asking.take() else { return Ok(()) };
        let Some(line) = line else {
            self.terminal.aside("\n");
            return self.submit(question.call_id, Err("the user gave no answer".to_owned())).await;
        };
        match question.answer(&line) {
            // The next question follows when this call's end arrives.
            Some(answer) => {
                self.submit(question.call_id, Ok(answer)).await?;
                self.answer().await
            }
            None => {
                question.ask(self.terminal);
                self.asking = Some(question);
                Ok(())
            }
        }
    }

    async fn submit(&mut self, call_id: String, answer: Result<String, String>) -> Result<(), Failure> {
        let output = output(&call_id, answer);
        self.answered.push(call_id);
        match self.client.submit(&self.tally.run_id, output).await {
            Ok(_) => Ok(()),
            // The answer does not fit the question, which is asked again.
            Err(client::Error::Refused(status))
                if reason(&status) == Some(Reason::ArgumentsInvalid) && matches!(self.answers, Answers::Person(_)) =>
            {
                self.answered.pop();
                self.terminal.problem(status.message());
                Ok(())
            }
            // Another client answered first, or the call has ended meanwhile. Its end shows the outcome.
            Err(client::Error::Refused(status)) if is_late(&status) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn cancel(&mut self, interrupts: &mut Interrupts) -> Result<(), Failure> {
        let run_id = &self.tally.run_id;
        if self.interrupted || run_id.is_empty() {
            return Err(Failure::Interrupted);
        }
        self.interrupted = true;
        self.asking = None;
        if self.terminal.stderr_is_terminal() {
            // The terminal echoed ^C.
            self.terminal.aside("\n");
        }
        self.terminal.note(&format!("cancelling {run_id}; Ctrl-C again leaves without waiting for its end"));
        tokio::select! {
            cancelled = self.client.cancel_run(run_id, "interrupted by the user") => Ok(cancelled.map(drop)?),
            () = interrupts.next() => Err(Failure::Interrupted),
        }
    }

    /// Cancels a run whose output is not read any more.
    async fn leave(&self, failure: Failure) -> Failure {
        if matches!(failure, Failure::Output(_)) {
            let cancelled = self.client.cancel_run(&self.tally.run_id, "nobody reads its output").await;
            return cancelled.err().map_or(failure, Failure::from);
        }
        failure
    }
}

/// Waits until a moment; for ever without one.
async fn reached(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

async fn typed(answers: &mut Answers) -> Option<String> {
    match answers {
        Answers::Person(keyboard) => keyboard.line().await,
        Answers::Given(_) | Answers::FirstOption | Answers::Elsewhere => None,
    }
}

/// A text as the client's answer, or why there is none.
pub(crate) fn output(call_id: &str, answer: Result<String, String>) -> v1::ToolOutput {
    let (text, error) = match answer {
        Ok(text) => (Some(v1::content::Body::Text(text)), String::new()),
        Err(error) => (None, error),
    };
    let result = text.map(v1::Content::from).into_iter().collect();
    v1::ToolOutput { call_id: call_id.to_owned(), result, error }
}

fn is_late(status: &client::Status) -> bool {
    matches!(reason(status), Some(Reason::CallAlreadyAnswered | Reason::CallNotWaiting | Reason::RunEnded))
}
