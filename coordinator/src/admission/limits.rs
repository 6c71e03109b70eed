//! Limits on the calls of a run.

use std::collections::HashMap;

use run::{CallError, CallSpec, ErrorKind, Route, Rules, Run, ToolName};

/// Why the call at this position of its run is rejected; `None` if it is within the limit.
pub(crate) fn beyond(index: usize, rules: &Rules) -> Option<CallError> {
    let max = rules.calls_max.filter(|max| index >= usize::from(*max))?;
    let message = format!("the run has reached its limit of {max} calls: finish with the results that there are");
    Some(CallError::new(ErrorKind::LimitExceeded, message))
}

/// Refuses the calls of tools that have reached their limit. Calls that are refused anyway do not count.
pub(crate) fn refuse_beyond(calls: &mut [CallSpec], earlier: Option<&Run>, rules: &Rules) {
    if rules.calls_max_of_tool.is_none() && rules.calls_max_of.is_none() {
        return;
    }
    let mut counts: HashMap<ToolName, u16> = HashMap::new();
    for call in earlier.into_iter().flat_map(Run::requested_calls).filter(|call| counts_of(call.spec())) {
        *counts.entry(call.spec().tool.clone()).or_default() += 1;
    }
    for call in calls.iter_mut().filter(|call| counts_of(call)) {
        let Some(max) = rules.calls_max_of(&call.tool) else { continue };
        let count = counts.entry(call.tool.clone()).or_default();
        if *count < max {
            *count += 1;
            continue;
        }
        let message = format!(
            "the run has reached its limit of {max} calls of {}: finish with the results that there are",
            call.tool
        );
        call.route = Route::Refused(CallError::new(ErrorKind::LimitExceeded, message));
        (call.approval, call.required_hooks) = (None, Vec::new());
        call.context = run::Fields::default();
    }
}

fn counts_of(call: &CallSpec) -> bool {
    !matches!(call.route, Route::Refused(_))
}
