//! Errors of requests of other APIs.

use proto::Reason;
use proto::v1::ToolOutput;

use crate::options::Options;
use crate::turns::Turn;

/// A request that cannot be served, independent of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InputError {
    pub reason: Reason,
    /// A JSON pointer to the cause; empty for the request as a whole.
    pub pointer: String,
    /// What was wrong, and how to fix it.
    pub message: String,
}

/// A call that is added to a run of others needs an id of its own, by which a repeated request finds it.
pub(crate) fn check_named(turn: &Turn, options: &Options, at: &str) -> Result<(), InputError> {
    match turn.calls.iter().find(|call| !options.run_id.is_empty() && !call.has_own_id()) {
        Some(call) => {
            let message = "a call that is added to a run needs an id of its own: give it one";
            Err(InputError::invalid(format!("{at}{}", call.pointer), message))
        }
        None => Ok(()),
    }
}

impl InputError {
    pub(crate) fn new(reason: Reason, pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason, pointer: pointer.into(), message: message.into() }
    }

    pub(crate) fn invalid(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Reason::Malformed, pointer, message)
    }

    /// The feature exists in the API but is not supported here.
    pub(crate) fn unsupported(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Reason::Unsupported, pointer, message)
    }
}

impl From<crate::turns::Error> for InputError {
    fn from(error: crate::turns::Error) -> Self {
        Self::invalid(error.pointer, error.problem.to_string())
    }
}

/// Rejects a request that answers a call twice.
pub(crate) fn check_distinct(outputs: &[(String, ToolOutput)]) -> Result<(), InputError> {
    for (nth, (pointer, output)) in outputs.iter().enumerate() {
        if outputs.iter().take(nth).any(|(_, other)| other.call_id == output.call_id) {
            let message = format!("call {} is answered twice: send one output for each call", output.call_id);
            return Err(InputError::invalid(pointer, message));
        }
    }
    Ok(())
}
