//! State outside the log that the owner needs. The coordinator provides it from its registry, its lease and its quotas;
//! the simulation has its own.

use std::time::Duration;

use run::{Call, CallError, CallSpec, PoolId, Run, Shard, TenantId, WorkerId};

/// How long a worker's heartbeats may be missing before the worker is taken for lost.
pub const WORKER_LOST: Duration = Duration::from_secs(6);
/// How long a job may stay unacknowledged, and so the longest silence of a worker that holds it.
pub const JOB_LEASE: Duration = Duration::from_secs(30);

/// The workers that are alive, and the tools that they host.
pub trait Workers {
    /// Whether heartbeats have been received for long enough: then a worker without one is not alive.
    fn are_known(&self) -> bool;
    /// Whether a worker of the pool is alive.
    fn is_alive(&self, pool: &PoolId, worker: &WorkerId) -> bool;
    /// How many living workers take the call, whose tool is listed for the tenant.
    fn takers(&self, call: &CallSpec, tenant: Option<&TenantId>) -> usize;
    /// Whether workers may keep a job of the call for a while before they store a start, because the number of its
    /// tool's calls in one worker is limited.
    fn keeps_unstarted(&self, call: &CallSpec, tenant: Option<&TenantId>) -> bool;
}

/// Whether a call may be dispatched, if the calls of its tenant or tool that run at once are limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// The call may be dispatched.
    Free,
    /// All slots are taken. When one becomes free, the driver checks the run again.
    Full,
    /// A limit was set, and the calls that run were not counted yet.
    Uncounted,
}

/// Queries of the owner while it decides.
pub trait World {
    type Workers: Workers;

    fn workers(&self) -> &Self::Workers;
    /// Whether the shard's lease is held and has not run out.
    fn holds(&self, shard: Shard) -> bool;
    /// Takes a concurrency slot for a call, or notes that its run waits for one.
    fn take_slot(&self, run: &Run, call: &Call) -> Slot;
    /// Why a call must not be dispatched: its caller's permissions may have changed since it was accepted.
    fn denial(&self, run: &Run, call: &Call) -> Option<CallError>;
    /// Whether the call's tool is paused.
    fn is_tool_paused(&self, call: &CallSpec) -> bool;
    /// Whether the pool's queue is paused.
    fn is_pool_paused(&self, pool: &PoolId) -> bool;
}
