//! What the rim must now do. Derived from state alone, and safe to repeat.

use crate::event::{AttemptId, DeadlineKind};
use crate::id::CallIndex;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Append the call's job. The first append to its subject wins.
    Dispatch { call: CallIndex },
    /// Tell the pool to stop the attempt, until the log shows that it stopped.
    Stop { attempt: AttemptId },
    /// Append that the call was cancelled without its attempt's word.
    Cancel { call: CallIndex },
    /// Append that the call expired.
    Expire { call: CallIndex, deadline: DeadlineKind },
    /// Append that no worker of the call's pool lives. Only the rim knows that, so state alone never asks for it.
    Refuse { call: CallIndex },
    /// Append that the run expired.
    ExpireRun,
}
