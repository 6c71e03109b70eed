//! Folds a run's ordered output into the streams of its responses.

use bytes::Bytes;
use proto::names::PARTIAL_IMAGE;
use proto::v1;
use proto::v1::run_event::Event as Told;
use run::{Run, RunId};
use serde_json::{Value, json};

use super::images::PartialImages;
use super::items::{self, Carrier};
use super::part::{Event, Part, Standing};
use super::{Items, ResponseId, request};
use super::{message, results, returned};
use crate::heard::Heard;
use crate::openai::calls::{Call, Calls, Failure, OURS, Place, Said, Stage, text_of};
use crate::openai::share::{Share, SharedRun, View};

/// A run, or the share of one request in it, in the form of responses. Its input is the output of the run, or of this
/// [section](run::Section) of it, under the policy `ARRIVAL`, from the beginning.
#[derive(Debug)]
pub struct Stream {
    run: RunId,
    view: View,
    share: Option<Share>,
    items: Items,
    calls: Calls,
    /// The positions of each call's items in the current part.
    places: Vec<Places>,
    metadata: Value,
    part: Option<Part>,
    /// The number of the current part, or of the next one.
    number: u32,
    /// Why a fail-fast run has failed.
    failure: String,
    /// Complete items that are emitted when no other item is open.
    pending: Vec<Value>,
    /// The output and the results of all calls.
    heard: Heard,
}

#[derive(Debug, Default)]
struct Places {
    /// Its approval is requested in the current part.
    approval: bool,
    /// The request to the client in the current part.
    request: Option<Value>,
    call: Option<usize>,
    /// The item of a shell's output.
    output: Option<usize>,
    /// The number of such items, including the open one.
    outputs: u32,
    images: PartialImages,
    approved: bool,
    /// An attempt has started.
    started: bool,
    /// Its result was emitted as a message.
    is_said: bool,
}

impl Stream {
    #[must_use]
    pub fn new(of: impl Into<SharedRun>, items: Items) -> Self {
        let of: SharedRun = of.into();
        Self {
            run: of.run,
            view: View::new(of),
            share: of.share,
            items,
            calls: Calls::default(),
            places: Vec::new(),
            metadata: json!({}),
            part: None,
            number: 0,
            failure: String::new(),
            pending: Vec::new(),
            heard: Heard::default(),
        }
    }

    /// Keeps the bytes of a stored object of a result, which is then shown inline. It must be called before the event
    /// that has the result.
    pub fn keep(&mut self, object_id: String, bytes: Bytes) {
        self.heard.keep(object_id, bytes);
    }

    /// The current response in its current state; `None` between two responses and after the last.
    #[must_use]
    pub fn standing(&self) -> Option<Value> {
        self.part.as_ref().map(|part| part.response(Standing::InProgress, 0))
    }

    /// The current part, or the next one if none is current.
    #[must_use]
    pub fn part(&self) -> u32 {
        self.number
    }

    /// Applies the next event and returns the events that result. `run` must include at least this event.
    pub fn take(&mut self, event: &v1::RunEvent, run: &Run) -> Vec<Event> {
        let shown = self.view.take(event, run);
        shown.map_or_else(Vec::new, |event| self.take_shown(&event, run))
    }

    fn take_shown(&mut self, event: &v1::RunEvent, run: &Run) -> Vec<Event> {
        let Some(told) = &event.event else { return Vec::new() };
        let at = event.time.map_or(0, |time| time.seconds);
        if let Told::RunOpened(opened) = told {
            self.metadata = metadata(opened, run);
        }
        let id = ResponseId { run: self.run, share: self.share, part: self.number };
        let kept = || (self.metadata.clone(), run.erasure().is_none());
        let mut part = self.part.take().unwrap_or_else(|| Part::begin(id, at, kept()));
        self.heard.take(event);
        let ended = self.tell(told, run, &mut part);
        if let Some(standing) = ended {
            if standing == Standing::Completed {
                self.interrupt(&mut part);
                self.ask_again();
            }
            self.tell_pending(&mut part);
            let standing = match standing {
                Standing::Failed { .. } => Standing::Failed { message: &self.failure },
                other => other,
            };
            let mut ours = json!({ "input": returned::input(run, &self.heard) });
            if matches!(told, Told::RunEnded(ended) if ended.return_direct) {
                self.answer_directly(run, &mut part);
                (ours["finish_reason"], ours["returned"]) = ("returnDirect".into(), returned::directly(run));
            }
            part.end(standing, at, ours);
        } else if self.items == Items::Interleaved || !part.has_open() {
            self.tell_pending(&mut part);
            self.open_last(run, &mut part);
        }
        let mut events = Vec::new();
        part.take_events(&mut events);
        if ended.is_some() {
            self.number += 1;
            for places in &mut self.places {
                (places.approval, places.request, places.call, places.output) = (false, None, None, None);
            }
        } else {
            self.part = Some(part);
        }
        events
    }

    /// Applies one event. Returns how the part ends if the event ends it.
    fn tell(&mut self, told: &Told, run: &Run, part: &mut Part) -> Option<Standing<'static>> {
        match told {
            Told::RunOpened(opened) => self.accept(&opened.calls, run, part),
            Told::CallsAppended(appended) => self.accept(&appended.calls, run, part),
            Told::CallAwaitingApproval(asked) => {
                let index = self.calls.find(&asked.call_id)?;
                let call = self.calls.all.get_mut(index)?;
                call.arguments.clone_from(&asked.arguments);
                call.stage = Stage::AwaitingApproval;
                self.ask(index);
            }
            Told::CallApproved(approved) => {
                let index = self.calls.find(&approved.call_id)?;
                let call = self.calls.all.get_mut(index)?;
                if !approved.arguments.is_empty() {
                    call.arguments.clone_from(&approved.arguments);
                }
                call.stage = Stage::Accepted;
                self.places.get_mut(index)?.approved = true;
                if self.items == Items::Interleaved {
                    self.open(index, part);
                }
            }
            Told::CallRejected(rejected) => {
                let index = self.calls.find(&rejected.call_id)?;
                self.places.get_mut(index)?.approved = true;
            }
            Told::CallWaiting(waiting) => {
                let index = self.calls.find(&waiting.call_id)?;
                self.calls.all.get_mut(index)?.stage = Stage::WaitingForClient;
                self.ask(index);
            }
            Told::CallSpeaking(speaking) => self.speaks(self.calls.find(&speaking.call_id)?, part),
            Told::CallOutput(output) => self.says(self.calls.find(&output.call_id)?, output, part),
            Told::CallOutputWithdrawn(withdrawn) => self.takes_back(self.calls.find(&withdrawn.call_id)?, part),
            Told::CallEnded(ended) => {
                let outcome = ended.outcome.as_ref()?;
                let index = self.calls.find(&ended.call_id)?;
                self.ends(index, outcome, part);
                if ended.r#final {
                    message::say(self.run, self.calls.all.get(index)?, outcome, part);
                    self.places.get_mut(index)?.is_said = true;
                }
            }
            Told::AttemptStarted(started) => {
                if let Some(places) = self.calls.find(&started.call_id).and_then(|index| self.places.get_mut(index)) {
                    places.started = true;
                }
                let data = json!({ "attempt": started.attempt, "worker_id": started.worker_id, "continues": started.continues });
                self.aside("toolyard:attempt.started", &started.call_id, data, part);
            }
            Told::AttemptEnded(ended) => {
                let error = ended.error.as_ref().map(|error| json!({ "kind": kind(error), "message": error.message }));
                let data = json!({ "attempt": ended.attempt, "error": error });
                self.aside("toolyard:attempt.ended", &ended.call_id, data, part);
            }
            Told::CancelRequested(requested) => {
                self.aside("toolyard:cancel.requested", &requested.call_id, json!({}), part);
            }
            Told::CancelDelivered(delivered) => {
                self.aside("toolyard:cancel.delivered", &delivered.call_id, json!({}), part);
            }
            Told::CancelAcknowledged(acknowledged) => {
                self.aside("toolyard:cancel.acknowledged", &acknowledged.call_id, json!({}), part);
            }
            Told::RunClosed(_) => {}
            Told::RunStatusChanged(changed) => {
                return (changed.status() == v1::RunStatus::RequiresAction).then_some(Standing::Completed);
            }
            Told::RunEnded(ended) => {
                return Some(match ended.status() {
                    v1::RunStatus::Cancelled => Standing::Cancelled,
                    v1::RunStatus::Expired => Standing::Expired,
                    v1::RunStatus::Failed => Standing::Failed { message: "" },
                    _ => Standing::Completed,
                });
            }
        }
        None
    }

    /// The results of a run that answers with them, as messages.
    fn answer_directly(&self, run: &Run, part: &mut Part) {
        for call in run.requested_calls() {
            let Some(index) = self.calls.find(call.spec().id.as_str()) else { continue };
            let (Some(call), Some(places)) = (self.calls.all.get(index), self.places.get(index)) else { continue };
            if let Some((_, outcome)) = self.heard.contents(&call.id).filter(|_| !places.is_said) {
                message::say(self.run, call, outcome, part);
            }
        }
    }

    fn accept(&mut self, opened: &[v1::OpenedCall], run: &Run, part: &mut Part) {
        let added = self.calls.accept(opened, run);
        self.places.resize_with(self.calls.all.len(), Places::default);
        for (index, call) in added {
            // A call that waits for the client or for approval is emitted with the event that reports the wait, and any
            // other one when it gets the floor.
            if self.items == Items::Interleaved && !call.waits_for_client && !call.awaits_approval {
                self.open(index, part);
            }
        }
    }

    /// Emits the beginning of an executed call.
    fn open(&mut self, index: usize, part: &mut Part) {
        let (Some(call), Some(places)) = (self.calls.all.get(index), self.places.get_mut(index)) else { return };
        let carrier = Carrier::of(call);
        let mut item = items::item(self.run, carrier, call, places.approved);
        match carrier {
            Carrier::Mcp => item["arguments"] = "".into(),
            Carrier::Code => item["code"] = "".into(),
            _ => {}
        }
        let place = part.add(item);
        places.call = Some(place);
        if let (Some(stage), _) = carrier.stages() {
            part.of_item(stage, place, json!({}));
        }
        match carrier {
            Carrier::Mcp => {
                part.of_item("response.mcp_call_arguments.delta", place, json!({ "delta": call.arguments }));
                part.of_item("response.mcp_call_arguments.done", place, json!({ "arguments": call.arguments }));
                part.fill(place, "arguments", call.arguments.as_str().into());
            }
            Carrier::Code => {
                let code = items::code(call);
                part.of_item("response.code_interpreter_call_code.delta", place, json!({ "delta": code }));
                part.of_item("response.code_interpreter_call_code.done", place, json!({ "code": code }));
                part.fill(place, "code", code.into());
            }
            Carrier::Shell => request::say_commands(part, place),
            Carrier::McpList
            | Carrier::Image
            | Carrier::FileSearch
            | Carrier::WebSearch
            | Carrier::Function
            | Carrier::Custom
            | Carrier::LocalShell
            | Carrier::ClientShell
            | Carrier::ApplyPatch => {}
        }
    }

    /// Emits the beginning of the last executed call when it starts: no other one can get the floor before it, so it is
    /// seen while it runs, even if it has no output.
    fn open_last(&mut self, run: &Run, part: &mut Part) {
        if self.items == Items::Interleaved || self.share.is_some() || run.is_kept_open() || part.has_open() {
            return;
        }
        let calls = self.calls.all.iter().enumerate();
        let mut open = calls.filter(|(_, call)| call.place != Place::Client && call.stage != Stage::Ended);
        let (Some((last, call)), None) = (open.next(), open.next()) else { return };
        let has_started = self.places.get(last).is_some_and(|places| places.started && places.call.is_none());
        if has_started && call.stage == Stage::Accepted {
            self.open(last, part);
        }
    }

    /// A call that was never approved has not begun when it ends.
    fn open_unless_open(&mut self, index: usize, part: &mut Part) {
        let is_ours = self.calls.all.get(index).is_some_and(|call| call.place != Place::Client);
        if is_ours && self.places.get(index).is_some_and(|places| places.call.is_none()) {
            self.open(index, part);
        }
    }

    /// Adds a request to the client: for an answer, or for approval.
    fn ask(&mut self, index: usize) {
        let (Some(call), Some(places)) = (self.calls.all.get(index), self.places.get_mut(index)) else { return };
        let item = if call.stage == Stage::AwaitingApproval {
            places.approval = true;
            items::approval_request(self.run, call)
        } else {
            let item = items::item(self.run, Carrier::of(call), call, false);
            places.request = Some(item.clone());
            item
        };
        self.pending.push(item);
    }

    /// Emits the complete items that had to wait.
    fn tell_pending(&mut self, part: &mut Part) {
        std::mem::take(&mut self.pending).into_iter().for_each(|item| request::tell(part, item));
    }

    /// A response that ends because the client must act lists every open request.
    fn ask_again(&mut self) {
        for index in 0..self.calls.all.len() {
            let (Some(call), Some(places)) = (self.calls.all.get(index), self.places.get(index)) else { continue };
            let is_open = match call.stage {
                Stage::WaitingForClient => places.request.is_none(),
                Stage::AwaitingApproval => !places.approval,
                Stage::Accepted | Stage::Ended => false,
            };
            if is_open {
                self.ask(index);
            }
        }
    }

    /// Completes the items of calls that go on after this response, because they ask the client something. The next
    /// response has items of their own for them, with all of their output.
    fn interrupt(&mut self, part: &mut Part) {
        let calls = self.calls.all.iter_mut().zip(&mut self.places);
        for (call, places) in calls.filter(|(call, _)| call.place != Place::Client && call.stage != Stage::Ended) {
            let Some(place) = places.call else { continue };
            if let Some(output) = places.output.take() {
                let said = call.said.clone();
                if !call.is_live() {
                    // It may be withdrawn yet.
                    call.said.clear();
                } else if !said.is_told {
                    said.both().iter().for_each(|(is_stderr, text)| say_output(part, output, *is_stderr, text));
                }
                end_output(part, output, call, &json!({ "type": "exit", "exit_code": 1 }), "incomplete");
                call.said = Said { is_told: false, ..said };
            } else if let carrier = Carrier::of(call)
                && carrier != Carrier::Shell
            {
                let mut item = part.item(place);
                item["status"] = carrier.cut_short().into();
                if carrier == Carrier::Image {
                    item["result"] = "".into();
                }
                part.done(place, item);
            }
        }
    }

    fn speaks(&mut self, index: usize, part: &mut Part) {
        // A call that ends before it began has no output: its item follows with its end.
        if !self.places.get(index).is_some_and(|places| places.started) {
            return;
        }
        self.open_unless_open(index, part);
        let (Some(call), Some(places)) = (self.calls.all.get(index), self.places.get_mut(index)) else { return };
        let carrier = Carrier::of(call);
        if let ((_, Some(stage)), Some(place)) = (carrier.stages(), places.call) {
            part.of_item(stage, place, json!({}));
        }
        if carrier == Carrier::Shell {
            open_output(self.run, call, places, part);
        }
    }

    fn says(&mut self, index: usize, output: &v1::CallOutput, part: &mut Part) {
        // In the response after an interruption it has no item yet.
        self.open_unless_open(index, part);
        let (Some(call), Some(places)) = (self.calls.all.get_mut(index), self.places.get_mut(index)) else { return };
        let carrier = Carrier::of(call);
        if carrier == Carrier::Image
            && let Some(v1::call_output::Piece::Content(content)) = &output.piece
            && let Some(place) = places.call
            && places.images.take(&output.channel, content, |data| {
                part.of_item("response.image_generation_call.partial_image", place, data);
            })
        {
            return;
        }
        let Some((is_stderr, text)) = text_of(output).filter(|_| output.channel != PARTIAL_IMAGE) else {
            if let Some(v1::call_output::Piece::Progress(progress)) = &output.piece {
                let data = json!({ "done": progress.done, "total": progress.total, "message": progress.message });
                self.aside("toolyard:tool_progress", &output.call_id, data, part);
            }
            return;
        };
        let shown = call.said.take(is_stderr, &text);
        if shown.is_empty() {
            return;
        }
        if carrier == Carrier::Shell && call.is_live() {
            let place = open_output(self.run, call, places, part);
            // If no output of the item was told yet, there may be some from before an interruption.
            let told = if call.said.is_told { vec![(is_stderr, shown.clone())] } else { call.said.both() };
            told.iter().for_each(|(is_stderr, text)| say_output(part, place, *is_stderr, text));
            call.said.is_told = true;
        }
        let data = json!({ "delta": shown, "channel": output.channel });
        self.aside("toolyard:tool_output.delta", &output.call_id, data, part);
    }

    /// Discards the call's output. If some was emitted already, its item ends as incomplete, and another item holds the
    /// new output.
    fn takes_back(&mut self, index: usize, part: &mut Part) {
        let (Some(call), Some(places)) = (self.calls.all.get_mut(index), self.places.get_mut(index)) else { return };
        if call.said.is_told
            && let Some(place) = places.output.take()
        {
            let outcome = json!({ "type": "exit", "exit_code": 1 });
            end_output(part, place, call, &outcome, "incomplete");
        }
        call.said.clear();
        places.images.withdraw();
        let call_id = call.id.clone();
        self.aside("toolyard:tool_output.withdrawn", &call_id, json!({}), part);
    }

    fn ends(&mut self, index: usize, outcome: &v1::CallOutcome, part: &mut Part) {
        if let (Some(failure), "") = (Failure::of(outcome), self.failure.as_str())
            && let Some(call) = self.calls.all.get(index).filter(|call| !call.is_question)
        {
            self.failure = format!("call {}: {}", call.id, failure.message);
        }
        let Some(call) = self.calls.all.get_mut(index) else { return };
        call.stage = Stage::Ended;
        if call.place == Place::Client {
            return self.answered(index, outcome);
        }
        if self.ends_unbegun(index, outcome, part) {
            return;
        }
        self.open_unless_open(index, part);
        let (Some(call), Some(places)) = (self.calls.all.get_mut(index), self.places.get_mut(index)) else { return };
        let (carrier, Some(place)) = (Carrier::of(call), places.call) else { return };
        if carrier == Carrier::Shell {
            let (how, more) = items::shell_end(outcome, call.said.is_empty());
            let more = more.map(|(is_stderr, text)| (is_stderr, call.said.take(is_stderr, &text)));
            let place = open_output(self.run, call, places, part);
            let untold = if call.said.is_told { more.into_iter().collect() } else { call.said.both() };
            for (is_stderr, text) in untold.iter().filter(|(_, text)| !text.is_empty()) {
                say_output(part, place, *is_stderr, text);
            }
            let failure = Failure::of(outcome);
            let is_cut_short = failure.as_ref().is_some_and(|failure| failure.state != "FAILED");
            if let Some(failure) = failure {
                part.fill(place, "toolyard", failure.json());
            }
            end_output(part, place, call, &how, if is_cut_short { "incomplete" } else { "completed" });
            return;
        }
        if let Some(ending) = carrier.ending(Failure::of(outcome).is_some()) {
            part.of_item(ending, place, json!({}));
        }
        let said = format!("{}{}", call.said.stdout, call.said.stderr);
        part.done(place, results::ended(part.item(place), (carrier, &said), outcome, &self.heard));
        call.said.clear();
    }

    /// A shell that ends before it began has no output, and its call is not complete. Returns whether this was one.
    fn ends_unbegun(&mut self, index: usize, outcome: &v1::CallOutcome, part: &mut Part) -> bool {
        let (Some(call), Some(places)) = (self.calls.all.get(index), self.places.get_mut(index)) else { return true };
        let Some(failure) = Failure::of(outcome).filter(|_| !places.started && places.call.is_none()) else {
            return false;
        };
        if Carrier::of(call) != Carrier::Shell {
            return false;
        }
        let mut item = items::item(self.run, Carrier::Shell, call, places.approved);
        let place = part.add(item.clone());
        (item["status"], item["toolyard"]) = ("incomplete".into(), failure.json());
        part.done(place, item);
        places.call = Some(place);
        true
    }

    /// Emits the answer to a call that the client answered while the response was still streamed, or the end of a call
    /// that ended meanwhile without an answer. A call that is answered later is input of the next response.
    fn answered(&mut self, index: usize, outcome: &v1::CallOutcome) {
        let (Some(call), Some(places)) = (self.calls.all.get(index), self.places.get(index)) else { return };
        let Some(request) = &places.request else { return };
        let item = super::answers::answer_item(request, outcome);
        let mut item =
            item.unwrap_or_else(|| json!({ "type": "function_call_output", "call_id": call.id, "output": "" }));
        item["id"] = format!("out_{}", call.token(self.run)).into();
        item["status"] = if Failure::of(outcome).is_some() { "incomplete" } else { "completed" }.into();
        self.pending.push(item);
    }

    /// Emits an event of a call that is not part of the API.
    fn aside(&mut self, kind: &'static str, call_id: &str, mut data: Value, part: &mut Part) {
        let Some(places) = self.calls.find(call_id).and_then(|index| self.places.get(index)) else { return };
        data["call_id"] = call_id.into();
        match places.output.or(places.call).filter(|place| part.is_open(*place)) {
            Some(place) => part.of_item(kind, place, data),
            None => part.emit(kind, data),
        }
    }
}

/// The metadata that the client gave for all calls. Each response repeats it.
fn metadata(opened: &v1::RunOpened, run: &Run) -> Value {
    let first = opened.calls.first().and_then(|call| run.find(&call.call_id.parse().ok()?));
    let own = first.map(|call| &call.spec().metadata);
    let own = own.into_iter().flatten().filter(|(name, _)| !name.starts_with(OURS));
    Value::Object(own.map(|(name, value)| (name.clone(), value.as_str().into())).collect())
}

fn kind(error: &v1::CallError) -> &'static str {
    error.kind().as_str_name().trim_start_matches("CALL_ERROR_KIND_")
}

/// Opens the item for a shell's output unless it is open.
fn open_output(run: RunId, call: &Call, places: &mut Places, part: &mut Part) -> usize {
    if let Some(place) = places.output {
        return place;
    }
    let place = part.add(items::shell_output(run, call, places.outputs));
    places.output = Some(place);
    places.outputs += 1;
    place
}

fn say_output(part: &mut Part, place: usize, is_stderr: bool, text: &str) {
    let delta = if is_stderr { json!({ "stderr": text }) } else { json!({ "stdout": text }) };
    part.of_item("response.shell_call_output_content.delta", place, json!({ "command_index": 0, "delta": delta }));
}

fn end_output(part: &mut Part, place: usize, call: &mut Call, how: &Value, status: &str) {
    let output = json!([{ "stdout": call.said.stdout, "stderr": call.said.stderr, "outcome": how }]);
    let data = json!({ "command_index": 0, "output": output });
    part.of_item("response.shell_call_output_content.done", place, data);
    let mut item = part.item(place);
    (item["output"], item["status"]) = (output, status.into());
    part.done(place, item);
    call.said.clear();
}
