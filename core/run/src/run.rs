//! A run of calls: judged by `decide`, changed by `apply`, and by nothing else.

mod apply;
mod bytes;

pub(crate) use self::bytes::ByteBudget;
use serde::{Deserialize, Serialize};

use crate::admission::{check_context, check_delays, check_new_calls};
use crate::call::{Call, CallState, Disposition, Ended};
use crate::chunks::Span;
use crate::command::{Answer, Command, CommandError, Opening};
use crate::erasure::Erasure;
use crate::event::{AttemptId, CallSpec, Content, Event, Outcome, ParentCall, Route, RunOpened, StopStage};
use crate::fields::Fields;
use crate::id::{CallId, CallIndex, CallerName, RunId, TenantId, Timestamp, ToolName};
use crate::limit::{RESULT_BYTES_MAX, RUN_LIFE_MAX};
use crate::requester::{Requester, Roles};
use crate::rules::Rules;

/// The state of a run: the fold of its log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    id: RunId,
    opened_at: Option<Timestamp>,
    deadline: Timestamp,
    /// More calls may be appended.
    open: bool,
    pub(crate) calls: Vec<Call>,
    /// The calls that a pool executes, in turn order: the order in which they were accepted, approved or due.
    pub(crate) line: Vec<CallIndex>,
    pub(crate) status: RunStatus,
    cancel_requested: bool,
    expired: bool,
    pub(crate) fail_fast: bool,
    client_only: bool,
    kept_open: bool,
    /// A call of it has asked a question.
    pub(crate) has_questions: bool,
    /// A call failed or expired, and the run fails with it.
    pub(crate) failed: bool,
    /// A call failed or expired, and the run fails once all calls have ended.
    will_fail: bool,
    pub(crate) tenant: Option<TenantId>,
    caller: Option<CallerName>,
    roles: Roles,
    tools: Vec<ToolName>,
    pub(crate) rules: Rules,
    /// Bytes of output and results, if they are limited.
    pub(crate) output_bytes: u64,
    pub(crate) context: Fields,
    pub(crate) erasure: Option<Erasure>,
    parent: Option<Box<ParentCall>>,
    /// When an operator requested that it is erased.
    pub(crate) erase_requested: Option<Timestamp>,
    pub(crate) ended_at: Option<Timestamp>,
    /// After this time no copy of the run's opening or of its jobs counts.
    pub(crate) copies_until: Timestamp,
    /// Its opening was stored too late to count.
    pub(crate) is_void: bool,
    /// The last entry on the run's own subject. A command appends on condition that it is still the last.
    pub(crate) revision: u64,
}

/// A function of the run's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RunStatus {
    InProgress,
    /// All open calls wait for the client's answer or for approval; a running call, for the answer to a question.
    RequiresAction,
    Completed,
    /// A call failed or expired in a run that fails with its calls.
    Failed,
    Cancelled,
    Expired,
}

impl RunStatus {
    #[must_use]
    pub fn is_final(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled | Self::Expired => true,
            Self::InProgress | Self::RequiresAction => false,
        }
    }
}

/// A fact that the fold accepted, in the order of the log. What it ignored (late, stale, forged, repeated) is not here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    RunOpened,
    CallsAppended {
        first: CallIndex,
        count: u16,
    },
    RunClosed,
    /// The call awaits approval.
    ApprovalAsked {
        call: CallIndex,
    },
    /// It was decided whether the call is executed.
    Decided {
        call: CallIndex,
    },
    /// The call waits for the time before which it may not begin.
    Delayed {
        call: CallIndex,
    },
    /// That time has come.
    DelayEnded {
        call: CallIndex,
    },
    /// The call waits for its client.
    CallWaits {
        call: CallIndex,
    },
    /// A running call asks its client a question.
    QuestionAsked {
        call: CallIndex,
    },
    /// Output of earlier attempts is void, unless this one continues it.
    AttemptStarted {
        attempt: AttemptId,
        continues: bool,
    },
    Output {
        attempt: AttemptId,
        span: Span,
    },
    /// The attempt failed or was given back, and another one will follow.
    AttemptEnded {
        attempt: AttemptId,
    },
    CancelRequested {
        call: CallIndex,
    },
    AttemptStopping {
        attempt: AttemptId,
        stage: StopStage,
    },
    CallEnded {
        call: CallIndex,
    },
    StatusChanged(RunStatus),
}

impl Run {
    /// A run before its first entry.
    #[must_use]
    pub fn new(id: RunId) -> Self {
        Self {
            id,
            opened_at: None,
            deadline: Timestamp(u64::MAX),
            open: false,
            calls: Vec::new(),
            line: Vec::new(),
            status: RunStatus::InProgress,
            cancel_requested: false,
            expired: false,
            fail_fast: false,
            client_only: false,
            kept_open: false,
            has_questions: false,
            failed: false,
            will_fail: false,
            tenant: None,
            caller: None,
            roles: Roles::default(),
            tools: Vec::new(),
            rules: Rules::default(),
            output_bytes: 0,
            context: Fields::default(),
            erasure: None,
            parent: None,
            erase_requested: None,
            ended_at: None,
            copies_until: Timestamp(0),
            is_void: false,
            revision: 0,
        }
    }

    #[must_use]
    pub fn id(&self) -> RunId {
        self.id
    }

    /// When the run was stored; `None` before that.
    #[must_use]
    pub fn opened_at(&self) -> Option<Timestamp> {
        self.opened_at
    }

    /// When the run ended; `None` before that.
    #[must_use]
    pub fn ended_at(&self) -> Option<Timestamp> {
        self.ended_at
    }

    #[must_use]
    pub fn deadline(&self) -> Timestamp {
        self.deadline
    }

    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Calls could be added to it when it was opened, which does not change when it is closed.
    #[must_use]
    pub fn is_kept_open(&self) -> bool {
        self.kept_open
    }

    /// The call that made the run, if one did.
    #[must_use]
    pub fn parent(&self) -> Option<&ParentCall> {
        self.parent.as_deref()
    }

    /// Its cancellation was requested.
    #[must_use]
    pub fn is_cancel_requested(&self) -> bool {
        self.cancel_requested
    }

    /// A call that failed or expired makes the run fail.
    #[must_use]
    pub fn fails_with_a_call(&self) -> bool {
        self.fail_fast || self.rules.fails_with_call
    }

    /// No call of it is executed here.
    #[must_use]
    pub fn is_client_only(&self) -> bool {
        self.client_only
    }

    #[must_use]
    pub fn status(&self) -> RunStatus {
        self.status
    }

    /// The tenant, if one was given.
    #[must_use]
    pub fn tenant(&self) -> Option<&TenantId> {
        self.tenant.as_ref()
    }

    /// The caller; `None` if no callers are configured.
    #[must_use]
    pub fn caller(&self) -> Option<&CallerName> {
        self.caller.as_ref()
    }

    /// Who asked for it, as their tools are told.
    #[must_use]
    pub fn requester(&self) -> Requester {
        Requester { tenant: self.tenant.clone(), caller: self.caller.clone(), roles: self.roles }
    }

    /// The tools that its calls may use; empty for all listed tools.
    #[must_use]
    pub fn tools(&self) -> &[ToolName] {
        &self.tools
    }

    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    #[must_use]
    pub fn call(&self, index: CallIndex) -> Option<&Call> {
        self.calls.get(index.as_usize())
    }

    #[must_use]
    pub fn find(&self, id: &CallId) -> Option<&Call> {
        self.calls.iter().find(|call| call.spec.id == *id)
    }

    /// The events with which a run begins. A single call for a pool is dispatched by the same entry that opens its run.
    ///
    /// # Errors
    /// A [`CommandError`] if a limit is exceeded, an id is used twice, or a deadline or a delay is out of range.
    pub fn open(opening: Opening, now: Timestamp) -> Result<Vec<Event>, CommandError> {
        let Opening {
            mut calls,
            deadline,
            open,
            fail_fast,
            client_only,
            tenant,
            caller,
            roles,
            tools,
            rules,
            context,
            apart,
            erasure,
            parent,
        } = opening;
        if calls.is_empty() && !open {
            return Err(CommandError::NoCalls);
        }
        if deadline <= now {
            return Err(CommandError::DeadlinePassed);
        }
        if deadline > now.after(RUN_LIFE_MAX) {
            return Err(CommandError::DeadlineTooFar { limit_s: RUN_LIFE_MAX.as_secs() });
        }
        check_context(None, &context)?;
        check_new_calls(&[], &calls)?;
        check_delays(&mut calls, deadline, now)?;
        let dispatched = match (calls.as_slice(), open) {
            ([call], false) if !apart && call.approval.is_none() && call.not_before.is_none() => {
                dispatch(CallIndex(0), call)
            }
            _ => None,
        };
        let context = if open && !client_only { context } else { Fields::default() };
        let opened = RunOpened {
            deadline,
            calls,
            open,
            fail_fast,
            client_only,
            tenant,
            caller,
            roles,
            tools,
            rules,
            context,
            erasure,
            parent,
        };
        Ok(std::iter::once(Event::RunOpened(opened)).chain(dispatched).collect())
    }

    /// Decides on a command: the events to append, none if the state is already as the command wants it.
    ///
    /// # Errors
    /// A [`CommandError`] if the command is not possible in the current state.
    pub fn decide(&self, command: Command, now: Timestamp) -> Result<Vec<Event>, CommandError> {
        match command {
            Command::AppendCalls { mut calls } => {
                self.check_open()?;
                if calls.is_empty() {
                    return Err(CommandError::NoCalls);
                }
                if self.deadline <= now {
                    return Err(CommandError::DeadlinePassed);
                }
                check_new_calls(&self.calls, &calls)?;
                check_delays(&mut calls, self.deadline, now)?;
                Ok(vec![Event::CallsAppended { calls }])
            }
            Command::Close if self.open => Ok(vec![Event::RunClosed]),
            Command::Close => Ok(Vec::new()),
            Command::SubmitOutputs { answers, all_required } => {
                let events = self.decide_answers(answers)?;
                if all_required {
                    self.check_all_answered(&events)?
                }
                Ok(events)
            }
            Command::Decide { decisions } => self.decide_approvals(decisions),
            Command::CancelRun { .. } if self.status.is_final() || self.cancel_requested => Ok(Vec::new()),
            Command::CancelRun { reason } => Ok(vec![Event::RunCancelRequested { reason }]),
            Command::EraseRun { reason, bytes } => Ok(self.decide_erasure(reason, bytes, now)),
            Command::CancelCall { call, reason } => {
                let call = self.find(&call).ok_or(CommandError::UnknownCall { call })?;
                if call.outcome().is_some() || call.cancel_requested() {
                    return Ok(Vec::new());
                }
                Ok(vec![Event::CallCancelRequested { call: call.index, reason }])
            }
            Command::Redrive { call, into } => {
                let call = self.find(&call).ok_or(CommandError::UnknownCall { call })?;
                match call.fate {
                    Some(Disposition::Redriven { into: earlier }) if earlier == into => Ok(Vec::new()),
                    fate => call.check_parked(fate).map(|()| vec![Event::CallRedriven { call: call.index, into }]),
                }
            }
            Command::Drop { call } => {
                let call = self.find(&call).ok_or(CommandError::UnknownCall { call })?;
                match call.fate {
                    Some(Disposition::Dropped) => Ok(Vec::new()),
                    fate => call.check_parked(fate).map(|()| vec![Event::CallDropped { call: call.index }]),
                }
            }
        }
    }

    fn check_open(&self) -> Result<(), CommandError> {
        match (self.open && !self.failed, self.status.is_final()) {
            (_, true) => Err(CommandError::RunEnded),
            (false, false) => Err(CommandError::RunClosed),
            (true, false) => Ok(()),
        }
    }

    fn decide_answers(&self, answers: Vec<Answer>) -> Result<Vec<Event>, CommandError> {
        if answers.is_empty() {
            return Err(CommandError::NoAnswers);
        }
        let mut events: Vec<Event> = Vec::with_capacity(answers.len());
        for Answer { call: id, output } in answers {
            let size = output.as_ref().map_or(0, |parts| parts.iter().map(Content::size).sum());
            if size > RESULT_BYTES_MAX {
                return Err(CommandError::OutputTooLarge { call: id, size, limit: RESULT_BYTES_MAX });
            }
            let call = self.find(&id).ok_or_else(|| CommandError::UnknownCall { call: id.clone() })?;
            if call.spec.route != Route::Client {
                return Err(CommandError::CallNotWaiting { call: id, state: call.state_name() });
            }
            let given = events.iter().find_map(|event| match event {
                Event::ClientAnswered { call: given, answer } if *given == call.index => Some(answer),
                _ => None,
            });
            let earlier = match (&call.state, given) {
                (_, Some(answer)) => Some(*answer == output),
                (CallState::Ended(Ended { outcome: Outcome::Completed(result), .. }), None) => {
                    Some(output.as_ref() == Ok(result))
                }
                (CallState::Ended(Ended { outcome: Outcome::Failed(error), .. }), None) => {
                    Some(output.as_ref() == Err(error))
                }
                (CallState::WaitingForClient, None) => None,
                (
                    CallState::Ended(_)
                    | CallState::Accepted
                    | CallState::AwaitingApproval
                    | CallState::Delayed
                    | CallState::Queued { .. }
                    | CallState::Running(_),
                    None,
                ) => {
                    return Err(CommandError::CallNotWaiting { call: id, state: call.state_name() });
                }
            };
            match earlier {
                Some(true) => {}
                Some(false) => return Err(CommandError::AlreadyAnswered { call: id }),
                None => events.push(Event::ClientAnswered { call: call.index, answer: output }),
            }
        }
        // Results first: an error may fail the run, and with it the calls whose answers come after.
        events.sort_by_key(|event| matches!(event, Event::ClientAnswered { answer: Err(_), .. }));
        Ok(events)
    }

    fn check_all_answered(&self, events: &[Event]) -> Result<(), CommandError> {
        let is_answered = |call: &Call| {
            events
                .iter()
                .any(|event| matches!(event, Event::ClientAnswered { call: answered, .. } if *answered == call.index))
        };
        let waiting = self.calls.iter().filter(|call| call.state == CallState::WaitingForClient);
        let missing: Vec<CallId> = waiting.filter(|call| !is_answered(call)).map(|call| call.spec.id.clone()).collect();
        if missing.is_empty() { Ok(()) } else { Err(CommandError::AnswersMissing { calls: missing }) }
    }
}

/// The event that is stored with a call's job; `None` for a call that no pool executes.
#[must_use]
pub(crate) fn dispatch(call: CallIndex, spec: &CallSpec) -> Option<Event> {
    match &spec.route {
        Route::Pool { pool, .. } => Some(Event::CallDispatched { call, pool: pool.clone() }),
        Route::Client | Route::Refused(_) | Route::Answered(_) => None,
    }
}
