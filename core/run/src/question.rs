//! Questions that a running tool asks the client. A question is a client call that an attempt added to its own run. It
//! is open for as long as that attempt counts: when the attempt ends, or is to stop, its open questions end too.
//!
//! A question is no call of the model. It has no result for the model, fails no run, has no turn, and never takes the
//! floor. While a call has an open question, the call waits for the client, and its attempt's own deadlines rest.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::call::{Call, CallState};
use crate::event::{AttemptId, CallSpec, Event, Outcome, Route, Stopped};
use crate::id::{CallId, CallIndex, PoolId, Timestamp, ToolName};
use crate::limit::{QUESTION_BYTES_MAX, QUESTIONS_PER_CALL_MAX, QUESTIONS_PER_RUN_MAX};
use crate::run::{Fact, Run};

/// The tool name of every question. Its arguments and its answer have the form of MCP's elicitations.
pub const QUESTION_TOOL: &str = "elicitation";
/// Why a question ended without an answer.
const ASKER_ENDED: &str = "the attempt that asked does not wait for the answer any more";
/// The arguments of a question whose attempt did not count when it was stored: nothing of it is shown.
const NOTHING: &[u8] = b"{}";

/// The attempt that asked a question, and which of its questions it is. The same pair is the same question, however
/// often it is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AskedBy {
    pub attempt: AttemptId,
    /// From 1.
    pub number: u16,
}

/// A question that an attempt requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewQuestion {
    pub asked_by: AskedBy,
    /// A JSON object, as text.
    pub arguments: Bytes,
    /// How long it waits for an answer; `None` for as long as its call may take.
    pub timeout: Option<Duration>,
}

/// Why a question is not asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error("the log does not show the attempt yet")]
    NotStarted,
    #[error("the attempt does not count any more: another one has begun, or the call has ended")]
    Superseded,
    #[error("the call is being cancelled")]
    Stopping,
    #[error("the question is {size} bytes, the limit is {limit}: shorten its message or its schema")]
    TooLarge { size: usize, limit: usize },
    #[error("a call asks at most {limit} questions, those of its earlier attempts included")]
    TooMany { limit: usize },
    #[error("the calls of a run ask at most {limit} questions together")]
    TooManyInRun { limit: usize },
    #[error("the question has no time for an answer")]
    NoTime,
}

impl Run {
    /// The event that adds a question to the run, `None` if it has been added.
    ///
    /// # Errors
    /// An [`AskError`] if the attempt may not ask it.
    pub fn ask(&self, pool: &PoolId, question: &NewQuestion, now: Timestamp) -> Result<Option<Event>, AskError> {
        let NewQuestion { asked_by, arguments, timeout } = question;
        if self.question(*asked_by).is_some() {
            return Ok(None);
        }
        let attempt = asked_by.attempt;
        let call = self.call(attempt.call).ok_or(AskError::NotStarted)?;
        call.may_ask(attempt, pool)?;
        let (size, limit) = (arguments.len(), QUESTION_BYTES_MAX);
        if size > limit {
            return Err(AskError::TooLarge { size, limit });
        }
        let asked = || self.calls.iter().filter_map(|call| call.spec.asked_by);
        if asked().filter(|by| by.attempt.call == attempt.call).count() >= QUESTIONS_PER_CALL_MAX {
            return Err(AskError::TooMany { limit: QUESTIONS_PER_CALL_MAX });
        }
        if asked().count() >= QUESTIONS_PER_RUN_MAX {
            return Err(AskError::TooManyInRun { limit: QUESTIONS_PER_RUN_MAX });
        }
        let deadline = timeout.map_or(call.deadline(), |timeout| now.after(timeout).min(call.deadline()));
        if deadline <= now {
            return Err(AskError::NoTime);
        }
        let tool: ToolName = QUESTION_TOOL.parse().expect("letters make a tool's name");
        let spec = CallSpec::new(self.question_id(*asked_by), tool, arguments.clone(), Route::Client, deadline);
        let spec = CallSpec { asked_by: Some(*asked_by), ..spec };
        Ok(Some(Event::CallsAppended { calls: vec![Arc::new(spec)] }))
    }

    /// The question of this attempt with this number, open or ended.
    #[must_use]
    pub fn question(&self, asked_by: AskedBy) -> Option<&Call> {
        self.calls.iter().find(|call| call.spec.asked_by == Some(asked_by))
    }

    /// The call that asks a question; `None` for a call of the model.
    #[must_use]
    pub fn asker(&self, question: &Call) -> Option<&Call> {
        self.call(question.spec.asked_by?.attempt.call)
    }

    /// The open questions of a call.
    pub fn open_questions(&self, call: CallIndex) -> impl Iterator<Item = &Call> {
        let of_call = move |question: &&Call| question.asks_for().is_some_and(|attempt| attempt.call == call);
        self.calls.iter().filter(of_call)
    }

    /// The calls of the model: all but questions.
    pub fn requested_calls(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(|call| call.spec.asked_by.is_none())
    }

    /// Unique in the run: a client may have given a call of its own the first form.
    fn question_id(&self, AskedBy { attempt, number }: AskedBy) -> CallId {
        let plain = format!("ask_{}_{}_{number}", attempt.call, attempt.number.0);
        let plain: CallId = plain.parse().expect("letters and digits make a call id");
        if self.find(&plain).is_none() {
            return plain;
        }
        format!("{plain}_{:016x}", attempt.nonce.0).parse().expect("letters and digits make a call id")
    }

    /// Whether the attempt counts and waits for answers.
    fn hears(&self, attempt: AttemptId) -> bool {
        let call = self.call(attempt.call);
        call.is_some_and(|call| {
            call.cancel.is_none() && matches!(&call.state, CallState::Running(running) if running.attempt == attempt)
        })
    }

    /// A call as the run takes it in. A question whose attempt does not count takes its position, because coordinators
    /// of the release before questions count it, and is empty.
    pub(crate) fn heard_spec(&mut self, spec: &Arc<CallSpec>) -> Arc<CallSpec> {
        let Some(AskedBy { attempt, .. }) = spec.asked_by else { return Arc::clone(spec) };
        self.has_questions = true;
        if self.hears(attempt) {
            return Arc::clone(spec);
        }
        Arc::new(CallSpec { arguments: Bytes::from_static(NOTHING), ..CallSpec::clone(spec) })
    }

    /// Ends the questions whose attempts do not wait for the answer any more, and lets the deadlines of attempts rest
    /// or go on.
    pub(crate) fn settle_questions(&mut self, at: Timestamp, heard: &mut Vec<Fact>) {
        if !self.has_questions {
            return;
        }
        let mut asking = BTreeSet::new();
        for index in 0..self.calls.len() {
            let Some(attempt) = self.calls.get(index).and_then(Call::asks_for) else { continue };
            if self.hears(attempt) {
                asking.insert(attempt.call);
            } else if let Some(question) = self.calls.get_mut(index) {
                let (reason, stopped) = (ASKER_ENDED.to_owned(), Stopped::NotRunning);
                question.end(Outcome::Cancelled { reason, stopped }, at, heard);
            }
        }
        self.calls.iter_mut().for_each(|call| call.note_asking(asking.contains(&call.index), at));
    }
}

impl Call {
    /// Whether it is a question of a running tool, and no call of the model.
    #[must_use]
    pub fn is_question(&self) -> bool {
        self.spec.asked_by.is_some()
    }

    /// Whether it waits for the client's answer to a question.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        matches!(&self.state, CallState::Running(running) if running.asking_since.is_some())
    }

    /// The attempt that waits for the answer, if this is an open question.
    fn asks_for(&self) -> Option<AttemptId> {
        self.spec.asked_by.filter(|_| self.state == CallState::WaitingForClient).map(|by| by.attempt)
    }

    fn may_ask(&self, attempt: AttemptId, pool: &PoolId) -> Result<(), AskError> {
        let Some((own, _)) = self.policy() else { return Err(AskError::Superseded) };
        let latest = self.newest.map_or(0, |newest| newest.number.0);
        match &self.state {
            _ if own != pool => Err(AskError::Superseded),
            CallState::Running(running) if running.attempt == attempt && self.cancel.is_some() => {
                Err(AskError::Stopping)
            }
            CallState::Running(running) if running.attempt == attempt => Ok(()),
            CallState::Accepted | CallState::Queued { .. } | CallState::Running(_) if attempt.number.0 > latest => {
                Err(AskError::NotStarted)
            }
            CallState::Accepted
            | CallState::Queued { .. }
            | CallState::Running(_)
            | CallState::AwaitingApproval
            | CallState::Delayed
            | CallState::WaitingForClient
            | CallState::Ended(_) => Err(AskError::Superseded),
        }
    }

    /// The time in which it waits for an answer is none of its attempt's.
    fn note_asking(&mut self, is_asking: bool, at: Timestamp) {
        let CallState::Running(running) = &mut self.state else { return };
        match (running.asking_since, is_asking) {
            (None, true) => running.asking_since = Some(at),
            (Some(since), false) => {
                running.asking_since = None;
                running.asked += at.since(since);
                running.heard_at = running.heard_at.max(at);
            }
            (None, false) | (Some(_), true) => {}
        }
    }
}
