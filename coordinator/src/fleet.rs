//! Tools, the pools that host them, live workers, and pauses. Pure snapshots; `nats` keeps them current.

pub(crate) mod facades;
pub(crate) mod paused;
pub(crate) mod pools;
pub(crate) mod registry;
pub(crate) mod search;
