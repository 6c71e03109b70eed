//! The state of a run's calls after some of its events.

use proto::v1;
use proto::v1::run_event::Event;

/// The state of a run after its events: its calls, their output without withdrawn parts, and the calls that wait for
/// the client. Apply every event once, in order, beginning with the first of the run.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Transcript {
    run_id: String,
    status: v1::RunStatus,
    calls: Vec<CallTranscript>,
}

/// One call of a run.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct CallTranscript {
    /// The id that the caller gave, usually the model's.
    pub call_id: String,
    /// The tool's name; empty if the events that name it were not applied.
    pub tool: String,
    /// Output so far, in order. Output that a retry has withdrawn is not in it.
    pub output: Vec<v1::Content>,
    /// The latest progress report; `None` if there is none, or a retry has withdrawn it.
    pub progress: Option<v1::Progress>,
    /// Set while the call waits for the client's answer.
    pub waiting: Option<v1::CallWaiting>,
    /// Set while the call waits for an approval.
    pub awaiting_approval: Option<v1::CallAwaitingApproval>,
    /// How it ended; `None` while it has not.
    pub outcome: Option<v1::CallOutcome>,
}

impl CallTranscript {
    /// The result of a call that completed; `None` for any other.
    #[must_use]
    pub fn result(&self) -> Option<&[v1::Content]> {
        let outcome = self.outcome.as_ref().filter(|outcome| outcome.state() == v1::CallState::Completed)?;
        Some(&outcome.result)
    }
}

impl Transcript {
    /// The run's id; empty before its first event.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The run's status as of the last applied event.
    #[must_use]
    pub fn status(&self) -> v1::RunStatus {
        self.status
    }

    /// The calls, in the order in which they were accepted.
    #[must_use]
    pub fn calls(&self) -> &[CallTranscript] {
        &self.calls
    }

    /// Applies the next event.
    pub fn apply(&mut self, event: &v1::RunEvent) {
        let Some(event) = &event.event else { return };
        match event {
            Event::RunOpened(opened) => {
                self.run_id.clone_from(&opened.run_id);
                self.status = v1::RunStatus::InProgress;
                self.add(&opened.calls);
            }
            Event::CallsAppended(appended) => self.add(&appended.calls),
            Event::CallWaiting(waiting) => {
                let call = self.call(&waiting.call_id);
                call.tool.clone_from(&waiting.tool);
                call.waiting = Some(waiting.clone());
            }
            Event::CallAwaitingApproval(awaiting) => {
                self.call(&awaiting.call_id).awaiting_approval = Some(awaiting.clone());
            }
            Event::CallApproved(approved) => self.call(&approved.call_id).awaiting_approval = None,
            Event::CallRejected(rejected) => self.call(&rejected.call_id).awaiting_approval = None,
            Event::CallSpeaking(speaking) => self.call(&speaking.call_id).tool.clone_from(&speaking.tool),
            Event::CallOutput(output) => {
                let call = self.call(&output.call_id);
                match &output.piece {
                    Some(v1::call_output::Piece::Content(content)) => call.output.push(content.clone()),
                    Some(v1::call_output::Piece::Progress(progress)) => call.progress = Some(progress.clone()),
                    None => {}
                }
            }
            Event::CallOutputWithdrawn(withdrawn) => {
                let call = self.call(&withdrawn.call_id);
                call.output.clear();
                call.progress = None;
            }
            Event::CallEnded(ended) => {
                let call = self.call(&ended.call_id);
                (call.waiting, call.awaiting_approval) = (None, None);
                call.outcome.clone_from(&ended.outcome);
            }
            Event::RunStatusChanged(changed) => self.status = changed.status(),
            Event::RunEnded(ended) => self.status = ended.status(),
            Event::RunClosed(_)
            | Event::AttemptStarted(_)
            | Event::AttemptEnded(_)
            | Event::CancelRequested(_)
            | Event::CancelDelivered(_)
            | Event::CancelAcknowledged(_) => {}
        }
    }

    fn add(&mut self, calls: &[v1::OpenedCall]) {
        for opened in calls {
            self.call(&opened.call_id).tool.clone_from(&opened.tool);
        }
    }

    /// The call of this id; a new one if the event that introduced it was not applied.
    fn call(&mut self, id: &str) -> &mut CallTranscript {
        let index = self.calls.iter().position(|call| call.call_id == id).unwrap_or_else(|| {
            self.calls.push(CallTranscript { call_id: id.to_owned(), ..CallTranscript::default() });
            self.calls.len() - 1
        });
        &mut self.calls[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event: Event) -> v1::RunEvent {
        v1::RunEvent { event: Some(event), ..v1::RunEvent::default() }
    }

    fn text(text: &str) -> v1::Content {
        v1::Content::from(v1::content::Body::Text(text.to_owned()))
    }

    fn output(call: &str, said: &str) -> v1::RunEvent {
        let piece = Some(v1::call_output::Piece::Content(text(said)));
        event(Event::CallOutput(v1::CallOutput { call_id: call.to_owned(), piece, ..v1::CallOutput::default() }))
    }

    #[test]
    fn withdrawn_output_is_removed_from_its_call_and_from_no_other() {
        let mut transcript = Transcript::default();
        let withdrawn = v1::CallOutputWithdrawn { call_id: "a".to_owned(), ..v1::CallOutputWithdrawn::default() };
        let events = [
            output("a", "lost"),
            output("b", "kept"),
            event(Event::CallOutputWithdrawn(withdrawn)),
            output("a", "again"),
        ];
        events.iter().for_each(|event| transcript.apply(event));
        let said: Vec<_> = transcript.calls().iter().map(|call| (call.call_id.as_str(), call.output.clone())).collect();
        assert_eq!(said, [("a", vec![text("again")]), ("b", vec![text("kept")])]);
    }

    #[test]
    fn a_call_waits_for_its_client_until_it_ends() {
        let mut transcript = Transcript::default();
        let waiting = v1::CallWaiting { call_id: "ask".to_owned(), ..v1::CallWaiting::default() };
        transcript.apply(&event(Event::CallWaiting(waiting.clone())));
        assert_eq!(transcript.calls()[0].waiting, Some(waiting));
        let state = v1::CallState::Completed.into();
        let outcome = Some(v1::CallOutcome { state, result: vec![text("blue")], ..v1::CallOutcome::default() });
        let ended = v1::CallEnded { call_id: "ask".to_owned(), outcome, ..v1::CallEnded::default() };
        transcript.apply(&event(Event::CallEnded(ended)));
        let call = &transcript.calls()[0];
        assert_eq!((call.waiting.clone(), call.result()), (None, Some([text("blue")].as_slice())));
    }
}
