//! One run according to its plan: submitted, watched, answered, cancelled, read again by another reader, and checked.

mod after;
mod open;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proto::v1::run_event::Event;
use proto::v1::{self, RunEvent};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::check::{self, Answer, Asking, Broken, Effect, Evidence, Violation};
use crate::language::Language;
use crate::plan::{LONG, Plan, When, Work};
use crate::replicas::{Messages, Next, Replicas, passes};
use crate::seed::Seed;
use crate::world::ERASE_AFTER;

/// The run's own deadline: longer than that of its calls, so that those are what is missed.
const RUN_TIMEOUT: Duration = LONG;
/// How much later than a run's deadline its readers give it up: it may have ended, but nobody can read it.
const GIVE_UP: Duration = Duration::from_secs(120);
/// How long a run that somebody saw end may not be found or read by somebody else before it counts as lost: the longest
/// stall of the broker, what comes back after it, and other faults on top of these. How long it took is told.
const LATE_LIMIT: Duration = Duration::from_secs(300);
/// How often a reader breaks its own stream: each time costs a replay of the run, and the reader has a deadline too.
const OWN_BREAKS_MAX: u32 = 10;
/// How many of a hundred requests are sent once more after their run has ended.
const ASKED_AGAIN: u64 = 10;
/// How long an answer, a cancellation or a redrive is tried.
const ACT_LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) door: Replicas,
    /// The file in which tools record their effects.
    pub(crate) effects: PathBuf,
    /// In which tools are called.
    pub(crate) languages: Vec<Language>,
}

/// The outcome of a run, for the report.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) number: u64,
    pub(crate) run_id: String,
    /// By the clock of this machine, in ms: when it was first asked for, and when its end was seen.
    pub(crate) asked_at: u64,
    pub(crate) seen_at: u64,
    /// Through which replica it was opened, and when that was asked for and confirmed.
    pub(crate) opened: Option<(usize, u64, u64)>,
    /// Requests for the run that were not confirmed.
    pub(crate) askings: Vec<Asking>,
    pub(crate) has_request_id: bool,
    pub(crate) breaks: u32,
    /// Times that a replica did not know of the run, though it was confirmed.
    pub(crate) not_found: u32,
    /// Times that a replica showed an ended run as one that has not.
    pub(crate) stale: u32,
    /// How long a reader took that came after the end, until it had all.
    pub(crate) read_again_ms: Option<u64>,
    /// Name of the work, how it ended.
    pub(crate) ends: Vec<(String, String)>,
    /// Further runs that came of this one: why, and how they ended.
    pub(crate) further: Vec<(&'static str, String)>,
    /// When a run that is not to be stored ended, by the broker's clock.
    pub(crate) to_erase: Option<u64>,
    pub(crate) attempts: usize,
    pub(crate) lateness: Vec<Lateness>,
    pub(crate) effects: Vec<Effect>,
    /// Why a reader last had to come back.
    pub(crate) trouble: String,
    /// From asking to cancel until the call's end was seen.
    pub(crate) cancelled_ms: Option<u64>,
    pub(crate) violations: Vec<Violation>,
    /// Kept when something broke, or may turn out to have.
    pub(crate) events: Vec<RunEvent>,
    pub(crate) plan: String,
}

/// When a call ended and when it should have, in ms.
#[derive(Debug, Clone)]
pub(crate) struct Lateness {
    pub(crate) call_id: String,
    pub(crate) deadline: u64,
    pub(crate) ended: u64,
}

/// The result of an action of the client.
#[derive(Debug)]
enum Act {
    Answered { index: usize, taken: Taken },
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Yes,
    Perhaps,
    No,
}

/// A run under way.
struct Drive {
    load: Arc<Load>,
    plan: Plan,
    seed: Seed,
    outcome: Outcome,
    evidence: Evidence,
    acts: JoinSet<Act>,
    cancel_sent: Option<u64>,
    live: Vec<RunEvent>,
    /// It is not to be stored, is not found, and had time enough to end and be erased since it was last read.
    may_be_erased: bool,
    /// When events of it came last.
    last_read: Instant,
}

/// How reading a run live came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    Ended,
    GivenUp,
    /// The run was erased before its reader came back.
    Erased,
}

/// Drives a run to its end; `permit` is given back when the run has ended, before others read it again.
pub(crate) async fn drive(load: Arc<Load>, plan: Plan, permit: Option<OwnedSemaphorePermit>) -> Outcome {
    let has_request_id = plan.has_request_id;
    let outcome = Outcome { number: plan.number, plan: format!("{plan:?}"), has_request_id, ..Outcome::default() };
    let seed = plan.seed.clone();
    let (evidence, acts, live) = (Evidence::default(), JoinSet::new(), Vec::new());
    let (cancel_sent, may_be_erased, last_read) = (None, false, Instant::now());
    let mut drive = Drive { load, plan, seed, outcome, evidence, acts, cancel_sent, live, may_be_erased, last_read };
    drive.outcome.asked_at = ::nats::now().0;
    let Some(stream) = drive.open().await else {
        drop(permit);
        drive.check_askings().await;
        drive.keep_if_doubtful();
        return drive.outcome;
    };
    drive.begin_acts();
    let read = drive.read_live(stream).await;
    drive.outcome.seen_at = ::nats::now().0;
    drop(permit);
    drive.join_acts().await;
    drive.check(read).await;
    drive.check_askings().await;
    drive.keep_if_doubtful();
    drive.outcome
}

impl Drive {
    // ---- watching ----

    /// Reads to the run's end, on and on if the stream breaks.
    async fn read_live(&mut self, mut stream: Option<Messages>) -> Read {
        let until = Instant::now() + RUN_TIMEOUT + GIVE_UP;
        for event in self.live.clone() {
            self.react(&event);
        }
        let (mut since_break, mut own_breaks) = (0, 0);
        while Instant::now() < until {
            let Some(messages) = &mut stream else {
                stream = self.watch_on(until).await;
                since_break = 0;
                if stream.is_none() && self.may_be_erased {
                    return Read::Erased;
                }
                continue;
            };
            match messages.next().await {
                Next::Events(mut events) => {
                    if !events.is_empty() {
                        self.last_read = Instant::now();
                    }
                    if let Some(most) = self.plan.breaks_after
                        && since_break + events.len() > most
                        && own_breaks < OWN_BREAKS_MAX
                    {
                        own_breaks += 1;
                        events.truncate(most.saturating_sub(since_break).max(1));
                        stream = None;
                    }
                    since_break += events.len();
                    for event in &events {
                        self.react(event);
                    }
                    self.live.extend(events);
                    let is_over = self.live.last().is_some_and(|event| matches!(event.event, Some(Event::RunEnded(_))));
                    if is_over {
                        return Read::Ended;
                    }
                }
                // The checker reports missing parts.
                Next::RunEnded => return Read::Ended,
                Next::Broken(status) => {
                    self.outcome.breaks += 1;
                    self.outcome.trouble = format!("the stream broke: {status}");
                    stream = None;
                    // A coordinator that needs longer to be sure says so at the end of a stream that it has begun.
                    if self.is_erased(&status) {
                        return Read::Erased;
                    }
                }
            }
        }
        Read::GivenUp
    }

    async fn watch_on(&mut self, until: Instant) -> Option<Messages> {
        let after = self.live.last().map(|event| event.sequence);
        let (run_id, policy) = (self.outcome.run_id.clone(), self.plan.policy);
        while Instant::now() < until {
            match self.load.door.watch(&mut self.seed, &run_id, policy, after).await {
                Ok(stream) => return Some(stream),
                Err(status) => {
                    self.outcome.trouble = format!("WatchRun was refused: {status}");
                    if self.is_erased(&status) {
                        self.may_be_erased = true;
                        return None;
                    }
                }
            }
            tokio::time::sleep(self.seed.ms(20..200)).await;
        }
        None
    }

    /// Whether it is not found for the reason that it ended and was erased since it was last read.
    fn is_erased(&mut self, status: &Status) -> bool {
        // An id that is older than the log is not told from one that has left it.
        let is_gone = matches!(status.code(), Code::NotFound | Code::OutOfRange);
        self.outcome.not_found += u32::from(is_gone);
        is_gone && !self.plan.is_kept && self.last_read.elapsed() >= ERASE_AFTER
    }

    // ---- acting ----

    fn begin_acts(&mut self) {
        if let Some(When::After(wait)) = self.plan.cancel.map(|cancel| cancel.when) {
            self.cancel(wait);
        }
    }

    /// Answers and cancels when the events say that it is time.
    fn react(&mut self, event: &RunEvent) {
        let (wanted, call_id) = match &event.event {
            Some(Event::CallWaiting(waiting)) => return self.answer(&waiting.call_id),
            Some(Event::AttemptStarted(started)) => (When::Started, &started.call_id),
            Some(Event::CallOutput(output)) => (When::FirstOutput, &output.call_id),
            _ => return,
        };
        let Some(cancel) = self.plan.cancel.filter(|cancel| cancel.when == wanted) else { return };
        if cancel.call.is_none_or(|index| Plan::call_id(index) == *call_id) {
            self.cancel(Duration::ZERO);
        }
    }

    fn answer(&mut self, call_id: &str) {
        let Some(index) = Plan::index_of(call_id) else { return };
        let Some(Work::Ask { answer_after: Some(wait) }) = self.plan.calls.get(index).map(|call| call.work.clone())
        else {
            return;
        };
        let outputs = vec![harness::client_answer(call_id, &self.plan.label(index))];
        let request =
            v1::SubmitToolOutputsRequest { run_id: self.outcome.run_id.clone(), outputs, all_required: false };
        let (load, mut seed) = (Arc::clone(&self.load), self.seed.of(1_000 + u64::try_from(index).unwrap_or_default()));
        self.acts.spawn(async move {
            tokio::time::sleep(wait).await;
            let answered = load.door.ask(&mut seed, Instant::now() + ACT_LIMIT, |mut runs| {
                let request = request.clone();
                async move { runs.submit_tool_outputs(request).await }
            });
            let taken = match answered.await {
                Ok(_) => Taken::Yes,
                Err(status) if passes(&status) => Taken::Perhaps,
                // A try before this one may have been taken, and its answer lost; then the same answer is taken again.
                Err(_) => Taken::No,
            };
            Act::Answered { index, taken }
        });
    }

    fn cancel(&mut self, wait: Duration) {
        let Some(cancel) = self.plan.cancel.filter(|_| self.cancel_sent.is_none()) else { return };
        self.cancel_sent = Some(::nats::now().0 + u64::try_from(wait.as_millis()).unwrap_or_default());
        match cancel.call {
            Some(index) => self.evidence.cancels.push(index),
            None => self.evidence.cancels.extend(0..self.plan.calls.len()),
        }
        let (load, mut seed) = (Arc::clone(&self.load), self.seed.of(999));
        let run_id = self.outcome.run_id.clone();
        self.acts.spawn(async move {
            tokio::time::sleep(wait).await;
            let until = Instant::now() + ACT_LIMIT;
            let reason = "changed my mind".to_owned();
            let request = v1::CancelRunRequest { run_id: run_id.clone(), reason: reason.clone() };
            let asked = match cancel.call {
                None => {
                    let answer = load.door.ask(&mut seed, until, |mut runs| {
                        let request = request.clone();
                        async move { runs.cancel_run(request).await }
                    });
                    answer.await.map(drop)
                }
                Some(index) => {
                    let request = v1::CancelCallRequest { run_id, call_id: Plan::call_id(index), reason };
                    let answer = load.door.ask(&mut seed, until, |mut runs| {
                        let request = request.clone();
                        async move { runs.cancel_call(request).await }
                    });
                    answer.await.map(drop)
                }
            };
            // A cancellation that no coordinator accepts shows in the call's end.
            drop(asked);
            Act::Cancelled
        });
    }

    async fn join_acts(&mut self) {
        while let Some(act) = self.acts.join_next().await {
            match act {
                Ok(Act::Answered { index, taken: Taken::Yes }) => self.evidence.answered.push(index),
                Ok(Act::Answered { index, taken: Taken::Perhaps }) => self.evidence.answered_perhaps.push(index),
                Ok(Act::Answered { taken: Taken::No, .. } | Act::Cancelled) | Err(_) => {}
            }
        }
    }

    // ---- checking ----

    async fn check(&mut self, read: Read) {
        let ended = read == Read::Ended;
        if read == Read::GivenUp {
            let what = format!(
                "{} s after its deadline the run ({}) has not ended for its reader, whose last trouble was: {}",
                GIVE_UP.as_secs(),
                if self.plan.is_kept { "kept" } else { "not to be stored" },
                self.outcome.trouble
            );
            self.outcome.violations.push(Violation { broken: Broken::Lost, what });
        }
        self.evidence.was_erased = read == Read::Erased;
        self.note_to_erase();
        let (story, wrong) = check::read(&self.live, self.plan.policy, ended);
        self.outcome.violations.extend(wrong);
        tokio::time::sleep(self.plan.late_after).await;
        if read != Read::Erased {
            self.compare(&story, ended).await;
        }
        if self.plan.has_request_id && self.plan.is_kept && self.seed.chance(ASKED_AGAIN) {
            let again = self.ask_again().await;
            self.outcome.violations.extend(again);
        }
        let (effects, wrong) = check::judge(&self.plan, &story, &self.evidence);
        self.outcome.violations.extend(wrong);
        self.outcome.effects = effects;
        if read == Read::Erased {
            self.outcome.further.push(("not to be stored", "erased before it was read".to_owned()));
        }
        if !ended {
            let unseen = Asking { number: self.evidence.asking, answer: Answer::Lost };
            let is_open =
                |index: &usize| story.calls.get(&Plan::call_id(*index)).is_none_or(|told| told.ended.is_none());
            let open = (0..self.plan.calls.len()).filter(is_open);
            let effects = open.filter_map(|index| check::effect_of_call(&self.plan, index, &unseen));
            self.outcome.effects.extend(effects);
        }
        self.note_ends(&story);
        if self.plan.redrives && self.plan.is_kept {
            self.redrive().await;
        }
    }

    /// Whether a call that never started, or a request that was refused, left the world alone is only known when
    /// everything has settled.
    fn keep_if_doubtful(&mut self) {
        let is_doubtful = self.outcome.effects.iter().any(|effect| effect.at_most == 0);
        if is_doubtful || !self.outcome.violations.is_empty() {
            self.outcome.events = std::mem::take(&mut self.live);
        }
    }

    /// Compares the output of another reader and the answer of `GetRun`. A run with `store: false` may be erased
    /// meanwhile.
    async fn compare(&mut self, story: &check::Story, ended: bool) {
        let (run_id, policy) = (self.outcome.run_id.clone(), self.plan.policy);
        let began = Instant::now();
        let late = self.read(&run_id, policy, began + LATE_LIMIT).await;
        self.outcome.read_again_ms = late.as_ref().and_then(|_| u64::try_from(began.elapsed().as_millis()).ok());
        self.evidence.run = self.get(&run_id).await;
        let erased_at = self.outcome.to_erase.map(|ended| ended + u64::try_from(ERASE_AFTER.as_millis()).unwrap_or(0));
        let may_be_erased = erased_at.is_some_and(|erased| ::nats::now().0 >= erased);
        let lost = |what: String| Violation { broken: Broken::Lost, what };
        match late {
            // One that gave up is reported, and saw the beginning.
            Some(late) if !ended => {
                let seen = late.get(..self.live.len()).unwrap_or(&late);
                self.outcome.violations.extend(check::same(&self.live, seen));
            }
            Some(late) => self.outcome.violations.extend(check::same(&self.live, &late)),
            None if ended && !may_be_erased => {
                let what = format!("no late reader can read the run: {}", self.outcome.trouble);
                self.outcome.violations.push(lost(what));
            }
            None => {}
        }
        match &self.evidence.run {
            Some(run) => self.outcome.lateness = lateness(run, story),
            None if may_be_erased => {}
            None => {
                let what = format!("nobody can get the run: {}", self.outcome.trouble);
                self.outcome.violations.push(lost(what));
            }
        }
    }

    fn note_to_erase(&mut self) {
        let last = self.live.last().filter(|event| matches!(event.event, Some(Event::RunEnded(_))));
        self.outcome.to_erase = last.filter(|_| !self.plan.is_kept).map(|event| check::ms(event.time.as_ref()));
    }

    fn note_ends(&mut self, story: &check::Story) {
        for (index, call) in self.plan.calls.iter().enumerate() {
            let told = story.calls.get(&Plan::call_id(index));
            self.outcome.attempts += told.map_or(0, |told| told.started.len());
            let end =
                told.and_then(|told| told.ended.as_ref()).map_or_else(|| "not ended".to_owned(), |(_, end)| name(end));
            self.outcome.ends.push((call.name(), end));
        }
        self.outcome.cancelled_ms = self.cancel_sent.map(|sent| self.outcome.seen_at.saturating_sub(sent));
    }
}

fn lateness(run: &v1::Run, story: &check::Story) -> Vec<Lateness> {
    let calls = run.calls.iter().filter_map(|call| {
        let (ended, _) = story.calls.get(&call.call_id)?.ended.as_ref()?;
        let deadline = check::ms(call.deadline.as_ref());
        Some(Lateness { call_id: call.call_id.clone(), deadline, ended: *ended })
    });
    calls.filter(|late| late.ended > late.deadline).collect()
}

fn name(outcome: &v1::CallOutcome) -> String {
    match (outcome.state(), &outcome.error) {
        (v1::CallState::Failed, Some(error)) => {
            error.kind().as_str_name().trim_start_matches("CALL_ERROR_KIND_").to_lowercase()
        }
        (state, _) => state.as_str_name().trim_start_matches("CALL_STATE_").to_lowercase(),
    }
}
