//! How the calls of a run are run, as its caller chose.

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
