//! A hash of a request's content.

use proto::convert::fields::fields_out;
use run::{CallId, Concurrency, DefaultDecision, Priority, Rules, TenantId, ToolName, WithoutWorker};

use super::NewRun;
use super::approved::Approved;
use crate::admission::accept::RequestedCall;
use crate::requests::{Digest, Hash};

/// A hash of a request's content: equal for equal requests only.
pub(crate) fn digest(new: &NewRun) -> Digest {
    let mut hash = Hash::default();
    hash.number(u64::from(new.keep_open));
    hash.number(u64::from(new.fail_fast));
    hash.time(new.timeout);
    hash.text(new.tenant.as_ref().map_or("", TenantId::as_str));
    hash.number(u64::from(new.client_only));
    hash.number(new.custom.len() as u64);
    for (name, tool) in &new.custom {
        let (kind, definition) = tool.definition();
        [name.as_str(), kind, definition].iter().for_each(|text| hash.text(text));
    }
    hash.number(new.tools.len() as u64);
    new.tools.iter().for_each(|tool| hash.text(tool.as_str()));
    hash_rules(&mut hash, new);
    hash_limits(&mut hash, &new.rules);
    if !new.store {
        hash.text("not stored");
    }
    if !new.files.is_empty() {
        hash.text("files");
        for file in &new.files {
            let tool = file.tool.as_ref().map_or("", ToolName::as_str);
            [tool, file.name.as_str(), file.id.to_string().as_str()].iter().for_each(|text| hash.text(text));
        }
    }
    add_approved(&mut hash, &new.approved);
    hash_calls(&mut hash, &new.calls);
    // Empty contexts are left out of the hash, so that requests from before contexts existed keep their digest.
    let calls = || new.calls.iter().map(|call| &call.context);
    if !new.context.is_empty() || calls().any(|context| !context.is_empty()) {
        hash.text("contexts");
        std::iter::once(&new.context).chain(calls()).for_each(|context| hash.text(&fields_out(context)));
    }
    // So are rules and calls that leave nothing to the client.
    if let Some(tools) = &new.rules.client_tools {
        hash.text("client tools");
        hash.number(tools.len() as u64);
        tools.iter().for_each(|tool| hash.text(tool.as_str()));
    }
    if new.calls.iter().any(|call| call.is_clients) {
        hash.text("left to the client");
        new.calls.iter().for_each(|call| hash.number(u64::from(call.is_clients)));
    }
    // So are calls that need not be streamed.
    if new.calls.iter().any(|call| call.must_stream) {
        hash.text("streamed");
        new.calls.iter().for_each(|call| hash.number(u64::from(call.must_stream)));
    }
    // The conversation is left out: it is derived from requests that earlier releases took without it.
    // So are calls without a delay.
    if new.calls.iter().any(|call| call.not_before.is_some()) {
        hash.text("delays");
        new.calls.iter().for_each(|call| hash.number(call.not_before.map_or(u64::MAX, |until| until.0)));
    }
    hash_priorities(&mut hash, new);
    if let Some(parent) = &new.parent {
        hash.text("parent");
        hash.text(&parent.run.to_string());
        hash.text(parent.call.as_str());
    }
    hash.end()
}

/// Requests that set no priority are left out of the hash, as default rules.
fn hash_priorities(hash: &mut Hash, new: &NewRun) {
    let calls = || new.calls.iter().map(|call| call.priority);
    if new.rules.priority == Priority::default() && calls().all(|priority| priority.is_none()) {
        return;
    }
    hash.text("priorities");
    for priority in std::iter::once(Some(new.rules.priority)).chain(calls()) {
        hash.number(match priority {
            None => 0,
            Some(Priority::Low) => 1,
            Some(Priority::Normal) => 2,
            Some(Priority::High) => 3,
        });
    }
}

/// Without approvals nothing is added, so that requests from before approvals existed keep their digest.
fn add_approved(hash: &mut Hash, approved: &Approved) {
    match approved {
        Approved::None => {}
        Approved::All => hash.text("all approved"),
        Approved::These(calls) => {
            hash.text("approved");
            calls.iter().for_each(|call| hash.text(call.as_str()));
        }
    }
}

/// Default rules are left out of the hash, so that requests from before rules existed keep their digest.
fn hash_rules(hash: &mut Hash, new: &NewRun) {
    let confirm = confirm(new);
    if (Rules { priority: Priority::default(), confirm, ..new.rules.clone() }) == Rules::default() {
        return;
    }
    let Rules { running_max, calls_max, fails_with_call, .. } = new.rules;
    let numbers = [confirm.map(u16::from), running_max, calls_max];
    hash.text("rules");
    numbers.iter().for_each(|number| hash.number(number.map_or(u64::MAX, u64::from)));
    hash.number(u64::from(fails_with_call));
}

/// The rule on approvals. A redrive that another caller repeats is the same request, although one may waive an approval
/// and the other may not.
fn confirm(new: &NewRun) -> Option<bool> {
    if new.redrives { Some(false) } else { new.rules.confirm }
}

/// Limits that are not set are left out of the hash, as default rules.
fn hash_limits(hash: &mut Hash, rules: &Rules) {
    let max = |max: Option<u16>| max.map_or(u64::MAX, u64::from);
    if rules.calls_max_of_tool.is_some() || rules.calls_max_of.is_some() {
        hash.text("calls of tools");
        hash.number(max(rules.calls_max_of_tool));
        hash.number(rules.calls_max_of.as_ref().map_or(0, |all| all.len() as u64));
        for (tool, of_tool) in rules.calls_max_of.iter().flat_map(|all| all.iter()) {
            hash.text(tool.as_str());
            hash.number(max(*of_tool));
        }
    }
    if let Some(bytes) = rules.output_bytes_max {
        hash.text("output bytes");
        hash.number(bytes.get());
    }
}

fn hash_calls(hash: &mut Hash, calls: &[RequestedCall]) {
    hash.number(calls.len() as u64);
    for call in calls {
        hash.text(call.id.as_ref().map_or("", CallId::as_str));
        hash.text(call.tool.as_str());
        hash.bytes(&call.arguments);
        hash.number(call.metadata.len() as u64);
        for (key, value) in &call.metadata {
            hash.text(key);
            hash.text(value);
        }
        hash.time(call.timeout);
        hash.time(call.queue_timeout);
        hash.number(u64::from(call.without_worker == WithoutWorker::Fail));
        hash.number(match call.concurrency {
            None => 0,
            Some(Concurrency::Parallel) => 1,
            Some(Concurrency::Exclusive) => 2,
        });
        hash.number(call.approval.map_or(0, |approval| match approval.default {
            DefaultDecision::Reject => 1,
            DefaultDecision::Approve => 2,
        }));
        hash.time(call.approval.and_then(|approval| approval.timeout));
    }
}
