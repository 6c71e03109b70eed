//! Checks after a run has ended: the output of other readers, the answer to the same request, redriven parked calls,
//! and unconfirmed requests.

use proto::v1::run_event::Event;
use proto::v1::{self, FloorPolicy, RunEvent};
use tokio::time::{Duration, Instant};
use tonic::Code;

use super::{ACT_LIMIT, Drive, GIVE_UP, LATE_LIMIT, RUN_TIMEOUT, name};
use crate::check::{self, Answer, Asking, Broken, Evidence, Story, Violation};
use crate::plan::{Plan, Work};
use crate::replicas::{Next, REQUEST_LIMIT, passes};

/// How long replicas may show a run as it was before its end: their feed comes back some seconds after the broker,
/// which may have stood still for 48 s.
const CATCH_UP: Duration = Duration::from_secs(65);
/// How long a run that an error named may not be found before it counts as never opened. What is stored later is void,
/// so nothing of it may be executed either way.
const NAMED_LIMIT: Duration = Duration::from_secs(10);
/// How many of a hundred redrives are asked for once more.
const REDRIVEN_AGAIN: u64 = 30;
const POLL: Duration = Duration::from_secs(1);

impl Drive {
    /// Sends the request once more, long after its run has ended: it must give that run, and make no other.
    pub(super) async fn ask_again(&mut self) -> Option<Violation> {
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

    /// The output of a run from the beginning, read in one piece or in several.
    pub(super) async fn read(&mut self, run_id: &str, policy: FloorPolicy, until: Instant) -> Option<Vec<RunEvent>> {
        let mut events: Vec<RunEvent> = Vec::new();
        while Instant::now() < until {
            let after = events.last().map(|event| event.sequence);
            let mut stream = match self.load.door.watch(&mut self.seed, run_id, policy, after).await {
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

    /// A run's state at its end. A replica that lags behind may show an older one for a while.
    pub(super) async fn get(&mut self, run_id: &str) -> Option<v1::Run> {
        let request = v1::GetRunRequest { run_id: run_id.to_owned() };
        let until = Instant::now() + LATE_LIMIT;
        let catch_up = Instant::now() + CATCH_UP;
        loop {
            let got = self.load.door.ask(&mut self.seed, until, |mut runs| {
                let request = request.clone();
                async move { runs.get_run(request).await }
            });
            let run = match got.await {
                Ok(got) => got.run?,
                Err(status) => {
                    self.outcome.trouble = format!("GetRun was refused: {status}");
                    return None;
                }
            };
            let is_final = !matches!(run.status(), v1::RunStatus::InProgress | v1::RunStatus::RequiresAction);
            if is_final || Instant::now() > catch_up {
                return Some(run);
            }
            self.outcome.stale += 1;
            tokio::time::sleep(self.seed.ms(20..200)).await;
        }
    }

    // ---- redriving ----

    /// Redrives the parked calls of the ended run, and judges what they did then.
    pub(super) async fn redrive(&mut self) {
        let run = self.evidence.run.clone().unwrap_or_default();
        for call in run.calls.into_iter().filter(|call| call.parked) {
            let Some(index) = Plan::index_of(&call.call_id) else { continue };
            if let Some(violation) = self.redrive_call(index, call.call_id).await {
                self.outcome.violations.push(violation);
            }
        }
    }

    async fn redrive_call(&mut self, index: usize, call_id: String) -> Option<Violation> {
        let lost = |what: String| Some(Violation { broken: Broken::Lost, what });
        let (redriven, tries) = self.ask_to_redrive(&call_id).await;
        let run_id = match redriven {
            Ok(run_id) => run_id,
            Err(status) if passes(&status) => {
                // It may have been redriven all the same, and act once more.
                self.outcome.further.push(("redrive", "not confirmed".to_owned()));
                let asking = Asking { number: self.evidence.asking, answer: Answer::Lost };
                self.outcome.effects.extend(check::effect_of_call(&self.plan, index, &asking));
                return None;
            }
            Err(status) => return lost(format!("{call_id} is parked, and RedriveCall was refused: {status}")),
        };
        if self.seed.chance(REDRIVEN_AGAIN) {
            match self.ask_to_redrive(&call_id).await.0 {
                Ok(again) if again != run_id => {
                    let what = format!("{call_id} was redriven into {run_id} and into {again}");
                    return Some(Violation { broken: Broken::Doubled, what });
                }
                Ok(_) => {}
                Err(status) if passes(&status) => {}
                Err(status) => return lost(format!("RedriveCall of {call_id} once more was refused: {status}")),
            }
        }
        let may_be_void = tries > 1;
        let evidence = Evidence { asking: self.evidence.asking, may_be_void, ..Evidence::default() };
        let Some((story, evidence, mut found)) = self.follow(&run_id, evidence).await else {
            return lost(format!("{call_id} was redriven into {run_id}, and nobody can read that run to its end"));
        };
        let (effect, wrong) = check::judge_call(&self.plan, index, &story, &evidence);
        found.extend(wrong);
        let ended = story.calls.get(&call_id).and_then(|told| told.ended.as_ref());
        let ended = ended.map_or_else(|| "not ended".to_owned(), |(_, outcome)| name(outcome));
        self.outcome.further.push(("redrive", ended));
        self.outcome.effects.extend(effect);
        let within = |violation: Violation| Violation { what: format!("{run_id}: {}", violation.what), ..violation };
        self.outcome.violations.extend(found.into_iter().map(within));
        None
    }

    /// The run into which the call was redriven, and how often that was asked.
    async fn ask_to_redrive(&mut self, call_id: &str) -> (Result<String, tonic::Status>, u32) {
        let request = v1::RedriveCallRequest { run_id: self.outcome.run_id.clone(), call_id: call_id.to_owned() };
        let until = Instant::now() + ACT_LIMIT;
        let first = self.seed.index(self.load.door.replicas());
        for (at, tries) in (first..).zip(1..) {
            let redriven = self.load.door.ask_once(&mut self.seed, at, REQUEST_LIMIT, |mut runs| {
                let request = request.clone();
                async move { runs.redrive_call(request).await }
            });
            match redriven.await {
                Err(status) if passes(&status) && Instant::now() < until => {}
                redriven => {
                    return (redriven.map(|redriven| redriven.run.map(|run| run.run_id).unwrap_or_default()), tries);
                }
            }
            tokio::time::sleep(self.seed.ms(20..500)).await;
        }
        (Err(tonic::Status::unavailable("never asked")), 0)
    }

    // ---- requests that were not confirmed ----

    /// Finds out what became of the requests that were not confirmed, and says what they may have done.
    pub(super) async fn check_askings(&mut self) {
        let askings = self.outcome.askings.clone();
        let confirmed = !self.outcome.run_id.is_empty();
        self.outcome.effects.extend(check::effects_of(&self.plan, &askings, confirmed));
        let named = |asking: &Asking| match &asking.answer {
            Answer::Named(run_id) => Some(run_id.clone()),
            Answer::Refused(_) | Answer::Lost => None,
        };
        let mut seen = Vec::new();
        for (asking, run_id) in askings.iter().filter_map(|asking| Some((asking, named(asking)?))) {
            if self.plan.has_request_id && confirmed {
                if run_id != self.outcome.run_id {
                    let what = format!("an error named {run_id}, and the same request opened {}", self.outcome.run_id);
                    self.outcome.violations.push(Violation { broken: Broken::Doubled, what });
                }
            } else if !seen.contains(&run_id) {
                self.check_named(asking, &run_id).await;
                seen.push(run_id);
            }
        }
    }

    /// Follows a run that an error named to its end. It is there or it is not, and acts at most once.
    async fn check_named(&mut self, asking: &Asking, run_id: &str) {
        let lost = Asking { answer: Answer::Lost, ..asking.clone() };
        let is_there = self.is_there(run_id).await;
        if is_there != Some(true) {
            let end = if is_there.is_some() { "never opened" } else { "not known" };
            self.outcome.further.push(("named by an error", end.to_owned()));
            let effects = match is_there {
                Some(_) => check::found_effects(&self.plan, asking, None).0,
                None => check::effects_of(&self.plan, &[lost], false),
            };
            self.outcome.effects.extend(effects);
            return;
        }
        let mut evidence = Evidence { asking: asking.number, may_be_void: true, ..Evidence::default() };
        let asks = self.plan.calls.iter().any(|call| matches!(call.work, Work::Ask { .. }));
        if asks || self.seed.chance(50) {
            evidence.cancels.extend(0..self.plan.calls.len());
            let request = v1::CancelRunRequest { run_id: run_id.to_owned(), reason: "it was not confirmed".to_owned() };
            let cancelled = self.load.door.ask(&mut self.seed, Instant::now() + ACT_LIMIT, |mut runs| {
                let request = request.clone();
                async move { runs.cancel_run(request).await }
            });
            // The ends of the calls show whether it was accepted.
            drop(cancelled.await);
        }
        let Some((story, evidence, found)) = self.follow(run_id, evidence).await else {
            // Only erased runs may be missing.
            if self.plan.is_kept {
                let what = format!("{run_id}, which an error named, was there and cannot be read to its end");
                self.outcome.violations.push(Violation { broken: Broken::Lost, what });
            }
            self.outcome.effects.extend(check::effects_of(&self.plan, &[lost], false));
            return;
        };
        let (effects, wrong) = check::found_effects(&self.plan, asking, Some((&story, &evidence)));
        let is_void = story.calls.values().all(|told| told.started.is_empty());
        let end = if is_void { "nothing was executed" } else { "executed" };
        self.outcome.further.push(("named by an error", end.to_owned()));
        self.outcome.effects.extend(effects);
        let within = |violation: Violation| Violation { what: format!("{run_id}: {}", violation.what), ..violation };
        self.outcome.violations.extend(found.into_iter().chain(wrong).map(within));
    }

    /// Whether a run that an error named is there; `None` if nobody can tell. Waits for as long as it may still come.
    async fn is_there(&mut self, run_id: &str) -> Option<bool> {
        let request = v1::GetRunRequest { run_id: run_id.to_owned() };
        let (until, named) = (Instant::now() + ACT_LIMIT, Instant::now() + NAMED_LIMIT);
        loop {
            let got = self.load.door.ask(&mut self.seed, until, |mut runs| {
                let request = request.clone();
                async move { runs.get_run(request).await }
            });
            match got.await {
                Ok(_) => return Some(true),
                Err(status) if status.code() == Code::NotFound && Instant::now() > named => return Some(false),
                Err(_) if Instant::now() > until => return None,
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Reads another run than the drive's own to its end. Gives what it tells, and what is wrong with the telling.
    async fn follow(&mut self, run_id: &str, evidence: Evidence) -> Option<(Story, Evidence, Vec<Violation>)> {
        let policy = FloorPolicy::Arrival;
        let events = self.read(run_id, policy, Instant::now() + RUN_TIMEOUT + GIVE_UP).await?;
        let run = self.get(run_id).await;
        let (story, found) = check::read(&events, policy, true);
        Some((story, Evidence { run, ..evidence }, found))
    }
}
