//! The coordinator at the broker: the log, shard leases, advertisements, and the core subjects between it and workers.

pub(crate) mod feed;
pub(crate) mod journal;
pub(crate) mod leases;
pub(crate) mod setup;
pub(crate) mod signals;
pub(crate) mod tools;
