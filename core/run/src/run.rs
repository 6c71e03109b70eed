//! A run of calls: judged by `decide`, changed by `apply`, and by nothing else.

use std::sync::Arc;

use crate::admission::{check_context, check_new_calls};
use crate::call::{Call, CallState, Ended, Fate};
use crate::chunks::Span;
use crate::command::{Answer, Command, Opening, Rejection};
use crate::erasure::Erasure;
use crate::event::{
    AttemptId, CallSpec, Content, DeadlineKind, Entry, Event, Outcome, Position, Route, RunOpened, StopStage,
};
use crate::fields::Fields;
use crate::id::{CallId, CallIndex, CallerName, RunId, TenantId, Timestamp, ToolName};
use crate::limit::{RESULT_BYTES_MAX, RUN_LIFE_MAX};
use crate::rules::Rules;

/// The state of a run: the fold of its log.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    id: RunId,
    opened_at: Option<Timestamp>,
    deadline: Timestamp,
    /// More calls may be appended.
    open: bool,
    pub(crate) calls: Vec<Call>,
    /// The calls that a pool executes, in the order in which they joined the line for their turn.
    pub(crate) line: Vec<CallIndex>,
    pub(crate) status: RunStatus,
    cancel_requested: bool,
    expired: bool,
    pub(crate) fail_fast: bool,
    client_only: bool,
    /// A call failed or expired, and the run was to fail with it.
    pub(crate) failed: bool,
    /// A call failed or expired, and the run fails for it at its end.
    spoiled: bool,
    pub(crate) tenant: Option<TenantId>,
    caller: Option<CallerName>,
    tools: Vec<ToolName>,
    pub(crate) rules: Rules,
    pub(crate) context: Fields,
    pub(crate) erasure: Option<Erasure>,
    /// When an operator requested that it is erased.
    pub(crate) erase_requested: Option<Timestamp>,
    pub(crate) ended_at: Option<Timestamp>,
    /// No copy counts any more of what opened the run or gave it a job.
    pub(crate) copies_until: Timestamp,
    /// The last entry on the run's own subject: what a command expects to be the last when it appends.
    pub(crate) revision: u64,
}

/// A function of the run's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunStatus {
    InProgress,
    /// Only the client's answers and approvals are outstanding.
    RequiresAction,
    Completed,
    /// A call failed or expired in a run that was to fail with it.
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
pub enum Heard {
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
    /// The call waits for its client.
    CallWaits {
        call: CallIndex,
    },
    /// Output of the attempts before this one is void, unless it goes on where they ended.
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
    /// A run of which nothing is known yet.
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
            failed: false,
            spoiled: false,
            tenant: None,
            caller: None,
            tools: Vec::new(),
            rules: Rules::default(),
            context: Fields::default(),
            erasure: None,
            erase_requested: None,
            ended_at: None,
            copies_until: Timestamp(0),
            revision: 0,
        }
    }

    #[must_use]
    pub fn id(&self) -> RunId {
        self.id
    }

    /// When the log took the run in; `None` before that.
    #[must_use]
    pub fn opened_at(&self) -> Option<Timestamp> {
        self.opened_at
    }

    #[must_use]
    pub fn deadline(&self) -> Timestamp {
        self.deadline
    }

    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Nothing of it is executed here.
    #[must_use]
    pub fn is_client_only(&self) -> bool {
        self.client_only
    }

    #[must_use]
    pub fn status(&self) -> RunStatus {
        self.status
    }

    /// For whom the run is, where that was said.
    #[must_use]
    pub fn tenant(&self) -> Option<&TenantId> {
        self.tenant.as_ref()
    }

    /// Who asked for it, where callers are known.
    #[must_use]
    pub fn caller(&self) -> Option<&CallerName> {
        self.caller.as_ref()
    }

    /// The tools that its calls may name; empty for all that are listed.
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
    /// A [`Rejection`] where a limit is broken, an id stands twice or a deadline makes no sense.
    pub fn open(opening: Opening, now: Timestamp) -> Result<Vec<Event>, Rejection> {
        let Opening {
            calls,
            deadline,
            open,
            fail_fast,
            client_only,
            tenant,
            caller,
            tools,
            rules,
            context,
            apart,
            erasure,
        } = opening;
        if calls.is_empty() && !open {
            return Err(Rejection::NoCalls);
        }
        if deadline <= now {
            return Err(Rejection::DeadlinePassed);
        }
        if deadline > now.after(RUN_LIFE_MAX) {
            return Err(Rejection::DeadlineTooFar { limit_s: RUN_LIFE_MAX.as_secs() });
        }
        check_context(None, &context)?;
        check_new_calls(&[], &calls)?;
        let dispatched = match (calls.as_slice(), open) {
            ([call], false) if !apart && call.approval.is_none() => dispatch(CallIndex(0), call),
            _ => None,
        };
        let context = if open && !client_only { context } else { Fields::default() };
        let opened =
            RunOpened { deadline, calls, open, fail_fast, client_only, tenant, caller, tools, rules, context, erasure };
        Ok(std::iter::once(Event::RunOpened(opened)).chain(dispatched).collect())
    }

    /// What follows from a command: events to append, none where it is already so.
    ///
    /// # Errors
    /// A [`Rejection`] that says why the command makes no sense now.
    pub fn decide(&self, command: Command, now: Timestamp) -> Result<Vec<Event>, Rejection> {
        match command {
            Command::AppendCalls { calls } => {
                self.check_open()?;
                if calls.is_empty() {
                    return Err(Rejection::NoCalls);
                }
                if self.deadline <= now {
                    return Err(Rejection::DeadlinePassed);
                }
                check_new_calls(&self.calls, &calls)?;
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
                let call = self.find(&call).ok_or(Rejection::UnknownCall { call })?;
                if call.outcome().is_some() || call.cancel_requested() {
                    return Ok(Vec::new());
                }
                Ok(vec![Event::CallCancelRequested { call: call.index, reason }])
            }
            Command::Redrive { call, into } => {
                let call = self.find(&call).ok_or(Rejection::UnknownCall { call })?;
                match call.fate {
                    Some(Fate::Redriven { into: earlier }) if earlier == into => Ok(Vec::new()),
                    fate => call.check_parked(fate).map(|()| vec![Event::CallRedriven { call: call.index, into }]),
                }
            }
            Command::Drop { call } => {
                let call = self.find(&call).ok_or(Rejection::UnknownCall { call })?;
                match call.fate {
                    Some(Fate::Dropped) => Ok(Vec::new()),
                    fate => call.check_parked(fate).map(|()| vec![Event::CallDropped { call: call.index }]),
                }
            }
        }
    }

    fn check_open(&self) -> Result<(), Rejection> {
        match (self.open && !self.failed, self.status.is_final()) {
            (_, true) => Err(Rejection::RunEnded),
            (false, false) => Err(Rejection::RunClosed),
            (true, false) => Ok(()),
        }
    }

    fn decide_answers(&self, answers: Vec<Answer>) -> Result<Vec<Event>, Rejection> {
        if answers.is_empty() {
            return Err(Rejection::NoAnswers);
        }
        let mut events: Vec<Event> = Vec::with_capacity(answers.len());
        for Answer { call: id, output } in answers {
            let size = output.as_ref().map_or(0, |parts| parts.iter().map(Content::size).sum());
            if size > RESULT_BYTES_MAX {
                return Err(Rejection::OutputTooLarge { call: id, size, limit: RESULT_BYTES_MAX });
            }
            let call = self.find(&id).ok_or_else(|| Rejection::UnknownCall { call: id.clone() })?;
            if call.spec.route != Route::Client {
                return Err(Rejection::CallNotWaiting { call: id, state: call.state_name() });
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
                    | CallState::Queued { .. }
                    | CallState::Running(_),
                    None,
                ) => {
                    return Err(Rejection::CallNotWaiting { call: id, state: call.state_name() });
                }
            };
            match earlier {
                Some(true) => {}
                Some(false) => return Err(Rejection::AlreadyAnswered { call: id }),
                None => events.push(Event::ClientAnswered { call: call.index, answer: output }),
            }
        }
        // Results first: an error may fail the run, and with it the calls whose answers come after.
        events.sort_by_key(|event| matches!(event, Event::ClientAnswered { answer: Err(_), .. }));
        Ok(events)
    }

    fn check_all_answered(&self, events: &[Event]) -> Result<(), Rejection> {
        let is_answered = |call: &Call| {
            events
                .iter()
                .any(|event| matches!(event, Event::ClientAnswered { call: answered, .. } if *answered == call.index))
        };
        let waiting = self.calls.iter().filter(|call| call.state == CallState::WaitingForClient);
        let missing: Vec<CallId> = waiting.filter(|call| !is_answered(call)).map(|call| call.spec.id.clone()).collect();
        if missing.is_empty() { Ok(()) } else { Err(Rejection::AnswersMissing { calls: missing }) }
    }

    /// Takes an entry of the log in, and says what of it was accepted.
    pub fn apply(&mut self, entry: &Entry, heard: &mut Vec<Heard>) {
        self.note_copies(entry);
        let turns = self.perhaps_dispatched(entry);
        for (event, number) in entry.events.iter().zip(0..) {
            let position = Position { sequence: entry.sequence, event: number };
            match event {
                Event::RunOpened(opened) => self.opened(opened, entry, heard),
                _ if self.opened_at.is_none() => {}
                event if entry.is_late() => self.pass_over(event, entry.sequence),
                event => self.apply_event(event, (position, entry.at), &turns, heard),
            }
            self.fail_if_asked_to(entry.at, &turns, heard);
        }
        let status = self.derive_status();
        if self.opened_at.is_some() && status != self.status {
            self.status = status;
            self.ended_at = status.is_final().then_some(entry.at);
            heard.push(Heard::StatusChanged(status));
        }
    }

    /// A call that failed takes the others along, or spoils the run for its end, where the run was opened so. One that its
    /// caller cancelled does neither.
    ///
    /// The run stays open until its owner closes it: calls that somebody appends meanwhile are stored and so must end too.
    fn fail_if_asked_to(&mut self, at: Timestamp, turns: &[CallIndex], heard: &mut Vec<Heard>) {
        let may_fail = self.fail_fast || self.rules.fails_with_call;
        if !may_fail || self.cancel_requested || self.expired || self.status.is_final() {
            return;
        }
        let failed =
            self.calls.iter().find(|call| matches!(call.outcome(), Some(Outcome::Failed(_) | Outcome::Expired(_))));
        let Some(reason) = failed.map(|call| format!("call {} failed, and the run fails with it", call.spec.id)) else {
            return;
        };
        self.spoiled = true;
        if !self.fail_fast {
            return;
        }
        self.failed = true;
        self.cancel_calls(at, &reason, turns, heard);
    }

    fn opened(&mut self, opened: &RunOpened, entry: &Entry, heard: &mut Vec<Heard>) {
        // One that is stored twice changes nothing but what is last on its subject, which every command must know.
        let with_job = entry.events.iter().any(|event| matches!(event, Event::CallDispatched { .. }));
        if !with_job {
            self.revision = entry.sequence;
        }
        if self.opened_at.is_some() {
            return;
        }
        self.opened_at = Some(entry.at);
        self.deadline = opened.deadline;
        self.open = opened.open;
        self.fail_fast = opened.fail_fast;
        self.client_only = opened.client_only;
        self.tenant.clone_from(&opened.tenant);
        self.caller.clone_from(&opened.caller);
        self.tools.clone_from(&opened.tools);
        self.rules = opened.rules;
        self.context.clone_from(&opened.context);
        self.erasure = opened.erasure;
        heard.push(Heard::RunOpened);
        self.take_in(&opened.calls, entry.at, heard);
        if entry.is_late() {
            // Whoever asked for the run may have been told that it failed: it ends as it begins.
            (self.open, self.expired) = (false, true);
            self.calls.iter_mut().for_each(|call| call.expired(DeadlineKind::Opening, entry.at, heard));
        }
    }

    fn take_in(&mut self, calls: &[Arc<CallSpec>], at: Timestamp, heard: &mut Vec<Heard>) {
        if self.calls.is_empty() {
            // Most runs have one, and get no more.
            self.calls.reserve_exact(calls.len());
        }
        for spec in calls {
            let Ok(index) = u16::try_from(self.calls.len()) else { return };
            let call = Call::accept(CallIndex(index), Arc::clone(spec), at, heard);
            self.calls.push(call);
            self.line_up(CallIndex(index));
        }
    }

    fn apply_event(&mut self, event: &Event, at: (Position, Timestamp), turns: &[CallIndex], heard: &mut Vec<Heard>) {
        let ((position, at), sequence) = (at, at.0.sequence);
        match event {
            Event::RunOpened(_) => {}
            Event::CallsAppended { calls } => {
                self.revision = sequence;
                if self.open {
                    let (first, count) = (self.calls.len(), calls.len());
                    if let (Ok(first), Ok(count)) = (u16::try_from(first), u16::try_from(count)) {
                        heard.push(Heard::CallsAppended { first: CallIndex(first), count });
                        self.take_in(calls, at, heard);
                    }
                }
            }
            Event::RunClosed => {
                self.revision = sequence;
                if std::mem::take(&mut self.open) {
                    heard.push(Heard::RunClosed);
                }
            }
            Event::RunCancelRequested { reason } => {
                self.revision = sequence;
                self.cancel(at, reason, turns, heard);
            }
            Event::RunEraseRequested(request) => {
                self.revision = sequence;
                self.erase_requested.get_or_insert(at);
                self.cancel(at, &request.reason, turns, heard);
            }
            Event::RunExpired { without_worker } => {
                self.revision = sequence;
                if !self.status.is_final() {
                    self.expired = true;
                    self.open = false;
                    without_worker.iter().for_each(|call| self.with(*call, |call| call.found_no_worker(at, heard)));
                    self.calls.iter_mut().for_each(|call| call.expired(DeadlineKind::Run, at, heard));
                }
            }
            Event::CallDispatched { call, .. } => self.with(*call, |call| call.dispatched(at, sequence)),
            Event::CallCancelRequested { call, reason } => self.control(*call, sequence, |call| {
                call.cancel_requested_at(at, reason, turns, heard);
            }),
            Event::CallCancelled { call } => self.control(*call, sequence, |call| call.cancelled(at, heard)),
            Event::CallExpired { call, deadline } => {
                self.control(*call, sequence, |call| call.expired(*deadline, at, heard));
            }
            Event::CallFailed { call, error } => {
                self.control(*call, sequence, |call| call.refused(error, at, heard));
            }
            Event::CallRedriven { call, into } => self.control(*call, sequence, |call| {
                call.decide_fate(Fate::Redriven { into: *into });
            }),
            Event::CallDropped { call } => self.control(*call, sequence, |call| call.decide_fate(Fate::Dropped)),
            Event::CallDecided { call, decision, by } => {
                self.control(*call, sequence, |call| call.decide(decision, *by, at, heard));
                self.line_up(*call);
            }
            Event::ClientAnswered { call, answer } => {
                self.control(*call, sequence, |call| call.answered(answer, at, heard));
            }
            Event::AttemptStarted { attempt, pool, worker, lease, from } => {
                self.with(attempt.call, |call| call.started(*attempt, pool, ((worker, lease), *from), at, heard));
            }
            Event::AttemptStopping { attempt, pool, stage } => {
                self.with(attempt.call, |call| call.stopping(*attempt, pool, *stage, at, heard));
            }
            Event::Output { attempt, pool, first, chunks } => self.with(attempt.call, |call| {
                let count = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
                call.output(*attempt, pool, (*first, count), position, at, heard);
            }),
            Event::AttemptEnded { attempt, pool, chunks, outcome } => {
                self.with(attempt.call, |call| call.attempt_ended(*attempt, pool, (*chunks, outcome), at, heard));
            }
        }
    }

    fn cancel(&mut self, at: Timestamp, reason: &str, turns: &[CallIndex], heard: &mut Vec<Heard>) {
        if !self.status.is_final() {
            self.cancel_requested = true;
            self.open = false;
            self.cancel_calls(at, reason, turns, heard);
        }
    }

    fn with(&mut self, call: CallIndex, change: impl FnOnce(&mut Call)) {
        if let Some(call) = self.calls.get_mut(call.as_usize()) {
            change(call);
        }
    }

    pub(crate) fn control(&mut self, call: CallIndex, sequence: u64, change: impl FnOnce(&mut Call)) {
        self.with(call, |call| {
            call.revision = sequence;
            change(call);
        });
    }

    fn derive_status(&self) -> RunStatus {
        let (mut waiting, mut busy) = (false, false);
        for call in &self.calls {
            match call.state {
                CallState::AwaitingApproval | CallState::WaitingForClient => waiting = true,
                CallState::Accepted | CallState::Queued { .. } | CallState::Running(_) => busy = true,
                CallState::Ended(_) => {}
            }
        }
        match (busy, waiting, self.open) {
            (true, _, _) | (false, false, true) => RunStatus::InProgress,
            (false, true, _) => RunStatus::RequiresAction,
            (false, false, false) if self.expired => RunStatus::Expired,
            // What came first counts: a run that was cancelled does not fail any more.
            (false, false, false) if self.spoiled => RunStatus::Failed,
            (false, false, false) if self.cancel_requested => RunStatus::Cancelled,
            (false, false, false) => RunStatus::Completed,
        }
    }
}

/// The event that goes with a call's job; `None` for a call that no pool runs.
#[must_use]
pub(crate) fn dispatch(call: CallIndex, spec: &CallSpec) -> Option<Event> {
    match &spec.route {
        Route::Pool { pool, .. } => Some(Event::CallDispatched { call, pool: pool.clone() }),
        Route::Client | Route::Refused(_) => None,
    }
}
