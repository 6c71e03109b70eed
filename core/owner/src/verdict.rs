//! Decides how a worker should treat a job that it asked about.

use run::{AttemptId, Call, CallIndex, CallState, ChunkIndex, PoolId, Route, RunId, Running, Timestamp, Verdict};

use crate::shard::ShardState;
use crate::world::{JOB_LEASE, WORKER_LOST, Workers};

/// The delivery count with which a lost worker's job is judged.
pub(crate) const REDELIVERED: u32 = 2;

/// A worker asks what to do with a job that may not be fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    pub run: RunId,
    pub call: CallIndex,
    /// How often the job was delivered, this time included.
    pub delivered: u32,
    /// The job's sequence in the log.
    pub sequence: u64,
    /// The attempt as which the worker holds the job, if it has one.
    pub attempt: Option<AttemptId>,
    /// The attempt's end is stored: is anything left to be done?
    pub executed: bool,
}

impl Question {
    /// The question of a worker that is given the job of a lost one.
    #[must_use]
    pub fn after_a_loss(run: RunId, call: CallIndex) -> Self {
        Self { run, call, delivered: REDELIVERED, sequence: 0, attempt: None, executed: false }
    }

    /// Whether the call's output must be read to its end before the answer: a job that comes again may have been
    /// started.
    #[must_use]
    pub fn needs_last_output(&self) -> bool {
        self.delivered > 1 || self.attempt.is_some() || self.executed
    }
}

/// The verdict on a job of the pool; `None` if this release cannot tell.
pub(crate) fn verdict(
    shard: &ShardState,
    question: &Question,
    pool: &PoolId,
    workers: &impl Workers,
    now: Timestamp,
) -> Option<Verdict> {
    let known = shard.run(question.run);
    let call = known.as_ref().and_then(|known| known.run.call(question.call));
    let call = call.filter(|call| matches!(&call.spec().route, Route::Pool { pool: own, .. } if own == pool));
    if call.is_none() && shard.is_unread(question.run) {
        // Only a release that can read the run's opening can tell.
        return None;
    }
    let Some(call) = call else { return Some(Verdict::Drop) };
    if question.executed {
        return Some(left_to_do(call, now));
    }
    Some(match (question.attempt, call.state()) {
        (None, CallState::Running(running)) if is_passed_over(question, pool, running, workers, now) => Verdict::Leave,
        (None, _) => call.verdict(question.delivered, now),
        // The worker asks about the very attempt that counts.
        (Some(own), CallState::Running(running)) if running.attempt == own => {
            let used = call.attempts_used().saturating_sub(1);
            Verdict::Go { number: own.number, used, from: ChunkIndex(0) }
        }
        // That attempt does not count. As which attempt the job may be executed is another question.
        (Some(_), _) => Verdict::Drop,
    })
}

/// Whether another worker is alive and executes the job. Then this delivery is a mistake: this worker got the job
/// before the other and hung, or a message that hands the job back came late and met the other's delivery.
/// Acknowledgements do not tell deliveries apart, so the end of a second attempt would acknowledge the job of the
/// first.
///
/// A worker that has just stored a start is alive, whatever its heartbeats say. Once a lease has passed since then, it
/// may have lost the job although it is alive.
fn is_passed_over(
    question: &Question,
    pool: &PoolId,
    running: &Running,
    workers: &impl Workers,
    now: Timestamp,
) -> bool {
    let age = now.since(running.since);
    let lives = age < WORKER_LOST
        || !workers.are_known()
        || running.worker.as_ref().is_some_and(|(worker, _)| workers.is_alive(pool, worker));
    lives && (question.delivered < running.attempt.number.0 || age < JOB_LEASE)
}

/// The verdict on a job after an attempt whose end is in the log, whether that attempt counted or not.
fn left_to_do(call: &Call, now: Timestamp) -> Verdict {
    match call.state() {
        // Another attempt has the job now, and its acknowledgement.
        CallState::Running(_) => Verdict::Leave,
        CallState::Accepted
        | CallState::WaitingForClient
        | CallState::AwaitingApproval
        | CallState::Delayed
        | CallState::Queued { .. }
        | CallState::Ended(_) => call.verdict(1, now),
    }
}
