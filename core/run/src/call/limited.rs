//! A call whose run exceeds a limit while the call runs: it is stopped, and fails.

use super::{Call, Cancelling};
use crate::event::{CallError, Content, ErrorKind, Outcome};
use crate::id::Timestamp;
use crate::run::{ByteBudget, Fact};

impl Call {
    /// Stops the call, because its run exceeds its limit of bytes.
    pub(crate) fn stop_beyond_limit(&mut self, max: u64, at: Timestamp, heard: &mut Vec<Fact>) {
        if self.cancel.is_some() {
            return;
        }
        self.fail_beyond_limit(max);
        let reason = self.over_limit.as_ref().map_or_else(String::new, |error| error.message.clone());
        self.cancel = Some(Cancelling { requested_at: at, reason, delivered_at: None, acknowledged_at: None });
        heard.push(Fact::CancelRequested { call: self.index });
    }

    /// Counts the result with which the call is about to complete, unless the call fails because of the limit already.
    pub(super) fn count_result(&mut self, result: &[Content], budget: &mut ByteBudget) {
        if self.over_limit.is_none()
            && let Err(max) = budget.take(result)
        {
            self.fail_beyond_limit(max);
        }
    }

    fn fail_beyond_limit(&mut self, max: u64) {
        let message = format!(
            "the run has reached its limit of {max} bytes of output and results: finish with the results that there are"
        );
        self.over_limit = Some(Box::new(CallError::new(ErrorKind::LimitExceeded, message)));
    }

    /// The outcome of the call if it exceeded no limit, else its error. Another failure is kept.
    pub(super) fn within_limit(&mut self, outcome: Outcome) -> Outcome {
        match (outcome, self.over_limit.take()) {
            (Outcome::Completed(_) | Outcome::Cancelled { .. }, Some(error)) => {
                self.extra_state = crate::fields::Fields::default();
                Outcome::Failed(*error)
            }
            (outcome, _) => outcome,
        }
    }
}
