//! A worker's protocol for one job, from its delivery to its acknowledgement: a state machine without IO and clock.
//!
//! A fresh job is executed at once. A job that waited, or was delivered before, may belong to a call that has ended or
//! is executed by another worker, so the run's owner is asked first. A start that must not happen twice is stored
//! right behind the call's last output that the owner knew, and is confirmed by the owner before the tool is called.
//! After the attempt the owner is asked again if another worker may have the job by then, because acknowledgements do
//! not tell deliveries of a job apart.
//!
//! The driver performs one action of [`Job::poll_action`] at a time and returns its result to the `handle_*` method
//! that the action names. While a job waits, the driver also reports a lost lease and the worker's shutdown, and calls
//! [`Job::handle_timeout`] at the time that [`Job::poll_timeout`] gives.

use std::time::{Duration, Instant};

use run::{AttemptId, AttemptNumber, AttemptOutcome, CallError, ChunkIndex, Policy, Retry, Verdict, after_failure};

#[cfg(test)]
mod tests;

/// A job that is not older than this when it is delivered for the first time is executed without asking the owner.
pub const FRESH: Duration = Duration::from_secs(1);
/// How long the driver waits for an owner's answer to one question.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// For how long the owner is asked again before the job goes back: it must not keep its slot from other jobs.
const ASK_PATIENCE: Duration = Duration::from_secs(10);
/// The pause before the owner is asked again. It doubles each time.
const ASK_PAUSE: Duration = Duration::from_millis(5);
const ASK_PAUSE_LONGEST: Duration = Duration::from_millis(200);
/// A job that has been here for longer may have been given to another worker too: the owner takes back jobs that have
/// been out for some seconds without a start, and hands on the jobs of workers whose heartbeats are missing.
const SOLELY_OURS: Duration = Duration::from_secs(2);
/// Delay of a job that goes back because it cannot be taken up now.
const NOT_NOW: Duration = Duration::from_secs(1);
/// Delay of a job that this worker cannot read: a newer worker of the pool may read it.
const UNREADABLE: Duration = Duration::from_secs(5);
/// Delay of a job of a paused tool after its first delivery, which doubles with each delivery: a long pause of many
/// jobs must not keep the broker busy with them.
const PAUSED: Duration = Duration::from_secs(1);
const PAUSED_LONGEST: Duration = Duration::from_secs(30);
/// Delay of a job of a tool that this worker does not host, which doubles with each delivery: a worker that hosts it
/// may have a free slot at once, or be about to start. In a pool whose workers host different tools, a job may come to
/// the wrong worker many times in a row, so the first delays are short. If a worker that hosts it is alive, they stay
/// at [`HOSTED_ELSEWHERE`] for [`HOSTED_ELSEWHERE_TIMES`] deliveries more, and not for longer: all its slots may be
/// taken.
const NOT_HOSTED: Duration = Duration::from_millis(1);
const NOT_HOSTED_LONGEST: Duration = Duration::from_secs(5);
const HOSTED_ELSEWHERE: Duration = Duration::from_millis(256);
const HOSTED_ELSEWHERE_TIMES: u32 = 16;

/// One job that was delivered to this worker.
#[derive(Debug, Clone)]
pub struct Job {
    /// How often the broker has delivered it, this time included. The broker may forget; the log has the last word.
    delivered: u32,
    /// How long ago it was stored when it was delivered.
    age: Duration,
    here: Instant,
    /// Its lease could not be kept: another worker may have it.
    is_lost: bool,
    state: State,
    action: Option<Action>,
}

#[derive(Debug, Clone)]
enum State {
    WaitingForSlot,
    Asking {
        question: Question,
        give_up: Instant,
        pause: Duration,
        /// When the owner is asked again; `None` while an answer is awaited.
        again: Option<Instant>,
    },
    /// The driver prepares the attempt.
    Preparing(Go),
    StoringEnd,
    StoringStart(AttemptId, Go),
    /// The start may be stored, and the tool will not be called: the end of the attempt is being stored.
    Returning,
    Running {
        used: u32,
    },
    Over,
}

/// A question to the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    Delivered,
    Started(AttemptId, Go),
    /// With the pause before the next attempt, if the call is tried again.
    Ended(Option<Duration>),
}

/// The subject of a question to the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// A job that was delivered: what should be done with it?
    Delivery,
    /// A start that may be stored: is it the one that counts?
    Start(AttemptId),
    /// An attempt whose end is stored: what is left to be done?
    End,
}

/// The attempt as which a job is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Go {
    /// The attempt's number.
    pub number: AttemptNumber,
    /// How many attempts the call has used before.
    pub used: u32,
    /// The chunk with which it goes on.
    pub from: ChunkIndex,
    /// Sequence of the call's last output that the owner knew.
    pub last_output: u64,
}

/// The next action of the driver.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Wait for a free slot of the tool: [`Job::handle_slot`].
    WaitForSlot,
    /// Ask the run's owner, for [`ANSWER_PATIENCE`] at most: [`Job::handle_answer`].
    Ask(About),
    /// Prepare the attempt: [`Job::handle_ready`], [`Job::handle_paused`] or [`Job::handle_not_hosted`].
    Prepare(Go),
    /// Append an event, again and again until it is confirmed: [`Job::handle_stored`].
    Store(Entry),
    /// Run the attempt: [`Job::handle_ended`].
    Run(Start),
    /// Nothing is left to do.
    Finish(Settle, Why),
}

/// An event of an attempt to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The attempt.
    pub attempt: AttemptId,
    /// The event.
    pub event: Stage,
    /// The sequence that must be last on the call's output subject, or else the event is not stored.
    pub expected: Option<u64>,
}

/// The start or the end of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Stage {
    /// It started, going on with this chunk.
    Started(ChunkIndex),
    /// It ended.
    Ended(AttemptOutcome),
}

/// An attempt that runs now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The attempt.
    pub attempt: AttemptId,
    /// The chunk with which it goes on.
    pub from: ChunkIndex,
    /// Whether its start is in the log already. If not, the attempt stores it with its output.
    pub is_stored: bool,
}

/// The message to the broker about the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settle {
    /// The job is done.
    Ack,
    /// The job comes again after this time.
    Nak(Duration),
    /// Nothing: it comes again when its lease ends, or another worker has it.
    Leave,
}

/// The reason for a [`Settle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The worker cannot read the job.
    Unreadable,
    /// The job, or its run, was stored too late to count.
    Void,
    /// No slot became free, or no owner answered, before the job had to go back.
    NotNow,
    /// The call has ended, or another worker executes it.
    Duplicate,
    /// The end of a lost attempt was stored in its place, or could not be.
    LostAttempt,
    /// An operator paused the tool.
    Paused,
    /// Other workers of the pool host the tool.
    NotHosted,
    /// The start was not stored, or is not the one that counts: the tool was not called.
    Superseded,
    /// The attempt was executed and its end is stored.
    Executed,
    /// The attempt was executed, and another worker may have its job by now.
    TakenOver,
    /// The attempt could not store its output.
    Abandoned,
    /// The lease could not be kept.
    LeaseLost,
}

/// Whether an event was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// The broker confirmed it.
    Confirmed,
    /// Another entry is last on the subject; after a resend it may be the own first copy.
    Conflict { is_resent: bool },
    /// Not confirmed for all the time that it was tried.
    GivenUp,
    /// It does not fit the log.
    TooLarge,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy)]
pub enum Ended<'a> {
    /// With its end in the log, and nothing is left to do: completed, cancelled or expired.
    Finally,
    /// With a failure in the log.
    Failed(&'a CallError),
    /// Unexecuted or unfinished, for another worker.
    Returned,
    /// Its end could not be stored.
    Abandoned,
}

impl Job {
    /// How a job that cannot be read is settled.
    pub const UNREADABLE: (Settle, Why) = (Settle::Nak(UNREADABLE), Why::Unreadable);
    /// How a job that was stored too late is settled: its owner and all readers ignore it too.
    pub const VOID: (Settle, Why) = (Settle::Ack, Why::Void);

    /// A job that was delivered now, for the `delivered`-th time, `age` after it was stored.
    #[must_use]
    pub fn new(delivered: u32, age: Duration, now: Instant) -> Self {
        let (state, action) = (State::WaitingForSlot, Some(Action::WaitForSlot));
        Self { delivered, age, here: now, is_lost: false, state, action }
    }

    /// The next action. `None` while the result of the last one is awaited, or a pause.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.action.take()
    }

    /// When [`Self::handle_timeout`] should be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if let State::Asking { again, .. } = self.state { again } else { None }
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Whether a lost lease ends the job at once, because nothing has been done for it yet.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        matches!(self.state, State::WaitingForSlot | State::Asking { question: Question::Delivered, .. })
    }

    /// The tool has a free slot for the job; `waited` if it had none at first. `is_in_time`: the call may still start.
    pub fn handle_slot(&mut self, waited: bool, is_in_time: bool, now: Instant) {
        if !matches!(self.state, State::WaitingForSlot) {
            return;
        }
        // A call may be cancelled while it is queued, so only a fresh job is executed without asking.
        if is_in_time && !waited && self.delivered == 1 && self.age < FRESH {
            return self.prepare(Go { number: AttemptNumber(1), used: 0, from: ChunkIndex(0), last_output: 0 });
        }
        self.ask(Question::Delivered, now);
    }

    /// The worker shuts down and cannot wait any longer.
    pub fn handle_give_back(&mut self) {
        match self.state {
            State::WaitingForSlot => self.finish(Settle::Nak(NOT_NOW), Why::NotNow),
            State::Asking { question, .. } => self.unanswered(question),
            // What is being stored is waited for, and the attempt is told by the driver.
            State::Preparing(_)
            | State::StoringEnd
            | State::StoringStart(..)
            | State::Returning
            | State::Running { .. }
            | State::Over => {}
        }
    }

    /// The broker did not confirm the lease for its whole length: another worker may have the job.
    pub fn handle_lease_lost(&mut self) {
        self.is_lost = true;
        if self.is_untouched() {
            self.finish(Settle::Leave, Why::LeaseLost);
        }
    }

    /// The owner answered with a verdict and the sequence of the call's last output; `None` if no answer came.
    pub fn handle_answer(&mut self, answer: Option<(Verdict, u64)>, now: Instant) {
        let State::Asking { question, pause, again, .. } = &mut self.state else { return };
        let Some((verdict, last_output)) = answer else {
            *again = Some(now + *pause);
            *pause = (*pause * 2).min(ASK_PAUSE_LONGEST);
            return;
        };
        match *question {
            Question::Delivered => self.delivery_answered(verdict, last_output),
            Question::Started(attempt, go) => self.start_answered(&verdict, attempt, go),
            Question::Ended(again) => self.end_answered(&verdict, again),
        }
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        let State::Asking { question, give_up, again, .. } = &mut self.state else { return };
        if again.is_none_or(|at| now < at) {
            return;
        }
        let question = *question;
        if now >= *give_up {
            return self.unanswered(question);
        }
        *again = None;
        self.action = Some(Action::Ask(question.about()));
    }

    /// The tool is paused.
    pub fn handle_paused(&mut self) {
        let delay = doubled(PAUSED, PAUSED_LONGEST, self.delivered);
        self.finish(Settle::Nak(delay), Why::Paused);
    }

    /// The tool, or the version that the call needs, is not hosted here. `has_taker`: but by another worker of the
    /// pool, as the owner knows.
    pub fn handle_not_hosted(&mut self, has_taker: bool) {
        let delay = |delivered| doubled(NOT_HOSTED, NOT_HOSTED_LONGEST, delivered);
        let later = delay(self.delivered.saturating_sub(HOSTED_ELSEWHERE_TIMES)).max(HOSTED_ELSEWHERE);
        let delay = if has_taker { delay(self.delivered).min(later) } else { delay(self.delivered) };
        self.finish(Settle::Nak(delay), Why::NotHosted);
    }

    /// The attempt may begin under this id.
    pub fn handle_ready(&mut self, attempt: AttemptId, policy: &Policy) {
        let State::Preparing(go) = self.state else { return };
        if policy.repeatable && go.from == ChunkIndex(0) {
            return self.run(attempt, go, false);
        }
        // When the tool is called, its effect may happen, or it continues interrupted output. So the start must be in
        // the log before, and no other start: it is stored right behind the last output that the owner had seen.
        self.state = State::StoringStart(attempt, go);
        let expected = Some(go.last_output);
        self.action = Some(Action::Store(Entry { attempt, event: Stage::Started(go.from), expected }));
    }

    /// The event of [`Action::Store`] was stored or not.
    pub fn handle_stored(&mut self, stored: Stored, now: Instant) {
        match (&self.state, stored) {
            (State::StoringEnd, Stored::Confirmed) => self.finish(Settle::Ack, Why::LostAttempt),
            // The attempt may have sent output again. Then it is not lost, and the worker asks the owner again.
            (State::StoringEnd, Stored::Conflict { .. }) => self.finish(Settle::Nak(NOT_NOW), Why::LostAttempt),
            (State::StoringEnd, Stored::GivenUp | Stored::TooLarge) => self.finish(Settle::Leave, Why::LostAttempt),
            // The call may have been cancelled, or may have expired, between the owner's answer and the start.
            (State::StoringStart(attempt, go), Stored::Confirmed | Stored::Conflict { is_resent: true }) => {
                let question = Question::Started(*attempt, *go);
                self.ask(question, now);
            }
            // Perhaps it was stored, and then the job that comes again would find it begun.
            (State::StoringStart(attempt, _), Stored::GivenUp) => {
                let attempt = *attempt;
                self.return_unbegun(attempt);
            }
            (State::StoringStart(..), Stored::TooLarge | Stored::Conflict { is_resent: false })
            | (State::Returning, _) => {
                self.finish(Settle::Nak(NOT_NOW), Why::Superseded);
            }
            (
                State::WaitingForSlot
                | State::Asking { .. }
                | State::Preparing(_)
                | State::Running { .. }
                | State::Over,
                _,
            ) => {}
        }
    }

    /// The attempt ended. `chance` is drawn from 0 to 1, for the pause before the next attempt.
    pub fn handle_ended(&mut self, ended: Ended<'_>, policy: &Policy, chance: f64, now: Instant) {
        let State::Running { used } = self.state else { return };
        let again = match ended {
            Ended::Abandoned => return self.finish(Settle::Leave, Why::Abandoned),
            _ if self.is_lost => return self.finish(Settle::Leave, Why::LeaseLost),
            Ended::Returned => return self.finish(Settle::Nak(Duration::ZERO), Why::Executed),
            Ended::Finally => None,
            Ended::Failed(error) => match after_failure(policy, used + 1, error) {
                Retry::Again { used } => Some(policy.backoff.wait_after(error, used, chance)),
                Retry::GiveUp => None,
            },
        };
        if self.delivered == 1 && now.saturating_duration_since(self.here) < SOLELY_OURS {
            return self.finish(again.map_or(Settle::Ack, Settle::Nak), Why::Executed);
        }
        self.ask(Question::Ended(again), now);
    }

    fn delivery_answered(&mut self, verdict: Verdict, last_output: u64) {
        match verdict {
            Verdict::Drop => self.finish(Settle::Ack, Why::Duplicate),
            // An acknowledgement would be taken for the other worker's.
            Verdict::Leave => self.finish(Settle::Leave, Why::Duplicate),
            Verdict::Go { number, used, from } => self.prepare(Go { number, used, from, last_output }),
            Verdict::End { attempt, outcome } => {
                self.state = State::StoringEnd;
                let (event, expected) = (Stage::Ended(outcome), Some(last_output));
                self.action = Some(Action::Store(Entry { attempt, event, expected }));
            }
        }
    }

    fn start_answered(&mut self, verdict: &Verdict, attempt: AttemptId, go: Go) {
        match verdict {
            Verdict::Go { number, .. } if *number == attempt.number => self.run(attempt, go, true),
            Verdict::Go { .. } | Verdict::Drop | Verdict::Leave | Verdict::End { .. } => {
                self.finish(Settle::Nak(NOT_NOW), Why::Superseded);
            }
        }
    }

    fn end_answered(&mut self, verdict: &Verdict, again: Option<Duration>) {
        match verdict {
            Verdict::Drop => self.finish(Settle::Ack, Why::Executed),
            // The call is queued: for the retry of this failure, or for another attempt.
            Verdict::Go { .. } => self.finish(Settle::Nak(again.unwrap_or_default()), Why::Executed),
            Verdict::Leave | Verdict::End { .. } => self.finish(Settle::Leave, Why::TakenOver),
        }
    }

    fn ask(&mut self, question: Question, now: Instant) {
        self.state = State::Asking { question, give_up: now + ASK_PATIENCE, pause: ASK_PAUSE, again: None };
        self.action = Some(Action::Ask(question.about()));
    }

    /// No owner answered, and it is not asked again.
    fn unanswered(&mut self, question: Question) {
        match question {
            Question::Delivered => self.finish(Settle::Nak(NOT_NOW), Why::NotNow),
            Question::Started(attempt, _) => self.return_unbegun(attempt),
            Question::Ended(_) => self.finish(Settle::Leave, Why::TakenOver),
        }
    }

    fn prepare(&mut self, go: Go) {
        self.state = State::Preparing(go);
        self.action = Some(Action::Prepare(go));
    }

    fn run(&mut self, attempt: AttemptId, go: Go, is_stored: bool) {
        self.state = State::Running { used: go.used };
        self.action = Some(Action::Run(Start { attempt, from: go.from, is_stored }));
    }

    /// Stores that an attempt ended before its tool was called. Otherwise it would count as interrupted.
    fn return_unbegun(&mut self, attempt: AttemptId) {
        self.state = State::Returning;
        let event = Stage::Ended(AttemptOutcome::Returned);
        self.action = Some(Action::Store(Entry { attempt, event, expected: None }));
    }

    fn finish(&mut self, settle: Settle, why: Why) {
        self.state = State::Over;
        self.action = Some(Action::Finish(settle, why));
    }
}

impl Question {
    fn about(self) -> About {
        match self {
            Self::Delivered => About::Delivery,
            Self::Started(attempt, _) => About::Start(attempt),
            Self::Ended(_) => About::End,
        }
    }
}

/// A delay that doubles with each delivery.
fn doubled(first: Duration, longest: Duration, delivered: u32) -> Duration {
    let times = 1_u32.checked_shl(delivered.saturating_sub(1)).unwrap_or(u32::MAX);
    first.saturating_mul(times).min(longest)
}
