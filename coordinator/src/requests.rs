//! Requests that may be sent twice: the key under which a request is known, and what tells it from another one under the
//! same key.

use proto::convert::fields::fields_out;
use run::{CallId, Concurrency, DefaultDecision, RequestId, Rules, RunId, TenantId, ToolName, WithoutWorker};
use sha2::{Digest as _, Sha256};

use crate::runs::NewRun;

pub(crate) type Digest = [u8; 32];

/// The key of a request: a hash, so that any id makes a proper one of the same length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestKey(pub(crate) Digest);

/// Which run a request made, or is about to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) run: RunId,
    pub(crate) digest: Digest,
}

impl RequestKey {
    /// The key of a caller's request. Those of different tenants do not meet.
    pub(crate) fn of(tenant: Option<&TenantId>, id: &RequestId) -> Self {
        Self::new(&["request", tenant.map_or("", TenantId::as_str), id.as_str()])
    }

    /// The key of the request that redrives a call.
    pub(crate) fn redrive(run: RunId, call: &CallId) -> Self {
        Self::new(&["redrive", &run.to_string(), call.as_str()])
    }

    /// The key under which it is noted that a response of the Responses API was deleted.
    pub(crate) fn deleted(response: &str) -> Self {
        Self::new(&["deleted", response])
    }

    fn new(parts: &[&str]) -> Self {
        let mut hash = Hash::default();
        parts.iter().for_each(|part| hash.text(part));
        Self(hash.end())
    }

    /// Its name in the bucket.
    pub(crate) fn name(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What a request asks for, in short: equal for equal requests alone.
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
    // As long as nobody gives any, what was asked before there were rules stays the same.
    if new.rules != Rules::default() {
        let Rules { confirm, running_max, calls_max, fails_with_call } = new.rules;
        let numbers = [confirm.map(u16::from), running_max, calls_max];
        hash.text("rules");
        numbers.iter().for_each(|number| hash.number(number.map_or(u64::MAX, u64::from)));
        hash.number(u64::from(fails_with_call));
    }
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
    hash.number(new.calls.len() as u64);
    for call in &new.calls {
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
    // As long as nobody gives any, what was asked before there were contexts stays the same.
    let calls = || new.calls.iter().map(|call| &call.context);
    if !new.context.is_empty() || calls().any(|context| !context.is_empty()) {
        hash.text("contexts");
        std::iter::once(&new.context).chain(calls()).for_each(|context| hash.text(&fields_out(context)));
    }
    hash.end()
}

/// SHA-256 over parts with their lengths, so that no two lists of parts look alike.
#[derive(Default)]
struct Hash(Sha256);

impl Hash {
    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn number(&mut self, number: u64) {
        self.0.update(number.to_be_bytes());
    }

    fn time(&mut self, time: Option<std::time::Duration>) {
        let nanos = time.map_or(u128::MAX, |time| time.as_nanos());
        self.0.update(nanos.to_be_bytes());
    }

    fn end(self) -> Digest {
        self.0.finalize().into()
    }
}
