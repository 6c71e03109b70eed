//! Follows a run to its end: shows its output, sees to it that the client's calls are answered, cancels on Ctrl-C.

use proto::Reason;
use proto::v1;
use proto::v1::run_event::Event;

use crate::exit::Failure;
use crate::interrupts::Interrupts;
use crate::plain::{Piece, Plain};
use crate::prompt::{Keyboard, Question};
use crate::story::Story;
use crate::tally::Tally;
use crate::terminal::Terminal;
use client::Watch;
use client::{Client, reason};

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

    /// Shows an event that the tally has taken in.
    pub(crate) fn show(&mut self, event: &v1::RunEvent, tally: &Tally, terminal: &Terminal) -> Result<(), Failure> {
        match self {
            Self::Story(story) => terminal.write(story.tell(event, tally).as_bytes()),
            Self::Plain(plain) => plain.tell(event, tally).into_iter().try_for_each(|piece| match piece {
                Piece::Output(bytes) => terminal.write(&bytes),
                Piece::Beside(text) => {
                    terminal.aside(&text);
                    Ok(())
                }
                Piece::Note(line) => {
                    terminal.note(&line);
                    Ok(())
                }
                Piece::Problem(line) => {
                    terminal.problem(&line);
                    Ok(())
                }
            }),
            Self::Json => terminal.message(event),
        }
    }
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
    view: View,
    answers: Answers,
    tally: Tally,
    /// Nothing goes on but the client's calls.
    idle: bool,
    /// Calls that were answered from here.
    answered: Vec<String>,
    /// The question that the user is being asked.
    asking: Option<Question>,
    interrupted: bool,
}

/// A run that has ended.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) tally: Tally,
    /// It was cancelled from here.
    pub(crate) interrupted: bool,
}

enum Step {
    Events(Option<Vec<v1::RunEvent>>),
    Typed(Option<String>),
    Interrupt,
}

impl<'a> Follow<'a> {
    pub(crate) fn new(client: &'a Client, terminal: &'a Terminal, view: View, answers: Answers) -> Self {
        let (tally, answered) = (Tally::default(), Vec::new());
        Self { client, terminal, view, answers, tally, idle: false, answered, asking: None, interrupted: false }
    }

    /// Follows the run until it has ended. An interrupt cancels it, a second one leaves at once.
    pub(crate) async fn until_end(
        mut self,
        mut watch: Watch,
        interrupts: &mut Interrupts,
    ) -> Result<Followed, Failure> {
        loop {
            let mut step = tokio::select! {
                events = watch.next() => Step::Events(events?),
                line = typed(&mut self.answers), if self.asking.is_some() => Step::Typed(line),
                () = interrupts.next() => Step::Interrupt,
            };
            if let Step::Events(Some(events)) = &step
                && let Err(failure) = self.take(events)
            {
                return Err(self.leave(failure).await);
            }
            let answered = async {
                match &mut step {
                    Step::Events(_) => self.answer().await,
                    Step::Typed(line) => self.typed(line.take()).await,
                    Step::Interrupt => Ok(()),
                }
            };
            tokio::select! {
                answered = answered => answered?,
                // The coordinator may be unavailable when an answer is sent.
                () = interrupts.next() => step = Step::Interrupt,
            }
            match step {
                Step::Events(None) => return Ok(Followed { tally: self.tally, interrupted: self.interrupted }),
                Step::Events(Some(_)) | Step::Typed(_) => {}
                Step::Interrupt => self.cancel(interrupts).await?,
            }
        }
    }

    fn take(&mut self, events: &[v1::RunEvent]) -> Result<(), Failure> {
        for event in events {
            self.tally.note(event);
            if let Some(Event::CallEnded(ended)) = &event.event {
                self.stop_asking(&ended.call_id);
            }
            self.view.show(event, &self.tally, self.terminal)?;
            if let Some(Event::RunStatusChanged(changed)) = &event.event {
                self.idle = changed.status() == v1::RunStatus::RequiresAction;
            }
        }
        Ok(())
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
                    if matches!(self.view, View::Story(_)) {
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

async fn typed(answers: &mut Answers) -> Option<String> {
    match answers {
        Answers::Person(keyboard) => keyboard.line().await,
        Answers::Given(_) | Answers::FirstOption | Answers::Elsewhere => None,
    }
}

/// A text as the client's answer, or why there is none.
fn output(call_id: &str, answer: Result<String, String>) -> v1::ToolOutput {
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
