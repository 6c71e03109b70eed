//! Limits on the calls of a run.

use run::{CallError, ErrorKind, Rules};

/// Why the call at this position of its run is rejected; `None` if it is within the limit.
pub(crate) fn beyond(index: usize, rules: Rules) -> Option<CallError> {
    let max = rules.calls_max.filter(|max| index >= usize::from(*max))?;
    let message = format!("the run has reached its limit of {max} calls: finish with the results that there are");
    Some(CallError::new(ErrorKind::LimitExceeded, message))
}
