//! Applying entries of the log to a run. Nothing else changes a run, and nothing is judged here.

use std::sync::Arc;

use super::{Fact, Run, RunStatus};
use crate::call::{Call, CallState, Disposition, Report};
use crate::chunks::Span;
use crate::event::{CallSpec, DeadlineKind, Entry, Event, Outcome, Position, RunOpened};
use crate::id::{CallIndex, Timestamp};

impl Run {
    /// Applies the next entry of the log, and reports what of it was accepted.
    pub fn apply(&mut self, entry: &Entry, heard: &mut Vec<Fact>) {
        self.note_copies(entry);
        let turns = self.perhaps_dispatched(entry);
        for (event, number) in entry.events.iter().zip(0..) {
            let position = Position { sequence: entry.sequence, event: number };
            match event {
                Event::RunOpened(opened) => self.opened(opened, entry, heard),
                _ if self.opened_at.is_none() => {}
                event if entry.is_late() => self.pass_over(event, entry.sequence),
                event => self.apply_event(event, (entry, position), &turns, heard),
            }
            self.fail_if_asked_to(entry.at, &turns, heard);
            self.settle_questions(entry.at, heard);
        }
        let status = self.derive_status();
        if self.opened_at.is_some() && status != self.status {
            self.status = status;
            self.ended_at = status.is_final().then_some(entry.at);
            heard.push(Fact::StatusChanged(status));
        }
    }

    /// A call that failed or expired cancels the others, or fails the run at its end, if the run was opened so. A call
    /// that its caller cancelled does neither.
    ///
    /// The run stays open until its owner closes it, because calls that are appended meanwhile are stored and must end
    /// too.
    fn fail_if_asked_to(&mut self, at: Timestamp, turns: &[CallIndex], heard: &mut Vec<Fact>) {
        if !self.fails_with_a_call() || self.cancel_requested || self.expired || self.status.is_final() {
            return;
        }
        let failed = self
            .requested_calls()
            .find(|call| matches!(call.outcome(), Some(Outcome::Failed(_) | Outcome::Expired(_))));
        let Some(reason) = failed.map(|call| format!("call {} failed, and the run fails with it", call.spec.id)) else {
            return;
        };
        self.will_fail = true;
        if !self.fail_fast {
            return;
        }
        self.failed = true;
        self.cancel_calls(at, &reason, turns, heard);
    }

    fn opened(&mut self, opened: &RunOpened, entry: &Entry, heard: &mut Vec<Fact>) {
        // An event that is stored twice changes only the revision of its subject, which every command needs.
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
        self.kept_open = opened.open;
        self.tenant.clone_from(&opened.tenant);
        self.caller.clone_from(&opened.caller);
        self.roles = opened.roles;
        self.tools.clone_from(&opened.tools);
        self.rules.clone_from(&opened.rules);
        self.context.clone_from(&opened.context);
        self.erasure = opened.erasure;
        self.parent.clone_from(&opened.parent);
        heard.push(Fact::RunOpened);
        self.take_in(&opened.calls, entry.at, heard);
        if entry.is_late() {
            // The caller may have received an error for the run, so it ends as it begins.
            (self.open, self.expired, self.is_void) = (false, true, true);
            self.calls.iter_mut().for_each(|call| call.expired(DeadlineKind::Opening, entry.at, heard));
        }
    }

    fn take_in(&mut self, calls: &[Arc<CallSpec>], at: Timestamp, heard: &mut Vec<Fact>) {
        if self.calls.is_empty() {
            // Most runs have one, and get no more.
            self.calls.reserve_exact(calls.len());
        }
        for spec in calls {
            let Ok(index) = u16::try_from(self.calls.len()) else { return };
            let spec = self.heard_spec(spec);
            let call = Call::accept(CallIndex(index), spec, at, heard);
            self.calls.push(call);
            self.join_turns(CallIndex(index));
        }
    }

    fn apply_event(
        &mut self,
        event: &Event,
        (entry, position): (&Entry, Position),
        turns: &[CallIndex],
        heard: &mut Vec<Fact>,
    ) {
        let (at, sequence) = (entry.at, entry.sequence);
        match event {
            Event::RunOpened(_) => {}
            Event::CallsAppended { calls } => {
                self.revision = sequence;
                // A closed run takes questions of its calls, until it has ended.
                let takes = self.open || !self.status.is_final() && calls.iter().all(|call| call.asked_by.is_some());
                if takes {
                    let (first, count) = (self.calls.len(), calls.len());
                    if let (Ok(first), Ok(count)) = (u16::try_from(first), u16::try_from(count)) {
                        heard.push(Fact::CallsAppended { first: CallIndex(first), count });
                        self.take_in(calls, at, heard);
                    }
                }
            }
            Event::RunClosed => {
                self.revision = sequence;
                if std::mem::take(&mut self.open) {
                    heard.push(Fact::RunClosed);
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
            Event::CallDispatched { .. }
            | Event::CallCancelRequested { .. }
            | Event::CallCancelled { .. }
            | Event::CallExpired { .. }
            | Event::CallFailed { .. }
            | Event::CallRedriven { .. }
            | Event::CallDropped { .. }
            | Event::CallDelayEnded { .. }
            | Event::CallDecided { .. }
            | Event::ClientAnswered { .. } => self.apply_to_call(event, at, sequence, turns, heard),
            Event::AttemptStarted { .. }
            | Event::AttemptStopping { .. }
            | Event::Output { .. }
            | Event::AttemptEnded { .. } => self.apply_to_attempt(event, entry, position, heard),
        }
    }

    /// An event that a worker stored about its attempt.
    fn apply_to_attempt(&mut self, event: &Event, entry: &Entry, position: Position, heard: &mut Vec<Fact>) {
        let report = |attempt, pool| Report { attempt, pool, at: entry.at, hooked: entry.hooked };
        match event {
            Event::AttemptStarted { attempt, pool, worker, lease, from } => {
                let report = report(*attempt, pool);
                self.with(attempt.call, |call| call.started(&report, worker, lease, *from, heard));
            }
            Event::AttemptStopping { attempt, pool, stage } => {
                let report = report(*attempt, pool);
                self.with(attempt.call, |call| call.stopping(&report, *stage, heard));
            }
            Event::Output { attempt, pool, first, chunks } => {
                let report = report(*attempt, pool);
                let count = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
                let span = Span { position, skip: 0, first: *first, count };
                // Collected only for a run with a limit of bytes.
                let (counts, mut new) = (self.rules.output_bytes_max.is_some(), Vec::new());
                let count = |part: Span| new.extend(counts.then(|| part.within()));
                self.with(attempt.call, |call| call.output(&report, span, heard, count));
                self.count_output(*attempt, (chunks, &new), entry.at, heard);
            }
            Event::AttemptEnded { attempt, pool, chunks, outcome } => {
                let report = report(*attempt, pool);
                let mut budget = self.byte_budget();
                self.with(attempt.call, |call| call.attempt_ended(&report, *chunks, outcome, &mut budget, heard));
                self.set_used(&budget);
            }
            Event::RunOpened(_)
            | Event::CallsAppended { .. }
            | Event::RunClosed
            | Event::RunCancelRequested { .. }
            | Event::RunEraseRequested(_)
            | Event::RunExpired { .. }
            | Event::CallDispatched { .. }
            | Event::CallCancelRequested { .. }
            | Event::CallCancelled { .. }
            | Event::CallExpired { .. }
            | Event::CallFailed { .. }
            | Event::CallRedriven { .. }
            | Event::CallDropped { .. }
            | Event::CallDelayEnded { .. }
            | Event::CallDecided { .. }
            | Event::ClientAnswered { .. } => {}
        }
    }

    /// An event that the owner or another coordinator stored about one call.
    fn apply_to_call(
        &mut self,
        event: &Event,
        at: Timestamp,
        sequence: u64,
        turns: &[CallIndex],
        heard: &mut Vec<Fact>,
    ) {
        match event {
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
                call.decide_fate(Disposition::Redriven { into: *into });
            }),
            Event::CallDropped { call } => self.control(*call, sequence, |call| call.decide_fate(Disposition::Dropped)),
            Event::CallDelayEnded { call } => {
                self.control(*call, sequence, |call| call.delay_ended(at, heard));
                self.join_turns(*call);
            }
            Event::CallDecided { call, decision, by } => {
                self.control(*call, sequence, |call| call.decide(decision, *by, at, heard));
                self.join_turns(*call);
            }
            Event::ClientAnswered { call, answer } => {
                self.control(*call, sequence, |call| call.answered(answer, at, heard));
            }
            Event::RunOpened(_)
            | Event::CallsAppended { .. }
            | Event::RunClosed
            | Event::RunCancelRequested { .. }
            | Event::RunEraseRequested(_)
            | Event::RunExpired { .. }
            | Event::AttemptStarted { .. }
            | Event::AttemptStopping { .. }
            | Event::Output { .. }
            | Event::AttemptEnded { .. } => {}
        }
    }

    fn cancel(&mut self, at: Timestamp, reason: &str, turns: &[CallIndex], heard: &mut Vec<Fact>) {
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
                // It waits for the answer to a question, which is a call of its own.
                CallState::Running(_) if call.is_asking() => waiting = true,
                CallState::Accepted | CallState::Delayed | CallState::Queued { .. } | CallState::Running(_) => {
                    busy = true;
                }
                CallState::Ended(_) => {}
            }
        }
        match (busy, waiting, self.open) {
            (true, _, _) | (false, false, true) => RunStatus::InProgress,
            (false, true, _) => RunStatus::RequiresAction,
            (false, false, false) if self.expired => RunStatus::Expired,
            // The first reason counts: a cancelled run does not fail any more.
            (false, false, false) if self.will_fail => RunStatus::Failed,
            (false, false, false) if self.cancel_requested => RunStatus::Cancelled,
            (false, false, false) => RunStatus::Completed,
        }
    }
}
