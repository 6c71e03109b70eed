//! How the calls of a run are run, as its caller chose.

/// Chosen when a run is opened, for all of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rules {
    /// Whether somebody confirms calls of dangerous tools; `None` leaves it to the deployment.
    pub confirm: Option<bool>,
}
