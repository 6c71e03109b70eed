//! One attempt at work, as `worker/src/attempt.rs` and `worker/src/publisher.rs` have it: chunks in numbered entries
//! with a bounded number of them unconfirmed, a deadline, being told to stop, and an end that goes out when all before
//! it is stored.

use std::time::Duration;

use owner::UserAnswer;
use owner::job::Start;
use run::{
    AfterPartialOutput, AskedBy, AttemptOutcome, CallError, Chunk, ChunkIndex, Content, ErrorKind, Event, PoolId,
    Route, RunId, StopStage, Timestamp, limit,
};

use crate::net::{Delivery, Flaw, Net};
use crate::promises::chunk_body;
use crate::questions::ToolQuestion;
use crate::rim::WINDOW;
use crate::worker::{Append, policy};

pub(crate) struct Work {
    pub(crate) start: Start,
    run: RunId,
    pool: PoolId,
    repeatable: bool,
    idle: Option<Duration>,
    /// Its own timeout, without the time in which it waited for answers, and the call's deadline.
    own: Timestamp,
    of_call: Timestamp,
    waited: Duration,
    /// The sequence of its job.
    sequence: u64,
    /// How many questions it has asked, and how many it asks.
    asked: u16,
    to_ask: u16,
    question: Option<ToolQuestion>,
    /// The event of its start, unless that is in the log already.
    unstored: Option<Event>,
    /// Chunks that the tool has said, and what it went on from.
    taken: u32,
    batch: Vec<Chunk>,
    in_flight: Vec<Append>,
    /// What the tool will still say, when it says something next, and how it ends.
    to_say: u32,
    next_at: Timestamp,
    said_at: Timestamp,
    end: ToolEnd,
    stopping: Option<Stopping>,
    outcome: Option<AttemptOutcome>,
    ended: Option<Append>,
    end_is_stored: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum ToolEnd {
    Well,
    Badly,
    BadlyForNow,
    Panic,
    Never,
}

struct Stopping {
    outcome: AttemptOutcome,
    /// When the tool notices, and when it is stopped for good.
    notices_at: Timestamp,
    hard_at: Timestamp,
    by_cancel: bool,
}

/// How an attempt stands.
pub(crate) enum Turn {
    GoesOn,
    /// Its end is in the log.
    Ended(AttemptOutcome),
    /// The log could not be reached.
    Abandoned,
}

impl Work {
    pub(crate) fn begin(delivery: &Delivery, start: Start, unstored: Option<Event>, net: &mut Net<'_>) -> Self {
        let policy = policy(delivery);
        let Route::Pool { pool, .. } = &delivery.spec.route else { unreachable!("only a pool's calls have jobs") };
        let own = net.now.after(policy.attempt_timeout);
        let end = match net.chance.between(0, 20) {
            0..11 => ToolEnd::Well,
            11..13 => ToolEnd::Badly,
            13..16 => ToolEnd::BadlyForNow,
            16 => ToolEnd::Panic,
            _ => ToolEnd::Never,
        };
        // A tool that goes on has so much less to say.
        let whole = u32::try_from(net.chance.between(0, 12)).unwrap_or(0);
        let to_say = if policy.after_partial_output == AfterPartialOutput::Continue {
            12u32.saturating_sub(start.from.0)
        } else {
            whole
        };
        let mut work = Self {
            start,
            run: delivery.run,
            pool: pool.clone(),
            repeatable: policy.repeatable,
            idle: policy.idle_timeout,
            own,
            of_call: delivery.spec.deadline,
            waited: Duration::ZERO,
            sequence: delivery.sequence,
            asked: 0,
            to_ask: 0,
            question: None,
            unstored,
            taken: start.from.0,
            batch: Vec::new(),
            in_flight: Vec::new(),
            to_say,
            next_at: net.now,
            said_at: net.now,
            end,
            stopping: None,
            outcome: None,
            ended: None,
            end_is_stored: false,
        };
        if work.due().0 <= net.now {
            // A call that is overdue never starts late.
            work.outcome = Some(AttemptOutcome::Expired);
        } else {
            net.promises.check_truth(delivery.run, start.attempt);
            net.promises.tool_called((delivery.run, start.attempt), start.from, net.now);
            work.to_ask = u16::try_from(net.chance.between(0, 12)).map_or(0, |drawn| drawn.saturating_sub(8));
            work.think(net);
        }
        work
    }

    /// When it must have ended, and how it ends if it has not. Its own time rests while it waits for an answer.
    fn due(&self) -> (Timestamp, AttemptOutcome) {
        let own = self.own.after(self.waited);
        if self.question.is_some() || own > self.of_call {
            return (self.of_call, AttemptOutcome::Expired);
        }
        (own, AttemptOutcome::Failed(CallError::new(ErrorKind::AttemptTimeout, "it took too long").retryable()))
    }

    /// The owner's reply to a request of a question.
    pub(crate) fn replied(&mut self, token: u64, answer: Option<&UserAnswer>, net: &mut Net<'_>) {
        let Some(question) = &mut self.question else { return };
        let Some(answer) = question.replied(token, answer.cloned(), net) else { return };
        self.go_on_after_question(matches!(answer, UserAnswer::Answered(Ok(_))), net);
    }

    /// A tool without an answer gives up, or goes on without it.
    fn go_on_after_question(&mut self, is_answered: bool, net: &mut Net<'_>) {
        let Some(question) = self.question.take() else { return };
        self.waited += net.now.since(question.began);
        self.said_at = net.now;
        if !is_answered && net.chance.percent(50) && self.stopping.is_none() && self.outcome.is_none() {
            let error = CallError::new(ErrorKind::NeedsInput, "nobody answered");
            self.outcome = Some(AttemptOutcome::Failed(error));
        }
        self.think(net);
    }

    /// How long the tool takes for its next step.
    fn think(&mut self, net: &mut Net<'_>) {
        let ms = if net.chance.percent(8) { net.chance.between(1000, 15_000) } else { net.chance.between(1, 700) };
        self.next_at = net.now.after(Duration::from_millis(ms));
        net.wake_in.push(Duration::from_millis(ms));
    }

    pub(crate) fn stored(&mut self, token: u64) {
        self.in_flight.retain(|append| append.token != token);
        self.end_is_stored |= self.ended.as_ref().is_some_and(|append| append.token == token);
    }

    pub(crate) fn told_to_stop(&mut self, net: &mut Net<'_>) {
        if self.stopping.is_none() && self.outcome.is_none() {
            self.stop(AttemptOutcome::Cancelled, true, net);
            self.say_stage(StopStage::Delivered, net);
        }
    }

    pub(crate) fn give_back(&mut self, net: &mut Net<'_>) {
        if self.stopping.is_none() && self.outcome.is_none() {
            let interrupted = || CallError::new(ErrorKind::Interrupted, "the worker shut down");
            let failed = AttemptOutcome::Failed(interrupted());
            self.stop(if self.repeatable { AttemptOutcome::Returned } else { failed }, false, net);
        }
    }

    fn stop(&mut self, outcome: AttemptOutcome, by_cancel: bool, net: &mut Net<'_>) {
        let notices_at = net.now.after(Duration::from_millis(net.chance.between(0, 9000)));
        let hard_at = net.now.after(limit::CANCEL_GRACE);
        self.stopping = Some(Stopping { outcome, notices_at, hard_at, by_cancel });
    }

    fn say_stage(&mut self, stage: StopStage, net: &mut Net<'_>) {
        let event = Event::AttemptStopping { attempt: self.start.attempt, pool: self.pool.clone(), stage };
        self.in_flight.push(Append::send(self.run, vec![event], None, net));
    }

    pub(crate) fn turn(&mut self, net: &mut Net<'_>) -> Turn {
        for append in self.in_flight.iter_mut().chain(self.ended.as_mut()) {
            if !append.insist(self.run, net) {
                return Turn::Abandoned;
            }
        }
        if self.outcome.is_none() {
            self.tool(net);
        }
        if self.end_is_stored {
            return self.outcome.take().map_or(Turn::Abandoned, Turn::Ended);
        }
        if net.flaw == Flaw::EarlyAck
            && let Some(outcome) = self.outcome.take()
        {
            self.end(outcome.clone(), net);
            return Turn::Ended(outcome);
        }
        if let (Some(outcome), None) = (&self.outcome, &self.ended) {
            if self.in_flight.is_empty() {
                self.end(outcome.clone(), net);
            }
        } else if self.in_flight.len() < WINDOW && (self.in_flight.is_empty() || self.batch.len() > 2) {
            let events = self.waiting();
            if !events.is_empty() {
                self.in_flight.push(Append::send(self.run, events, None, net));
            }
        }
        Turn::GoesOn
    }

    fn end(&mut self, outcome: AttemptOutcome, net: &mut Net<'_>) {
        let mut events = self.waiting();
        let (attempt, pool, chunks) = (self.start.attempt, self.pool.clone(), self.taken);
        events.push(Event::AttemptEnded { attempt, pool, chunks, outcome });
        self.ended = Some(Append::send(self.run, events, None, net));
    }

    /// What the tool does, and what is done to it.
    fn tool(&mut self, net: &mut Net<'_>) {
        if let Some(stopping) = &self.stopping {
            if net.now >= stopping.notices_at.min(stopping.hard_at) {
                let outcome = stopping.outcome.clone();
                if stopping.by_cancel && stopping.notices_at < stopping.hard_at {
                    self.say_stage(StopStage::Acknowledged, net);
                }
                self.outcome = Some(outcome);
            }
            return;
        }
        let (by, overdue) = self.due();
        if net.now >= by {
            return self.stop(overdue, false, net);
        }
        if let Some(question) = &mut self.question {
            if !question.wake(net) {
                self.go_on_after_question(false, net);
            }
            return;
        }
        if self.idle.is_some_and(|idle| net.now.since(self.said_at) >= idle) {
            let error = CallError::new(ErrorKind::IdleTimeout, "it said nothing for too long").retryable();
            return self.stop(AttemptOutcome::Failed(error), false, net);
        }
        if net.now < self.next_at {
            return;
        }
        if self.asked < self.to_ask && net.chance.percent(30) {
            self.asked += 1;
            let asked_by = AskedBy { attempt: self.start.attempt, number: self.asked };
            self.question = Some(ToolQuestion::ask(self.run, self.sequence, &self.pool, asked_by, net));
            return;
        }
        if self.to_say > 0 {
            self.to_say -= 1;
            self.say(net);
            self.think(net);
            // Some break off in the middle.
            if self.end != ToolEnd::Well && net.chance.percent(20) {
                self.to_say = 0;
            }
            return;
        }
        let failed = |kind| CallError::new(kind, "it broke");
        self.outcome = match self.end {
            ToolEnd::Well => Some(AttemptOutcome::Completed(vec![Content::Text("done".into())].into())),
            ToolEnd::Badly => Some(AttemptOutcome::Failed(failed(ErrorKind::ToolFailed))),
            ToolEnd::BadlyForNow => Some(AttemptOutcome::Failed(failed(ErrorKind::ToolFailed).retryable())),
            ToolEnd::Panic => Some(AttemptOutcome::Failed(failed(ErrorKind::ToolPanicked))),
            ToolEnd::Never => None,
        };
    }

    fn say(&mut self, net: &mut Net<'_>) {
        let body = chunk_body(self.start.attempt, self.taken);
        net.promises.tool_said(self.run, self.start.attempt, body.clone());
        self.batch.push(Chunk::Content { channel: String::new(), content: Content::Text(body) });
        self.taken += 1;
        self.said_at = net.now;
    }

    fn waiting(&mut self) -> Vec<Event> {
        let mut events: Vec<Event> = self.unstored.take().into_iter().collect();
        let chunks = std::mem::take(&mut self.batch);
        if !chunks.is_empty() {
            let first = ChunkIndex(self.taken - u32::try_from(chunks.len()).unwrap_or(0));
            events.push(Event::Output { attempt: self.start.attempt, pool: self.pool.clone(), first, chunks });
        }
        events
    }
}
