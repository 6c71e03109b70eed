//! What workers ask of the owner: what shall I do with this job?

use proto::convert::worker::{Answer, Question};
use proto::names::{JOB_LEASE, WORKER_LOST};
use proto::subject::{Place, Subject};
use run::{Call, CallIndex, CallState, ChunkIndex, Event, PoolId, Route, RunId, Running, Verdict};
use tokio::sync::oneshot;

use super::{Keeper, Ledger, Request};
use crate::nats::journal::{AppendError, Journal};
use crate::nats::signals::Asked;

/// Questions that are considered at once. A worker whose question is passed over asks again.
const QUESTIONS_MAX: usize = 1024;
/// As which delivery a job comes whose worker is lost.
pub(super) const AGAIN: u32 = 2;

impl Keeper {
    pub(super) fn question(&mut self, asked: Asked) {
        if self.questions.len() >= QUESTIONS_MAX || !self.may_act(asked.question.run.shard()) {
            return;
        }
        let (journal, signals, ledger) = (self.rim.journal.clone(), self.rim.signals.clone(), self.own.clone());
        self.questions.spawn(async move {
            let answer = consider(&journal, &ledger, asked.question, asked.pool.clone()).await;
            signals.answer(&asked, answer.as_ref()).await;
        });
    }

    /// `None` while the feed has not come as far as `needed`, or the shard is not ours.
    pub(super) fn verdict(&self, question: &Question, pool: &PoolId, needed: u64) -> Option<Verdict> {
        let slice = self.slice(question.run.shard()).filter(|_| self.may_act(question.run.shard()))?;
        if slice.applied < needed.max(question.sequence) {
            return None;
        }
        let call = slice.runs.get(&question.run).and_then(|open| open.known.run.call(question.call));
        let call = call.filter(|call| matches!(&call.spec().route, Route::Pool { pool: own, .. } if own == pool));
        if call.is_none() && slice.unread.contains(question.run) {
            // Whoever can read the run's opening knows what is to be done.
            return None;
        }
        let Some(call) = call else { return Some(Verdict::Drop) };
        if question.executed {
            return Some(left_to_do(call));
        }
        Some(match (question.attempt, call.state()) {
            (None, CallState::Running(running)) if self.is_passed_over(question, pool, running) => Verdict::Leave,
            (None, _) => call.verdict(question.delivered, proto::now()),
            // The one that is heard is the one that asks.
            (Some(own), CallState::Running(running)) if running.attempt == own => {
                let used = call.attempts_used().saturating_sub(1);
                Verdict::Go { number: own.number, used, from: ChunkIndex(0) }
            }
            // It does not count; as which attempt the job may be executed is another question.
            (Some(_), _) => Verdict::Drop,
        })
    }
}

impl Keeper {
    /// Ends an attempt that is not made again, and whose worker is lost: as a worker would that is given its job now, for there
    /// may be none. If it does not succeed, it is tried again when the job is next handed back.
    pub(super) fn end_lost(&mut self, run: RunId, call: CallIndex, pool: PoolId) {
        if self.questions.len() >= QUESTIONS_MAX {
            return;
        }
        let (journal, ledger) = (self.rim.journal.clone(), self.own.clone());
        self.questions.spawn(async move {
            let question = Question { run, call, delivered: AGAIN, sequence: 0, attempt: None, executed: false };
            let Some(answer) = consider(&journal, &ledger, question, pool.clone()).await else { return };
            let Verdict::End { attempt, outcome } = answer.verdict else { return };
            let ended = Event::AttemptEnded { attempt, pool, chunks: 0, outcome };
            // Whatever the attempt says meanwhile comes first, and then it is not lost.
            match journal.append(run, &[ended], None, answer.last_output).await {
                Ok(_) | Err(AppendError::Conflict) => {}
                Err(error) => tracing::warn!(run.id = %run, %error, "cannot end a lost worker's call"),
            }
        });
    }

    /// Another worker lives and executes the job. That this one was given it too is then a mistake: it was given the job before
    /// the other and stood still, or a word that hands the job back came late and met the other's delivery. Acknowledgements
    /// do not tell deliveries apart, so a second attempt would lose the job with the end of the first.
    ///
    /// Whoever stored a start just now lives, whatever is known of heartbeats; and once a lease has passed since then, the
    /// other may have the job no more, though it lives.
    fn is_passed_over(&self, question: &Question, pool: &PoolId, running: &Running) -> bool {
        let registry = self.rim.registry.borrow();
        let age = proto::now().since(running.since);
        let lives = age < WORKER_LOST
            || !registry.settled
            || running.worker.as_ref().is_some_and(|(worker, _)| registry.is_alive(pool, worker));
        lives && (question.delivered < running.attempt.number.0 || age < JOB_LEASE)
    }
}

/// What is left to do with a job after an attempt whose end is in the log, counted or not.
fn left_to_do(call: &Call) -> Verdict {
    match call.state() {
        // Another attempt has the job now, and its acknowledgement.
        CallState::Running(_) => Verdict::Leave,
        CallState::Accepted
        | CallState::WaitingForClient
        | CallState::AwaitingApproval
        | CallState::Queued { .. }
        | CallState::Ended(_) => call.verdict(1, proto::now()),
    }
}

/// A job that comes again was perhaps begun: then its start is in the log, and the answer must know of it.
async fn consider(journal: &Journal, ledger: &Ledger, question: Question, pool: PoolId) -> Option<Answer> {
    let last_output = if question.delivered > 1 || question.attempt.is_some() || question.executed {
        let place = Place::Output { call: question.call, pool: pool.clone() };
        let last = journal.last_output(&Subject { run: question.run, place }).await;
        last.inspect_err(|error| tracing::warn!(%error, "cannot answer a worker")).ok()?
    } else {
        0
    };
    let (reply, verdict) = oneshot::channel();
    ledger.0.send(Request::Verdict { question, pool, needed: last_output, reply }).await.ok()?;
    let verdict = verdict.await.ok().flatten()?;
    Some(Answer { verdict, last_output })
}
