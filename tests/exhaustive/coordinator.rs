//! A coordinator: the driver of the real [`Owner`]. Only the coordinator that holds the shard has anything to do here.

use std::collections::BTreeMap;
use std::time::Duration;

use owner::{Action, Append, JobLease, Known, Owner, Slot, Takeover, Workers};
use run::{
    Call, CallError, CallSpec, CallState, Effect, Event, Partition, PoolId, Run, Shard, TenantId, Verdict, WorkerId,
};

use crate::questions::{Asked, Askings, Settled, View};
use crate::worker::worker_id;
use crate::world::{CALL, COORDINATORS, Flaw, JobState, Message, Sender, World, pool, run_id};

const SHARD: Shard = Shard(0);
/// How long an append for an effect is waited for.
const EFFECT_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default)]
pub(crate) struct Coordinator {
    pub(crate) is_down: bool,
    /// `None` if it does not own the shard.
    pub(crate) owning: Option<Owning>,
}

#[derive(Debug, Clone)]
pub(crate) struct Owning {
    claim: u64,
    owner: Owner,
    /// How many entries of the log the feed has brought.
    fed: usize,
    tokens: u32,
    effects: BTreeMap<u32, Performing>,
    askings: Askings,
}

#[derive(Debug, Clone)]
struct Performing {
    effect: Effect,
    since: run::Timestamp,
    hand_back: Option<Box<JobLease>>,
}

impl Coordinator {
    pub(crate) fn is_owner(&self) -> bool {
        self.owning.is_some()
    }

    /// Whether it waits for the answer to an append.
    pub(crate) fn awaits(&self, claim: u64, token: u32) -> bool {
        self.owning.as_ref().is_some_and(|owning| {
            owning.claim == claim && (owning.effects.contains_key(&token) || owning.askings.is_storing(token))
        })
    }

    /// Whether the feed has something for it.
    pub(crate) fn is_behind(&self, log: usize) -> bool {
        self.owning.as_ref().is_some_and(|owning| owning.fed < log)
    }
}

/// What the owner knows beside the log.
pub(crate) struct Fleet {
    alive: Vec<WorkerId>,
}

impl Workers for Fleet {
    fn are_known(&self) -> bool {
        true
    }

    fn is_alive(&self, _: &PoolId, worker: &WorkerId) -> bool {
        self.alive.contains(worker)
    }

    fn takers(&self, _: &CallSpec, _: Option<&TenantId>) -> usize {
        self.alive.len()
    }

    fn keeps_unstarted(&self, _: &CallSpec, _: Option<&TenantId>) -> bool {
        false
    }
}

impl owner::World for Fleet {
    type Workers = Self;

    fn workers(&self) -> &Self {
        self
    }

    /// A coordinator that loses the shard loses its state here, so one that has it holds it.
    fn holds(&self, _: Shard) -> bool {
        true
    }

    fn take_slot(&self, _: &Run, _: &Call) -> Slot {
        Slot::Free
    }

    fn denial(&self, _: &Run, _: &Call) -> Option<CallError> {
        None
    }

    fn is_tool_paused(&self, _: &CallSpec) -> bool {
        false
    }

    fn is_pool_paused(&self, _: &PoolId) -> bool {
        false
    }
}

impl World {
    fn fleet(&self) -> Fleet {
        let fresh = self.beats.iter().filter(|beat| self.now.since(beat.at) < owner::WORKER_LOST);
        Fleet { alive: fresh.map(|beat| worker_id(beat.worker, beat.life)).collect() }
    }

    /// The coordinator claims the shard and reads its runs from the log. The previous owner has lost it.
    pub(crate) fn claim(&mut self, index: usize) {
        for other in 0..COORDINATORS {
            self.coordinators[other].owning = None;
        }
        self.claims += 1;
        let (claim, tip) = (self.claims, self.log.len() as u64);
        let mut known = Known::new(run_id());
        for (_, entry) in &self.log {
            known.apply(entry, &mut Vec::new());
        }
        let is_forgotten = self.plan.flaw == Flaw::ForgetfulOwner && claim > 1;
        let open = if is_forgotten || known.run.status().is_final() { Vec::new() } else { vec![known] };
        let mut owner = Owner::new(1);
        owner.handle_claimed(SHARD, claim);
        owner.handle_taken(SHARD, Takeover { claim, through: tip, tip, open, ..Takeover::default() }, self.now);
        let askings = Askings::default();
        let owning = Owning { claim, owner, fed: self.log.len(), tokens: 0, effects: BTreeMap::new(), askings };
        self.coordinators[index].owning = Some(owning);
        self.with_owner(index, |owner, now, fleet| {
            if owner.begin_to_lead(SHARD) {
                owner.check_shard(SHARD, now, fleet);
            }
        });
        let is_delayed = self.run.call(CALL).is_some_and(|call| *call.state() == CallState::Delayed);
        if is_delayed && self.plan.flaw == Flaw::ImpatientOwner {
            self.append(Sender::Nobody, 0, Event::CallDispatched { call: CALL, pool: pool() }, Some(0));
        }
    }

    /// Gives the owner an input, and performs the actions that follow.
    fn with_owner(&mut self, index: usize, input: impl FnOnce(&mut Owner, run::Timestamp, &Fleet)) {
        let (fleet, now, flaw) = (self.fleet(), self.now, self.plan.flaw);
        let Some(mut owning) = self.coordinators[index].owning.take() else { return };
        input(&mut owning.owner, now, &fleet);
        while let Some(action) = owning.owner.poll_action() {
            if flaw != Flaw::IdleOwner {
                self.perform(index, &mut owning, action, &fleet);
            }
        }
        self.coordinators[index].owning = Some(owning);
    }

    fn perform(&mut self, index: usize, owning: &mut Owning, action: Action, fleet: &Fleet) {
        match action {
            Action::Append(append) => {
                let Append { effect, event, expected, hand_back, .. } = *append;
                owning.tokens += 1;
                let (token, since) = (owning.tokens, self.now);
                owning.effects.insert(token, Performing { effect, since, hand_back });
                let is_unfenced = self.plan.flaw == Flaw::UnfencedDispatch && matches!(effect, Effect::Dispatch { .. });
                let from = Sender::Coordinator { index, claim: owning.claim };
                self.append(from, token, event, (!is_unfenced).then_some(expected));
            }
            Action::Stop { run, attempt, .. } => {
                self.send(Message::Stop { attempt });
                owning.owner.handle_effect_done(run, Effect::Stop { attempt }, self.now, fleet);
            }
            Action::StopLate { attempt, .. } => self.send(Message::Stop { attempt }),
            Action::HandBack { job, .. } => self.hand_back(&job),
            Action::EndLost { run, call, pool } => {
                let (question, needed) = (owner::Question::after_a_loss(run, call), self.last_output());
                let verdict = owning.owner.verdict(&question, &pool, needed, self.now, fleet);
                if let Some(Verdict::End { attempt, outcome }) = verdict {
                    let ended = Event::AttemptEnded { attempt, pool, chunks: 0, outcome };
                    self.append(Sender::Nobody, 0, ended, Some(needed));
                }
            }
            Action::AskQueues(_) => {
                let given = self
                    .jobs
                    .iter()
                    .filter(|job| job.delivered > 0)
                    .map(|job| ((pool(), Partition::FIRST), job.sequence));
                owning.owner.handle_queues(&given.collect(), self.now, fleet);
            }
            Action::TakeBack { job, .. } => {
                self.send(Message::Settle { job, settle: owner::job::Settle::Nak(Duration::ZERO) });
            }
            Action::CountSlots { .. } => unreachable!("no calls are limited here"),
        }
    }

    fn append(&mut self, from: Sender, token: u32, event: Event, expected: Option<u64>) {
        let is_workers = matches!(event, Event::AttemptEnded { .. });
        let events = vec![event];
        let not_after = (!is_workers).then(|| run::counts_until(run_id(), &events, self.now));
        self.send(Message::Append { from, token, events, expected, not_after });
    }

    fn hand_back(&mut self, job: &JobLease) {
        let job = u64::from_be_bytes(job.lease.as_ref().try_into().expect("leases are sequences here"));
        self.send(Message::Settle { job, settle: owner::job::Settle::Nak(Duration::ZERO) });
    }

    /// The feed brings the owner the next entry.
    pub(crate) fn feed(&mut self, index: usize) {
        let Some(owning) = &mut self.coordinators[index].owning else { return };
        let entry = std::sync::Arc::clone(&self.log[owning.fed].1);
        owning.fed += 1;
        self.with_owner(index, |owner, now, fleet| {
            owner.handle_entry(run_id(), &entry, &mut Vec::new(), now, fleet);
            if owner.run(run_id()).is_some_and(|known| known.run.status().is_final()) {
                owner.close(run_id(), now);
            }
            owner.check_run(run_id(), now, fleet);
            owner.handle_position(SHARD, entry.sequence);
            if owner.begin_to_lead(SHARD) {
                owner.check_shard(SHARD, now, fleet);
            }
        });
        self.with_askings(index, Askings::settle);
    }

    /// A request of a tool that asks arrives at the owner, if there is one.
    pub(crate) fn tool_asks(&mut self, asked: Asked) {
        if let Some(index) = self.owner() {
            self.with_askings(index, |askings, view| askings.ask(asked, view));
        }
    }

    fn with_askings(&mut self, index: usize, input: impl FnOnce(&mut Askings, &View<'_>) -> Vec<Settled>) {
        let (fleet, now, flaw) = (self.fleet(), self.now, self.plan.flaw);
        let Some(owning) = &mut self.coordinators[index].owning else { return };
        let view = View { owner: &owning.owner, now, fleet: &fleet, flaw };
        for settled in input(&mut owning.askings, &view) {
            match settled {
                Settled::Reply(Asked { worker, life, token, .. }, answer) => {
                    self.send(Message::UserReply { worker, life, token, answer });
                }
                Settled::Append(asked, event, expected) => {
                    let Some(owning) = &mut self.coordinators[index].owning else { return };
                    // The same question has the same token however often it is stored, or states would never repeat.
                    let (token, claim) = (u32::MAX - u32::try_from(asked.worker).unwrap_or(0), owning.claim);
                    owning.askings.storing(token, asked);
                    let expected = (flaw != Flaw::UnfencedQuestion).then_some(expected);
                    self.append(Sender::Coordinator { index, claim }, token, event, expected);
                }
            }
        }
    }

    /// The broker's answer to an append of the coordinator.
    pub(crate) fn effect_answered(&mut self, index: usize, claim: u64, token: u32, is_stored: bool) {
        let Some(owning) = &mut self.coordinators[index].owning else { return };
        if owning.claim != claim {
            return;
        }
        let Some(performing) = owning.effects.remove(&token) else {
            return self.with_askings(index, |askings, view| askings.stored(token, is_stored, view));
        };
        if let Some(job) = performing.hand_back.filter(|_| is_stored) {
            self.hand_back(&job);
        }
        self.with_owner(index, |owner, now, fleet| {
            owner.handle_effect_done(run_id(), performing.effect, now, fleet);
        });
    }

    /// A worker's question arrives at the owner, if there is one.
    pub(crate) fn asked(&mut self, worker: usize, life: u8, token: u32, mut question: owner::Question) {
        let Some(index) = self.owner() else { return };
        let last_output = if question.needs_last_output() { self.last_output() } else { 0 };
        let (fleet, now, flaw) = (self.fleet(), self.now, self.plan.flaw);
        let Some(owning) = &self.coordinators[index].owning else { return };
        let needed = if flaw == Flaw::EagerOwner { 0 } else { last_output };
        if flaw == Flaw::EagerOwner {
            question.sequence = 0;
        }
        if flaw == Flaw::AmbiguousAnswer {
            let known = owning.owner.run(run_id());
            let call = known.as_ref().and_then(|known| known.run.call(CALL));
            let running = call.and_then(|call| match call.state() {
                CallState::Running(running) => Some(running.attempt),
                _ => None,
            });
            question.attempt = question.attempt.filter(|attempt| running == Some(*attempt));
        }
        if let Some(verdict) = owning.owner.verdict(&question, &pool(), needed, now, &fleet) {
            self.send(Message::Answer { worker, life, token, verdict, last_output });
        }
    }

    /// Time has passed for the owner: timers, appends without an answer, and the check of all workers.
    pub(crate) fn owner_wakes(&mut self, index: usize) {
        let Some(owning) = &mut self.coordinators[index].owning else { return };
        let now = self.now;
        let mut late = Vec::new();
        owning.effects.retain(|_, performing| {
            let is_late = now.since(performing.since) >= EFFECT_PATIENCE;
            late.extend(is_late.then_some(performing.effect));
            !is_late
        });
        self.with_owner(index, |owner, now, fleet| {
            for effect in late {
                owner.handle_effect_done(run_id(), effect, now, fleet);
            }
            owner.handle_timeout(now, fleet);
            owner.check_workers(run_id(), now, fleet);
            owner.let_rest(run_id(), now);
            owner.handle_all_checked(Duration::ZERO);
        });
        self.with_askings(index, Askings::wake);
    }

    /// A message about a job arrives at the broker. It names the job and not the delivery.
    pub(crate) fn settle(&mut self, sequence: u64, settle: owner::job::Settle) {
        let now = self.now;
        let Some(job) = self.jobs.iter_mut().find(|job| job.sequence == sequence) else { return };
        job.state = match (job.state, settle) {
            (JobState::Out { .. }, owner::job::Settle::Ack) => JobState::Done,
            (JobState::Out { .. }, owner::job::Settle::Nak(delay)) => {
                JobState::Waiting { not_before: now.after(delay) }
            }
            (state, _) => state,
        };
    }
}
