//! Decides on a question that a running tool asks its client: whether it is stored, and what its worker learns.

use run::{
    AskError, Call, CallError, CallState, Content, Ended, Event, NewQuestion, Outcome, PoolId, RunId, Timestamp,
};

use crate::SubjectKind;
use crate::shard::ShardState;

/// A tool asks its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserQuestion {
    /// The run of its call.
    pub run: RunId,
    /// The sequence of the call's job in the log.
    pub sequence: u64,
    pub question: NewQuestion,
}

/// How a question stands, for the worker of the tool that asked it.
#[derive(Debug, Clone, PartialEq)]
pub enum UserAnswer {
    /// It is stored, and waits for the client.
    Open,
    /// The client answered, with a result or an error.
    Answered(Result<Vec<Content>, CallError>),
    /// It ended without an answer.
    Unanswered(Unanswered),
    /// It may not be asked, for this reason.
    Refused(String),
}

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unanswered {
    /// Nobody answered in time.
    Expired,
    /// It was cancelled, by the client or because its attempt ended.
    Cancelled { reason: String },
}

/// What to do about a question.
#[derive(Debug, Clone, PartialEq)]
pub enum Asking {
    /// The log must be read further first: the worker should ask again.
    Later,
    /// Append it, if the last entry on its subject is the expected one. Otherwise decide again.
    Append { event: Event, expected: u64 },
    /// The worker learns this.
    Reply(UserAnswer),
}

/// The reply to a call that is being cancelled, whose worker learns of that by itself. Another reply could come first,
/// and the tool would fail for want of an answer in place of being cancelled.
const STOPPED: Asking = Asking::Reply(UserAnswer::Open);

pub(crate) fn asking(shard: &ShardState, asks: &UserQuestion, pool: &PoolId, now: Timestamp) -> Asking {
    let UserQuestion { run: id, sequence, question } = asks;
    if shard.is_unread(*id) || shard.applied < *sequence {
        return Asking::Later;
    }
    let refused = |error: AskError| Asking::Reply(UserAnswer::Refused(error.to_string()));
    let Some(known) = shard.recent_run(*id) else { return refused(AskError::Superseded) };
    let run = &known.run;
    match run.ask(pool, question, now) {
        Ok(Some(event)) => {
            let place = SubjectKind::of(std::slice::from_ref(&event)).unwrap_or(SubjectKind::Run);
            Asking::Append { event, expected: known.revision(&place) }
        }
        Ok(None) => {
            let answer = run.question(question.asked_by).map_or(UserAnswer::Open, |call| stands(call.state()));
            let is_stopped = run.call(question.asked_by.attempt.call).is_some_and(Call::cancel_requested);
            match answer {
                UserAnswer::Unanswered(Unanswered::Cancelled { .. }) if is_stopped => STOPPED,
                answer => Asking::Reply(answer),
            }
        }
        Err(AskError::NotStarted) => Asking::Later,
        Err(AskError::Stopping) => STOPPED,
        Err(
            error @ (AskError::Superseded
            | AskError::TooLarge { .. }
            | AskError::TooMany { .. }
            | AskError::TooManyInRun { .. }
            | AskError::NoTime),
        ) => refused(error),
    }
}

/// How a question stands that is in the log.
fn stands(state: &CallState) -> UserAnswer {
    match state {
        CallState::Ended(Ended { outcome, .. }) => match outcome {
            Outcome::Completed(result) => UserAnswer::Answered(Ok(result.clone())),
            Outcome::Failed(error) => UserAnswer::Answered(Err(error.clone())),
            Outcome::Cancelled { reason, .. } => {
                UserAnswer::Unanswered(Unanswered::Cancelled { reason: reason.clone() })
            }
            Outcome::Expired(_) => UserAnswer::Unanswered(Unanswered::Expired),
        },
        CallState::WaitingForClient
        | CallState::Accepted
        | CallState::AwaitingApproval
        | CallState::Delayed
        | CallState::Queued { .. }
        | CallState::Running(_) => UserAnswer::Open,
    }
}
