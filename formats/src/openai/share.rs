//! The calls of one request in a run that several requests share. These APIs answer a request with a run or a response
//! of its own, so its calls are [presented](View) as if they were all calls of a run.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use proto::convert::api;
use proto::v1;
use proto::v1::run_event::Event;
use run::{Call, Run, RunId, RunStatus};

/// The calls that one request has added to a run: they follow each other there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share {
    first: u16,
    count: u16,
}

impl Share {
    /// The share with these calls of the run; `None` if the run lacks one, or if others are between them because
    /// several requests added them.
    #[must_use]
    pub fn of<'a>(run: &Run, calls: impl Iterator<Item = &'a str>) -> Option<Self> {
        let places = calls.map(|id| Some(run.find(&id.parse().ok()?)?.index().0));
        let mut places = places.collect::<Option<Vec<u16>>>()?;
        places.sort_unstable();
        let (first, last, count) = (*places.first()?, *places.last()?, u16::try_from(places.len()).ok()?);
        (last - first == count - 1).then_some(Self { first, count })
    }

    fn has(self, call: &Call) -> bool {
        let place = call.index().0;
        call.spec().asked_by.is_none() && place >= self.first && place - self.first < self.count
    }

    /// The places of the calls in the run.
    #[must_use]
    pub fn places(self) -> Range<u16> {
        self.first..self.first + self.count
    }

    /// Those of the calls that have not ended.
    pub fn open(self, run: &Run) -> impl Iterator<Item = &Call> {
        run.requested_calls().filter(move |call| self.has(call) && call.outcome().is_none())
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}x{}", self.first, self.count)
    }
}

impl FromStr for Share {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (first, count) = text.strip_prefix('c').and_then(|text| text.split_once('x')).ok_or(())?;
        let share = Self { first: first.parse().map_err(drop)?, count: count.parse().map_err(drop)? };
        // Other spellings of the numbers are no ids.
        let is_one = share.count > 0 && share.first.checked_add(share.count).is_some() && share.to_string() == text;
        if is_one { Ok(share) } else { Err(()) }
    }
}

/// A run, or the share of one request in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedRun {
    pub run: RunId,
    /// `None`: the whole run.
    pub share: Option<Share>,
}

impl SharedRun {
    /// The calls that are shown, and no questions.
    pub fn calls(self, run: &Run) -> impl Iterator<Item = &Call> {
        run.requested_calls().filter(move |call| self.share.is_none_or(|share| share.has(call)))
    }

    /// Whether nothing goes on before a client or an approver acts.
    #[must_use]
    pub fn waits(self, run: &Run) -> bool {
        let status = self.share.map_or(run.status(), |share| run.status_of(share.places()));
        status == RunStatus::RequiresAction
    }

    /// Whether all calls have ended.
    #[must_use]
    pub fn has_ended(self, run: &Run) -> bool {
        run.status().is_final() || self.share.is_some_and(|share| share.open(run).next().is_none())
    }
}

impl From<RunId> for SharedRun {
    fn from(run: RunId) -> Self {
        Self { run, share: None }
    }
}

impl fmt::Display for SharedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.share {
            Some(share) => write!(f, "{}_{share}", self.run),
            None => write!(f, "{}", self.run),
        }
    }
}

impl FromStr for SharedRun {
    type Err = run::InvalidId;

    fn from_str(text: &str) -> Result<Self, run::InvalidId> {
        let shared = text.rsplit_once('_').and_then(|(run, share)| Some((run, share.parse().ok()?)));
        match shared {
            Some((run, share)) => Ok(Self { run: run.parse()?, share: Some(share) }),
            None => Ok(Self { run: text.parse()?, share: None }),
        }
    }
}

/// Presents a share's events as those of a run, which opens with the share's calls. Its input is the output of the
/// whole run from the beginning, as a [section](run::Section) of these calls has it.
#[derive(Debug)]
pub struct View {
    of: SharedRun,
    /// The calls of the share that were read, and the questions that they ask.
    calls: HashSet<String>,
}

impl View {
    #[must_use]
    pub fn new(of: SharedRun) -> Self {
        Self { of, calls: HashSet::new() }
    }

    /// The event that follows from the next one of the run. `run` must include at least this event.
    pub fn take<'a>(&mut self, event: &'a v1::RunEvent, run: &Run) -> Option<Cow<'a, v1::RunEvent>> {
        let Some(share) = self.of.share else { return Some(Cow::Borrowed(event)) };
        let told = event.event.as_ref()?;
        let own = match told {
            Event::RunOpened(v1::RunOpened { calls, .. }) | Event::CallsAppended(v1::CallsAppended { calls }) => {
                self.opened(calls, share, run)?
            }
            // A request does not know whether the others' results are the answer, too.
            Event::RunEnded(ended) => Event::RunEnded(v1::RunEnded { status: ended.status, ..Default::default() }),
            Event::RunStatusChanged(_) => return Some(Cow::Borrowed(event)),
            told => return call_of(told).is_some_and(|call| self.calls.contains(call)).then_some(Cow::Borrowed(event)),
        };
        Some(Cow::Owned(v1::RunEvent { event: Some(own), ..event.clone() }))
    }

    /// The calls of the share among those that were added.
    fn opened(&mut self, added: &[v1::OpenedCall], share: Share, run: &Run) -> Option<Event> {
        let is_first = self.calls.is_empty();
        let is_own =
            |call: &v1::OpenedCall| call.call_id.parse().is_ok_and(|id| run.find(&id).is_some_and(|it| share.has(it)));
        let is_shown = |call: &&v1::OpenedCall| is_own(call) || self.calls.contains(&call.asked_by_call_id);
        let calls: Vec<v1::OpenedCall> = added.iter().filter(is_shown).cloned().collect();
        self.calls.extend(calls.iter().map(|call| call.call_id.clone()));
        let (run_id, deadline) = (self.of.to_string(), Some(api::timestamp(run.deadline())));
        match calls.is_empty() {
            true => None,
            false if is_first => Some(Event::RunOpened(v1::RunOpened { run_id, deadline, calls })),
            false => Some(Event::CallsAppended(v1::CallsAppended { calls })),
        }
    }
}

/// The call that an event is about.
#[must_use]
pub fn call_of(event: &Event) -> Option<&str> {
    let call = match event {
        Event::CallWaiting(it) => &it.call_id,
        Event::AttemptStarted(it) => &it.call_id,
        Event::AttemptEnded(it) => &it.call_id,
        Event::CancelRequested(it) => &it.call_id,
        Event::CallSpeaking(it) => &it.call_id,
        Event::CallOutput(it) => &it.call_id,
        Event::CallOutputWithdrawn(it) => &it.call_id,
        Event::CallEnded(it) => &it.call_id,
        Event::CancelDelivered(it) => &it.call_id,
        Event::CancelAcknowledged(it) => &it.call_id,
        Event::CallAwaitingApproval(it) => &it.call_id,
        Event::CallApproved(it) => &it.call_id,
        Event::CallRejected(it) => &it.call_id,
        Event::RunOpened(_)
        | Event::CallsAppended(_)
        | Event::RunClosed(_)
        | Event::RunStatusChanged(_)
        | Event::RunEnded(_) => return None,
    };
    Some(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_share_is_that_of_its_run_and_the_places_of_its_calls() {
        let run = "run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071";
        let whole: SharedRun = run.parse().unwrap();
        assert_eq!((whole.to_string().as_str(), whole.share), (run, None));
        let shared: SharedRun = format!("{run}_c4x2").parse().unwrap();
        assert_eq!((shared.to_string(), shared.share), (format!("{run}_c4x2"), Some(Share { first: 4, count: 2 })));
        for wrong in ["c4", "4x2", "c04x2", "c4x0", "c65535x2", "c4x2x", "c-1x2"] {
            assert!(format!("{run}_{wrong}").parse::<SharedRun>().is_err(), "{wrong}");
        }
    }
}
