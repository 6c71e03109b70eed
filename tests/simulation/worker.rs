//! A worker, as `worker/src/nats.rs` and `worker/src/nats/job.rs` have it, from a job's delivery to its acknowledgement: leases
//! that lapse by its own clock, questions to the owner, starts and ends that are fenced by compare-and-set, heartbeats. What
//! an attempt does between its start and its end is in `work.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use run::{
    AttemptId, AttemptNumber, AttemptOutcome, ChunkIndex, Event, Nonce, Policy, PoolId, Retry, Route, RunId, Timestamp,
    Verdict, WorkerId, after_failure,
};

use crate::net::{Delivery, Flaw, Message, Net, Node, Question, Settle};
use crate::rim::{
    ANSWER_PATIENCE, APPEND_PATIENCE, APPEND_TIMEOUT, ASK_PATIENCE, JOB_FRESH, JOB_LEASE, JOB_LEASE_EXTENSION, NOT_NOW,
    SOLELY_OURS, WORKER_HEARTBEAT,
};
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
    began: Timestamp,
    phase: Phase,
}

enum Phase {
    Asking {
        token: u64,
        asked: Timestamp,
        since: Timestamp,
        why: Why,
    },
    /// The end of an attempt that was lost is on its way.
    Ending(Append),
    /// A start is on its way that the tool waits for.
    Starting(Append, Go),
    Working(Box<Work>),
    Over,
}

/// Why the owner is asked.
#[derive(Clone, Copy)]
enum Why {
    Delivered,
    /// Whether our start is the one in the log.
    Start(Go),
    /// What is left to do with a job that was executed, and how long it waits if it is to be executed again.
    Settle(Duration),
}

#[derive(Clone, Copy)]
pub(crate) struct Go {
    pub(crate) attempt: AttemptId,
    pub(crate) used: u32,
    pub(crate) from: ChunkIndex,
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
        self.jobs.retain(|_, job| !matches!(job.phase, Phase::Over));
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
                let asked = |job: &Job| matches!(job.phase, Phase::Asking { token: own, .. } if own == token);
                if let Some(key) = self.jobs.iter().find(|(_, job)| asked(job)).map(|(key, _)| *key) {
                    self.answered(key, verdict, last_output, net);
                }
            }
            Message::Appended { token, .. } => self.stored(token, true, net),
            Message::Conflict { token } => self.stored(token, false, net),
            Message::Stop { run, attempt } => {
                for job in self.jobs.values_mut().filter(|job| job.delivery.run == run) {
                    if let Phase::Working(work) = &mut job.phase
                        && work.go.attempt == attempt
                    {
                        work.told_to_stop(net);
                    }
                }
            }
            other => unreachable!("nobody sends a worker {other:?}"),
        }
        self.jobs.retain(|_, job| !matches!(job.phase, Phase::Over));
    }

    // ---- being alive ----

    fn keep_leases(&mut self, net: &mut Net<'_>) {
        for job in self.jobs.values_mut().filter(|job| net.now.since(job.confirmed) >= JOB_LEASE) {
            net.promises.note("lease lost");
            job.phase = Phase::Over;
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

    // ---- a job ----

    fn delivered(&mut self, delivery: Delivery, net: &mut Net<'_>) {
        if self.leaving || self.jobs.len() >= SLOTS + 2 {
            return settle(&delivery, Settle::Nak(Duration::ZERO), net);
        }
        if delivery.is_late && net.flaw != Flaw::LateJobs {
            return settle(&delivery, Settle::Ack, net);
        }
        self.next_job += 1;
        let key = self.next_job;
        let age = net.now.since(delivery.published);
        let in_time = delivery.spec.queue_deadline.is_none_or(|by| net.now < by);
        let fresh = policy(&delivery).repeatable && in_time && delivery.delivered == 1 && age < JOB_FRESH;
        let job = Job { delivery, confirmed: net.now, began: net.now, phase: Phase::Over };
        self.jobs.insert(key, job);
        if fresh || net.flaw == Flaw::DeafWorker {
            let number = AttemptNumber(self.jobs[&key].delivery.delivered);
            self.answered(key, Verdict::Go { number, used: 0, from: ChunkIndex(0) }, 0, net);
        } else {
            self.ask(key, Why::Delivered, net.now, net);
        }
    }

    fn ask(&mut self, key: u64, why: Why, since: Timestamp, net: &mut Net<'_>) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let token = net.token();
        let Delivery { run, call, delivered, sequence, .. } = job.delivery;
        let attempt = if let Why::Start(go) = why { Some(go.attempt) } else { None };
        let executed = matches!(why, Why::Settle(_));
        net.send(Node::Broker, Message::Ask(Question { token, run, call, delivered, sequence, attempt, executed }));
        job.phase = Phase::Asking { token, asked: net.now, since, why };
    }

    fn answered(&mut self, key: u64, verdict: Verdict, last_output: u64, net: &mut Net<'_>) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let run = job.delivery.run;
        let why = if let Phase::Asking { why, .. } = job.phase { why } else { Why::Delivered };
        let over = |how, net: &mut Net<'_>| {
            settle(&job.delivery, how, net);
            Phase::Over
        };
        job.phase = match (why, verdict) {
            (Why::Start(go), Verdict::Go { number, .. }) if number == go.attempt.number => {
                Phase::Working(Box::new(Work::begin(&job.delivery, go, None, net)))
            }
            // Somebody else's start was stored: what becomes of the call is asked when the job comes again.
            (Why::Start(_), _) => over(Settle::Nak(NOT_NOW), net),
            (_, Verdict::Drop) => over(Settle::Ack, net),
            (Why::Settle(wait), Verdict::Go { .. }) => over(Settle::Nak(wait), net),
            // The job may be another attempt's by now.
            (Why::Settle(_), Verdict::End { .. }) | (_, Verdict::Leave) => Phase::Over,
            (Why::Delivered, Verdict::End { attempt, outcome }) => {
                let ended = Event::AttemptEnded { attempt, pool: self.pool.clone(), chunks: 0, outcome };
                Phase::Ending(Append::send(run, vec![ended], Some(last_output), net))
            }
            (Why::Delivered, Verdict::Go { number, used, from }) => {
                let attempt = AttemptId { call: job.delivery.call, number, nonce: Nonce(net.chance.next() >> 32) };
                let go = Go { attempt, used, from };
                let lease = Bytes::copy_from_slice(&job.delivery.sequence.to_be_bytes());
                let (pool, worker) = (self.pool.clone(), self.id.clone());
                let start = Event::AttemptStarted { attempt, pool, worker, lease, from };
                let once = !policy(&job.delivery).repeatable;
                if once || from.0 > 0 {
                    let flaw = if once { Flaw::UnfencedStart } else { Flaw::UnfencedContinuation };
                    let fence = (net.flaw != flaw && net.flaw != Flaw::DeafWorker).then_some(last_output);
                    Phase::Starting(Append::send(run, vec![start], fence, net), go)
                } else {
                    Phase::Working(Box::new(Work::begin(&job.delivery, go, Some(start), net)))
                }
            }
        };
    }

    fn stored(&mut self, token: u64, well: bool, net: &mut Net<'_>) {
        let keys: Vec<u64> = self.jobs.keys().copied().collect();
        for key in keys {
            let Some(job) = self.jobs.get_mut(&key) else { continue };
            match &mut job.phase {
                Phase::Ending(append) if append.token == token => {
                    settle(&job.delivery, if well { Settle::Ack } else { Settle::Nak(NOT_NOW) }, net);
                    job.phase = Phase::Over;
                }
                Phase::Starting(append, go) if append.token == token => {
                    let (go, resent) = (*go, append.resent);
                    let once = !policy(&job.delivery).repeatable;
                    if (well && once && net.flaw != Flaw::UnconfirmedStart) || (!well && resent) {
                        self.ask(key, Why::Start(go), net.now, net);
                    } else if well {
                        job.phase = Phase::Working(Box::new(Work::begin(&job.delivery, go, None, net)));
                    } else {
                        settle(&job.delivery, Settle::Nak(NOT_NOW), net);
                        job.phase = Phase::Over;
                    }
                }
                Phase::Working(work) => {
                    work.stored(token);
                    self.go_on(key, net);
                }
                Phase::Ending(_) | Phase::Starting(..) | Phase::Asking { .. } | Phase::Over => {}
            }
        }
    }

    /// What time makes of a job.
    fn go_on(&mut self, key: u64, net: &mut Net<'_>) {
        let leaving = self.leaving;
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let run = job.delivery.run;
        match &mut job.phase {
            Phase::Asking { since, why, asked, .. } => {
                let (since, why) = (*since, *why);
                if net.now.since(since) >= ASK_PATIENCE || (leaving && matches!(why, Why::Delivered)) {
                    if !matches!(why, Why::Settle(_)) {
                        settle(&job.delivery, Settle::Nak(NOT_NOW), net);
                    }
                    job.phase = Phase::Over;
                } else if net.now.since(*asked) >= ANSWER_PATIENCE {
                    self.ask(key, why, since, net);
                }
            }
            Phase::Ending(append) => {
                if !append.insist(run, net) {
                    job.phase = Phase::Over;
                }
            }
            Phase::Starting(append, _) => {
                if !append.insist(run, net) {
                    settle(&job.delivery, Settle::Nak(NOT_NOW), net);
                    job.phase = Phase::Over;
                }
            }
            Phase::Working(work) => {
                if leaving {
                    work.give_back(net);
                }
                match work.turn(net) {
                    Turn::GoesOn => {}
                    Turn::Abandoned => job.phase = Phase::Over,
                    Turn::Ended(outcome) => {
                        let used = work.go.used;
                        self.finish(key, used, &outcome, net);
                    }
                }
            }
            Phase::Over => {}
        }
    }

    /// Tells the broker what the attempt's end means for its job.
    fn finish(&mut self, key: u64, used: u32, outcome: &AttemptOutcome, net: &mut Net<'_>) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let again = match outcome {
            AttemptOutcome::Returned => {
                settle(&job.delivery, Settle::Nak(Duration::ZERO), net);
                job.phase = Phase::Over;
                return;
            }
            AttemptOutcome::Completed(_) | AttemptOutcome::Cancelled | AttemptOutcome::Expired => None,
            AttemptOutcome::Failed(error) => match after_failure(policy(&job.delivery), used + 1, error) {
                Retry::Again { used } => Some(policy(&job.delivery).backoff.wait_after(error, used, 0.5)),
                Retry::GiveUp => None,
            },
        };
        let solely_ours = job.delivery.delivered == 1 && net.now.since(job.began) < SOLELY_OURS;
        if !solely_ours && net.flaw != Flaw::HastyAck {
            return self.ask(key, Why::Settle(again.unwrap_or_default()), net.now, net);
        }
        settle(&job.delivery, again.map_or(Settle::Ack, Settle::Nak), net);
        job.phase = Phase::Over;
    }
}

pub(crate) fn policy(delivery: &Delivery) -> &Policy {
    match &delivery.spec.route {
        Route::Pool { policy, .. } => policy,
        Route::Client | Route::Refused(_) => unreachable!("only a pool's calls have jobs"),
    }
}

fn settle(delivery: &Delivery, how: Settle, net: &mut Net<'_>) {
    net.send(Node::Broker, Message::Settle { sequence: delivery.sequence, how, asked: net.now });
}
