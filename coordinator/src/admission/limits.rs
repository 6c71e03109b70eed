//! Calls that a run may not have.

use run::{CallError, ErrorKind, Rules};

/// Why the call at this place of its run is refused, where it is.
pub(crate) fn beyond(index: usize, rules: Rules) -> Option<CallError> {
    let max = rules.calls_max.filter(|max| index >= usize::from(*max))?;
    let message = format!("the run may have {max} calls, and has them: finish with the results that there are");
    Some(CallError::new(ErrorKind::LimitExceeded, message))
}
