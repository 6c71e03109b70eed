//! A worker: [`owner::job`] with simulated jobs, leases that lapse by its own clock, questions to the owner, and
//! heartbeats. What an attempt does between its start and its end is in `work.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use owner::job::{self, ANSWER_PATIENCE, About, Action, Ended, Entry, Go, Stage, Stored};
use run::{
    AttemptId, AttemptNumber, AttemptOutcome, ChunkIndex, Event, Nonce, Policy, PoolId, Retry, Route, RunId, Timestamp,
    Verdict, WorkerId, after_failure,
};

use crate::net::{Delivery, Flaw, Message, Net, Node, Question, Settle, instant};
use crate::rim::{APPEND_PATIENCE, APPEND_TIMEOUT, JOB_LEASE, JOB_LEASE_EXTENSION, WORKER_HEARTBEAT};
use crate::work::{Turn, Work};

const SLOTS: usize = 2;
/// How often a worker asks for a job while it has a free slot.
const PULL_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Worker {
    id: WorkerId,
    pool: PoolId,
    jobs: BTreeMap<u64, Job>,
    next_job: u64,
    pulled: Timestamp,
    beat_sent: Timestamp,
    extended: Timestamp,
    pub(crate) leaving: bool,
}

struct Job {
    delivery: Delivery,
    /// When the broker last confirmed its lease.
    confirmed: Timestamp,
    is_lost: bool,
    /// Attempts that the call had used before the one of this job, and whether that one was the last.
    used: u32,
    is_final: bool,
    steps: job::Job,
    doing: Doing,
}

/// The action of a job that is being performed.
enum Doing {
    Nothing,
    /// Other calls of the tool run until then.
    Waiting(Timestamp),
    Asking {
        token: u64,
        sent: Timestamp,
    },
    Storing(Append),
    Working(Box<Work>),
}

/// An entry that is sent again until it is confirmed.
pub(crate) struct Append {
    pub(crate) token: u64,
    pub(crate) events: Vec<Event>,
    pub(crate) expected: Option<u64>,
    pub(crate) since: Timestamp,
    pub(crate) sent: Timestamp,
    pub(crate) resent: bool,
}

impl Append {
    pub(crate) fn send(run: RunId, events: Vec<Event>, expected: Option<u64>, net: &mut Net<'_>) -> Self {
        let token = net.append(run, events.clone(), expected);
        Self { token, events, expected, since: net.now, sent: net.now, resent: false }
    }

    /// `false` when it was tried for too long.
    pub(crate) fn insist(&mut self, run: RunId, net: &mut Net<'_>) -> bool {
        if net.now.since(self.sent) >= APPEND_TIMEOUT {
            if net.now.since(self.since) >= APPEND_PATIENCE {
                return false;
            }
            self.token = net.append(run, self.events.clone(), self.expected);
            (self.sent, self.resent) = (net.now, true);
        }
        true
    }
}

impl Worker {
    pub(crate) fn new(id: WorkerId, pool: PoolId, now: Timestamp) -> Self {
        Self {
            id,
            pool,
            jobs: BTreeMap::new(),
            next_job: 0,
            pulled: Timestamp(0),
            beat_sent: Timestamp(0),
            extended: now,
            leaving: false,
        }
    }

    pub(crate) fn wake(&mut self, net: &mut Net<'_>) {
        self.keep_leases(net);
        self.beat(net);
        let keys: Vec<u64> = self.jobs.keys().copied().collect();
        for key in keys {
            self.go_on(key, net);
        }
        if self.leaving && self.jobs.is_empty() {
            let (worker, pool) = (self.id.clone(), self.pool.clone());
            net.send(Node::Broker, Message::Alive { worker, pool, leaving: true });
            net.gone = true;
        } else if !self.leaving && self.jobs.len() < SLOTS && net.now.since(self.pulled) >= PULL_EVERY {
            self.pulled = net.now;
            net.send(Node::Broker, Message::Pull { pool: self.pool.clone() });
        }
    }

    pub(crate) fn hear(&mut self, message: Message, net: &mut Net<'_>) {
        match message {
            Message::Job(delivery) => self.delivered(delivery, net),
            Message::StillYours { sequence, asked } => {
                for job in self.jobs.values_mut().filter(|job| job.delivery.sequence == sequence) {
                    job.confirmed = job.confirmed.max(asked);
                }
            }
            Message::Answer { token, verdict, last_output } => {
                let asked = |job: &Job| matches!(job.doing, Doing::Asking { token: own, .. } if own == token);
                let key = self.jobs.iter().find(|(_, job)| asked(job)).map(|(key, _)| *key);
                self.answered(key, Some((verdict, last_output)), net);
            }
            Message::UserReply { token, answer } => {
                for job in self.jobs.values_mut() {
                    if let Doing::Working(work) = &mut job.doing {
                        work.replied(token, answer.as_deref(), net);
                    }
                }
            }
            Message::Appended { token } => self.stored(token, true, net),
            Message::Conflict { token } => self.stored(token, false, net),
            Message::Stop { run, attempt } => {
                for job in self.jobs.values_mut().filter(|job| job.delivery.run == run) {
                    if let Doing::Working(work) = &mut job.doing
                        && work.start.attempt == attempt
                    {
                        work.told_to_stop(net);
                    }
                }
            }
            other => unreachable!("nobody sends a worker {other:?}"),
        }
    }

    // Leases and heartbeats.

    fn keep_leases(&mut self, net: &mut Net<'_>) {
        let is_late = |job: &Job| !job.is_lost && net.now.since(job.confirmed) >= JOB_LEASE;
        let late: Vec<u64> = self.jobs.iter().filter(|(_, job)| is_late(job)).map(|(key, _)| *key).collect();
        for key in late {
            net.promises.note("lease lost");
            let Some(job) = self.jobs.get_mut(&key) else { continue };
            job.is_lost = true;
            job.steps.handle_lease_lost();
            if matches!(job.doing, Doing::Working(_)) {
                self.ended(key, None, net);
            }
            self.perform(key, net);
        }
        if net.now.since(self.extended) >= JOB_LEASE_EXTENSION {
            self.extended = net.now;
            for job in self.jobs.values() {
                let (sequence, how, asked) = (job.delivery.sequence, Settle::InProgress, net.now);
                net.send(Node::Broker, Message::Settle { sequence, how, asked });
            }
        }
    }

    fn beat(&mut self, net: &mut Net<'_>) {
        if net.now.since(self.beat_sent) >= WORKER_HEARTBEAT {
            self.beat_sent = net.now;
            let (worker, pool) = (self.id.clone(), self.pool.clone());
            net.send(Node::Broker, Message::Alive { worker, pool, leaving: false });
        }
    }

    // A job.

    fn delivered(&mut self, delivery: Delivery, net: &mut Net<'_>) {
        if self.leaving || self.jobs.len() >= SLOTS + 2 {
            return settle(&delivery, Settle::Nak(Duration::ZERO), net);
        }
        if delivery.is_late && net.flaw != Flaw::LateJobs {
            return settle_as(&delivery, job::Job::VOID.0, net);
        }
        self.next_job += 1;
        let age = net.now.since(delivery.published);
        let steps = job::Job::new(delivery.delivered, age, instant(net.now));
        let job =
            Job { delivery, confirmed: net.now, is_lost: false, used: 0, is_final: true, steps, doing: Doing::Nothing };
        self.jobs.insert(self.next_job, job);
        self.perform(self.next_job, net);
    }

    /// Performs the actions of the job's protocol, until it waits.
    fn perform(&mut self, key: u64, net: &mut Net<'_>) {
        while let Some(job) = self.jobs.get_mut(&key)
            && let Some(action) = job.steps.poll_action()
        {
            match action {
                Action::WaitForSlot if net.rough && net.chance.percent(5) => {
                    let wait = Duration::from_millis(net.chance.between(1, 4000));
                    job.doing = Doing::Waiting(net.now.after(wait));
                    net.wake_in.push(wait);
                }
                Action::WaitForSlot => job.slot(false, net),
                Action::Ask(about) => self.ask(key, about, net),
                Action::Prepare(Go { number, used, .. }) => {
                    job.used = used;
                    if net.paused.tools.contains_key(job.delivery.spec.tool.as_str()) && net.chance.percent(90) {
                        net.promises.note("paused");
                        job.steps.handle_paused();
                        continue;
                    }
                    let nonce = Nonce(net.chance.next() >> 32);
                    let attempt = AttemptId { call: job.delivery.call, number, nonce };
                    job.steps.handle_ready(attempt, policy(&job.delivery));
                }
                Action::Store(entry) => self.store(key, entry, net),
                Action::Run(start) => {
                    let event = (!start.is_stored).then(|| self.event(key, start.attempt, Stage::Started(start.from)));
                    let Some(job) = self.jobs.get_mut(&key) else { return };
                    let work = Work::begin(&job.delivery, start, event.flatten(), net);
                    job.doing = Doing::Working(Box::new(work));
                }
                Action::Finish(how, _) => {
                    settle_as(&job.delivery, how, net);
                    self.jobs.remove(&key);
                }
            }
        }
        // The pause before the owner is asked again is short.
        if let Some(at) = self.jobs.get(&key).and_then(|job| job.steps.poll_timeout()) {
            net.wake_in.push(at.saturating_duration_since(instant(net.now)) + Duration::from_millis(1));
        }
    }

    fn ask(&mut self, key: u64, about: About, net: &mut Net<'_>) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let Delivery { run, call, delivered, sequence, .. } = job.delivery;
        // Flaws that do not ask, and go on as if this had been the answer.
        let go = |number, from| Verdict::Go { number, used: 0, from };
        let supposed = match about {
            About::Delivery if net.flaw == Flaw::DeafWorker => Some(go(AttemptNumber(delivered), ChunkIndex(0))),
            About::Start(own) if net.flaw == Flaw::UnconfirmedStart => Some(go(own.number, ChunkIndex(0))),
            About::End if net.flaw == Flaw::HastyAck && job.is_final => Some(Verdict::Drop),
            About::End if net.flaw == Flaw::HastyAck => Some(go(AttemptNumber(delivered), ChunkIndex(0))),
            About::Delivery | About::Start(_) | About::End => None,
        };
        let token = net.token();
        job.doing = Doing::Asking { token, sent: net.now };
        if let Some(verdict) = supposed {
            return job.steps.handle_answer(Some((verdict, 0)), instant(net.now));
        }
        let attempt = if let About::Start(attempt) = about { Some(attempt) } else { None };
        let executed = about == About::End;
        net.send(Node::Broker, Message::Ask(Question { token, run, call, delivered, sequence, attempt, executed }));
    }

    fn answered(&mut self, key: Option<u64>, answer: Option<(Verdict, u64)>, net: &mut Net<'_>) {
        let Some((key, job)) = key.and_then(|key| Some((key, self.jobs.get_mut(&key)?))) else { return };
        job.doing = Doing::Nothing;
        job.steps.handle_answer(answer, instant(net.now));
        self.perform(key, net);
    }

    fn event(&self, key: u64, attempt: AttemptId, event: Stage) -> Option<Event> {
        let pool = self.pool.clone();
        Some(match event {
            Stage::Started(from) => {
                let lease = Bytes::copy_from_slice(&self.jobs.get(&key)?.delivery.sequence.to_be_bytes());
                Event::AttemptStarted { attempt, pool, worker: self.id.clone(), lease, from }
            }
            Stage::Ended(outcome) => Event::AttemptEnded { attempt, pool, chunks: 0, outcome },
        })
    }

    fn store(&mut self, key: u64, entry: Entry, net: &mut Net<'_>) {
        let is_start = matches!(entry.event, Stage::Started(_));
        let Some(event) = self.event(key, entry.attempt, entry.event) else { return };
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let once = !policy(&job.delivery).repeatable;
        let flaw = if once { Flaw::UnfencedStart } else { Flaw::UnfencedContinuation };
        let is_unfenced = is_start && (net.flaw == flaw || net.flaw == Flaw::DeafWorker);
        let expected = entry.expected.filter(|_| !is_unfenced);
        job.doing = Doing::Storing(Append::send(job.delivery.run, vec![event], expected, net));
    }

    fn stored(&mut self, token: u64, well: bool, net: &mut Net<'_>) {
        let keys: Vec<u64> = self.jobs.keys().copied().collect();
        for key in keys {
            let Some(job) = self.jobs.get_mut(&key) else { continue };
            match &mut job.doing {
                Doing::Storing(append) if append.token == token => {
                    let stored = if well { Stored::Confirmed } else { Stored::Conflict { is_resent: append.resent } };
                    job.doing = Doing::Nothing;
                    job.steps.handle_stored(stored, instant(net.now));
                    self.perform(key, net);
                }
                Doing::Working(work) => {
                    work.stored(token);
                    self.go_on(key, net);
                }
                Doing::Storing(_) | Doing::Nothing | Doing::Waiting(_) | Doing::Asking { .. } => {}
            }
        }
    }

    /// Advances a job as time passes.
    fn go_on(&mut self, key: u64, net: &mut Net<'_>) {
        let leaving = self.leaving;
        let Some(job) = self.jobs.get_mut(&key) else { return };
        if leaving {
            job.steps.handle_give_back();
        }
        let now = instant(net.now);
        match &mut job.doing {
            Doing::Waiting(until) if net.now >= *until => job.slot(true, net),
            Doing::Asking { sent, .. } if net.now.since(*sent) >= ANSWER_PATIENCE => {
                job.doing = Doing::Nothing;
                job.steps.handle_answer(None, now);
            }
            Doing::Waiting(_) | Doing::Asking { .. } => {}
            Doing::Nothing => job.steps.handle_timeout(now),
            Doing::Storing(append) => {
                if !append.insist(job.delivery.run, net) {
                    job.doing = Doing::Nothing;
                    job.steps.handle_stored(Stored::GivenUp, now);
                }
            }
            Doing::Working(work) => {
                if leaving {
                    work.give_back(net);
                }
                match work.turn(net) {
                    Turn::GoesOn => {}
                    Turn::Abandoned => self.ended(key, None, net),
                    Turn::Ended(outcome) => self.ended(key, Some(&outcome), net),
                }
            }
        }
        self.perform(key, net);
    }

    /// The attempt has ended; `None` if it could not store its end.
    fn ended(&mut self, key: u64, outcome: Option<&AttemptOutcome>, net: &mut Net<'_>) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let ended = match outcome {
            None => Ended::Abandoned,
            Some(AttemptOutcome::Returned) => Ended::Returned,
            Some(AttemptOutcome::Completed(_) | AttemptOutcome::Cancelled | AttemptOutcome::Expired) => Ended::Finally,
            Some(AttemptOutcome::Failed(error)) => Ended::Failed(error),
        };
        let policy = policy(&job.delivery);
        job.is_final = match ended {
            Ended::Failed(error) => after_failure(policy, job.used + 1, error) == Retry::GiveUp,
            Ended::Finally | Ended::Returned | Ended::Abandoned => true,
        };
        job.doing = Doing::Nothing;
        job.steps.handle_ended(ended, policy, 0.5, instant(net.now));
    }
}

impl Job {
    /// The tool has room for it.
    fn slot(&mut self, waited: bool, net: &Net<'_>) {
        self.doing = Doing::Nothing;
        let in_time = self.delivery.spec.queue_deadline.is_none_or(|by| net.now < by);
        self.steps.handle_slot(waited, in_time, instant(net.now));
    }
}

pub(crate) fn policy(delivery: &Delivery) -> &Policy {
    match &delivery.spec.route {
        Route::Pool { policy, .. } => policy,
        Route::Client | Route::Refused(_) | Route::Answered(_) => unreachable!("only a pool's calls have jobs"),
    }
}

fn settle(delivery: &Delivery, how: Settle, net: &mut Net<'_>) {
    net.send(Node::Broker, Message::Settle { sequence: delivery.sequence, how, asked: net.now });
}

fn settle_as(delivery: &Delivery, how: job::Settle, net: &mut Net<'_>) {
    match how {
        job::Settle::Ack => settle(delivery, Settle::Ack, net),
        job::Settle::Nak(delay) => settle(delivery, Settle::Nak(delay), net),
        job::Settle::Leave => {}
    }
}
