//! Parked calls: they ended without a result although another attempt might have succeeded. They stay listed until they
//! are redriven or dropped; their outcome never changes.

use crate::call::{Call, Disposition};
use crate::command::CommandError;
use crate::event::{DeadlineKind, ErrorKind, Outcome};
use crate::retry::is_retried;

impl Call {
    /// Whether the call is parked: it used up its attempts, was interrupted, or found no worker, and has not been
    /// redriven or dropped.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.fate.is_none() && self.may_be_parked()
    }

    /// What happened to the call after it was parked.
    #[must_use]
    pub fn fate(&self) -> Option<Disposition> {
        self.fate
    }

    fn may_be_parked(&self) -> bool {
        match self.outcome() {
            Some(Outcome::Failed(error)) => match error.kind {
                ErrorKind::Interrupted | ErrorKind::WorkerLost | ErrorKind::OutputIncomplete | ErrorKind::NoWorker => {
                    true
                }
                ErrorKind::UnknownTool
                | ErrorKind::ArgumentsInvalid
                | ErrorKind::ToolFailed
                | ErrorKind::ToolPanicked
                | ErrorKind::AttemptTimeout
                | ErrorKind::IdleTimeout
                | ErrorKind::ResultTooLarge
                | ErrorKind::OutputTooLarge
                | ErrorKind::Rejected
                | ErrorKind::ModelRetry
                | ErrorKind::NeedsInput
                | ErrorKind::RateLimited
                | ErrorKind::Denied
                | ErrorKind::HookFailed
                | ErrorKind::HookRequired
                | ErrorKind::LimitExceeded
                | ErrorKind::NotPermitted
                | ErrorKind::StreamingUnsupported
                | ErrorKind::ClientFailed => self.policy().is_some_and(|(_, policy)| is_retried(policy, error)),
            },
            Some(Outcome::Expired(DeadlineKind::Queue | DeadlineKind::Attempt(_) | DeadlineKind::Idle(_))) => true,
            Some(Outcome::Expired(
                DeadlineKind::Call | DeadlineKind::Client | DeadlineKind::Run | DeadlineKind::Opening,
            ))
            | Some(Outcome::Completed(_) | Outcome::Cancelled { .. })
            | None => false,
        }
    }

    pub(crate) fn check_parked(&self, fate: Option<Disposition>) -> Result<(), CommandError> {
        let call = self.spec().id.clone();
        match fate {
            Some(Disposition::Redriven { into }) => {
                Err(CommandError::NotParkedAnyMore { call, fate: format!("redriven as run {into}") })
            }
            Some(Disposition::Dropped) => Err(CommandError::NotParkedAnyMore { call, fate: "dropped".to_owned() }),
            None if self.may_be_parked() => Ok(()),
            None => Err(CommandError::NotParked { call, state: self.state_name() }),
        }
    }

    /// The first event counts.
    pub(crate) fn decide_fate(&mut self, fate: Disposition) {
        if self.is_parked() {
            self.fate = Some(fate);
        }
    }
}
