//! The sets that a run and its calls are in. A list is answered from the smallest set that contains all matches.

use run::CallIndex;

use super::wire::{state_name, status_name};
use crate::index::filter::{CallFilter, Key, Place, RunFilter};
use crate::index::summary::Summary;

pub(super) const RUNS: &str = "ty:runs";
pub(super) const CALLS: &str = "ty:calls";
pub(super) const PARKED: &str = "ty:calls:parked";

pub(super) fn of_status(status: proto::v1::RunStatus) -> String {
    format!("{RUNS}:{}", status_name(status))
}

pub(super) fn of_state(state: proto::v1::CallState) -> String {
    format!("{CALLS}:{}", state_name(state))
}

pub(super) fn of_tool(tool: &str, state: proto::v1::CallState) -> String {
    format!("{CALLS}:tool:{tool}:{}", state_name(state))
}

/// Calls `tell` with every set that a run and its calls are in, and the member.
pub(super) fn members(run: &Summary, mut tell: impl FnMut(String, &str)) {
    let key = Key::from(run.id);
    let member = key.to_string();
    tell(RUNS.to_owned(), &member);
    tell(of_status(run.status), &member);
    if let Some(tenant) = &run.tenant {
        tell(format!("{RUNS}:tenant:{tenant}"), &member);
    }
    for (index, call) in (0..).zip(&run.calls) {
        let member = Place { run: key, call: CallIndex(index) }.to_string();
        tell(CALLS.to_owned(), &member);
        tell(of_state(call.state), &member);
        tell(format!("{CALLS}:tool:{}", call.tool), &member);
        tell(of_tool(call.tool.as_str(), call.state), &member);
        if let Some(tenant) = &run.tenant {
            tell(format!("{CALLS}:tenant:{tenant}"), &member);
        }
        if call.parked {
            tell(PARKED.to_owned(), &member);
        }
    }
}

/// Sets that each contain all matching runs.
pub(super) fn of_runs(filter: &RunFilter) -> Vec<String> {
    let status = filter.status.map(of_status);
    let tenant = filter.tenant.as_ref().map(|tenant| format!("{RUNS}:tenant:{tenant}"));
    or_all(status.into_iter().chain(tenant), RUNS)
}

/// Sets that each contain all matching calls.
pub(super) fn of_calls(filter: &CallFilter) -> Vec<String> {
    if filter.parked {
        // With a history, the others have parked calls that cannot be redriven any more.
        return vec![PARKED.to_owned()];
    }
    let by_kind = match (&filter.tool, filter.state) {
        (Some(tool), Some(state)) => Some(of_tool(tool.as_str(), state)),
        (Some(tool), None) => Some(format!("{CALLS}:tool:{tool}")),
        (None, Some(state)) => Some(of_state(state)),
        (None, None) => None,
    };
    let tenant = filter.tenant.as_ref().map(|tenant| format!("{CALLS}:tenant:{tenant}"));
    or_all(by_kind.into_iter().chain(tenant), CALLS)
}

fn or_all(sets: impl Iterator<Item = String>, all: &str) -> Vec<String> {
    let mut sets: Vec<String> = sets.collect();
    if sets.is_empty() {
        sets.push(all.to_owned());
    }
    sets
}
