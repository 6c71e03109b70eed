//! What may happen next in a world, and what it changes.

use std::time::Duration;

use crate::questions::Asked;
use crate::world::{Beat, Budget, COORDINATORS, JobState, LONG, Message, SHORT, Sender, WORKERS, World};

/// One step. Messages and jobs are named by their places.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Arrive {
        message: usize,
    },
    Lose {
        message: usize,
    },
    /// It arrives, and stays on its way.
    Copy {
        message: usize,
    },
    Feed {
        coordinator: usize,
    },
    Give {
        worker: usize,
        job: usize,
    },
    Claim {
        coordinator: usize,
    },
    Cancel,
    /// The client answers the open question.
    Answer,
    /// A worker requests the question of its tool again.
    AskAgain {
        worker: usize,
    },
    /// Time passes; a silent worker does nothing meanwhile.
    Pass {
        length: Duration,
        silent: Option<usize>,
    },
    CrashCoordinator {
        coordinator: usize,
    },
    CrashWorker {
        worker: usize,
    },
}

impl Step {
    pub(crate) fn describe(self, world: &World) -> String {
        match self {
            Self::Arrive { message } => format!("arrives: {}", describe(&world.wires[message].1)),
            Self::Lose { message } => format!("is lost: {}", describe(&world.wires[message].1)),
            Self::Copy { message } => format!("arrives, and will again: {}", describe(&world.wires[message].1)),
            Self::Feed { coordinator } => format!("coordinator {coordinator} reads the next entry"),
            Self::Give { worker, job } => format!("worker {worker} is given job {}", world.jobs[job].sequence),
            Self::Claim { coordinator } => format!("coordinator {coordinator} claims the shard"),
            Self::Cancel => "the client cancels the call".to_owned(),
            Self::Answer => "the client answers the question".to_owned(),
            Self::AskAgain { worker } => format!("worker {worker} requests the question of its tool again"),
            Self::Pass { length, silent: None } => format!("{length:?} pass"),
            Self::Pass { length, silent: Some(worker) } => format!("{length:?} pass, and worker {worker} is silent"),
            Self::CrashCoordinator { coordinator } => format!("coordinator {coordinator} crashes"),
            Self::CrashWorker { worker } => format!("worker {worker} crashes"),
        }
    }
}

fn describe(message: &Message) -> String {
    match message {
        Message::Append { from, events, expected, .. } => format!("append of {from:?} behind {expected:?}: {events:?}"),
        Message::Appended { to, is_stored, .. } => format!("answer to the append of {to:?}: stored: {is_stored}"),
        Message::Question { worker, question, .. } => format!("question of worker {worker}: {question:?}"),
        Message::Answer { worker, verdict, .. } => format!("answer to worker {worker}: {verdict:?}"),
        Message::AskUser { worker, asks, .. } => format!("worker {worker} asks for its tool: {:?}", asks.question),
        Message::UserReply { worker, answer, .. } => format!("reply to the tool of worker {worker}: {answer:?}"),
        Message::Settle { job, settle } => format!("{settle:?} of job {job}"),
        Message::Stop { attempt } => format!("stop of {attempt:?}"),
    }
}

/// Every step that may happen next. Of equal processes only the first is named: the others lead to equal states.
pub(crate) fn steps(world: &World) -> Vec<Step> {
    let mut next: Vec<Step> = (0..world.wires.len()).map(|message| Step::Arrive { message }).collect();
    next.extend(world.behind().map(|coordinator| Step::Feed { coordinator }));
    let mut has_untouched = false;
    for worker in (0..WORKERS).filter(|worker| world.workers[*worker].is_free()) {
        let is_untouched = world.workers[worker].is_untouched();
        if !is_untouched || !has_untouched {
            next.extend(world.waiting().into_iter().map(|(job, _)| Step::Give { worker, job }));
        }
        has_untouched |= is_untouched;
    }
    if world.owner().is_none() {
        let alive = (0..COORDINATORS).find(|index| !world.coordinators[*index].is_down);
        next.extend(alive.map(|coordinator| Step::Claim { coordinator }));
    }
    let budget = world.plan.budget;
    if budget.cancels > 0 && !world.has_ended() {
        next.push(Step::Cancel);
    }
    if budget.answers > 0 && world.open_question().is_some() {
        next.push(Step::Answer);
    }
    next.extend((0..WORKERS).filter(|worker| world.may_ask_again(*worker)).map(|worker| Step::AskAgain { worker }));
    for (length, left) in [(SHORT, budget.short_steps), (LONG, budget.long_steps)] {
        if left == 0 {
            continue;
        }
        next.push(Step::Pass { length, silent: None });
        if budget.faults > 0 && budget.silences > 0 {
            next.extend(holders(world).map(|worker| Step::Pass { length, silent: Some(worker) }));
        }
    }
    if budget.faults > 0 {
        faults(world, &mut next);
    }
    next
}

fn holders(world: &World) -> impl Iterator<Item = usize> {
    (0..WORKERS).filter(|worker| world.workers[*worker].held.is_some())
}

fn faults(world: &World, next: &mut Vec<Step>) {
    let budget = world.plan.budget;
    for message in 0..world.wires.len() {
        if budget.losses > 0 {
            next.push(Step::Lose { message });
        }
        if budget.copies > 0 {
            next.push(Step::Copy { message });
        }
    }
    if budget.crashes > 0 {
        next.extend(world.owner().map(|coordinator| Step::CrashCoordinator { coordinator }));
        next.extend(holders(world).map(|worker| Step::CrashWorker { worker }));
    }
}

impl World {
    /// The world after a step.
    pub(crate) fn after(&self, step: Step) -> Self {
        let mut next = self.clone();
        next.take(step);
        next.forget_void_messages();
        next
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Arrive { message } => {
                let (_, message) = self.wires.remove(message);
                self.receive(message);
            }
            Step::Lose { message } => {
                self.fault(|budget| &mut budget.losses);
                self.wires.remove(message);
            }
            Step::Copy { message } => {
                self.fault(|budget| &mut budget.copies);
                let message = self.wires[message].1.clone();
                self.receive(message);
            }
            Step::Feed { coordinator } => self.feed(coordinator),
            Step::Give { worker, job } => self.deliver(worker, job),
            Step::Claim { coordinator } => self.claim(coordinator),
            Step::Cancel => {
                self.plan.budget.cancels -= 1;
                self.cancel();
            }
            Step::Answer => {
                self.plan.budget.answers -= 1;
                self.answer(self.plan.budget.answers);
            }
            Step::AskAgain { worker } => self.ask_again(worker),
            Step::Pass { length, silent } => {
                if silent.is_some() {
                    self.fault(|budget| &mut budget.silences);
                }
                self.pass(length, silent);
            }
            Step::CrashCoordinator { coordinator } => {
                self.fault(|budget| &mut budget.crashes);
                self.coordinators[coordinator].owning = None;
                self.coordinators[coordinator].is_down = true;
            }
            Step::CrashWorker { worker } => {
                self.fault(|budget| &mut budget.crashes);
                self.workers[worker].held = None;
                self.workers[worker].is_down = true;
            }
        }
    }

    /// The coordinator for which the feed has something.
    pub(crate) fn behind(&self) -> Option<usize> {
        (0..COORDINATORS).find(|index| self.coordinators[*index].is_behind(self.log.len()))
    }

    /// The jobs that may be given to a worker: their places and sequences.
    pub(crate) fn waiting(&self) -> Vec<(usize, u64)> {
        let waits = |state| matches!(state, JobState::Waiting { not_before } if not_before <= self.now);
        let jobs = self.jobs.iter().enumerate().filter(|(_, job)| waits(job.state));
        jobs.map(|(place, job)| (place, job.sequence)).collect()
    }

    /// Messages that no process waits for change nothing when they arrive. They are removed, so that equal states have
    /// equal fingerprints.
    fn forget_void_messages(&mut self) {
        let wires = std::mem::take(&mut self.wires);
        self.wires = wires.into_iter().filter(|(_, message)| self.is_awaited(message)).collect();
    }

    fn is_awaited(&self, message: &Message) -> bool {
        match message {
            Message::Appended { to: Sender::Worker { index, life }, token, .. } => {
                self.workers[*index].awaits(*life, *token)
            }
            Message::Answer { worker, life, token, .. } | Message::UserReply { worker, life, token, .. } => {
                self.workers[*worker].awaits(*life, *token)
            }
            Message::Appended { to: Sender::Coordinator { index, claim }, token, .. } => {
                self.coordinators[*index].awaits(*claim, *token)
            }
            Message::Settle { job, .. } => {
                self.jobs.iter().any(|known| known.sequence == *job && known.state != JobState::Done)
            }
            Message::Append { .. } | Message::Question { .. } | Message::AskUser { .. } | Message::Stop { .. } => true,
            Message::Appended { to: Sender::Client | Sender::Nobody, .. } => false,
        }
    }

    fn fault(&mut self, kind: impl FnOnce(&mut Budget) -> &mut u8) {
        *kind(&mut self.plan.budget) -= 1;
        self.plan.budget.faults -= 1;
    }

    pub(crate) fn restart(&mut self) {
        for coordinator in &mut self.coordinators {
            coordinator.is_down = false;
        }
        for index in 0..WORKERS {
            if self.workers[index].is_down {
                self.workers[index].is_down = false;
                self.workers[index].life += 1;
                let (life, at) = (self.workers[index].life, self.now);
                self.beats.push(Beat { worker: index, life, at });
            }
        }
    }

    /// Time passes; processes do what they do when it has.
    pub(crate) fn pass(&mut self, length: Duration, silent: Option<usize>) {
        match length {
            SHORT => self.plan.budget.short_steps = self.plan.budget.short_steps.saturating_sub(1),
            _ => self.plan.budget.long_steps = self.plan.budget.long_steps.saturating_sub(1),
        }
        self.now = self.now.after(length);
        let now = self.now;
        for worker in (0..WORKERS).filter(|worker| Some(*worker) != silent) {
            let (life, is_down) = (self.workers[worker].life, self.workers[worker].is_down);
            let own = self.beats.iter_mut().filter(|beat| beat.worker == worker && beat.life == life && !is_down);
            own.for_each(|beat| beat.at = now);
            self.extend_lease(worker);
        }
        for job in &mut self.jobs {
            if matches!(job.state, JobState::Out { until } if until <= now) {
                job.state = JobState::Waiting { not_before: now };
            }
        }
        for worker in (0..WORKERS).filter(|worker| Some(*worker) != silent) {
            self.worker_wakes(worker);
        }
        for index in 0..COORDINATORS {
            self.owner_wakes(index);
        }
    }

    /// The worker has extended the lease of its job all the time. That names the job and not the delivery.
    fn extend_lease(&mut self, worker: usize) {
        let now = self.now;
        let Some(held) = &mut self.workers[worker].held else { return };
        let job = self.jobs.iter_mut().find(|job| job.sequence == held.sequence);
        // After a silence that was longer than the lease, it is too late.
        let was_kept = now.since(held.extended) < owner::JOB_LEASE + SHORT;
        if let Some(job) = job.filter(|job| was_kept && matches!(job.state, JobState::Out { .. })) {
            held.extended = now;
            job.state = JobState::Out { until: now.after(owner::JOB_LEASE) };
        }
    }

    pub(crate) fn receive(&mut self, message: Message) {
        match message {
            Message::Append { from, token, events, expected, not_after } => {
                let is_stored = self.store(events, expected, not_after);
                if !matches!(from, Sender::Nobody | Sender::Client) {
                    self.send(Message::Appended { to: from, token, is_stored });
                }
            }
            Message::Appended { to: Sender::Coordinator { index, claim }, token, is_stored } => {
                self.effect_answered(index, claim, token, is_stored);
            }
            Message::Appended { to: Sender::Worker { index, life }, token, is_stored } => {
                if self.workers[index].life == life {
                    self.output_answered(index, token, is_stored);
                }
            }
            Message::Appended { to: Sender::Client | Sender::Nobody, .. } => {}
            Message::Question { worker, life, token, question } => self.asked(worker, life, token, question),
            Message::Answer { worker, life, token, verdict, last_output } => {
                if self.workers[worker].life == life {
                    self.answered(worker, token, verdict, last_output);
                }
            }
            Message::AskUser { worker, life, token, asks } => self.tool_asks(Asked { worker, life, token, asks }),
            Message::UserReply { worker, life, token, answer } => {
                if self.workers[worker].life == life {
                    self.user_replied(worker, token, answer);
                }
            }
            Message::Settle { job, settle } => self.settle(job, settle),
            Message::Stop { attempt } => self.stop(attempt),
        }
    }
}
