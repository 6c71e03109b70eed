//! One run after its plan: asked for, watched, answered, cancelled, read again by somebody else, and checked.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proto::v1::run_event::Event;
use proto::v1::{self, RunEvent};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::check::{self, Broken, Effect, Evidence, Violation};
use crate::door::{Door, Messages, Next, passes};
use crate::plan::{Door as Way, LONG, Plan, When, Work};
use crate::seed::Seed;

/// How long a run may be refused by everybody before the client gives up.
const ACCEPT_LIMIT: Duration = Duration::from_secs(60);
/// The run's own deadline: longer than that of its calls, so that those are what is missed.
const RUN_TIMEOUT: Duration = LONG;
/// How much later than a run's deadline its readers give it up: it may have ended, but nobody can read it.
const GIVE_UP: Duration = Duration::from_secs(60);
/// How long a run that somebody saw end may not be found or read by somebody else.
const LATE_LIMIT: Duration = Duration::from_secs(60);
/// How often a reader breaks its own stream: each time costs a replay of the run, and the reader has a deadline too.
const OWN_BREAKS_MAX: u32 = 10;
/// How many of a hundred requests are sent once more after their run has ended.
const ASKED_AGAIN: u64 = 10;
/// How long replicas may show a run as it was before its end: their feed comes back some seconds after the broker.
const CATCH_UP: Duration = Duration::from_secs(15);
/// How long an answer or a cancellation is tried.
const ACT_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) door: Door,
    /// Where tools write what they did to the world.
    pub(crate) effects: PathBuf,
}

/// What became of a run, for the report.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) number: u64,
    pub(crate) run_id: String,
    /// By the clock of this machine, in ms: when it was first asked for, and when its end was seen.
    pub(crate) asked_at: u64,
    pub(crate) seen_at: u64,
    /// Through which replica it was opened, and when that was asked for and confirmed.
    pub(crate) opened: Option<(usize, u64, u64)>,
    /// Askings whose answer was lost: they may have been accepted, and nobody knows.
    pub(crate) unconfirmed: u32,
    /// The same under a request id.
    pub(crate) repeated: u32,
    pub(crate) breaks: u32,
    /// Times that a replica did not know of the run, though it was confirmed.
    pub(crate) not_found: u32,
    /// Times that a replica showed an ended run as one that has not.
    pub(crate) stale: u32,
    /// Name of the work, how it ended.
    pub(crate) ends: Vec<(&'static str, String)>,
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

/// What an action of the client came to.
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
}

/// Drives a run to its end; `permit` is given back when the run has ended, before others read it again.
pub(crate) async fn drive(load: Arc<Load>, plan: Plan, permit: Option<OwnedSemaphorePermit>) -> Outcome {
    let outcome = Outcome { number: plan.number, plan: format!("{plan:?}"), ..Outcome::default() };
    let seed = plan.seed.clone();
    let (evidence, acts, live) = (Evidence::default(), JoinSet::new(), Vec::new());
    let mut drive = Drive { load, plan, seed, outcome, evidence, acts, cancel_sent: None, live };
    drive.outcome.asked_at = proto::now().0;
    let Some(stream) = drive.open().await else { return drive.outcome };
    drive.begin_acts();
    let ended = drive.read_live(stream).await;
    drive.outcome.seen_at = proto::now().0;
    drop(permit);
    drive.join_acts().await;
    drive.check(ended).await;
    drive.outcome
}

impl Drive {
    // ---- asking ----

    /// Asks until the run is confirmed. Gives the stream that came with it, if one did. `None` when nobody takes it.
    ///
    /// The only place that asks for a run. An asking whose answer is lost may have been accepted: under a request id it is
    /// repeated, and must give the one run. Without one nothing tells, so it is counted, and asked again as another run.
    async fn open(&mut self) -> Option<Option<Messages>> {
        let until = Instant::now() + ACCEPT_LIMIT;
        let first = self.seed.index(self.load.door.replicas());
        for (at, asking) in (first..).zip(0..) {
            let asking = if self.plan.has_request_id { 0 } else { asking };
            let began = proto::now().0;
            let opened = match self.plan.door {
                Way::Create => self.create(at, asking).await.map(|run_id| (run_id, None)),
                Way::Execute => self.execute(at, asking).await.map(|(run_id, stream)| (run_id, Some(stream))),
            };
            match opened {
                Ok((run_id, stream)) => {
                    self.outcome.opened = Some((at % self.load.door.replicas(), began, proto::now().0));
                    self.outcome.run_id = run_id;
                    self.evidence.asking = asking;
                    return Some(stream);
                }
                Err(status) if !passes(&status) => {
                    let what = format!("the run was refused: {status:?}");
                    self.outcome.violations.push(Violation { broken: Broken::WrongContent, what });
                    return None;
                }
                Err(_) if self.plan.has_request_id => self.outcome.repeated += 1,
                Err(_) => self.outcome.unconfirmed += 1,
            }
            if Instant::now() > until {
                self.outcome
                    .ends
                    .extend(self.plan.calls.iter().map(|call| (call.work.name(), "never accepted".into())));
                return None;
            }
            tokio::time::sleep(self.seed.ms(20..200)).await;
        }
        None
    }

    fn request(&self, asking: u32) -> v1::CreateRunRequest {
        v1::CreateRunRequest {
            calls: self.plan.new_calls(asking, &self.load.effects),
            timeout: Some(proto::convert::duration(RUN_TIMEOUT)),
            request_id: if self.plan.has_request_id { format!("run {}", self.plan.number) } else { String::new() },
            fail_fast: self.plan.fail_fast,
            ..v1::CreateRunRequest::default()
        }
    }

    async fn create(&mut self, at: usize, asking: u32) -> Result<String, Status> {
        let request = self.request(asking);
        let created = self.load.door.ask_once(&mut self.seed, at, |mut runs| {
            let request = request.clone();
            async move { runs.create_run(request).await }
        });
        created.await?.run.map(|run| run.run_id).ok_or_else(|| Status::data_loss("the response lacks the run"))
    }

    async fn execute(&mut self, at: usize, asking: u32) -> Result<(String, Messages), Status> {
        let v1::CreateRunRequest { calls, timeout, request_id, fail_fast, .. } = self.request(asking);
        let floor_policy = self.plan.policy.into();
        let request = v1::ExecuteRunRequest {
            calls,
            timeout,
            request_id,
            fail_fast,
            floor_policy,
            ..v1::ExecuteRunRequest::default()
        };
        let stream = self.load.door.ask_once(&mut self.seed, at, |mut runs| {
            let request = request.clone();
            async move { runs.execute_run(request).await }
        });
        let mut stream = Messages::Execute(Box::new(stream.await?));
        while self.live.is_empty() {
            match stream.next().await {
                Next::Events(events) => self.live.extend(events),
                Next::Broken(why) => return Err(Status::unavailable(why)),
                Next::RunEnded => return Err(Status::unavailable("the stream broke at its beginning")),
            }
        }
        let run_id = self.live.first().and_then(|event| match &event.event {
            Some(Event::RunOpened(opened)) => Some(opened.run_id.clone()),
            _ => None,
        });
        Ok((run_id.ok_or_else(|| Status::data_loss("the first event does not name the run"))?, stream))
    }

    /// Sends the request once more, long after its run has ended: it must give that run, and make no other.
    async fn ask_again(&mut self) -> Option<Violation> {
        let request = self.request(0);
        let again = self.load.door.ask(&mut self.seed, Instant::now() + LATE_LIMIT, |mut runs| {
            let request = request.clone();
            async move { runs.create_run(request).await }
        });
        let run_id = again.await.map(|created| created.run.map(|run| run.run_id).unwrap_or_default());
        match run_id {
            Ok(run_id) if run_id == self.outcome.run_id => None,
            other => {
                let what = format!("the request was sent again and gave {other:?}");
                Some(Violation { broken: Broken::Doubled, what })
            }
        }
    }

    // ---- watching ----

    /// Reads to the run's end, on and on where the stream breaks. `false` when it is given up.
    async fn read_live(&mut self, mut stream: Option<Messages>) -> bool {
        let until = Instant::now() + RUN_TIMEOUT + GIVE_UP;
        for event in self.live.clone() {
            self.react(&event);
        }
        let (mut since_break, mut own_breaks) = (0, 0);
        while Instant::now() < until {
            let Some(messages) = &mut stream else {
                stream = self.watch_on(until).await;
                since_break = 0;
                continue;
            };
            match messages.next().await {
                Next::Events(mut events) => {
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
                        return true;
                    }
                }
                // The checker says what is missing.
                Next::RunEnded => return true,
                Next::Broken(why) => {
                    self.outcome.breaks += 1;
                    self.outcome.trouble = format!("the stream broke: {why}");
                    stream = None;
                }
            }
        }
        false
    }

    async fn watch_on(&mut self, until: Instant) -> Option<Messages> {
        let after = self.live.last().map(|event| event.sequence);
        let (run_id, policy) = (self.outcome.run_id.clone(), self.plan.policy);
        while Instant::now() < until {
            match self.load.door.watch(&mut self.seed, &run_id, policy, after).await {
                Ok(stream) => return Some(stream),
                Err(status) => {
                    self.outcome.not_found += u32::from(status.code() == Code::NotFound);
                    self.outcome.trouble = format!("WatchRun was refused: {status}");
                }
            }
            tokio::time::sleep(self.seed.ms(20..200)).await;
        }
        None
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
        self.cancel_sent = Some(proto::now().0 + u64::try_from(wait.as_millis()).unwrap_or_default());
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
            // A cancellation that nobody takes shows in how the call ends.
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

    async fn check(&mut self, ended: bool) {
        let mut found = Vec::new();
        if !ended {
            let what = format!(
                "{} s after its deadline the run has not ended for its reader, whose last trouble was: {}",
                GIVE_UP.as_secs(),
                self.outcome.trouble
            );
            found.push(Violation { broken: Broken::Lost, what });
        }
        tokio::time::sleep(self.plan.late_after).await;
        let late = self.read_late().await;
        self.evidence.run = self.get().await;
        let (story, wrong) = check::read(&self.live, self.plan.policy, ended);
        found.extend(wrong);
        match late {
            Some(late) => found.extend(check::same(&self.live, &late)),
            None if ended => {
                found.push(Violation {
                    broken: Broken::Lost,
                    what: format!("no late reader can read the run: {}", self.outcome.trouble),
                });
            }
            None => {}
        }
        match &self.evidence.run {
            Some(run) => self.outcome.lateness = lateness(run, &story),
            None => found.push(Violation { broken: Broken::Lost, what: "nobody can get the run".to_owned() }),
        }
        if self.plan.has_request_id && self.seed.chance(ASKED_AGAIN) {
            found.extend(self.ask_again().await);
        }
        let (effects, wrong) = check::judge(&self.plan, &story, &self.evidence);
        found.extend(wrong);
        self.outcome.effects = effects;
        for (index, call) in self.plan.calls.iter().enumerate() {
            let told = story.calls.get(&Plan::call_id(index));
            self.outcome.attempts += told.map_or(0, |told| told.started.len());
            let end =
                told.and_then(|told| told.ended.as_ref()).map_or_else(|| "not ended".to_owned(), |(_, end)| name(end));
            self.outcome.ends.push((call.work.name(), end));
        }
        self.outcome.cancelled_ms = self.cancel_sent.map(|sent| self.outcome.seen_at.saturating_sub(sent));
        self.outcome.violations.extend(found);
        // Whether a call that never started left the world alone is only known when everything has settled.
        let is_doubtful = self.outcome.effects.iter().any(|effect| effect.at_most == 0);
        if is_doubtful || !self.outcome.violations.is_empty() {
            self.outcome.events = std::mem::take(&mut self.live);
        }
    }

    /// What another reader sees, from the beginning, in one piece or in several.
    async fn read_late(&mut self) -> Option<Vec<RunEvent>> {
        let until = Instant::now() + LATE_LIMIT;
        let (run_id, policy) = (self.outcome.run_id.clone(), self.plan.policy);
        let mut events: Vec<RunEvent> = Vec::new();
        while Instant::now() < until {
            let after = events.last().map(|event| event.sequence);
            let mut stream = match self.load.door.watch(&mut self.seed, &run_id, policy, after).await {
                Ok(stream) => stream,
                Err(status) => {
                    self.outcome.not_found += u32::from(status.code() == Code::NotFound);
                    self.outcome.trouble = format!("WatchRun was refused to the late reader: {status}");
                    tokio::time::sleep(self.seed.ms(20..200)).await;
                    continue;
                }
            };
            while let Next::Events(more) = stream.next().await {
                events.extend(more);
                if events.last().is_some_and(|event| matches!(event.event, Some(Event::RunEnded(_)))) {
                    return Some(events);
                }
                if Instant::now() > until {
                    return None;
                }
            }
        }
        None
    }

    /// The run's state at its end. A replica that lags behind may show an older one for a while.
    async fn get(&mut self) -> Option<v1::Run> {
        let request = v1::GetRunRequest { run_id: self.outcome.run_id.clone() };
        let until = Instant::now() + LATE_LIMIT;
        let catch_up = Instant::now() + CATCH_UP;
        loop {
            let got = self.load.door.ask(&mut self.seed, until, |mut runs| {
                let request = request.clone();
                async move { runs.get_run(request).await }
            });
            let run = got.await.ok()?.run?;
            let is_final = !matches!(run.status(), v1::RunStatus::InProgress | v1::RunStatus::RequiresAction);
            if is_final || Instant::now() > catch_up {
                return Some(run);
            }
            self.outcome.stale += 1;
            tokio::time::sleep(self.seed.ms(20..200)).await;
        }
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
