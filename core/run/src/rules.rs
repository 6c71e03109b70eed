//! How the calls of a run are run, as its caller chose, and what becomes of their results.

use crate::call::Call;
use crate::event::Outcome;
use crate::run::{Run, RunStatus};

/// Chosen when a run is opened, for all of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rules {
    /// Whether somebody confirms calls of dangerous tools; `None` leaves it to the deployment.
    pub confirm: Option<bool>,
    /// Calls that a pool may have or execute at once, at least 1; the others wait for their turn.
    pub running_max: Option<u16>,
    /// Calls that the run may have; those after them are refused.
    pub calls_max: Option<u16>,
    /// A call that failed or expired fails the run, once all have ended. Otherwise that is for the model to mend.
    pub fails_with_call: bool,
}

impl Run {
    /// How its calls are run, as its caller chose.
    #[must_use]
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// The run completed, and its results are the answer: the model need not be asked again. One call that is not for that,
    /// or did not complete, has all results go to the model.
    #[must_use]
    pub fn returns_direct(&self) -> bool {
        let is_direct =
            |call: &Call| call.spec.result_use.return_direct && matches!(call.outcome(), Some(Outcome::Completed(_)));
        self.status == RunStatus::Completed && !self.calls.is_empty() && self.calls.iter().all(is_direct)
    }
}
