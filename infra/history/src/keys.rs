//! The keys of a shard's database. A run is found by one key, so that the filters of the files can tell that it is not
//! there.

use run::{RunId, Shard, TenantId};
use uuid::Uuid;

/// How far the history goes.
pub(crate) const POSITION: &[u8] = b"p";
/// What the keys of all runs begin with.
pub(crate) const RUNS: &[u8] = &[RUN];
const RUN: u8 = b'r';
const TENANT: u8 = b't';
/// Follows a tenant, whose name has no such byte.
const END: u8 = 0;

pub(crate) fn bytes(run: RunId) -> [u8; 16] {
    *run.uuid().as_bytes()
}

pub(crate) fn run(run: RunId) -> Vec<u8> {
    let mut key = vec![RUN];
    key.extend(bytes(run));
    key
}

/// A further part of a run; they begin with 1.
pub(crate) fn part(id: RunId, part: u32) -> Vec<u8> {
    let mut key = run(id);
    key.extend(part.to_be_bytes());
    key
}

/// The key of a tenant's run, or what the keys of all of them begin with.
pub(crate) fn of_tenant(tenant: &TenantId, run: Option<RunId>) -> Vec<u8> {
    let mut key = vec![TENANT];
    key.extend(tenant.as_str().as_bytes());
    key.push(END);
    run.into_iter().for_each(|run| key.extend(bytes(run)));
    key
}

/// The run whose bytes these are.
pub(crate) fn id(shard: Shard, bytes: &[u8]) -> Option<RunId> {
    Uuid::from_slice(bytes).ok().map(|uuid| RunId::new(shard, uuid))
}
