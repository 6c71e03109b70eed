//! Hooks that a deployment requires of the workers that execute a call. A worker that does not run them, such as one
//! that was started without the file of hooks, is not trusted with content: its output and results are withheld.

use super::Call;
use crate::event::{AttemptOutcome, CallError, ErrorKind};

impl Call {
    /// Whether the call requires hooks that the worker of an entry does not run. `hooked`: as the entry says.
    #[must_use]
    pub fn lacks_hooks(&self, hooked: bool) -> bool {
        !hooked && !self.spec.required_hooks.is_empty()
    }

    /// The outcome that counts for a worker without the required hooks: without any content of its tool. An attempt
    /// whose effect is unknown stays so.
    pub(super) fn withheld(&self, outcome: &AttemptOutcome) -> AttemptOutcome {
        let what = match outcome {
            AttemptOutcome::Completed(_) => "the call ran, and its result",
            AttemptOutcome::Failed(error) if error.kind == ErrorKind::Interrupted => {
                return AttemptOutcome::Failed(self.interrupted());
            }
            AttemptOutcome::Failed(error) if error.kind == ErrorKind::WorkerLost => {
                return AttemptOutcome::Failed(CallError::new(error.kind, "the attempt was lost with its worker"));
            }
            AttemptOutcome::Failed(_) => "the call failed, and its error",
            AttemptOutcome::Cancelled | AttemptOutcome::Expired | AttemptOutcome::Returned => return outcome.clone(),
        };
        let hooks = self.spec.required_hooks.join(", ");
        let message = format!(
            "{what} was withheld: the worker does not run the required hooks ({hooks}); start the workers of the pool \
             with the file that names them (--hooks)"
        );
        AttemptOutcome::Failed(CallError::new(ErrorKind::HookRequired, message))
    }
}
