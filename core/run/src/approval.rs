//! Approvals: calls that are not executed before they are approved.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::call::{Call, CallState};
use crate::command::CommandError;
use crate::event::{CallError, CallSpec, ErrorKind, Event, Outcome};
use crate::id::{CallId, CallIndex, Timestamp};
use crate::limit::ARGUMENTS_BYTES_MAX;
use crate::run::{Fact, Run};

/// The approval that a call needs before it is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Deadline of the decision; never later than the call's own deadline.
    pub deadline: Timestamp,
    /// The decision if there is none by then.
    pub default: DefaultDecision,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum DefaultDecision {
    #[default]
    Reject,
    Approve,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// The call may be executed: with these arguments if some are given, otherwise with its own.
    Approved { arguments: Option<Bytes> },
    /// The call is not executed; the reason goes to the model.
    Rejected { reason: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Decider {
    Person,
    /// There was no decision in time; the default applied.
    Default,
}

/// A decision that is in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    pub at: Timestamp,
    pub by: Decider,
    pub decision: Decision,
}

impl Run {
    /// Accepts all decisions or none.
    pub(crate) fn decide_approvals(&self, decisions: Vec<(CallId, Decision)>) -> Result<Vec<Event>, CommandError> {
        if decisions.is_empty() {
            return Err(CommandError::NoDecisions);
        }
        let mut events: Vec<Event> = Vec::with_capacity(decisions.len());
        for (id, decision) in decisions {
            if let Decision::Approved { arguments: Some(arguments) } = &decision
                && arguments.len() > ARGUMENTS_BYTES_MAX
            {
                let (size, limit) = (arguments.len(), ARGUMENTS_BYTES_MAX);
                return Err(CommandError::ArgumentsTooLarge { call: id, size, limit });
            }
            let call = self.find(&id).ok_or_else(|| CommandError::UnknownCall { call: id.clone() })?;
            let given = events.iter().find_map(|event| match event {
                Event::CallDecided { call: given, decision, .. } if *given == call.index => Some(decision),
                _ => None,
            });
            match given.or(call.decided.as_ref().map(|decided| &decided.decision)) {
                Some(earlier) if *earlier == decision => {}
                Some(Decision::Approved { .. }) => {
                    return Err(CommandError::AlreadyDecided { call: id, decision: "approved" });
                }
                Some(Decision::Rejected { .. }) => {
                    return Err(CommandError::AlreadyDecided { call: id, decision: "rejected" });
                }
                None if call.state == CallState::AwaitingApproval => {
                    events.push(Event::CallDecided { call: call.index, decision, by: Decider::Person });
                }
                None => return Err(CommandError::NotAwaitingApproval { call: id, state: call.state_name() }),
            }
        }
        // Approvals first: a rejection may fail the run, and with it the calls that are decided after it.
        events.sort_by_key(|event| matches!(event, Event::CallDecided { decision: Decision::Rejected { .. }, .. }));
        Ok(events)
    }

    /// The default decision on a call.
    #[must_use]
    pub fn decide_by_default(&self, call: CallIndex) -> Option<Event> {
        let decision = match self.call(call)?.spec.approval?.default {
            DefaultDecision::Approve => Decision::Approved { arguments: None },
            DefaultDecision::Reject => Decision::Rejected { reason: "nobody approved it in time".to_owned() },
        };
        Some(Event::CallDecided { call, decision, by: Decider::Default })
    }
}

impl Call {
    /// The decision on it; `None` if none was made or needed.
    #[must_use]
    pub fn decided(&self) -> Option<&Decided> {
        self.decided.as_ref()
    }

    /// When its default decision is due, if it waits for one. A call whose deadline comes first is not approved any
    /// more.
    pub(crate) fn default_due(&self) -> Option<Timestamp> {
        let approval = self.spec.approval.filter(|_| self.state == CallState::AwaitingApproval)?;
        let in_time = approval.default == DefaultDecision::Reject || approval.deadline < self.spec.deadline;
        in_time.then_some(approval.deadline.min(self.spec.deadline))
    }

    /// The first decision counts. An approved call joins the turn order, unless it is delayed.
    pub(crate) fn decide(&mut self, decision: &Decision, by: Decider, at: Timestamp, heard: &mut Vec<Fact>) {
        if self.state != CallState::AwaitingApproval {
            return;
        }
        self.decided = Some(Decided { at, by, decision: decision.clone() });
        heard.push(Fact::Decided { call: self.index });
        match decision {
            Decision::Approved { arguments } => {
                if let Some(arguments) = arguments {
                    let arguments = arguments.clone();
                    self.spec = Arc::new(CallSpec { arguments, ..CallSpec::clone(&self.spec) });
                }
                self.approved(at, heard);
            }
            Decision::Rejected { reason } => {
                let reason = if reason.trim().is_empty() { "no reason was given" } else { reason };
                let error = CallError::new(ErrorKind::Rejected, format!("the call was rejected: {reason}"));
                self.end(Outcome::Failed(error), at, heard);
            }
        }
    }
}
