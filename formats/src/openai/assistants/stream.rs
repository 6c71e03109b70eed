//! Folds a run's ordered output into the streams of an Assistants run. A stream ends each time the run requires action.

use std::collections::HashSet;

use crate::turns::Answer;
use proto::names::PARTIAL_IMAGE;
use proto::v1::run_event::Event as Told;
use proto::{Reason, v1};
use run::{Run, RunId};
use serde_json::{Value, json};

use crate::openai::calls::{Call, Calls, Failure, OURS, Place, Stage, parts, text_of};
use crate::openai::share::{SharedRun, View};
use crate::openai::{InputError, NAME, resources};

/// An event of a run's stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The part of the run that the event belongs to.
    pub part: u32,
    pub kind: &'static str,
    pub data: Value,
}

impl Event {
    /// Whether this is the last event of its part; `done` follows.
    #[must_use]
    pub fn is_last(&self) -> bool {
        matches!(
            self.kind,
            "thread.run.requires_action"
                | "thread.run.completed"
                | "thread.run.failed"
                | "thread.run.cancelled"
                | "thread.run.expired"
        )
    }
}

/// A run, or the share of one request in it, in the form of the Assistants API. Its input is the output of the run,
/// or of this [section](run::Section) of it, under the policy `ARRIVAL`, from the beginning.
#[derive(Debug)]
pub struct Stream {
    pub(super) run: RunId,
    /// What is presented: its id is that of the API's run.
    pub(super) of: SharedRun,
    view: View,
    pub(super) thread: String,
    pub(super) calls: Calls,
    steps: Vec<Step>,
    status: &'static str,
    part: u32,
    is_begun: bool,
    created_at: i64,
    expires_at: i64,
    started_at: Option<i64>,
    ended_at: Option<i64>,
    metadata: Value,
    last_error: Value,
    events: Vec<Event>,
    pub(super) messages: Vec<Value>,
    /// Results that are the answer if those of all calls are, with their calls.
    direct: Vec<(usize, v1::CallOutcome)>,
    is_direct: bool,
    tool_resources: Value,
    /// Ends of questions, with their times, that wait until no other step is told.
    waiting: Vec<(v1::CallEnded, i64)>,
    /// Calls of hidden tools that have not ended.
    unseen: HashSet<String>,
    /// The last reported status of the run is that it requires action. Only a change of the status is reported.
    requires_action: bool,
}

/// A call as a step. The SDKs support only one step in progress at a time, so a step is emitted while its call has the
/// floor. Of the client's own calls only the end is emitted.
#[derive(Debug)]
struct Step {
    status: Option<&'static str>,
    is_told: bool,
    created_at: i64,
    ended_at: Option<i64>,
    output: Option<String>,
    last_error: Value,
    cancel_requested: bool,
}

impl Step {
    /// Its beginning was emitted, and its end was not.
    fn is_open(&self) -> bool {
        self.is_told && self.ended_at.is_none()
    }
}

impl Stream {
    #[must_use]
    pub fn new(of: impl Into<SharedRun>, thread: &str) -> Self {
        let of: SharedRun = of.into();
        Self {
            run: of.run,
            of,
            view: View::new(of),
            thread: thread.to_owned(),
            calls: Calls::default(),
            steps: Vec::new(),
            status: "queued",
            part: 0,
            is_begun: false,
            created_at: 0,
            expires_at: 0,
            started_at: None,
            ended_at: None,
            metadata: json!({}),
            last_error: Value::Null,
            events: Vec::new(),
            messages: Vec::new(),
            direct: Vec::new(),
            is_direct: false,
            tool_resources: Value::Null,
            waiting: Vec::new(),
            unseen: HashSet::new(),
            requires_action: false,
        }
    }

    /// The current part, or the next one if none is current.
    #[must_use]
    pub fn part(&self) -> u32 {
        self.part
    }

    /// Checks that a request answers the waiting calls, together, and no others. That of a whole run is checked where
    /// it is decided.
    ///
    /// # Errors
    /// An error with a JSON pointer.
    pub fn check_outputs(&self, request: &v1::SubmitToolOutputsRequest) -> Result<(), InputError> {
        let is_given = |call: &&Call| request.outputs.iter().any(|output| output.call_id == call.id);
        let mut own = self.calls.all.iter().filter(|call| call.place == Place::Client);
        if let Some(nth) = request.outputs.iter().position(|output| own.clone().all(|call| call.id != output.call_id)) {
            let message = format!("{:?} is no call of this run that the client answers", request.outputs[nth].call_id);
            return Err(InputError::new(Reason::CallNotFound, format!("/tool_outputs/{nth}"), message));
        }
        match own.find(|call| call.stage == Stage::WaitingForClient && !is_given(call)) {
            Some(call) => {
                let message = format!("all answers are required at once, and that of {} is missing", call.id);
                Err(InputError::new(Reason::AnswersMissing, "/tool_outputs", message))
            }
            None => Ok(()),
        }
    }

    /// Whether the run has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }

    /// Applies the next event and returns the events that result. `run` must include at least this event.
    pub fn take(&mut self, event: &v1::RunEvent, run: &Run) -> Vec<Event> {
        let shown = self.view.take(event, run);
        shown.map_or_else(Vec::new, |event| self.take_shown(&event, run))
    }

    fn take_shown(&mut self, event: &v1::RunEvent, run: &Run) -> Vec<Event> {
        let Some(told) = &event.event else { return Vec::new() };
        let at = event.time.map_or(0, |time| time.seconds);
        if !self.is_begun {
            self.end_waiting();
        }
        match told {
            Told::RunOpened(opened) => {
                self.created_at = at;
                self.expires_at = opened.deadline.map_or(at, |deadline| deadline.seconds);
                self.metadata = metadata(opened, run);
                self.say_run("thread.run.created");
            }
            // The step of a call that the client answered comes before any other event of the run.
            Told::CallSpeaking(_) if !self.is_begun => return Vec::new(),
            // Of a run that waits nothing goes on because no more calls can be added.
            Told::RunClosed(_) if !self.is_begun => return Vec::new(),
            Told::CallEnded(ended) if !self.is_begun => self.ends(ended, at),
            _ => {}
        }
        let is_told = !self.is_begun && matches!(told, Told::CallEnded(_));
        if !self.is_begun {
            self.is_begun = true;
            self.status = "queued";
            self.say_run("thread.run.queued");
            self.status = "in_progress";
            self.started_at.get_or_insert(at);
            self.say_run("thread.run.in_progress");
        }
        if !is_told {
            self.tell(told, run, at);
        }
        self.perhaps_end_part(told);
        std::mem::take(&mut self.events)
    }

    /// Ends the part that an event has begun if nothing goes on: the status of the run did not change, so it is not
    /// reported again. A client answers all of its calls together, so after an answer the part goes on while one of
    /// them waits.
    fn perhaps_end_part(&mut self, told: &Told) {
        let may_end = match told {
            Told::CallEnded(ended) => {
                self.unseen.remove(&ended.call_id);
                self.calls.all.iter().all(|call| call.stage != Stage::WaitingForClient)
            }
            Told::CallWaiting(_) | Told::CallAwaitingApproval(_) => true,
            Told::RunStatusChanged(changed) => {
                self.requires_action = changed.status() == v1::RunStatus::RequiresAction;
                return;
            }
            _ => return,
        };
        if may_end && self.requires_action && self.is_begun && self.all_wait() {
            self.end_part("requires_action", "thread.run.requires_action");
        }
    }

    /// Whether there are calls that have not ended, and all of these wait for the client or for approval.
    fn all_wait(&self) -> bool {
        let mut open = self.calls.all.iter().filter(|call| call.stage != Stage::Ended).peekable();
        let asks = |asker: &Call| {
            self.calls.all.iter().any(|call| call.stage == Stage::WaitingForClient && call.asked_by == asker.id)
        };
        let waits = |call: &Call| match call.stage {
            Stage::AwaitingApproval | Stage::WaitingForClient => true,
            Stage::Accepted => asks(call),
            Stage::Ended => false,
        };
        self.unseen.is_empty() && open.peek().is_some() && open.all(waits)
    }

    fn tell(&mut self, told: &Told, run: &Run, at: i64) {
        match told {
            Told::RunOpened(opened) => self.accept(&opened.calls, run, at),
            Told::CallsAppended(appended) => self.accept(&appended.calls, run, at),
            Told::CallAwaitingApproval(asked) => self.with(&asked.call_id, |call| {
                call.arguments.clone_from(&asked.arguments);
                call.stage = Stage::AwaitingApproval;
            }),
            Told::CallApproved(approved) => {
                self.with(&approved.call_id, |call| {
                    if !approved.arguments.is_empty() {
                        call.arguments.clone_from(&approved.arguments);
                    }
                    call.stage = Stage::Accepted;
                });
                self.begin(&approved.call_id, at);
            }
            Told::CallWaiting(waiting) => {
                self.with(&waiting.call_id, |call| call.stage = Stage::WaitingForClient);
            }
            Told::CallSpeaking(speaking) => {
                let Some(index) = self.calls.find(&speaking.call_id) else { return };
                self.begin(&speaking.call_id, at);
                self.tell_step(index);
            }
            Told::CallOutput(output) => self.says(output),
            Told::CallOutputWithdrawn(withdrawn) => {
                let Some(index) = self.calls.find(&withdrawn.call_id) else { return };
                let Some(call) = self.calls.all.get_mut(index) else { return };
                let is_told = call.said.is_told;
                call.said.clear();
                if is_told {
                    // The API cannot withdraw output, so the output itself reports the restart.
                    call.said.is_told = true;
                    // A step that a question has interrupted is told again.
                    self.tell_step(index);
                    self.adds(
                        index,
                        "\n[the attempt was lost; the output of another attempt follows from its beginning]\n",
                    );
                }
            }
            Told::CallEnded(ended) => self.ends(ended, at),
            Told::RunStatusChanged(changed) if changed.status() == v1::RunStatus::RequiresAction => {
                self.end_part("requires_action", "thread.run.requires_action");
            }
            Told::RunEnded(ended) => {
                self.end_run(ended, at);
            }
            Told::CancelRequested(requested) => {
                let step = self.calls.find(&requested.call_id).and_then(|index| self.steps.get_mut(index));
                if let Some(step) = step {
                    step.cancel_requested = true;
                    self.say_cancelling();
                }
            }
            Told::CallRejected(_)
            | Told::AttemptStarted(_)
            | Told::AttemptEnded(_)
            | Told::CancelDelivered(_)
            | Told::CancelAcknowledged(_)
            | Told::RunClosed(_)
            | Told::RunStatusChanged(_) => {}
        }
    }

    fn end_run(&mut self, ended: &v1::RunEnded, at: i64) {
        self.ended_at = Some(at);
        self.is_direct = ended.return_direct;
        for (index, outcome) in std::mem::take(&mut self.direct).iter().filter(|_| ended.return_direct) {
            self.say_message(*index, outcome, at);
        }
        let (status, kind) = match ended.status() {
            v1::RunStatus::Cancelled => ("cancelled", "thread.run.cancelled"),
            v1::RunStatus::Expired => ("expired", "thread.run.expired"),
            v1::RunStatus::Failed => ("failed", "thread.run.failed"),
            _ => ("completed", "thread.run.completed"),
        };
        self.end_part(status, kind);
    }

    fn end_part(&mut self, status: &'static str, kind: &'static str) {
        // The client's library knows a step only from the stream that began it. A call that asks its client goes on,
        // and steps that wait for its end come first in the next part.
        for step in self.steps.iter_mut().filter(|step| step.ended_at.is_none()) {
            step.is_told = false;
        }
        self.status = status;
        self.say_run(kind);
        self.is_begun = false;
        self.part += 1;
    }

    fn accept(&mut self, opened: &[v1::OpenedCall], run: &Run, at: i64) {
        self.calls.accept(opened, run);
        let unseen = opened.iter().filter(|call| self.calls.find(&call.call_id).is_none());
        self.unseen.extend(unseen.map(|call| call.call_id.clone()));
        let specs = self.calls.all.iter().filter_map(|call| Some(&**run.find(&call.id.parse().ok()?)?.spec()));
        self.tool_resources = resources::of_calls(specs);
        let blank = || Step {
            status: None,
            is_told: false,
            created_at: 0,
            ended_at: None,
            output: None,
            last_error: Value::Null,
            cancel_requested: false,
        };
        self.steps.resize_with(self.calls.all.len(), blank);
        for call in opened.iter().filter(|call| !call.awaits_approval) {
            self.begin(&call.call_id, at);
        }
    }

    fn with(&mut self, call_id: &str, change: impl FnOnce(&mut Call)) {
        if let Some(call) = self.calls.find(call_id).and_then(|index| self.calls.all.get_mut(index)) {
            change(call);
        }
    }

    /// The call starts executing, or starts waiting for its client.
    fn begin(&mut self, call_id: &str, at: i64) {
        let step = self.calls.find(call_id).and_then(|index| self.steps.get_mut(index));
        if let Some(step) = step.filter(|step| step.status.is_none()) {
            (step.status, step.created_at) = (Some("in_progress"), at);
        }
    }

    /// Emits the step of a call that the client does not answer itself.
    fn tell_step(&mut self, index: usize) {
        let is_ours = self.calls.all.get(index).is_some_and(|call| call.place != Place::Client);
        let Some(step) = self.steps.get_mut(index).filter(|step| is_ours && !step.is_told) else { return };
        step.is_told = true;
        for kind in ["thread.run.step.created", "thread.run.step.in_progress"] {
            let mut step = self.step(index);
            // The call itself is sent as a delta.
            step["step_details"]["tool_calls"] = json!([]);
            self.say(kind, step);
        }
        let Some(call) = self.calls.all.get(index) else { return };
        let function = json!({ "name": call.tool, "arguments": call.arguments, "output": null });
        self.say_delta(index, json!({ "index": 0, "id": call.id, "type": "function", "function": function }));
    }

    fn says(&mut self, output: &v1::CallOutput) {
        let Some(index) = self.calls.find(&output.call_id) else { return };
        let Some(call) = self.calls.all.get_mut(index) else { return };
        // In the order of arrival, including stderr, because the API has a single output. It has no images.
        let Some((_, text)) = text_of(output).filter(|_| output.channel != PARTIAL_IMAGE) else { return };
        let shown = call.said.take(false, &text);
        if call.is_live() && !shown.is_empty() {
            call.said.is_told = true;
            // A step that a question has interrupted is told again.
            self.tell_step(index);
            self.adds(index, &shown);
        }
    }

    /// Appends to a step's output.
    fn adds(&mut self, index: usize, text: &str) {
        let Some(step) = self.steps.get_mut(index) else { return };
        step.output.get_or_insert_default().push_str(text);
        if !step.is_told {
            return;
        }
        self.say_delta(index, json!({ "index": 0, "type": "function", "function": { "output": text } }));
    }

    fn ends(&mut self, ended: &v1::CallEnded, at: i64) {
        let (Some(index), Some(outcome)) = (self.calls.find(&ended.call_id), &ended.outcome) else { return };
        let is_question = self.calls.all.get(index).is_some_and(|call| call.is_question);
        if is_question && self.steps.iter().any(Step::is_open) {
            // One step at a time: a question may end while the step of the call that asked is told.
            return self.waiting.push((ended.clone(), at));
        }
        // A call that was never approved has not begun.
        self.begin(&ended.call_id, at);
        self.tell_step(index);
        let Some(call) = self.calls.all.get_mut(index) else { return };
        call.stage = Stage::Ended;
        let failure = Failure::of(outcome);
        let held = if call.said.is_told { String::new() } else { call.said.stdout.clone() };
        let is_first = held.is_empty() && !call.said.is_told;
        call.said.clear();
        let told = match &failure {
            Some(failure) => format!("Error: {}", failure.message),
            None => Answer::new(parts(&outcome.result)).text(),
        };
        let line = if is_first || told.is_empty() { "" } else { "\n" };
        // Even if it is empty, because a call that has ended has an output.
        self.adds(index, &format!("{held}{line}{told}"));
        let (status, kind) = match failure.as_ref().map(|failure| failure.state) {
            None => ("completed", "thread.run.step.completed"),
            Some("CANCELLED") => ("cancelled", "thread.run.step.cancelled"),
            Some("EXPIRED") => ("expired", "thread.run.step.expired"),
            Some(_) => ("failed", "thread.run.step.failed"),
        };
        if let (Some(failure), Value::Null, false) = (&failure, &self.last_error, is_question) {
            self.last_error = json!({ "code": "server_error", "message": failure.message });
        }
        if let Some(step) = self.steps.get_mut(index) {
            (step.status, step.ended_at) = (Some(status), Some(at));
            if let Some(failure) = failure {
                let code = if failure.kind == "RATE_LIMITED" { "rate_limit_exceeded" } else { "server_error" };
                step.last_error = json!({ "code": code, "message": failure.message });
            }
        }
        let step = self.step(index);
        self.say(kind, step);
        if ended.r#final {
            self.say_message(index, outcome, at);
        } else if ended.return_direct {
            self.direct.push((index, outcome.clone()));
        }
        self.end_waiting();
    }

    /// Emits that the run is being cancelled if all of its calls are that have not ended.
    fn say_cancelling(&mut self) {
        let mut open = self.steps.iter().filter(|step| step.ended_at.is_none());
        if self.status == "in_progress" && open.all(|step| step.cancel_requested) {
            self.status = "cancelling";
            self.say_run("thread.run.cancelling");
        }
    }

    /// Ends the steps that waited for another one to end.
    fn end_waiting(&mut self) {
        if !self.steps.iter().any(Step::is_open) {
            for (ended, at) in std::mem::take(&mut self.waiting) {
                self.ends(&ended, at);
            }
        }
    }

    pub(super) fn say(&mut self, kind: &'static str, data: Value) {
        self.events.push(Event { part: self.part, kind, data });
    }

    fn say_run(&mut self, kind: &'static str) {
        let run = self.run_as(self.status);
        self.say(kind, run);
    }

    fn say_delta(&mut self, index: usize, tool_call: Value) {
        let Some(call) = self.calls.all.get(index) else { return };
        let id = format!("step_{}", call.token(self.run));
        let details = json!({ "type": "tool_calls", "tool_calls": [tool_call] });
        let delta = json!({ "id": id, "object": "thread.run.step.delta", "delta": { "step_details": details } });
        self.say("thread.run.step.delta", delta);
    }

    /// The run in its current state. It requires action also if a part has begun in which nothing goes on.
    #[must_use]
    pub fn run(&self) -> Value {
        self.run_as(if self.is_begun && self.all_wait() { "requires_action" } else { self.status })
    }

    fn run_as(&self, status: &str) -> Value {
        let waits = |call: &&Call| call.stage == Stage::WaitingForClient && call.place == Place::Client;
        let tool_calls: Vec<Value> = self
            .calls
            .all
            .iter()
            .filter(waits)
            .map(|call| {
                let function = json!({ "name": call.tool, "arguments": call.arguments });
                json!({ "id": call.id, "type": "function", "function": function })
            })
            .collect();
        let approvals: Vec<&str> = self
            .calls
            .all
            .iter()
            .filter(|call| call.stage == Stage::AwaitingApproval)
            .map(|call| call.id.as_str())
            .collect();
        let required = json!({ "type": "submit_tool_outputs", "submit_tool_outputs": { "tool_calls": tool_calls } });
        let at = |end: &str| if status == end { self.ended_at.into() } else { Value::Null };
        json!({
            "id": self.of.to_string(),
            "object": "thread.run",
            "created_at": self.created_at,
            "thread_id": self.thread,
            "assistant_id": NAME,
            "status": status,
            "required_action": if status == "requires_action" { required } else { Value::Null },
            "last_error": if status == "failed" { self.last_error.clone() } else { Value::Null },
            "expires_at": if self.ended_at.is_none() { self.expires_at.into() } else { Value::Null },
            "started_at": self.started_at,
            "cancelled_at": at("cancelled"),
            "failed_at": at("failed"),
            "completed_at": at("completed"),
            "incomplete_details": null,
            "model": NAME,
            "instructions": "",
            "tools": [],
            "metadata": self.metadata,
            "usage": null,
            "max_prompt_tokens": null,
            "max_completion_tokens": null,
            "truncation_strategy": { "type": "auto", "last_messages": null },
            "response_format": "auto",
            "tool_choice": "auto",
            "parallel_tool_calls": true,
            "toolyard": {
                "awaiting_approval": approvals,
                "tool_resources": self.tool_resources,
                "file_ids": resources::ids(&self.tool_resources),
                "finish_reason": if self.is_direct { "returnDirect".into() } else { Value::Null },
            },
        })
    }

    /// The steps that have begun, in the order of their calls.
    #[must_use]
    pub fn steps(&self) -> Vec<Value> {
        let begun = self.steps.iter().enumerate().filter(|(_, step)| step.status.is_some());
        begun.map(|(index, _)| self.step(index)).collect()
    }

    fn step(&self, index: usize) -> Value {
        let (Some(call), Some(step)) = (self.calls.all.get(index), self.steps.get(index)) else { return Value::Null };
        let function = json!({ "name": call.tool, "arguments": call.arguments, "output": step.output });
        let tool_calls = json!([{ "id": call.id, "type": "function", "function": function }]);
        let at = |status: &str| if step.status == Some(status) { step.ended_at.into() } else { Value::Null };
        json!({
            "id": format!("step_{}", call.token(self.run)),
            "object": "thread.run.step",
            "created_at": step.created_at,
            "run_id": self.of.to_string(),
            "assistant_id": NAME,
            "thread_id": self.thread,
            "type": "tool_calls",
            "status": step.status,
            "cancelled_at": at("cancelled"),
            "completed_at": at("completed"),
            "expired_at": at("expired"),
            "failed_at": at("failed"),
            "last_error": step.last_error,
            "step_details": { "type": "tool_calls", "tool_calls": tool_calls },
            "usage": null,
            "metadata": {},
        })
    }
}

fn metadata(opened: &v1::RunOpened, run: &Run) -> Value {
    let first = opened.calls.first().and_then(|call| run.find(&call.call_id.parse().ok()?));
    let own = first.map(|call| &call.spec().metadata);
    let own = own.into_iter().flatten().filter(|(name, _)| !name.starts_with(OURS));
    Value::Object(own.map(|(name, value)| (name.clone(), value.as_str().into())).collect())
}
