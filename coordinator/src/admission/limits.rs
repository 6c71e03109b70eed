//! Rules of a run that name tools, and limits on its calls.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use formats::tools::Format;
use run::limit::{ARGUMENTS_BYTES_MAX, OPENING_BYTES_MAX, RESULT_PARTS_MAX};
use run::{CallError, CallSpec, ErrorKind, Route, Rules, Run, ToolName};

use crate::admission::accept::{Offer, Scope};

/// Why the call at this position of its run is rejected; `None` if it is within the limit.
pub(crate) fn beyond(index: usize, rules: &Rules) -> Option<CallError> {
    let max = rules.calls_max.filter(|max| index >= usize::from(*max))?;
    let message = format!("the run has reached its limit of {max} calls: finish with the results that there are");
    Some(CallError::new(ErrorKind::LimitExceeded, message))
}

/// Puts rules about single tools under the tools' own names, whatever names the request has for them. Of several limits
/// for one tool the lowest counts.
pub(crate) fn by_own_names(rules: &mut Rules, offer: &Offer<'_>, form: Option<Format>) {
    let own_name = |name: &ToolName| {
        let exported = offer.exported_as(name, form);
        offer.behind(exported.as_ref().unwrap_or(name)).clone()
    };
    if let Some(tools) = &rules.client_tools {
        rules.client_tools = Some(Arc::new(tools.iter().map(own_name).collect()));
    }
    let Some(limits) = &rules.calls_max_of else { return };
    let mut own: BTreeMap<ToolName, Option<u16>> = BTreeMap::new();
    for (name, max) in limits.iter() {
        let tool = own_name(name);
        let known = own.get(&tool).copied().flatten();
        let lowest = known.into_iter().chain(*max).min();
        own.insert(tool, lowest);
    }
    rules.calls_max_of = Some(Arc::new(own));
}

/// Refuses the calls of tools that have reached their limit; those under an alias count for its tool. Calls that are
/// refused anyway do not count.
pub(crate) fn refuse_beyond<'calls>(calls: impl IntoIterator<Item = &'calls mut CallSpec>, scope: &Scope<'_>) {
    let Scope { offer, earlier, rules, .. } = *scope;
    if rules.calls_max_of_tool.is_none() && rules.calls_max_of.is_none() {
        return;
    }
    let mut counts: HashMap<ToolName, u16> = HashMap::new();
    for call in earlier.into_iter().flat_map(Run::requested_calls).filter(|call| counts_of(call.spec())) {
        *counts.entry(offer.behind(&call.spec().tool).clone()).or_default() += 1;
    }
    for call in calls.into_iter().filter(|call| counts_of(call)) {
        let tool = offer.behind(&call.tool);
        let Some(max) = rules.calls_max_of(tool) else { continue };
        let count = counts.entry(tool.clone()).or_default();
        if *count < max {
            *count += 1;
            continue;
        }
        let message =
            format!("the run has reached its limit of {max} calls of {tool}: finish with the results that there are");
        call.route = Route::Refused(CallError::new(ErrorKind::LimitExceeded, message));
        (call.approval, call.required_hooks) = (None, Vec::new());
        call.context = run::Fields::default();
    }
}

/// The largest answer of a hook: it is stored with the call, as its arguments are.
const ANSWER_BYTES_MAX: usize = ARGUMENTS_BYTES_MAX;

/// Refuses calls that hooks answered with too much, or with more than the request has room for. Without this, the
/// request would be refused as a whole.
pub(crate) fn refuse_large_answers(calls: &mut [CallSpec]) {
    if !calls.iter().any(|call| matches!(call.route, Route::Answered(_))) {
        return;
    }
    let answer = |call: &CallSpec| if let Route::Answered(answer) = &call.route { answer.size() } else { 0 };
    let beside: usize = calls.iter().map(|call| call.size() - answer(call)).sum();
    let mut room = OPENING_BYTES_MAX.saturating_sub(beside);
    for call in calls {
        let Route::Answered(answer) = &call.route else { continue };
        let (hook, size, parts) = (&answer.hook, answer.size(), answer.result.len());
        let why = if parts > RESULT_PARTS_MAX {
            format!("hook {hook} answered with {parts} parts; the limit is {RESULT_PARTS_MAX} parts")
        } else if size > ANSWER_BYTES_MAX {
            format!("hook {hook} answered with {size} bytes; the limit is {ANSWER_BYTES_MAX} bytes")
        } else if size > room {
            format!("hook {hook} answered with {size} bytes, for which the request has no room left: make fewer calls")
        } else {
            room -= size;
            continue;
        };
        call.route = Route::Refused(CallError::new(ErrorKind::HookFailed, why));
    }
}

fn counts_of(call: &CallSpec) -> bool {
    !matches!(call.route, Route::Refused(_))
}
