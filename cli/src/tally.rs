//! The state of a run as far as its events were received: its calls, their durations and ends. Unlike the client's
//! `Transcript` it keeps no output, which may be larger than memory and is shown as it comes.

use std::time::Duration;

use formats::openai::share::call_of;
use proto::v1;
use proto::v1::run_event::Event;

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) run_id: String,
    /// The final one, once there is one.
    pub(crate) status: Option<v1::RunStatus>,
    pub(crate) calls: Vec<CallTally>,
    opened: Option<Duration>,
    ended: Option<Duration>,
}

/// One call. Moments are counted from the Unix epoch, by the broker's clock.
#[derive(Debug, Default)]
pub(crate) struct CallTally {
    pub(crate) id: String,
    /// Empty if the events that name it were not received.
    pub(crate) tool: String,
    pub(crate) for_client: bool,
    /// A question of a running call.
    pub(crate) is_question: bool,
    /// Its tool is hidden, and no client answers it.
    pub(crate) is_hidden: bool,
    /// The arguments for the client, until it has answered.
    pub(crate) waiting: Option<v1::CallWaiting>,
    /// It has output that was not withdrawn.
    pub(crate) said: bool,
    pub(crate) outcome: Option<v1::CallOutcome>,
    accepted: Option<Duration>,
    started: Option<Duration>,
    ended: Option<Duration>,
}

impl CallTally {
    /// From its first start (or its acceptance, if no start is known) to its end.
    pub(crate) fn took(&self) -> Option<Duration> {
        let ended = self.ended?;
        // A short attempt's start is stored together with its end.
        let started = self.started.filter(|started| *started < ended).or(self.accepted)?;
        ended.checked_sub(started)
    }
}

impl Tally {
    /// For a run whose first event may not be received.
    pub(crate) fn of_run(run_id: String) -> Self {
        Self { run_id, ..Self::default() }
    }

    /// Takes an event in.
    pub(crate) fn note(&mut self, event: &v1::RunEvent) {
        let at = event.time.and_then(|time| {
            let seconds = u64::try_from(time.seconds).ok()?;
            Some(Duration::new(seconds, u32::try_from(time.nanos).ok()?))
        });
        match &event.event {
            Some(Event::RunOpened(opened)) => {
                self.run_id.clone_from(&opened.run_id);
                self.opened = at;
                self.add(&opened.calls, at);
            }
            Some(Event::CallsAppended(appended)) => self.add(&appended.calls, at),
            Some(Event::CallWaiting(waiting)) => {
                let call = self.known(&waiting.call_id);
                call.tool.clone_from(&waiting.tool);
                call.for_client = true;
                call.waiting = Some(waiting.clone());
            }
            Some(Event::AttemptStarted(started)) => {
                self.known(&started.call_id).started.get_or_insert(at.unwrap_or_default());
            }
            Some(Event::CallSpeaking(speaking)) => self.known(&speaking.call_id).tool.clone_from(&speaking.tool),
            Some(Event::CallOutput(output)) => {
                let is_content = matches!(output.piece, Some(v1::call_output::Piece::Content(_)));
                self.known(&output.call_id).said |= is_content;
            }
            Some(Event::CallOutputWithdrawn(withdrawn)) => self.known(&withdrawn.call_id).said = false,
            Some(Event::CallEnded(ended)) => {
                let call = self.known(&ended.call_id);
                call.waiting = None;
                call.outcome.clone_from(&ended.outcome);
                call.ended = at;
            }
            Some(Event::RunEnded(ended)) => {
                self.status = Some(ended.status());
                self.ended = at;
            }
            Some(
                Event::RunClosed(_)
                | Event::CallAwaitingApproval(_)
                | Event::CallApproved(_)
                | Event::CallRejected(_)
                | Event::AttemptEnded(_)
                | Event::CancelRequested(_)
                | Event::CancelDelivered(_)
                | Event::CancelAcknowledged(_)
                | Event::RunStatusChanged(_),
            )
            | None => {}
        }
    }

    fn add(&mut self, calls: &[v1::OpenedCall], at: Option<Duration>) {
        for opened in calls {
            let call = self.known(&opened.call_id);
            call.tool.clone_from(&opened.tool);
            call.for_client = opened.waits_for_client;
            call.is_question = !opened.asked_by_call_id.is_empty();
            call.is_hidden = opened.hidden && !opened.waits_for_client;
            call.accepted = at;
        }
    }

    /// The call of this id; a new one if the events that introduced it were not received.
    fn known(&mut self, id: &str) -> &mut CallTally {
        let index = self.calls.iter().position(|call| call.id == id).unwrap_or_else(|| {
            self.calls.push(CallTally { id: id.to_owned(), ..CallTally::default() });
            self.calls.len() - 1
        });
        &mut self.calls[index]
    }

    /// A call and its position in the run.
    pub(crate) fn call(&self, id: &str) -> Option<(usize, &CallTally)> {
        self.calls.iter().enumerate().find(|(_, call)| call.id == id)
    }

    /// The call of a hidden tool that an event is about. What a person must decide is for people all the same.
    pub(crate) fn hidden(&self, event: &v1::RunEvent) -> Option<&CallTally> {
        let event = event.event.as_ref()?;
        if matches!(event, Event::CallAwaitingApproval(_) | Event::CallApproved(_) | Event::CallRejected(_)) {
            return None;
        }
        let (_, call) = self.call(call_of(event)?)?;
        call.is_hidden.then_some(call)
    }

    pub(crate) fn took(&self) -> Option<Duration> {
        self.ended?.checked_sub(self.opened?)
    }

    /// Whether anything became of a call: a start, output, a question or an end.
    pub(crate) fn has_begun(&self) -> bool {
        let has_begun =
            |call: &CallTally| call.started.is_some() || call.said || call.waiting.is_some() || call.outcome.is_some();
        self.calls.iter().any(has_begun)
    }

    /// How long it took until all calls were done that did not wait for the client.
    pub(crate) fn worked(&self) -> Option<Duration> {
        let done = self.calls.iter().filter(|call| !call.for_client).filter_map(|call| call.ended).max()?;
        done.checked_sub(self.opened?)
    }

    /// The calls that wait for the client, in their order.
    pub(crate) fn questions(&self) -> impl Iterator<Item = &v1::CallWaiting> {
        self.calls.iter().filter_map(|call| call.waiting.as_ref())
    }
}
