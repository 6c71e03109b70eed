//! Properties of every output stream of a run, after any kills. The check uses only the events. It collects violations:
//! it never panics, and goes on after each.

mod asked;
mod judge;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;

use proto::v1::run_event::Event;
use proto::v1::{self, FloorPolicy, RunEvent};

pub(crate) use asked::{Answer, Asking, effect_of_call, effects_of, found_effects, weigh};
pub(crate) use judge::{Effect, Evidence, judge, judge_call};

/// The promise that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Broken {
    /// Accepted, but not ended, or not found.
    Lost,
    Late,
    /// A chunk, a number, an end twice; or output that was to be withdrawn and was not.
    Doubled,
    /// Out of order: numbers, chunks, or the speaking call.
    Reordered,
    /// Something of an attempt that a newer one replaced, or of a call that had ended.
    Zombie,
    /// Two readers saw something else.
    Differing,
    /// A call that has ended was shown as open, long after its end.
    Outdated,
    WrongContent,
    RepeatedEffect,
    /// A request was refused or is unknown, and its calls had effects all the same.
    RefusedEffect,
    /// A run that is not to be stored is still there long after its end.
    Kept,
    /// A process ended without a request, or did not end after one.
    Process,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) broken: Broken,
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.broken, self.what)
    }
}

/// The state of one call while its events are checked.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The attempts that started, in order.
    pub(crate) started: Vec<u32>,
    /// The first of the attempts that count: each after it went on where the one before it broke off.
    counts_from: u32,
    pub(crate) speaking: bool,
    /// The attempt that is heard and the number of its next chunk.
    heard: Option<(u32, u32)>,
    /// Its output without withdrawn parts.
    pub(crate) said: String,
    pub(crate) ended: Option<(u64, v1::CallOutcome)>,
    waited: bool,
}

/// Goes through the events of a run from its beginning.
#[derive(Debug, Default)]
pub(crate) struct Story {
    pub(crate) calls: HashMap<String, Told>,
    pub(crate) run_ended: bool,
    floor: Option<String>,
    found: Vec<Violation>,
}

/// Reads the events as a client would; `whole` when they reach to the run's end.
pub(crate) fn read(events: &[RunEvent], policy: FloorPolicy, whole: bool) -> (Story, Vec<Violation>) {
    let mut story = Story::default();
    let mut next = 0;
    for event in events {
        if event.sequence < next {
            story.find(Broken::Doubled, format!("number {} comes again where {next} is next", event.sequence));
        } else if event.sequence > next {
            story.find(Broken::Reordered, format!("number {} comes where {next} is next", event.sequence));
        }
        next = event.sequence + 1;
        story.take(event, policy != FloorPolicy::Interleaved);
    }
    if whole && !story.run_ended {
        story.find(Broken::Lost, "the stream ends without the run's end".to_owned());
    }
    let found = std::mem::take(&mut story.found);
    (story, found)
}

/// Two readers of the same policy must have the same events.
pub(crate) fn same(one: &[RunEvent], other: &[RunEvent]) -> Option<Violation> {
    let place = one.iter().zip(other).position(|(one, other)| one != other);
    let place = place.or_else(|| (one.len() != other.len()).then(|| one.len().min(other.len())))?;
    let what = format!(
        "the live reader saw {} events, a late one {}; the first difference is at {place}: {:?} and {:?}",
        one.len(),
        other.len(),
        one.get(place),
        other.get(place)
    );
    Some(Violation { broken: Broken::Differing, what })
}

pub(crate) fn ms(time: Option<&prost_types::Timestamp>) -> u64 {
    let Some(time) = time else { return 0 };
    u64::try_from(time.seconds * 1_000 + i64::from(time.nanos) / 1_000_000).unwrap_or_default()
}

impl Story {
    fn find(&mut self, broken: Broken, what: String) {
        self.found.push(Violation { broken, what });
    }

    fn take(&mut self, event: &RunEvent, has_floor: bool) {
        let number = event.sequence;
        let Some(kind) = &event.event else {
            return self.find(Broken::WrongContent, format!("event {number} says nothing"));
        };
        if self.run_ended {
            self.find(Broken::Doubled, format!("event {number} comes after the run's end"));
        }
        if (number == 0) != matches!(kind, Event::RunOpened(_)) {
            self.find(Broken::Reordered, format!("event {number} is {kind:?}: a run begins with its opening, once"));
        }
        match kind {
            Event::RunOpened(opened) => self.open(&opened.calls),
            Event::CallsAppended(appended) => self.open(&appended.calls),
            Event::RunClosed(_) | Event::RunStatusChanged(_) => {}
            Event::RunEnded(_) => self.end_run(),
            Event::CallWaiting(waiting) => self.wait(number, &waiting.call_id),
            // None of its calls needs approval.
            Event::CallAwaitingApproval(v1::CallAwaitingApproval { call_id, .. })
            | Event::CallApproved(v1::CallApproved { call_id, .. })
            | Event::CallRejected(v1::CallRejected { call_id, .. }) => {
                self.find(Broken::WrongContent, format!("event {number}: {call_id} has to do with approval"));
            }
            Event::AttemptStarted(started) => self.start(number, &started.call_id, started.attempt, started.continues),
            Event::AttemptEnded(ended) => self.end_attempt(number, &ended.call_id, ended.attempt),
            Event::CancelDelivered(delivered) => self.stop(number, &delivered.call_id, delivered.attempt),
            Event::CancelAcknowledged(noticed) => self.stop(number, &noticed.call_id, noticed.attempt),
            Event::CancelRequested(requested) => drop(self.call(number, &requested.call_id)),
            Event::CallSpeaking(speaking) => self.speak(number, &speaking.call_id, has_floor),
            Event::CallOutput(output) => self.output(number, output, has_floor),
            Event::CallOutputWithdrawn(withdrawn) => self.withdraw(number, withdrawn, has_floor),
            Event::CallEnded(ended) => self.end(number, event.time.as_ref(), ended, has_floor),
        }
    }

    fn open(&mut self, calls: &[v1::OpenedCall]) {
        for call in calls {
            if self.calls.insert(call.call_id.clone(), Told::default()).is_some() {
                self.find(Broken::Doubled, format!("{} is opened twice", call.call_id));
            }
        }
    }

    /// A call that may still be spoken of.
    fn call(&mut self, number: u64, call_id: &str) -> Option<&mut Told> {
        let found = match self.calls.get(call_id) {
            None => (Broken::WrongContent, format!("event {number} is about {call_id}, which was not opened")),
            Some(told) if told.ended.is_some() => {
                (Broken::Zombie, format!("event {number} is about {call_id}, which had ended"))
            }
            Some(_) => return self.calls.get_mut(call_id),
        };
        self.find(found.0, found.1);
        None
    }

    fn wait(&mut self, number: u64, call_id: &str) {
        let waited = self.call(number, call_id).map(|told| std::mem::replace(&mut told.waited, true));
        if waited == Some(true) {
            self.find(Broken::Doubled, format!("event {number}: {call_id} waits for its client twice"));
        }
    }

    fn start(&mut self, number: u64, call_id: &str, attempt: u32, continues: bool) {
        let Some(told) = self.call(number, call_id) else { return };
        let newest = told.started.last().copied().unwrap_or_default();
        told.started.push(attempt);
        if !continues {
            told.counts_from = attempt;
        }
        if attempt <= newest {
            let what = format!("event {number}: attempt {attempt} of {call_id} starts after attempt {newest}");
            self.find(if attempt == newest { Broken::Doubled } else { Broken::Zombie }, what);
        }
    }

    /// A stage of the way to a stop.
    fn stop(&mut self, number: u64, call_id: &str, attempt: u32) {
        let Some(told) = self.call(number, call_id) else { return };
        let newest = told.started.last().copied();
        if newest != Some(attempt) {
            let what = format!("event {number}: attempt {attempt} of {call_id} stops while {newest:?} is the newest");
            self.find(Broken::Zombie, what);
        }
    }

    fn end_attempt(&mut self, number: u64, call_id: &str, attempt: u32) {
        let Some(told) = self.call(number, call_id) else { return };
        let newest = told.started.last().copied();
        if newest != Some(attempt) {
            let what = format!("event {number}: attempt {attempt} of {call_id} ends while {newest:?} is the newest");
            self.find(Broken::Zombie, what);
        }
    }

    fn speak(&mut self, number: u64, call_id: &str, has_floor: bool) {
        let Some(told) = self.call(number, call_id) else { return };
        if std::mem::replace(&mut told.speaking, true) {
            self.find(Broken::Doubled, format!("event {number}: {call_id} begins to speak twice"));
        }
        if has_floor && let Some(speaker) = self.floor.replace(call_id.to_owned()) {
            let what = format!("event {number}: {call_id} begins to speak before {speaker} ended");
            self.find(Broken::Reordered, what);
        }
    }

    /// Whether the call had the floor.
    fn check_turn(&mut self, number: u64, call_id: &str, has_floor: bool) {
        let speaks = self.calls.get(call_id).is_some_and(|told| told.speaking);
        if !speaks || has_floor && self.floor.as_deref() != Some(call_id) {
            let what = format!("event {number}: {call_id} speaks out of turn, the floor is {:?}'s", self.floor);
            self.find(Broken::Reordered, what);
        }
    }

    fn output(&mut self, number: u64, output: &v1::CallOutput, has_floor: bool) {
        let v1::CallOutput { call_id, attempt, chunk, .. } = output;
        self.check_turn(number, call_id, has_floor);
        let Some(told) = self.call(number, call_id) else { return };
        let (from, newest) = (told.counts_from, told.started.last().copied());
        let (heard, next) = told.heard.unwrap_or((*attempt, 0));
        told.heard = Some((*attempt, chunk + 1));
        if let Some(v1::call_output::Piece::Content(v1::Content {
            body: Some(v1::content::Body::Text(text)), ..
        })) = &output.piece
        {
            told.said.push_str(text);
        }
        let at = format!("event {number}: chunk {chunk} of attempt {attempt} of {call_id}");
        if *attempt < from || newest.is_none_or(|newest| newest < *attempt) {
            self.find(Broken::Zombie, format!("{at} comes while attempts {from} to {newest:?} count"));
        } else if *attempt < heard {
            self.find(Broken::Zombie, format!("{at} comes after attempt {heard} was heard"));
        }
        if heard < from && heard != *attempt {
            self.find(Broken::Doubled, format!("{at} comes though what attempt {heard} said was not withdrawn"));
        } else if *chunk < next {
            self.find(Broken::Doubled, format!("{at} comes again, {next} is next"));
        } else if *chunk > next {
            self.find(Broken::Reordered, format!("{at} comes where {next} is next"));
        }
    }

    fn withdraw(&mut self, number: u64, withdrawn: &v1::CallOutputWithdrawn, has_floor: bool) {
        let v1::CallOutputWithdrawn { call_id, attempt } = withdrawn;
        self.check_turn(number, call_id, has_floor);
        let Some(told) = self.call(number, call_id) else { return };
        let heard = told.heard.take().map(|(heard, _)| heard);
        let newest = told.started.last().copied();
        told.said.clear();
        if heard != Some(*attempt) {
            let what = format!("event {number} withdraws attempt {attempt} of {call_id}, of which {heard:?} was heard");
            self.find(Broken::Doubled, what);
        }
        if newest == Some(*attempt) {
            self.find(Broken::Doubled, format!("event {number} withdraws the newest attempt of {call_id}"));
        }
    }

    fn end(&mut self, number: u64, time: Option<&prost_types::Timestamp>, ended: &v1::CallEnded, has_floor: bool) {
        let call_id = &ended.call_id;
        if self.calls.get(call_id).is_some_and(|told| told.ended.is_some()) {
            return self.find(Broken::Doubled, format!("event {number}: {call_id} ends twice"));
        }
        self.check_turn(number, call_id, has_floor);
        self.floor.take_if(|speaker| speaker == call_id);
        let Some(told) = self.call(number, call_id) else { return };
        let (heard, from) = (told.heard, told.counts_from);
        told.ended = Some((ms(time), ended.outcome.clone().unwrap_or_default()));
        if let Some((heard, _)) = heard
            && heard < from
        {
            let what =
                format!("event {number}: {call_id} ends with what attempt {heard} said, attempt {from} began again");
            self.find(Broken::Doubled, what);
        }
        if ended.outcome.is_none() {
            self.find(Broken::WrongContent, format!("event {number}: {call_id} ends, and nothing says how"));
        }
    }

    fn end_run(&mut self) {
        self.run_ended = true;
        let mut open: Vec<&String> =
            self.calls.iter().filter(|(_, told)| told.ended.is_none()).map(|(call_id, _)| call_id).collect();
        open.sort();
        if !open.is_empty() {
            let what = format!("the run ends, but not its calls {open:?}");
            self.find(Broken::Lost, what);
        }
    }
}
