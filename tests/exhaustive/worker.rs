//! A worker: the driver of the real [`owner::job::Job`], for one job at a time, and a tool that emits two chunks and
//! completes.

use std::time::Duration;

use bytes::Bytes;
use owner::UserAnswer;
use owner::job::{self, ANSWER_PATIENCE, About, Action, Ended, Go, Settle, Stage, Start, Stored, Why};
use run::{
    AskedBy, AttemptId, AttemptNumber, AttemptOutcome, Chunk, ChunkIndex, Content, Event, NewQuestion, Nonce,
    Timestamp, Verdict, WorkerId,
};

use crate::world::{CALL, CHUNKS, Flaw, JobState, Message, Sender, WORKERS, World, instant, policy, pool, run_id};

/// For how long an append is sent again.
const APPEND_PATIENCE: Duration = Duration::from_secs(20);
/// How long one copy of it is waited for.
const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the reply to the request of a tool that asks is waited for.
const REPLY_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub(crate) struct Worker {
    /// Counts its restarts; each life has its own id.
    pub(crate) life: u8,
    pub(crate) is_down: bool,
    pub(crate) held: Option<Held>,
    /// Requests that were sent, so that each answer finds its own.
    tokens: u32,
}

/// A job that was delivered to the worker.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) sequence: u64,
    delivered: u32,
    /// When its lease was last extended.
    pub(crate) extended: Timestamp,
    steps: job::Job,
    doing: Doing,
}

#[derive(Debug, Clone)]
enum Doing {
    Nothing,
    Asking {
        token: u32,
        sent: Timestamp,
    },
    Storing(Append),
    Working {
        start: Start,
        said: u32,
        outcome: Option<AttemptOutcome>,
        append: Append,
    },
    /// The tool waits for the answer of its client. `sent`: its request, until it is answered.
    Waiting {
        start: Start,
        token: u32,
        sent: Option<Timestamp>,
    },
}

#[derive(Debug, Clone)]
struct Append {
    token: u32,
    events: Vec<Event>,
    expected: Option<u64>,
    since: Timestamp,
    sent: Timestamp,
    is_resent: bool,
}

pub(crate) fn worker_id(index: usize, life: u8) -> WorkerId {
    format!("worker-{index}-{life}").parse().expect("a worker id")
}

impl Worker {
    pub(crate) fn new() -> Self {
        Self { life: 0, is_down: false, held: None, tokens: 0 }
    }

    /// Whether it never had a job, so that it is as good as any other such worker.
    pub(crate) fn is_untouched(&self) -> bool {
        self.life == 0 && self.tokens == 0 && self.held.is_none()
    }

    /// Whether it waits for the answer with this token.
    pub(crate) fn awaits(&self, life: u8, token: u32) -> bool {
        self.life == life
            && self.held.as_ref().is_some_and(|held| match &held.doing {
                Doing::Nothing => false,
                Doing::Asking { token: own, .. } => *own == token,
                Doing::Waiting { token: own, sent, .. } => *own == token && sent.is_some(),
                Doing::Storing(append) | Doing::Working { append, .. } => append.token == token,
            })
    }

    pub(crate) fn is_free(&self) -> bool {
        !self.is_down && self.held.is_none()
    }
}

impl World {
    /// The broker gives the worker a job that waits.
    pub(crate) fn deliver(&mut self, worker: usize, job: usize) {
        let now = self.now;
        let job = &mut self.jobs[job];
        job.delivered += 1;
        job.state = JobState::Out { until: now.after(owner::JOB_LEASE) };
        let (sequence, delivered) = (job.sequence, job.delivered);
        if job.is_late {
            return self.send(Message::Settle { job: sequence, settle: job::Job::VOID.0 });
        }
        let steps = job::Job::new(delivered, now.since(job.published), instant(now));
        let held = Held { sequence, delivered, extended: now, steps, doing: Doing::Nothing };
        self.go_on(worker, held);
    }

    fn id(&self, worker: usize) -> WorkerId {
        worker_id(worker, self.workers[worker].life)
    }

    /// Differs from all others, as far as attempts of this world go.
    fn nonce(&mut self, worker: usize) -> Nonce {
        let life = u64::from(self.workers[worker].life);
        Nonce(u64::from(self.token(worker)) << 16 | (worker as u64) << 8 | life)
    }

    fn token(&mut self, worker: usize) -> u32 {
        self.workers[worker].tokens += 1;
        self.workers[worker].tokens
    }

    /// Performs what the job's protocol wants, until it waits for something or is over.
    fn go_on(&mut self, worker: usize, mut held: Held) {
        while let Some(action) = held.steps.poll_action() {
            let now = instant(self.now);
            match action {
                Action::WaitForSlot => held.steps.handle_slot(false, true, now),
                Action::Ask(about) => self.ask(worker, &mut held, about),
                Action::Prepare(Go { number, .. }) => {
                    let nonce = self.nonce(worker);
                    let attempt = AttemptId { call: CALL, number, nonce };
                    held.steps.handle_ready(attempt, &policy(self.plan.repeatable));
                }
                Action::Store(entry) => {
                    let flaw = self.plan.flaw;
                    let is_start = matches!(entry.event, Stage::Started(_));
                    if !is_start && flaw == Flaw::SilentReturn {
                        held.steps.handle_stored(Stored::Confirmed, now);
                        continue;
                    }
                    let is_unfenced = is_start && matches!(flaw, Flaw::UnfencedStart | Flaw::DeafWorker);
                    let event = self.event(worker, &held, entry.attempt, entry.event);
                    let append = self.append_output(worker, vec![event], entry.expected.filter(|_| !is_unfenced));
                    held.doing = Doing::Storing(append);
                }
                Action::Run(start) => self.begin(worker, &mut held, start),
                Action::Finish(Settle::Nak(_), Why::Superseded) if self.plan.flaw == Flaw::AckSuperseded => {
                    return self.send(Message::Settle { job: held.sequence, settle: Settle::Ack });
                }
                Action::Finish(settle, _) => {
                    if settle != Settle::Leave {
                        self.send(Message::Settle { job: held.sequence, settle });
                    }
                    return;
                }
            }
        }
        self.workers[worker].held = Some(held);
    }

    fn ask(&mut self, worker: usize, held: &mut Held, about: About) {
        let go = |number| Verdict::Go { number, used: 0, from: ChunkIndex(0) };
        let supposed = match (about, self.plan.flaw) {
            (About::Delivery, Flaw::DeafWorker) => Some(go(AttemptNumber(held.delivered))),
            (About::Start(own), Flaw::UnconfirmedStart) => Some(go(own.number)),
            (About::End, Flaw::HastyAck) => Some(Verdict::Drop),
            _ => None,
        };
        if let Some(verdict) = supposed {
            return held.steps.handle_answer(Some((verdict, 0)), instant(self.now));
        }
        let (token, life) = (self.token(worker), self.workers[worker].life);
        held.doing = Doing::Asking { token, sent: self.now };
        let attempt = if let About::Start(attempt) = about { Some(attempt) } else { None };
        let (run, executed) = (run_id(), about == About::End);
        let (delivered, sequence) = (held.delivered, held.sequence);
        let question = owner::Question { run, call: CALL, delivered, sequence, attempt, executed };
        self.send(Message::Question { worker, life, token, question });
    }

    fn event(&self, worker: usize, held: &Held, attempt: AttemptId, stage: Stage) -> Event {
        match stage {
            Stage::Started(from) => {
                let lease = Bytes::copy_from_slice(&held.sequence.to_be_bytes());
                let worker = self.id(worker);
                Event::AttemptStarted { attempt, pool: pool(), worker, lease, from }
            }
            Stage::Ended(outcome) => Event::AttemptEnded { attempt, pool: pool(), chunks: 0, outcome },
        }
    }

    fn append_output(&mut self, worker: usize, events: Vec<Event>, expected: Option<u64>) -> Append {
        let (token, now) = (self.token(worker), self.now);
        let append = Append { token, events, expected, since: now, sent: now, is_resent: false };
        self.send_copy(worker, &append);
        append
    }

    fn send_copy(&mut self, worker: usize, append: &Append) {
        let from = Sender::Worker { index: worker, life: self.workers[worker].life };
        let (token, events, expected) = (append.token, append.events.clone(), append.expected);
        self.send(Message::Append { from, token, events, expected, not_after: None });
    }

    /// The tool is called, and its first chunk is stored.
    fn begin(&mut self, worker: usize, held: &mut Held, start: Start) {
        let is_repeatable = self.plan.repeatable;
        let not_before = self.run.call(CALL).and_then(|call| call.spec().not_before);
        let is_early = not_before.is_some_and(|until| self.now < until);
        self.promises.tool_called(start.attempt, is_repeatable, is_early);
        let mut events = Vec::new();
        if !start.is_stored {
            events.push(self.event(worker, held, start.attempt, Stage::Started(start.from)));
        }
        events.push(chunk(start.attempt, self.id(worker), 0));
        let append = self.append_output(worker, events, None);
        held.doing = Doing::Working { start, said: 1, outcome: None, append };
    }

    /// The broker's answer to an append of the worker.
    pub(crate) fn output_answered(&mut self, worker: usize, token: u32, is_stored: bool) {
        let Some(mut held) = self.workers[worker].held.take() else { return };
        match std::mem::replace(&mut held.doing, Doing::Nothing) {
            Doing::Storing(append) if append.token == token => {
                let conflict = Stored::Conflict { is_resent: append.is_resent };
                held.steps.handle_stored(if is_stored { Stored::Confirmed } else { conflict }, instant(self.now));
            }
            Doing::Working { start, said: 1, outcome: None, append } if append.token == token && self.plan.asks => {
                let token = self.token(worker);
                held.doing = Doing::Waiting { start, token, sent: None };
                self.request(worker, &mut held);
            }
            Doing::Working { start, said, outcome, append } if append.token == token => {
                self.work_on(worker, &mut held, (start, said), outcome);
            }
            doing => held.doing = doing,
        }
        self.go_on(worker, held);
    }

    /// An entry of the attempt is stored: its next one follows, or it is over.
    fn work_on(
        &mut self,
        worker: usize,
        held: &mut Held,
        (start, said): (Start, u32),
        outcome: Option<AttemptOutcome>,
    ) {
        let is_over = said > CHUNKS;
        if is_over {
            return held.steps.handle_ended(Ended::Finally, &policy(self.plan.repeatable), 0.5, instant(self.now));
        }
        let mut events = Vec::new();
        let mut said = said;
        if outcome.is_none() {
            events.push(chunk(start.attempt, self.id(worker), said));
            said += 1;
        }
        let outcome = outcome
            .or_else(|| (said == CHUNKS).then(|| AttemptOutcome::Completed(vec![Content::Text("done".into())].into())));
        if let Some(outcome) = outcome.clone() {
            let attempt = start.attempt;
            events.push(Event::AttemptEnded { attempt, pool: pool(), chunks: said, outcome });
            said = CHUNKS + 1;
        }
        let append = self.append_output(worker, events, None);
        if said > CHUNKS && self.plan.flaw == Flaw::EarlyAck {
            return held.steps.handle_ended(Ended::Finally, &policy(self.plan.repeatable), 0.5, instant(self.now));
        }
        held.doing = Doing::Working { start, said, outcome, append };
    }

    /// Requests the question of the tool that waits.
    fn request(&mut self, worker: usize, held: &mut Held) {
        let (now, life, run, sequence) = (self.now, self.workers[worker].life, run_id(), held.sequence);
        let Doing::Waiting { start, token, sent } = &mut held.doing else { return };
        *sent = Some(now);
        let asked_by = AskedBy { attempt: start.attempt, number: 1 };
        let question = NewQuestion { asked_by, arguments: Bytes::from_static(b"{}"), timeout: None };
        let asks = owner::UserQuestion { run, sequence, question };
        let token = *token;
        self.send(Message::AskUser { worker, life, token, asks });
    }

    pub(crate) fn may_ask_again(&self, worker: usize) -> bool {
        let held = self.workers[worker].held.as_ref();
        held.is_some_and(|held| matches!(held.doing, Doing::Waiting { sent: None, .. }))
            && self.plan.flaw != Flaw::AskedOnce
    }

    pub(crate) fn ask_again(&mut self, worker: usize) {
        if let Some(mut held) = self.workers[worker].held.take() {
            self.request(worker, &mut held);
            self.workers[worker].held = Some(held);
        }
    }

    /// The owner's reply to the request of a tool. A tool that has no answer goes on without it.
    pub(crate) fn user_replied(&mut self, worker: usize, token: u32, answer: Option<UserAnswer>) {
        let Some(mut held) = self.workers[worker].held.take() else { return };
        if let Doing::Waiting { start, token: own, sent: sent @ Some(_) } = &mut held.doing
            && *own == token
        {
            let start = *start;
            match answer {
                None | Some(UserAnswer::Open) => *sent = None,
                Some(ended) => {
                    self.promises.answer_heard(&self.run, AskedBy { attempt: start.attempt, number: 1 }, &ended);
                    held.doing = Doing::Nothing;
                    self.work_on(worker, &mut held, (start, 1), None);
                }
            }
        }
        self.go_on(worker, held);
    }

    pub(crate) fn answered(&mut self, worker: usize, token: u32, verdict: Verdict, last_output: u64) {
        let Some(mut held) = self.workers[worker].held.take() else { return };
        if matches!(held.doing, Doing::Asking { token: own, .. } if own == token) {
            held.doing = Doing::Nothing;
            held.steps.handle_answer(Some((verdict, last_output)), instant(self.now));
        }
        self.go_on(worker, held);
    }

    /// All workers are told to stop an attempt.
    pub(crate) fn stop(&mut self, attempt: AttemptId) {
        for worker in 0..WORKERS {
            let Some(mut held) = self.workers[worker].held.take() else { continue };
            match &mut held.doing {
                Doing::Working { start, said, outcome: outcome @ None, .. }
                    if start.attempt == attempt && *said <= CHUNKS =>
                {
                    *outcome = Some(AttemptOutcome::Cancelled);
                }
                Doing::Waiting { start, .. } if start.attempt == attempt => {
                    let start = *start;
                    self.work_on(worker, &mut held, (start, 1), Some(AttemptOutcome::Cancelled));
                }
                _ => {}
            }
            self.go_on(worker, held);
        }
    }

    /// Time has passed for a worker that was not silent: it extends its lease and repeats what was not answered.
    pub(crate) fn worker_wakes(&mut self, worker: usize) {
        let (now, monotonic) = (self.now, instant(self.now));
        let Some(mut held) = self.workers[worker].held.take() else { return };
        if now.since(held.extended) >= owner::JOB_LEASE {
            held.steps.handle_lease_lost();
            if let Doing::Working { .. } | Doing::Waiting { .. } = held.doing {
                held.doing = Doing::Nothing;
                let ended = Ended::Abandoned;
                held.steps.handle_ended(ended, &policy(self.plan.repeatable), 0.5, monotonic);
            }
        }
        match &mut held.doing {
            Doing::Nothing => held.steps.handle_timeout(monotonic),
            Doing::Asking { sent, .. } if now.since(*sent) >= ANSWER_PATIENCE => {
                held.doing = Doing::Nothing;
                held.steps.handle_answer(None, monotonic);
                // The pause before the owner is asked again is shorter than any step of time.
                held.steps.handle_timeout(held.steps.poll_timeout().unwrap_or(monotonic));
            }
            Doing::Asking { .. } => {}
            Doing::Waiting { sent, .. } => {
                sent.take_if(|sent| now.since(*sent) >= REPLY_PATIENCE);
                if sent.is_none() && self.plan.flaw != Flaw::AskedOnce {
                    self.request(worker, &mut held);
                }
            }
            Doing::Storing(append) | Doing::Working { append, .. } => {
                if now.since(append.since) >= APPEND_PATIENCE {
                    self.give_up(&mut held);
                } else if now.since(append.sent) >= APPEND_TIMEOUT {
                    (append.sent, append.is_resent) = (now, true);
                    let copy = append.clone();
                    self.send_copy(worker, &copy);
                }
            }
        }
        self.go_on(worker, held);
    }

    fn give_up(&self, held: &mut Held) {
        let now = instant(self.now);
        match std::mem::replace(&mut held.doing, Doing::Nothing) {
            Doing::Storing(_) => held.steps.handle_stored(Stored::GivenUp, now),
            _ => held.steps.handle_ended(Ended::Abandoned, &policy(self.plan.repeatable), 0.5, now),
        }
    }
}

/// A chunk names the worker that executed its tool, so that a chunk of another worker is recognised.
fn chunk(attempt: AttemptId, author: WorkerId, index: u32) -> Event {
    let content = Content::Text(format!("{index} of {author}"));
    let chunks = vec![Chunk::Content { channel: String::new(), content }];
    Event::Output { attempt, pool: pool(), first: ChunkIndex(index), chunks }
}
