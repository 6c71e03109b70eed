//! Requests that may be sent twice: the key of a request, and the digest that distinguishes different requests with the
//! same key.

use run::{CallId, RequestId, RunId, TenantId};
use sha2::{Digest as _, Sha256};

pub(crate) type Digest = [u8; 32];

/// The key of a request: a hash, so that any id makes a valid key of the same length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestKey(pub(crate) Digest);

/// The run that a request opened, or is about to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) run: RunId,
    pub(crate) digest: Digest,
}

impl RequestKey {
    /// The key of a caller's request. Ids of different tenants do not collide.
    pub(crate) fn of(tenant: Option<&TenantId>, id: &RequestId) -> Self {
        Self::new(&["request", tenant.map_or("", TenantId::as_str), id.as_str()])
    }

    /// The key of the request that redrives a call.
    pub(crate) fn redrive(run: RunId, call: &CallId) -> Self {
        Self::new(&["redrive", &run.to_string(), call.as_str()])
    }

    /// The key that records that a response of the Responses API was deleted.
    pub(crate) fn deleted(response: &str) -> Self {
        Self::new(&["deleted", response])
    }

    /// The key that records the run of a call of an MCP session, by the id of its request.
    pub(crate) fn mcp_call(session: &str, id: &str) -> Self {
        Self::new(&["mcp-call", session, id])
    }

    /// The key with the secret that seals the states of MCP requests in this hour.
    pub(crate) fn seal(hour: u64) -> Self {
        Self::new(&["mcp-seal", &hour.to_string()])
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

/// SHA-256 over parts with their lengths, so that different lists of parts never have the same input.
#[derive(Default)]
pub(crate) struct Hash(Sha256);

impl Hash {
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.0.update(number.to_be_bytes());
    }

    pub(crate) fn time(&mut self, time: Option<std::time::Duration>) {
        let nanos = time.map_or(u128::MAX, |time| time.as_nanos());
        self.0.update(nanos.to_be_bytes());
    }

    pub(crate) fn end(self) -> Digest {
        self.0.finalize().into()
    }
}
