//! The priority of a call among the calls of its tenant that wait for their turn in the same pool.

use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::run::Run;

/// Higher ones come first; a call that waits for long rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub enum Priority {
    /// Work that can wait, as of a batch.
    Low,
    /// The priority of a call that sets none.
    #[default]
    Normal,
    /// Somebody waits for it.
    High,
}

impl Priority {
    /// Its name, as the command line and metrics have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }
}

impl Run {
    /// The priority of a call: its own, or else the run's.
    #[must_use]
    pub fn priority_of(&self, call: &Call) -> Priority {
        call.spec.priority.unwrap_or(self.rules.priority)
    }
}
