//! Rules for the execution of a run's calls, as its caller chose, and the use of their results.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::event::Outcome;
use crate::id::ToolName;
use crate::priority::Priority;
use crate::run::{Run, RunStatus};

/// Chosen when a run is opened, for all of its calls.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Rules {
    /// Whether calls of dangerous tools need an approval; `None` leaves it to the deployment.
    pub confirm: Option<bool>,
    /// How many of its calls may be queued or running at once, at least 1; the others wait for their turn.
    pub running_max: Option<u16>,
    /// How many calls the run may have; further ones are refused.
    pub calls_max: Option<u16>,
    /// A call that failed or expired fails the run, once all have ended. Otherwise the model sees the error.
    pub fails_with_call: bool,
    /// How many calls of each tool the run may have; further ones are refused.
    pub calls_max_of_tool: Option<u16>,
    /// The same for single tools; `None` for a tool whose calls are not limited in this way.
    pub calls_max_of: Option<Arc<BTreeMap<ToolName, Option<u16>>>>,
    /// How many bytes of output and results its calls may store that workers execute. A call that stores more fails.
    pub output_bytes_max: Option<NonZeroU64>,
    /// Tools whose calls are left to the client; `None` if there are none.
    pub client_tools: Option<Arc<BTreeSet<ToolName>>>,
    /// The priority of its calls, unless they have their own.
    pub priority: Priority,
}

impl Rules {
    /// Calls of this tool are left to the client.
    #[must_use]
    pub fn leaves_to_client(&self, tool: &ToolName) -> bool {
        self.client_tools.as_ref().is_some_and(|tools| tools.contains(tool))
    }

    /// How many calls of this tool the run may have; `None` if they are not limited.
    #[must_use]
    pub fn calls_max_of(&self, tool: &ToolName) -> Option<u16> {
        let own = self.calls_max_of.as_ref().and_then(|all| all.get(tool).copied());
        own.unwrap_or(self.calls_max_of_tool)
    }
}

impl Run {
    /// The rules that its caller chose.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The run completed, and its results are the answer: the model need not be asked again. False if any call did not
    /// complete or is not of a tool that returns directly.
    #[must_use]
    pub fn returns_direct(&self) -> bool {
        let is_direct =
            |call: &Call| call.spec.result_use.return_direct && matches!(call.outcome(), Some(Outcome::Completed(_)));
        let mut calls = self.requested_calls().peekable();
        self.status == RunStatus::Completed && calls.peek().is_some() && calls.all(is_direct)
    }
}
