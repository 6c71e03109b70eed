//! One line for people: what a call waits for, or why it ended as it did.

use std::time::Duration;

use crate::approval::DefaultDecision;
use crate::call::{Call, CallState, Disposition, Ended, Running};
use crate::event::{CallError, DeadlineKind, ErrorKind, Outcome, Route, Stopped, WithoutWorker};
use crate::id::{PoolId, Timestamp, ToolName};
use crate::run::Run;
use crate::tool::Concurrency;
use crate::turn::Held;

impl Run {
    /// Explains a call of the run as of `now`; `workers` is the number of live workers of the call's pool, if it is
    /// known.
    #[must_use]
    pub fn why(&self, call: &Call, now: Timestamp, workers: Option<usize>) -> String {
        match call.state() {
            CallState::Accepted => match self.held_by(call) {
                Some((ahead, held)) => call.why_held(ahead, held, now),
                None => format!(
                    "accepted {} ago; the owner of its shard appends its job to the log when its turn has come",
                    span(now.since(call.accepted_at()))
                ),
            },
            CallState::AwaitingApproval => call.why_unapproved(now),
            CallState::Delayed => call.why_delayed(now),
            CallState::WaitingForClient => format!(
                "has been waiting for its client for {}; without an answer it expires in {}",
                span(now.since(call.accepted_at())),
                span(call.deadline().since(now))
            ),
            CallState::Queued { since } => call.why_queued(*since, now, workers),
            CallState::Running(running) => {
                let asked = self.open_questions(call.index()).next();
                call.why_running(running, now, asked.map(|question| question.spec().id.as_str()))
            }
            CallState::Ended(ended) => call.why_ended(ended),
        }
    }
}

impl Call {
    fn why_unapproved(&self, now: Timestamp) -> String {
        let (due, follows) = match (self.default_due(), self.spec().approval.map(|approval| approval.default)) {
            (Some(due), Some(DefaultDecision::Approve)) => (due, "is approved"),
            (Some(due), Some(DefaultDecision::Reject) | None) => (due, "is rejected"),
            (None, _) => (self.deadline(), "expires"),
        };
        let since = span(now.since(self.accepted_at()));
        format!("has been awaiting approval for {since}; without a decision it {follows} in {}", span(due.since(now)))
    }

    fn why_delayed(&self, now: Timestamp) -> String {
        match self.delayed_until().map(|until| until.since(now)) {
            Some(left) if !left.is_zero() => format!(
                "is delayed: it begins in {} at the earliest (`not_before`), and expires in {}",
                span(left),
                span(self.start_by().since(now))
            ),
            _ => "its delay is over; the owner of its shard is about to append that".to_owned(),
        }
    }

    fn why_held(&self, ahead: &Self, held: Held, now: Timestamp) -> String {
        let why = match (held, self.spec().concurrency) {
            (Held::Alone, Concurrency::Exclusive) => "this call is exclusive",
            (Held::Alone, Concurrency::Parallel) => "that call is exclusive",
            (Held::Full, _) => "the run's limit of concurrent calls is reached",
        };
        format!(
            "has been waiting for its turn for {}: call {} is ahead of it and {}, and {why}; it expires in {}",
            span(now.since(self.in_turn_since)),
            ahead.spec().id,
            ahead.unsettled().map_or(ahead.state_name(), |_| "ended, but its tool has not stopped"),
            span(self.start_by().since(now))
        )
    }

    fn why_queued(&self, since: Timestamp, now: Timestamp, workers: Option<usize>) -> String {
        let pool = self.policy().map_or("", |(pool, _)| pool.as_str());
        let hooks = self.spec().required_hooks.join(", ");
        let (runs, run, with) = match hooks.as_str() {
            "" => (String::new(), String::new(), ""),
            hooks => (
                format!(" and runs the required hooks ({hooks})"),
                format!(" and run the required hooks ({hooks})"),
                " with the file that names the hooks (--hooks)",
            ),
        };
        let waits = match workers {
            Some(0) if self.spec().without_worker == WithoutWorker::Fail => {
                format!("no worker of the pool that hosts the tool{runs} takes calls, so it is about to fail")
            }
            Some(0) => format!("no worker of the pool that hosts the tool{runs} takes calls: start one{with}"),
            Some(1) => format!("the only worker that hosts the tool{runs} has no free slot, or is about to pull it"),
            Some(workers) => format!(
                "none of the {workers} workers that host the tool{run} has a free slot, or one is about to pull it"
            ),
            None => "it waits for a worker of the pool".to_owned(),
        };
        let before = match self.failures().last() {
            Some(last) if last.at == since => {
                format!(
                    "; attempt {} failed ({}), and the next one begins after a pause",
                    last.number.0,
                    error(&last.error)
                )
            }
            Some(last) => format!("; attempt {} failed ({})", last.number.0, error(&last.error)),
            None if self.is_untried() => String::new(),
            None => "; a worker that shut down returned it".to_owned(),
        };
        let by = span(self.start_by().since(now));
        format!("has been queued in pool {pool} for {}: {waits}{before}; it expires in {by}", span(now.since(since)))
    }

    /// `question`: the id of an open question of the call.
    fn why_running(&self, running: &Running, now: Timestamp, question: Option<&str>) -> String {
        let number = running.attempt.number.0;
        let on = running.worker.as_ref().map_or_else(String::new, |(worker, _)| format!(" on {worker}"));
        let (since, heard) = (span(now.since(running.since)), span(now.since(running.heard_at)));
        let left = self.policy().map_or_else(String::new, |(_, policy)| {
            let end = running.since.after(policy.attempt_timeout).after(running.asked).min(self.deadline());
            match (question, running.asking_since) {
                (Some(id), Some(since)) => format!(
                    ", and it has been waiting for the client's answer to {id} for {}; without one it expires in {}",
                    span(now.since(since)),
                    span(self.deadline().since(now))
                ),
                _ => format!(", and it has {} left", span(end.since(now))),
            }
        });
        let cancelling = self.cancelling().map_or_else(String::new, |cancel| {
            let stage = match (cancel.delivered_at, cancel.acknowledged_at) {
                (_, Some(_)) => "its tool has acknowledged and is about to end",
                (Some(_), None) => "its worker has notified the tool, which has not acknowledged yet",
                (None, None) => "its worker has not confirmed it yet",
            };
            let asked = span(now.since(cancel.requested_at));
            format!("; cancelling has been requested for {asked}{}: {stage}", parenthesized(&cancel.reason))
        });
        format!("attempt {number} has been running{on} for {since}, its last output was {heard} ago{left}{cancelling}")
    }

    fn why_ended(&self, ended: &Ended) -> String {
        let took = span(ended.at.since(self.accepted_at()));
        let attempts = match self.attempts_used() {
            0 => "without an attempt".to_owned(),
            1 => "in 1 attempt".to_owned(),
            attempts => format!("in {attempts} attempts"),
        };
        let how = match &ended.outcome {
            Outcome::Completed(_) => "completed".to_owned(),
            Outcome::Failed(why) => format!("failed ({})", error(why)),
            Outcome::Cancelled { reason, stopped } => {
                let proof = match stopped {
                    Stopped::NotRunning => "it was not running",
                    Stopped::Confirmed => "its attempt has stopped",
                    Stopped::Unconfirmed => "no worker confirmed that it stopped: its effect may have happened",
                };
                format!("cancelled{}; {proof}", parenthesized(reason))
            }
            Outcome::Expired(deadline) => format!("expired: {}", expiry(*deadline)),
        };
        let parked = match self.fate() {
            Some(Disposition::Redriven { into }) => format!("; redriven as {into}"),
            Some(Disposition::Dropped) => "; it was parked and dropped".to_owned(),
            None if self.is_parked() => "; parked: redrive or drop it".to_owned(),
            None => String::new(),
        };
        let by_hook = match &self.spec().route {
            Route::Answered(answer) => format!(": hook {} answered it", answer.hook),
            Route::Pool { .. } | Route::Client | Route::Refused(_) => String::new(),
        };
        format!("{how} {took} after it was accepted, {attempts}{by_hook}{parked}")
    }
}

/// A missed deadline, for people.
#[must_use]
pub fn expiry(deadline: DeadlineKind) -> &'static str {
    match deadline {
        DeadlineKind::Call => "the call's deadline passed",
        DeadlineKind::Queue => "no worker took it up before its queue deadline",
        DeadlineKind::Client => "the client did not answer before the call's deadline",
        DeadlineKind::Attempt(_) => "an attempt exceeded its timeout and its worker did not report it",
        DeadlineKind::Idle(_) => "an attempt exceeded its idle timeout and its worker did not report it",
        DeadlineKind::Run => "the run's deadline passed",
        DeadlineKind::Opening => "the request reached the log too late, after its caller had received an error",
    }
}

/// The error of a call that no worker takes.
#[must_use]
pub fn no_worker(tool: &ToolName, pool: &PoolId, required_hooks: &[String]) -> CallError {
    let runs = match required_hooks {
        [] => String::new(),
        hooks => format!(" and runs the required hooks ({})", hooks.join(", ")),
    };
    let message = format!(
        "no worker of pool {pool} that hosts {tool}{runs} takes calls: start one, or let the call wait for one"
    );
    CallError::new(ErrorKind::NoWorker, message).retryable()
}

fn error(error: &CallError) -> String {
    format!("{}: {}", kind_name(error.kind), line(&error.message))
}

/// The name of a kind of error as the API has it, for example `TOOL_FAILED`.
fn kind_name(kind: ErrorKind) -> String {
    let mut name = String::new();
    for letter in format!("{kind:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// A reason behind a space and in parentheses; nothing if there is none.
fn parenthesized(reason: &str) -> String {
    let reason = line(reason);
    if reason.is_empty() { reason } else { format!(" ({reason})") }
}

/// The first non-empty line of a text, shortened.
fn line(text: &str) -> String {
    const CHARS_MAX: usize = 120;
    const CUT: &str = " …";
    let text = text.trim();
    let mut lines = text.split(char::is_control).map(str::trim).filter(|line| !line.is_empty());
    let mut chars = lines.next().unwrap_or_default().chars();
    let mut short: String = chars.by_ref().take(CHARS_MAX).collect();
    if chars.next().is_some() || lines.next().is_some() {
        short.push_str(CUT);
    }
    short
}

/// A length of time for people.
#[must_use]
pub fn span(length: Duration) -> String {
    match length.as_secs() {
        0..60 => format!("{:.1} s", length.as_secs_f64()),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}
